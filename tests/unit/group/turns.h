// Turns: the longest turn of an executor during an operation of a test, in processor time of its
// thread, which is the same on a busy machine.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::testing {

inline Duration thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Between start() and stop(), on the executor where both are called.
class Turns {
 public:
  void start() {
    stopping_ = false;
    longest_ = {};
    begun_ = thread_time();
    ended_.reset();
    spawn(run());
  }
  Task<void> stop() {
    stopping_ = true;
    co_await ended_.wait();
    spent_ = thread_time() - begun_;
  }
  Duration longest() const { return longest_; }
  Duration spent() const { return spent_; }

 private:
  Task<void> run() {
    Duration before = thread_time();
    while (!stopping_) {
      co_await Executor::current().turn_end();
      const Duration now = thread_time();
      longest_ = std::max(longest_, now - before);
      before = now;
      // So an idle executor can sleep.
      co_await Executor::current().sleep_for(std::chrono::microseconds(20));
    }
    ended_.set();
  }

  bool stopping_ = false;
  Duration longest_{};
  Duration begun_{};
  Duration spent_{};
  Event ended_;
};

// The limit of a turn. Sanitizers make everything slower.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr Duration kLongestTurn = std::chrono::milliseconds(80);
#else
inline constexpr Duration kLongestTurn = std::chrono::milliseconds(10);
#endif
#else
inline constexpr Duration kLongestTurn = std::chrono::milliseconds(10);
#endif

}  // namespace sandbay::testing
