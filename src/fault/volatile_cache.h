// VolatileCache: a drive's write cache without a battery, for emulated power cuts.
//
// Killing the process keeps the kernel's page cache, so what a power cut would lose has to be kept
// away from the device below: writes stay in memory here until a flush or FUA covers them, or until
// there are so many that the oldest are written back. cut_power() draws from a seed which of them
// reach the medium: each is kept, dropped or torn between blocks, in any order, or as PowerLoss
// says. Operations in flight at that moment fail with kNotReady; the drive then goes on with what
// is on the medium, and a second cut may come at any time, also before the first has settled.
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
  // A run of blocks whose newest content is in `record`.
  struct Piece {
    Lba end = 0;
    RecordPointer record;
  };
  struct Run {
    Extent extent;
    RecordPointer record;
  };

  Task<Completion> submit_cached(Request request);
  Task<Completion> read_cached(Request request);
  Task<Completion> change(Request request);
  Task<Completion> flush_cached(Request request);
  Task<Error> make_room();
  // Under the mutex: the newest content of these blocks, as far as it is of records up to
  // `sequence`, is brought to the device below.
  Task<Error> write_back(Extent extent, std::uint64_t sequence, bool force_unit_access,
                         std::uint64_t power_cycle);
  Task<Error> write_run(Run run, bool force_unit_access);
  Task<void> settle(std::uint64_t power_cycle);

  void remember(RecordPointer record);
  void forget(const RecordPointer& record);
  void cut_out(const Extent& extent);
  void drop_pieces(const Run& run);
  std::vector<Run> runs_in(const Extent& extent, std::uint64_t sequence) const;
  std::vector<Run> draw_survivors(PowerLoss loss, Random random) const;
  static std::vector<Run> tear(const RecordPointer& record, Random& random);

  VolatileCacheOptions options_;
  mutable Geometry shown_geometry_;
  std::deque<RecordPointer> records_;  // Every change not flushed, oldest first.
  std::map<Lba, Piece> pieces_;        // What readers see of them.
  std::size_t volatile_bytes_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t flushed_sequence_ = 0;
  std::uint64_t power_cycle_ = 0;
  std::vector<Run> survivors_;  // Of a cut, until they are on the device below.
  bool settling_ = false;
  bool reordering_ = false;
  Mutex write_back_mutex_;
  Buffer staging_;  // For write-back, so that it goes on when the pool has nothing left.
  std::size_t at_below_ = 0;
  Condition changed_;
};

}  // namespace sandbay::fault
