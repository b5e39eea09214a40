// DriveModel: a drive's schedule in modelled time. Pure calculation: no clock, no waiting, no data.
//
// A command arrives at a modelled time; the model decides what the drive does next at the very
// moment at which the drive becomes free, out of what has arrived by then, however much later it is
// asked. So advance() may be called as seldom or as often as one likes, and the ends come out the
// same. Nobody may ask for a time that is still open: commands of before `now` come before
// advance(now). One that comes late all the same takes part in the next decision.
//
// The caller owns the commands; they stand still from arrive() until take_ended() or withdraw().
#pragma once

#include <cstdint>
#include <vector>

#include "block/block_device.h"
#include "model/disk_layout.h"
#include "model/drive_profile.h"
#include "runtime/clock.h"

namespace sandbay::model {

inline constexpr Nanoseconds kNeverNanoseconds = kNever.time_since_epoch().count();
constexpr Nanoseconds in_nanoseconds(TimePoint time) { return time.time_since_epoch().count(); }
constexpr TimePoint at_nanoseconds(Nanoseconds time) { return TimePoint(Duration(time)); }

// How long `byte_count` take at `rate` bytes a second, rounded up.
constexpr Nanoseconds transfer_time(std::uint64_t byte_count, std::uint64_t rate) {
  // Two steps, so that nothing overflows below 16 EiB.
  const std::uint64_t whole = byte_count / rate;
  const std::uint64_t rest = byte_count % rate;
  const double fraction = static_cast<double>(rest) * 1e9 / static_cast<double>(rate);
  return static_cast<Nanoseconds>(whole * 1'000'000'000) + static_cast<Nanoseconds>(fraction + 0.5);
}

struct DriveCommand {
  Operation operation = Operation::kRead;
  bool force_unit_access = false;
  std::uint64_t sector = 0;        // Of 512 bytes. The run lies within the drive;
  std::uint64_t sector_count = 0;  // it may be empty, and is not looked at for a flush.
  TimePoint arrival{};
  TimePoint end = kNever;  // Known once it has ended.

  // The model's own.
  enum class Kind : std::uint8_t { kHost, kBackground, kDestage };
  enum class Stage : std::uint8_t { kNone, kIncoming, kWaiting, kForRoom, kFlushing, kEnding };
  Kind kind = Kind::kHost;
  Stage stage = Stage::kNone;
  bool may_skip_mechanism = false;
  std::uint64_t number = 0;  // In order of arrive().
  Nanoseconds ready = 0;

  std::uint64_t byte_count() const noexcept { return sector_count * kSectorBytes; }
};

// What a drive did, and where its mechanism's time went.
struct DriveCounters {
  std::uint64_t commands = 0;
  std::uint64_t cache_hits = 0;  // Reads that needed no mechanism.
  std::uint64_t background = 0;  // Commands of the background load.
  Duration seeking{};
  Duration rotating{};
  Duration transferring{};  // In a solid-state drive, its units' average.

  Duration busy() const noexcept { return seeking + rotating + transferring; }
};

class DriveModel {
 public:
  DriveModel() = default;
  DriveModel(const DriveModel&) = delete;
  DriveModel& operator=(const DriveModel&) = delete;
  virtual ~DriveModel() = default;

  virtual std::uint64_t sector_count() const noexcept = 0;
  virtual bool rotational() const noexcept = 0;

  virtual void arrive(DriveCommand& command) = 0;
  // Takes the decisions that are due by `now`.
  virtual void advance(TimePoint now) = 0;
  // When to advance() next, so that no command is told later than it ends (those from the cache by
  // a few microseconds at most); kNever if none is outstanding. Earlier does no harm.
  virtual TimePoint next_event() const noexcept = 0;
  // Nobody waits for it any more; what the mechanism has begun, it finishes.
  virtual void withdraw(DriveCommand& command) = 0;
  // After advance(now): the commands that have ended by then, by the time of their end; null when
  // there are no more.
  virtual DriveCommand* take_ended(TimePoint now);

  std::size_t outstanding() const noexcept { return outstanding_; }
  const DriveCounters& counters() const noexcept { return counters_; }

 protected:
  void note_arrival(DriveCommand& command);
  void end_at(DriveCommand& command, Nanoseconds end);
  TimePoint next_end() const noexcept { return ending_.empty() ? kNever : ending_.front()->end; }
  void forget_end(DriveCommand& command);  // It is no longer outstanding.
  void note_withdrawn(DriveCommand& command) noexcept;

  DriveCounters counters_;

 private:
  static bool later(const DriveCommand* left, const DriveCommand* right) noexcept;

  std::size_t outstanding_ = 0;  // The host's commands that were not taken or withdrawn.
  std::uint64_t next_number_ = 0;
  std::vector<DriveCommand*> ending_;  // A heap; the earliest end first.
};

}  // namespace sandbay::model
