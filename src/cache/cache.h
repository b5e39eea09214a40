// Cache: a controller's cache. It owns the memory, the lines and the room for dirty data that all
// its devices share; each RAID set has a CachedDevice above it (cached_device.h).
//
// Memory: clean data live in a pool of fixed size. Dirty data live in the write memory where there
// is NVRAM, and otherwise in the pool too, up to a limit of their own. Whoever gets slices of
// cached data may keep them as long as he likes; while the pool is full for that reason, reads and
// writes pass the cache by, and nothing fails or waits.
//
// Everything here belongs to the controller's executor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/counters.h"
#include "cache/dirty.h"
#include "cache/eviction.h"
#include "cache/line_index.h"
#include "cache/mode.h"
#include "cache/throttle.h"
#include "cache/write_memory.h"
#include "runtime/buffer.h"
#include "runtime/sync.h"
#include "runtime/uuid.h"

namespace sandbay::cache {

class CachedDevice;

struct CacheOptions {
  std::size_t memory_bytes = std::size_t{256} << 20;  // Of the pool: a hard limit.
  // Dirty data without NVRAM; with it, the size of its data area counts. Less than memory_bytes.
  std::size_t dirty_limit_bytes = std::size_t{64} << 20;
  double low_watermark = 0.5;    // Of the room for dirty data: full stripes are destaged above it,
  double high_watermark = 0.75;  // ... and anything is; writers are slowed down.
  Duration age_limit = std::chrono::seconds(10);     // Dirty data is destaged when it is so old,
  Duration idle_flush = std::chrono::seconds(2);     // ... or when nobody has written for so long.
  std::size_t destage_bytes = std::size_t{1} << 20;  // At most in one write, or else one stripe.
  unsigned destages_in_flight = 8;                   // Of each device.
  std::size_t read_ahead_limit_bytes = std::size_t{32} << 20;  // In flight.
  Content content = Content::kBytes;                           // Data-less: without NVRAM.
  double read_ahead_share = 0.25;  // Of the memory: what was read ahead and not asked for yet.
};

// A flush of one volume that is under way below, and everybody who waits for it.
struct VolumeFlush {
  std::uint64_t covers = 0;  // Changes that had been made when it began.
  bool ended = false;
  Error error = Error::kNone;
  Condition changed;
};

// Changes of a volume that have passed the cache to a device, and how many of them a flush of this
// volume has covered there. The first is for all that the volume wrote before the cache was there.
struct PassedChanges {
  std::uint64_t made = 1;
  std::uint64_t flushed = 0;
  std::shared_ptr<VolumeFlush> flush;  // The last one that began.
};

// What is kept of a volume.
struct VolumeState {
  Mode mode = Mode::kWriteBack;
  VolumeCounters counters;
  Throttle::Queue queue;
  std::map<std::uint16_t, PassedChanges> passed;  // By the device's index.
  unsigned users = 0;                             // Requests that wait for something.
  bool gone = false;                              // To be forgotten after the last of them.
};

// Blocks of a device, and the volume of which they were written.
struct VolumeExtent {
  std::uint64_t volume = 0;
  Extent extent;
  bool operator==(const VolumeExtent&) const = default;
};

class Cache {
 public:
  // Of a request that waits: its volume is not forgotten meanwhile.
  class VolumeUse {
   public:
    VolumeUse(Cache& cache, std::uint64_t volume) noexcept
        : cache_(cache), number_(volume), state_(cache.volume_state(volume)) {
      ++state_.users;
    }
    VolumeUse(const VolumeUse&) = delete;
    VolumeUse& operator=(const VolumeUse&) = delete;
    ~VolumeUse() {
      if (--state_.users == 0 && state_.gone) [[unlikely]]
        cache_.forget_volume(number_);
    }
    VolumeState& state() const noexcept { return state_; }

   private:
    Cache& cache_;
    std::uint64_t number_;
    VolumeState& state_;
  };

  // Borrows the write memory, which may be null: then what is dirty is lost with the process.
  Cache(Executor& home, CacheOptions options, WriteMemory* write_memory = nullptr);
  ~Cache();  // After close() or stop().
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // What the write memory has recovered, in its order, before the devices are added. A device takes
  // what is its own when it is added; what nobody has taken is in waiting_writes(), and counts as
  // dirty data that is stuck.
  void adopt(std::vector<RecoveredWrite> writes);
  const std::vector<RecoveredWrite>& waiting_writes() const noexcept { return recovered_; }
  // By an administrator's explicit command: forgets what waits for that device. What it was.
  std::vector<VolumeExtent> discard_waiting(const Uuid& uuid);
  // A device above `below`, which is borrowed and whose home is this one. `uuid` names it in the
  // NVRAM. Destaging gives it `stripes_at_once` of its stripes together. It lives as long as the
  // cache. Called on the home executor.
  CachedDevice& add_device(const Uuid& uuid, BlockDevice& below, std::uint32_t stripes_at_once = 1);
  // Destages everything; no request is in flight and none comes. The first error of a device; what
  // could not be destaged stays in the NVRAM, if there is one.
  Task<Error> close();
  // Ends what runs in the background and leaves what is dirty as it is: to the NVRAM.
  Task<void> stop();

  // Called with what is found to be damaged before it is destaged. It ends with kNone when that is
  // durably noted, and the device below, if it can, reads it as a medium error; then the blocks are
  // not dirty any more. Until then they stay, and it is asked again. Without it they read as medium
  // errors as long as the cache lives. By value: it may outlive the caller.
  std::function<Task<Error>(Uuid device, std::vector<VolumeExtent> damaged)> on_damaged;

