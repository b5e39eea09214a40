// PageIo: runs of chunks on the stores, in flight together.
//
// A source is a run of bytes that lies somewhere in one piece, or is zeros. A ReadPlan is where the
// chunks of a page are, with the locks that keep it true. PageIo sends parts of a payload to where
// they belong, all at once, and puts the payload together again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "block/block_device.h"
#include "pool/branch.h"
#include "pool/chunk_locks.h"
#include "pool/place.h"
#include "runtime/sync.h"

namespace sandbay::pool {

class Pool;

// So many chunks, side by side from `slot` on, or zeros.
struct Source {
  bool zeros = true;
  bool through = false;  // With zeros: nobody who was asked says anything of them.
  Slot slot;
  std::uint32_t count = 0;
};

struct ReadPlan {
  std::vector<Source> sources;  // In order.
  std::vector<std::unique_ptr<ChunkLocks::Hold>> holds;

  void add_zeros(std::uint32_t count, bool through);
  void add(Slot slot, std::uint32_t count);
};

// Where the chunks of the range are as `generation` of the branch has them. The caller holds a lock
// of the range there; those of the parents are in the plan. `parents`: how many are
// asked at most. Awaited at once.
inline constexpr std::uint32_t kAllParents = ~std::uint32_t{0};
Task<Error> plan_read(Pool* pool, Branch* branch, Generation generation, ChunkRange range,
                      ReadPlan* plan, std::uint32_t parents = kAllParents);

class PageIo {
 public:
  explicit PageIo(Pool& pool);
  ~PageIo();  // After wait().
  PageIo(const PageIo&) = delete;
  PageIo& operator=(const PageIo&) = delete;

  // Starts an operation on the run of bytes `offset` behind the slot's begin. `like` gives what is
  // not its own: origin, flags, volume, deadline, cancellation. `first_lba` is the volume's block
  // that the run begins with, for errors.
  void start(const Request& like, Operation operation, Slot slot, std::uint64_t offset,
             BufferList data, Lba first_lba);
  // A run that is only zeros, in the order of the others.
  void add_zeros(BufferList data);
  // Starts a flush of a whole store.
  void start_flush(const Request& like, BlockDevice* device);
  // Ends when all have ended. The payloads in the order of their starts, the first error in it.
  Task<Completion> wait();

 private:
  struct Part;
  Task<void> run(Part* part, BlockDevice* device, Request request);

  Pool& pool_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::size_t running_ = 0;
  Event ended_;
};

// What makes a write to the store durable before it ends: nothing, where nothing is volatile.
bool needs_force(const BlockDevice& device) noexcept;

// Flushes the stores that have pages of one of these branches, all at once. `forced_only`: but
// those that need no force. kNotReady: one of them is missing. Awaited at once.
Task<Completion> flush_stores(Pool* pool, std::span<Branch* const> branches, const Request* like,
                              bool forced_only);

}  // namespace sandbay::pool
