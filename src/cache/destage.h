// Destager: brings a device's dirty blocks below, in large writes and in order of address.
//
// A unit is one or more whole stripes: all their dirty blocks are written, and if the stripe's
// other blocks are cached too, the stripe is written as a whole. After its writes a unit waits for
// the next round: one flush below covers all units written before it began, and only then their
// blocks are clean and their records released. So blocks are dirty in every respect until they are
// durable.
//
// Full stripes go as soon as the level is above the low watermark; partial ones when it is above
// the high one, when they are old or the device is idle, and when a flush asks for them. A stripe
// is in flight once at a time. What stands in the write memory is checked before it goes below
// (destage_damage.cc). After an error everything stays dirty and is tried again, later and
// later.
#pragma once

#include <cstdint>
#include <vector>

#include "block/block_device.h"
#include "cache/counters.h"
#include "cache/line.h"
#include "cache/patience.h"
#include "cache/stripes.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class Cache;
class CachedDevice;

// Names the destager's own writes and flushes below. A device that has lost what was not flushed
// says so once to each volume that wrote. The destager hears its own report, and destages again; it
// must not hear a host's.
constexpr std::uint64_t kDestagerVolume = ~std::uint64_t{0};

class Destager {
 public:
  Destager(Cache& cache, CachedDevice& device, BlockDevice& below);
  ~Destager();

  void start();
  Task<void> stop();  // What is dirty then stays so.

  Stripes& stripes() noexcept { return stripes_; }
  // Blocks of the extent, none of them dirty before, have become dirty.
  void note_write(const Extent& extent);
  void wake() { changed_.notify_all(); }
  // Everything goes as soon as possible until it is switched off: the battery is not good.
  void set_urgent(bool urgent);

  // Everything that is dirty in the extent now is durable below when this ends with kNone. What was
  // begun goes on when patience ends.
  Task<Error> destage(Extent extent, Patience patience = {});
  // No record that overlaps the extent is live, and none will come back from the NVRAM, when this
  // ends with kNone, and nothing there is in flight. The caller has locked the extent.
  // `left`: see WriteMemory::flush_releases().
  Task<Error> expel(Extent extent, Patience patience = {}, std::uint64_t left = 0);
  // Nothing in the extent is in flight that was when this began, or patience has ended.
  Task<void> wait_for_flights(Extent extent, Patience patience = {});
  // Begins nothing and lets what is in flight land, until resume().
  Task<void> pause();
  void resume();

  // Why an attempt failed; kNone while there is no stripe whose last one did.
  Error failure() const noexcept { return failure_; }
  void forget_failure();  // What failed is not wanted any more.
  // The failing device has more or less that cannot be destaged.
  void update_stuck();
  const DeviceCounters& counters() const noexcept { return counters_; }
  DeviceCounters& counters() noexcept { return counters_; }

 private:
  struct Unit;
  // Blocks that are dirty with this record's bytes, and those are damaged.
  struct Damage {
    Extent extent;
    std::uint64_t volume = 0;
    std::uint64_t record = 0;  // Its sequence.
  };

  Task<void> run();
  Task<void> run_rounds();
  bool urgent() const noexcept;
  bool content_gone() const noexcept;  // Of the write memory.
  bool may_begin() const noexcept;
  Request round_flush() const;
  bool round_is_due() const noexcept;
  bool round_is_wanted() const noexcept;
  Stripe* pick(TimePoint* wake_at);
  Stripe* next_idle(std::uint64_t number, std::uint64_t young);
  Unit* begin(Stripe& first);
  Task<void> write_unit(Unit* unit);
  void begin_runs(Unit* unit);
  Task<void> write_run(Unit* unit, Extent extent, BufferList data);
  Extent next_run(const Unit& unit, Lba from, bool whole);
  bool whole_in_cache(const Extent& extent) const;
  BufferList content_of(const Extent& extent) const;
  DirtyPart* first_record_in(const Extent& extent);
  Error failed_since(const Extent& extent, std::uint64_t flights, bool landed);
  // destage_damage.cc
  std::vector<Damage> find_damage(const Unit& unit);
  Task<Error> check_content(Unit* unit);
  void drop_damaged(const Damage& damage);
  void settle(Unit* unit, Error error);
  void clean(const Unit& unit);
  void fail(Error error);

  Cache& cache_;
  CachedDevice& device_;
  BlockDevice& below_;
  Stripes stripes_;
  DeviceCounters counters_;
  std::uint64_t cursor_ = 0;           // The elevator: behind the last stripe that was begun.
  unsigned in_flight_ = 0;             // Units that are being written.
  std::uint64_t in_flight_bytes_ = 0;  // Of units that are not settled.
  unsigned waiting_ = 0;               // Those who wait for units to be settled.
  unsigned paused_ = 0;
  bool urgent_ = false;
  bool stopping_ = false;
  TimePoint last_write_{};
  Condition changed_;     // There may be something to begin.
  Condition landed_;      // A unit has been written or settled, a round has ended.
  Condition round_work_;  // There may be something for a round.
  Gate gate_;

  // Units that wait for a round.
  Unit* first_written_ = nullptr;
  Unit* last_written_ = nullptr;
  std::uint64_t written_bytes_ = 0;
  TimePoint written_since_{};

  Error failure_ = Error::kNone;
  std::uint64_t failures_ = 0;
  Duration back_off_{};
  TimePoint retry_at_{};
  std::int64_t stuck_bytes_ = 0;  // Told to the throttle.
};

}  // namespace sandbay::cache