  // Called when a device's dirty data cannot be brought below any more, and when they can again.
  std::function<void(Uuid device)> on_failing;

  void set_mode(std::uint64_t volume, Mode mode) {
    VolumeState& state = volume_state(volume);
    state.mode = mode;
    state.gone = false;
  }
  VolumeState& volume_state(std::uint64_t volume);
  // The volume is gone; requests of it that are in flight end as they would.
  void forget_volume(std::uint64_t volume);
  const std::unordered_map<std::uint64_t, VolumeState>& volumes() const noexcept {
    return volumes_;
  }
  const std::vector<std::unique_ptr<CachedDevice>>& devices() const noexcept { return devices_; }
  CacheCounters counters() const;

  Executor& home() const noexcept { return home_; }
  const CacheOptions& options() const noexcept { return options_; }
  Throttle& throttle() noexcept { return throttle_; }
  WriteMemory* write_memory() const noexcept { return write_memory_; }

  // For the devices. ------------------------------------------------------------------------------

  // Memory for so many bytes of clean data; empty if there is none even after evictions.
  BufferList allocate(std::uint64_t byte_count);
  // What a write takes of the room for dirty data.
  std::uint64_t room_for_write(std::uint64_t byte_count) const noexcept;
  // Memory for the payload of a write, in the write memory where there is one.
  BufferList allocate_for_write(std::uint64_t byte_count);
  // The same for one who waits, first come first served, until dirty data is released; but not for
  // ever: empty after a second, when patience has ended, or at once where all that may come free is
  // too little, for slow readers have the rest.
  Task<BufferList> wait_for_write(std::uint64_t byte_count, Patience patience);
  // The same for a payload that has yet to come, and may never: in the write memory only, and only
  // as long as half of it is left for what is there already.
  BufferList allocate_for_payload(std::uint64_t byte_count);
  // Answers to readers that are not sent yet have so much of the write memory that they get no
  // more.
  bool lent_too_much() const noexcept;
  bool short_of_room() const noexcept { return first_room_waiter_ != nullptr; }

  Line* find(std::uint64_t key) const noexcept { return index_.find(key); }
  // Finds the line or makes it; null if all lines are in use, unless `always`. settle() follows.
  Line* obtain(CachedDevice& device, std::uint64_t key, std::uint64_t number, bool always);
  // Puts the line where it belongs after its segments or its pins have changed: to the eviction
  // policy, away from it, or out of the index if it is of no use any more.
  void settle(Line& line, Hint hint = Hint::kNormal);
  void pin(Line& line) noexcept;
  void unpin(Line& line, Hint hint = Hint::kNormal);
  void note_hit(Line& line, Range range);
  void note_read_ahead(Line& line, Range range, VolumeState& volume);
  void drop_unread(Line& line, Range range);
  // Takes the range out of the line; dirty blocks in it count as overwritten. How many were dirty.
  unsigned cut_out(Line& line, Range range);
  // Releases what may go now that blocks of the line are clean or overwritten.
  void check_releases(Line& line);

  void wake_destagers();
  // Clean data in the write memory: what is below is the same, and certain.
  void forget_clean_writes();

  LineIndex& index() noexcept { return index_; }
  std::uint64_t next_sequence() noexcept { return ++sequence_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  // Room for reading ahead; given back by end_read_ahead().
  bool begin_read_ahead(std::uint64_t byte_count);
  void end_read_ahead(std::uint64_t byte_count) noexcept { ahead_in_flight_ -= byte_count; }

 private:
  struct RoomWaiter {  // In wait_for_write(), in order of arrival.
    RoomWaiter* next = nullptr;
    Condition turn;  // A record has been released, or it has become the first.
  };

  std::uint64_t room_of(const RecoveredWrite& write) const noexcept;
  void end_waiting(std::uint64_t room, std::uint64_t bytes);
  std::uint64_t stuck_payload_bytes() const noexcept;  // Of held_bytes().
  bool may_come(std::uint64_t byte_count) const noexcept;
  void leave_room_queue(RoomWaiter& waiter);
  void wake_room_waiter();
  BufferList try_allocate(BufferPool& pool, std::uint64_t byte_count, std::size_t most_slices,
                          bool (Cache::*make_room)());
  bool evict_one();
  void prefetch_victims() const noexcept;
  bool reclaim_write_memory();
  void drop(Line& line);
  void list_clean(Line& line, std::uint32_t clean_bytes);
  void forget_old_unread(std::uint64_t most_unread);
  void abandon_records();
  void release(DirtyRecord* record);

  Executor& home_;
  CacheOptions options_;
  WriteMemory* write_memory_;
  BufferPool pool_;
  Eviction eviction_;
  LineIndex index_;
  Throttle throttle_;
  Releases releases_;
  std::unordered_map<std::uint64_t, VolumeState> volumes_;
  std::uint64_t last_volume_id_ = 0;
  VolumeState* last_volume_ = nullptr;
  std::vector<std::unique_ptr<CachedDevice>> devices_;
  std::vector<RecoveredWrite> recovered_;
  std::uint64_t waiting_bytes_ = 0;  // Of these.
  std::optional<nvram::Battery::Observer> battery_;
  RoomWaiter* first_room_waiter_ = nullptr;
  RoomWaiter* last_room_waiter_ = nullptr;
  Line* first_clean_ = nullptr;  // Lines with clean segments in write memory.
  Line* last_clean_ = nullptr;
  std::uint64_t clean_bytes_ = 0;  // Of theirs in write memory.
  std::uint64_t sequence_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t ahead_in_flight_ = 0;
  std::uint64_t ahead_unread_ = 0;
};

}  // namespace sandbay::cache
