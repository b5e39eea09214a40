// BlockDevice: the one interface below SCSI. Drives, RAID sets, caches, members, volumes,
// timing models and faults all are one, and stack on one another in any order.
//
// A device has a home executor: submit() is called there and its task ends there. Any number of
// requests may be in flight; they may complete in any order. Two overlapping requests in flight at
// once, one of them a write, have an undefined order; every block is then old or new as a whole.
//
// Operating errors come back in the Completion. Handing a device a request that does not fit its
// geometry is a bug of the caller (SCSI has checked the range) and is asserted.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/buffer.h"
#include "runtime/cancellation.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/task.h"

namespace sandbay {

using Lba = std::uint64_t;

// A run of blocks.
struct Extent {
  Lba first = 0;
  std::uint64_t block_count = 0;

  Lba end() const noexcept { return first + block_count; }
  std::uint64_t byte_count(std::uint32_t block_bytes) const noexcept {
    return block_count * block_bytes;
  }
  bool overlaps(const Extent& other) const noexcept {
    return first < other.end() && other.first < end();
  }
  bool operator==(const Extent&) const = default;
};

enum class Operation : std::uint8_t {
  kRead,         // Fills `data`.
  kWrite,        // Stores `data`.
  kFlush,        // Every write that completed before is on stable storage. Extent is a hint.
  kUnmap,        // The extent's content is no longer needed; it reads as zeros afterwards if
                 // Geometry::unmap_zeroes.
  kWriteZeroes,  // The extent reads as zeros afterwards.
  kAdvise,       // The extent will be read soon. Always succeeds.
};

// Who caused a request, for accounting and priorities.
enum class Origin : std::uint8_t {
  kHost,
  kReadAhead,
  kDestage,
  kRebuild,
  kCopy,
  kVerify,
  kClearing,  // Makes zeros, in the background, of what was there before a volume.
};

struct Request {
  Operation operation = Operation::kRead;
  bool force_unit_access = false;  // FUA: on stable storage before a write completes; a read
                                   // comes from the medium.
  bool disable_page_out = false;   // DPO: not worth keeping in a cache.
  Origin origin = Origin::kHost;
  Extent extent;
  // kRead, kWrite: exactly the extent's bytes, in buffers of the home executor's pool or of any
  // other. Reads fill them; the caller has allocated them, so memory is admitted in one place.
  BufferList data;
  std::uint64_t volume = 0;  // Which volume's I/O this is; 0 where none is concerned.
  TimePoint deadline = kNever;
  Cancellation* cancellation = nullptr;  // Outlives the request; may be null.
};

struct Completion {
  Error error = Error::kNone;
  Lba first_bad_lba = 0;  // With kMediumError and kMiscompare.
  // The request's buffers, given back in every case. A layer that already holds a read's bytes
  // may answer with slices of its own instead.
  BufferList data;
};

struct Geometry {
  std::uint32_t block_bytes = 512;            // Logical block: 512 or 4096.
  std::uint32_t physical_block_bytes = 4096;  // A multiple of block_bytes.
  std::uint64_t block_count = 0;
  std::uint32_t optimal_io_blocks = 0;  // 0: no preference.
  // Several times that, which a cache above drives moves at once. Hosts do not hear of it. 0: the
  // same.
  std::uint32_t unit_blocks = 0;
  std::uint32_t maximum_io_blocks = 0;  // What one request may span; 0: any length.
  bool unmap = false;                   // kUnmap frees space.
  bool unmap_zeroes = false;            // ... and the extent reads as zeros afterwards.
  std::uint32_t unmap_granularity_blocks = 1;
  bool read_only = false;
  bool volatile_cache = true;       // kFlush has something to do.
  bool non_volatile_cache = false;  // Decision 4: NVRAM that survives.
  bool rotational = false;
};

// Whether `request` lies within the device and carries as much data as it says. Devices assert it.
inline bool fits(const Geometry& geometry, const Request& request) {
  const Extent& extent = request.extent;
  if (extent.first > geometry.block_count) return false;
  if (extent.block_count > geometry.block_count - extent.first) return false;
  const bool carries_data =
      request.operation == Operation::kRead || request.operation == Operation::kWrite;
  return !carries_data || request.data.byte_count() == extent.byte_count(geometry.block_bytes);
}

// Why a device of such blocks cannot be made, or an empty text: block sizes are 512 or 4096, a
// physical block is a power of two of logical ones, and a device has at least one block.
std::string block_size_error(std::uint32_t block_bytes, std::uint32_t physical_block_bytes);

enum class Health : std::uint8_t { kGood, kDegraded, kPredictedFailure, kFailed, kMissing };

// A run of blocks in one provisioning state, for GET LBA STATUS.
struct ProvisioningRun {
  std::uint64_t block_count = 0;
  bool mapped = true;
};

class BlockDevice {
 public:
  BlockDevice() = default;
  BlockDevice(const BlockDevice&) = delete;
  BlockDevice& operator=(const BlockDevice&) = delete;
  virtual ~BlockDevice() = default;  // No request is in flight.

  virtual Executor& home() const noexcept = 0;
  virtual const Geometry& geometry() const noexcept = 0;
  virtual Health health() const noexcept = 0;
  // False: every request ends with kNotReady now, but perhaps those that something keeps in memory.
  virtual bool serves() const noexcept { return health() != Health::kMissing; }
  // Hardware that takes modelled time: when the oldest of what it still works on came; kNever: it
  // has nothing to do, or is as fast as the host allows. What came then or later is not late yet.
  virtual TimePoint busy_since() const noexcept { return kNever; }
  // A few words for logs: "file var/quickstart.img", "memory 256 MiB".
  virtual std::string description() const = 0;

  virtual Task<Completion> submit(Request request) = 0;
  // A run of equal state, or a part of one, from `first` (in the device) on, ending by `limit`.
  virtual Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) = 0;

  // Memory in which the payload of a write of so many bytes is best received, because the device
  // would copy it there otherwise; empty: anywhere is as good. Never waits, and leaves room for
  // those who do not ask. Home executor; the buffers go before the device does.
  virtual BufferList write_buffers(std::size_t /*byte_count*/) { return {}; }
};

}  // namespace sandbay
