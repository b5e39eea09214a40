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
// is in flight once at a time. After an error everything stays dirty and is tried again, later and
// later.
#pragma once

#include <cstdint>
#include <vector>

#include "block/block_device.h"
#include "cache/counters.h"
#include "cache/line.h"
#include "cache/stripes.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class Cache;
class CachedDevice;

class Destager {
 public:
  Destager(Cache& cache, CachedDevice& device, BlockDevice& below);
  ~Destager();

  void start();
  Task<void> stop();

  Stripes& stripes() noexcept { return stripes_; }
  // Dirty blocks have been added, or a level has changed.
  void note_write();
  void wake() { changed_.notify_all(); }
  // Everything goes as soon as possible until it is switched off: the battery is not good.
  void set_urgent(bool urgent);

  // Everything that is dirty in the extent now is durable below when this ends with kNone.
  Task<Error> flush(Extent extent);
  // No record that overlaps the extent is live when this ends with kNone; the extent is locked.
  Task<Error> expel(Extent extent);
  // No stripe of the extent is in flight.
  Task<void> wait_for_flights(Extent extent);
  // A flush below that began after the call has ended; units written before are settled.
  Task<Error> make_durable();

  // The last attempt failed, and why; kNone while all is well.
  Error failure() const noexcept { return failure_; }
  // After discard: nothing is left to fail.
  void forget_failure();
  const DeviceCounters& counters() const noexcept { return counters_; }
  DeviceCounters& counters() noexcept { return counters_; }

 private:
  struct Unit;

  Task<void> run();
  Task<void> run_rounds();
  Stripe* pick(TimePoint* wake_at);
  Unit* begin(Stripe& first);
  Task<void> write_unit(Unit* unit);
  Task<void> write_run(Unit* unit, Extent extent, BufferList data);
  void collect_runs(Unit& unit, std::vector<Extent>& runs);
  bool whole_in_cache(const Extent& extent) const;
  void settle(Unit& unit, Error error);
  void clean(const Unit& unit);
  void fail(Error error);
  Task<Error> flush_stripe(Stripe& stripe);

  Cache& cache_;
  CachedDevice& device_;
  BlockDevice& below_;
  Stripes stripes_;
  DeviceCounters counters_;
  std::uint64_t cursor_ = 0;           // The elevator: the stripe behind the last that was begun.
  unsigned in_flight_ = 0;             // Units that are being written.
  std::uint64_t in_flight_bytes_ = 0;  // Of units that are not settled.
  bool urgent_ = false;
  bool stopping_ = false;
  TimePoint last_write_{};
  Condition changed_;     // There may be something to begin.
  Condition landed_;      // A unit has been written or settled, a round has ended.
  Condition round_work_;  // There may be something for a round.
  Gate gate_;

  Unit* first_written_ = nullptr;  // Waiting for a round.
  Unit* last_written_ = nullptr;
  std::uint64_t written_bytes_ = 0;
  TimePoint written_since_{};
  std::uint64_t rounds_wanted_ = 0;
  std::uint64_t rounds_begun_ = 0;
  std::uint64_t rounds_ended_ = 0;
  Error round_error_ = Error::kNone;

  Error failure_ = Error::kNone;
  Duration back_off_{};
  TimePoint retry_at_{};
  std::uint64_t stuck_bytes_ = 0;  // Told to the throttle.
};

}  // namespace sandbay::cache
