// Time as the program sees it: nanoseconds on an executor's monotonic clock, real or virtual.
// Nothing above the runtime calls the system clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace sandbay {

struct ExecutorClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<ExecutorClock>;
  static constexpr bool is_steady = true;
};

using Duration = ExecutorClock::duration;
using TimePoint = ExecutorClock::time_point;

// UTC.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

inline constexpr TimePoint kNever = TimePoint::max();

}  // namespace sandbay
