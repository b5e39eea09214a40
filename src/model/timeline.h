// Timeline: what one thing that does one job at a time has been booked for: a processor, one
// direction of a port, a link. A job begins when it arrives or in the first gap after that into
// which it fits as a whole.
//
// Jobs may be booked ahead of time and in any order: one that comes by a longer way is booked
// early for late, and what arrives before it still finds its gap. Gaps before the latest
// kMostGaps are forgotten.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/clock.h"

namespace sandbay::model {

inline constexpr std::uint64_t kLeastRate = 1'000'000;  // Bytes a second.
inline constexpr std::uint64_t kMostRate = 100'000'000'000;

class Timeline {
 public:
  static constexpr std::size_t kMostGaps = 64;

  // When the job ends.
  TimePoint book(TimePoint arrival, Duration length);
  Duration booked() const noexcept { return booked_; }  // In all.
  // From when on nothing is booked.
  TimePoint free_after() const noexcept { return runs_.empty() ? TimePoint{} : runs_.back().end; }

 private:
  struct Run {  // Of jobs without a gap.
    TimePoint begin;
    TimePoint end;
  };
  TimePoint append(TimePoint begin, TimePoint end);
  TimePoint insert(std::size_t next, TimePoint begin, TimePoint end);
  void forget_surplus();

  std::vector<Run> runs_;      // In order, apart from one another.
  std::size_t forgotten_ = 0;  // How many of them, the first, do not count any more.
  Duration booked_{};
};

// A bandwidth that is not exceeded: a way on which every byte takes its time.
class RateLimit {
 public:
  explicit RateLimit(std::uint64_t rate) : rate_(rate) {}  // Bytes a second; 0: no limit.
  TimePoint pass(TimePoint arrival, std::uint64_t bytes);  // When the last byte has passed.

 private:
  std::uint64_t rate_;
  Timeline way_;
};

// Several that do the same work; each job goes to the one that is free first.
class Processors {
 public:
  explicit Processors(std::size_t count) : processors_(count) {}  // Positive.
  TimePoint book(TimePoint arrival, Duration length);
  Duration booked() const noexcept;  // Of all.

 private:
  std::vector<Timeline> processors_;
};

}  // namespace sandbay::model
