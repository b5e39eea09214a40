// VolatileCache: a drive's write cache without a battery, for emulated power cuts.
//
// Killing the process keeps the kernel's page cache, so what a power cut would lose has to be kept
// away from the device below: writes stay in memory here until a flush or FUA covers them, or until
// there are so many that the oldest are written back. cut_power() draws from a seed which of them
// reach the medium: each is kept, dropped or torn between blocks, in any order, or as PowerLoss
// says. Operations in flight at that moment fail with kNotReady; the drive then goes on with what
// is on the medium, and a second cut may come at any time, also before the first has settled.
//
// Room on the device below is taken before a write is acknowledged: where that is full, the write
// says so, not a flush that can blame only the drive.
//
// What holds: a block is always one that was written there, or was there before; what a completed
// flush or FUA write covers is never lost. The memory of the writes that are kept is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "block/layer.h"
#include "fault/targets.h"
#include "runtime/buffer.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::fault {

struct VolatileCacheOptions {
  std::size_t limit_bytes = std::size_t{16} << 20;  // Of payload; at least 1 MiB.
};

class VolatileCache final : public Layer, public PowerTarget {
 public:
  explicit VolatileCache(BlockDevice& below, VolatileCacheOptions options = {});
  ~VolatileCache() override;  // After settled(). What was not flushed is lost.

  Health health() const noexcept override;
  const Geometry& geometry() const noexcept override;  // Says that there is a volatile cache.
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;
  Task<Completion> submit(Request request) override;

  void cut_power(PowerLoss loss, std::uint64_t seed) override;
  void set_reordering(bool reordering) override { reordering_ = reordering; }
  // Waits until the drive is ready after a cut, and nothing works in the background.
  Task<void> settled();

  std::size_t volatile_bytes() const noexcept { return volatile_bytes_; }
  std::size_t volatile_writes() const noexcept { return records_.size(); }
  std::uint64_t cuts() const noexcept { return power_cycle_; }

 private:
  struct Record;
  using RecordPointer = std::shared_ptr<Record>;
  // A run of blocks, from its key on, whose newest content is in `record`.
  struct Piece {
    Lba end = 0;
    RecordPointer record;
  };
  struct Run {
    Extent extent;
    RecordPointer record;
  };

  Task<Error> ready();  // Waits while a cut settles; kNotReady: another came meanwhile.
  Task<Completion> read_cached(Request request);
  Task<Completion> change(Request request);
  Task<Completion> flush_cached(Request request);
  Task<Error> make_durable(Extent extent, std::uint64_t sequence, std::uint64_t power_cycle);
  Task<Error> flush_all(std::uint64_t sequence, std::uint64_t power_cycle);
  Task<Error> make_room();
  Task<Error> take_room(Extent extent, std::uint64_t power_cycle);
  bool has_room(const Extent& extent) const noexcept {
    return extent.first >= mapped_.first && extent.end() <= mapped_.end();
  }
  // Under the mutex, as are all changes of the device below. Brings the newest content of these
  // blocks to the device: also what was written after the flush that asks for it, because it hides
  // what the flush covers.
  Task<Error> write_back(Extent extent, bool force_unit_access, std::uint64_t power_cycle);
  Task<Error> write_run(Run run, bool force_unit_access);
  Task<void> settle();

  void remember(RecordPointer record);
  void let_go(const RecordPointer& record);  // It may no longer be lost, or has been.
  void cut_out(const Extent& extent);
  void drop_pieces(const Run& run);
  void settle_blocks(const Extent& extent, std::uint64_t sequence);
  std::vector<Run> runs_in(const Extent& extent) const;
  std::vector<Run> draw_survivors(PowerLoss loss, Random random) const;

  VolatileCacheOptions options_;
  mutable Geometry shown_geometry_;
  std::deque<RecordPointer> records_;  // Every change not flushed, oldest first.
  std::map<Lba, Piece> pieces_;        // What readers see of them, until it is below.
  std::size_t volatile_bytes_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t power_cycle_ = 0;
  std::deque<Run> survivors_;  // Of a cut, until they are on the device below.
  bool settling_ = false;
  bool reordering_ = false;
  Error settle_error_ = Error::kNone;  // The device refused what had survived: it is broken.
  Mutex write_back_mutex_;
  Extent mapped_;   // Blocks that have their place below. Not all: those that were looked up last.
  Buffer staging_;  // For write-back, so that it goes on when the pool has nothing left.
  Condition changed_;
};

}  // namespace sandbay::fault
