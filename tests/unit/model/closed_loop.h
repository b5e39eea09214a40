// A closed loop on a drive's model alone: so many commands are kept outstanding, each replaced at
// the moment at which it ends.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/drive_model.h"
#include "runtime/random.h"

namespace sandbay::testing {

struct LoopResult {
  double seconds = 0;
  double mean_latency = 0;  // Seconds.
  double longest = 0;
  std::uint64_t bytes = 0;
  std::uint64_t commands = 0;
  std::vector<TimePoint> ends;  // By number of the command.

  double per_second() const { return static_cast<double>(commands) / seconds; }
  double megabytes() const { return static_cast<double>(bytes) / seconds / 1e6; }
};

inline constexpr TimePoint kLoopStart{std::chrono::seconds(1)};

// `next(i)` makes the i-th command; its arrival is set here, `think` after the end of the one
// before.
template <class Next>
LoopResult run_loop(model::DriveModel& drive, std::uint64_t depth, std::uint64_t count, Next next,
                    Duration think = {}, TimePoint start = kLoopStart) {
  LoopResult result;
  std::vector<std::unique_ptr<model::DriveCommand>> commands;
  std::vector<std::uint64_t> numbers;
  result.ends.resize(count);
  std::uint64_t issued = 0;
  const auto issue = [&](std::size_t slot, TimePoint arrival) {
    *commands[slot] = next(issued);
    commands[slot]->arrival = arrival;
    numbers[slot] = issued++;
    drive.arrive(*commands[slot]);
  };
  for (std::size_t slot = 0; slot < depth && issued < count; ++slot) {
    commands.push_back(std::make_unique<model::DriveCommand>());
    numbers.push_back(0);
    issue(slot, start);
  }
  TimePoint now = start;
  while (result.commands < count) {
    const TimePoint event = drive.next_event();
    if (event == kNever) FAIL("the drive has forgotten a command");
    now = std::max(now, event);
    drive.advance(now);
    while (model::DriveCommand* const ended = drive.take_ended(now)) {
      const auto latency = static_cast<double>((ended->end - ended->arrival).count()) / 1e9;
      result.mean_latency += latency;
      result.longest = std::max(result.longest, latency);
      result.bytes += ended->byte_count();
      ++result.commands;
      std::size_t slot = 0;
      while (commands[slot].get() != ended) ++slot;
      result.ends[numbers[slot]] = ended->end;
      if (issued < count) issue(slot, ended->end + think);
    }
  }
  result.seconds = static_cast<double>((now - start).count()) / 1e9;
  result.mean_latency /= static_cast<double>(count);
  return result;
}

// Random places all over the drive, or all over its first part.
class RandomPlaces {
 public:
  RandomPlaces(std::uint64_t seed, Operation operation, std::uint64_t bytes, std::uint64_t sectors)
      : random_(seed),
        operation_(operation),
        each_(bytes / model::kSectorBytes),
        sectors_(sectors) {}
  model::DriveCommand operator()(std::uint64_t /*index*/) {
    return {.operation = operation_,
            .sector = random_.below(sectors_ / each_) * each_,
            .sector_count = each_};
  }

 private:
  Random random_;
  Operation operation_;
  std::uint64_t each_;
  std::uint64_t sectors_;
};

class Sequence {
 public:
  Sequence(Operation operation, std::uint64_t bytes, std::uint64_t first)
      : operation_(operation), each_(bytes / model::kSectorBytes), first_(first) {}
  model::DriveCommand operator()(std::uint64_t index) const {
    return {.operation = operation_, .sector = first_ + index * each_, .sector_count = each_};
  }

 private:
  Operation operation_;
  std::uint64_t each_;
  std::uint64_t first_;
};

}  // namespace sandbay::testing
