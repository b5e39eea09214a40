// AtomicWrites: writes of one unit that are done whole or not at all, whatever happens to the
// device, the daemon, the host or the power (SBC-4 4.30).
//
// The unit's store keeps what the blocks were until the device has the new ones on stable storage.
// Blocks that it still has at a start, or when the device fails, are put back, again and again
// until the device takes them; nobody reads or writes there meanwhile. Lives on the device's home.
//
//   Place place(writes);                  one of kMostAtOnce
//   co_await place.come(cancellation);
//   ... nobody else changes the blocks from here on ...
//   co_await writes.keep(before);         durable
//   co_await writes.write(extent, ...);   new or, if it fails, old again, or torn
//   co_await writes.drop(first);          unless torn: only now is it done
#pragma once

#include <cstddef>
#include <vector>

#include "block/block_device.h"
#include "runtime/cancellation.h"
#include "runtime/sync.h"
#include "runtime/task.h"
#include "scsi/unit_store.h"

namespace sandbay::scsi {

class AtomicWrites {
 public:
  // One write; how many a unit's store keeps at a time, and how many wait for that.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  static constexpr unsigned kMostAtOnce = 4;
  static constexpr unsigned kMostWaiting = 32;

  explicit AtomicWrites(BlockDevice& device) : device_(device) {}  // Borrows the device.
  AtomicWrites(const AtomicWrites&) = delete;
  AtomicWrites& operator=(const AtomicWrites&) = delete;

  // Before it is used: the store outlives it. On any executor; resume() puts back what was kept.
  void restore(UnitStore& store, std::vector<BlocksBefore> kept);
  Task<void> resume();

  bool offered() const noexcept { return store_ != nullptr; }
  // Some blocks are neither new nor old: these, and at a start until each has been tried, all.
  bool settled() const noexcept { return torn_.empty(); }
  bool starts() const noexcept { return starts_; }
  bool is_torn(const Extent& extent) const noexcept;

  class Place {
   public:
    explicit Place(AtomicWrites& writes) : writes_(writes) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place();
    // False: too many wait, the wait was cancelled, or the unit is being closed.
    Task<bool> come(Cancellation& cancellation);

   private:
    AtomicWrites& writes_;
    bool has_come_ = false;
  };

  // After kTimedOut it is to be dropped, too: the store may have it all the same.
  Task<Error> keep(BlocksBefore before);
  // Not to be cancelled: a device that has begun may have written a part.
  Task<Completion> write(Extent extent, BufferList data, BlocksBefore before);
  // False: the unit is being closed, and the next start puts the old blocks back.
  Task<bool> drop(Lba first);

  // The device has other content, or is about to: writes under way neither take effect nor are
  // undone. Torn blocks stay out of reach until the store has dropped them.
  void content_replaced();
  // Blocks behind the end are no longer to be put back.
  void capacity_changed();
  // Nobody has a place any more; or nothing of a write is left at all. False: not by then.
  Task<bool> drain(TimePoint deadline);
  Task<bool> settle(TimePoint deadline);
  void cancel();
  Task<bool> close(TimePoint deadline);  // After cancel().

 private:
  struct Torn {
    BlocksBefore before;
    bool is_void = false;  // Only dropped.
  };
  Extent extent_of(const BlocksBefore& before) const noexcept;
  void clip(BlocksBefore& before) const;
  Task<Completion> put(Extent extent, BufferList data);
  Task<bool> put_back(BlocksBefore before);
  Task<bool> put_back_run(Extent extent, std::vector<std::byte> data, unsigned content);
  Task<void> mend();

  BlockDevice& device_;
  UnitStore* store_ = nullptr;  // Null: there are none.
  std::vector<Torn> torn_;      // Erased by mend() alone.
  bool starts_ = false;
  bool mends_ = false;
  unsigned contents_ = 0;  // How often it has been replaced.
  std::vector<Cancellation*> under_way_;
  unsigned places_ = 0;
  unsigned waiting_ = 0;
  Condition left_;
  Condition again_;  // Ends pauses.
  Cancellation closing_;
  Gate gate_;
};

}  // namespace sandbay::scsi
