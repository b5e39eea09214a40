// The timer heap against a sorted multiset under random arming and disarming.
#include "runtime/timer.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "runtime/random.h"

namespace sandbay {
namespace {

TimePoint at(std::int64_t nanoseconds) { return TimePoint(Duration(nanoseconds)); }

void ignore(Timer& /*timer*/) {}

Timer make_timer(std::int64_t deadline) {
  Timer timer;
  timer.deadline = at(deadline);
  timer.fire = ignore;
  return timer;
}

TEST_CASE("An empty heap has no deadline", "[timer]") {
  TimerHeap heap;
  REQUIRE(heap.empty());
  REQUIRE(heap.earliest() == kNever);
  REQUIRE(heap.pop_due(kNever) == nullptr);
}

TEST_CASE("A timer is due at its deadline, not before", "[timer]") {
  TimerHeap heap;
  Timer timer = make_timer(100);
  heap.insert(timer);
  REQUIRE(timer.armed());
  REQUIRE(heap.earliest() == at(100));
  REQUIRE(heap.pop_due(at(99)) == nullptr);
  REQUIRE(heap.pop_due(at(100)) == &timer);
  REQUIRE_FALSE(timer.armed());
  REQUIRE(heap.empty());
}

TEST_CASE("Disarming a timer that is not armed does nothing", "[timer]") {
  TimerHeap heap;
  Timer armed = make_timer(1);
  Timer idle = make_timer(2);
  heap.insert(armed);
  heap.remove(idle);
  REQUIRE(heap.size() == 1);
  heap.remove(armed);
  heap.remove(armed);
  REQUIRE(heap.empty());
}

TEST_CASE("A fired timer can be armed again", "[timer]") {
  TimerHeap heap;
  Timer timer = make_timer(1);
  for (std::int64_t i = 1; i < 10; ++i) {
    timer.deadline = at(i);
    heap.insert(timer);
    REQUIRE(heap.pop_due(at(i)) == &timer);
  }
}

TEST_CASE("The heap behaves as a sorted multiset", "[timer][property]") {
  const bool held = rc::check([](std::uint64_t seed) {
    Random random(seed);
    constexpr std::size_t kTimers = 64;
    std::vector<Timer> timers(kTimers);
    for (Timer& timer : timers) timer.fire = ignore;
    TimerHeap heap;
    std::multiset<TimePoint> reference;
    for (int step = 0; step < 500; ++step) {
      Timer& timer = timers[random.below(kTimers)];
      if (timer.armed() && random.chance(0.5)) {
        reference.erase(reference.find(timer.deadline));
        heap.remove(timer);
      } else if (!timer.armed()) {
        timer.deadline = at(static_cast<std::int64_t>(random.below(50)));
        reference.insert(timer.deadline);
        heap.insert(timer);
      } else {
        const TimePoint now = at(static_cast<std::int64_t>(random.below(50)));
        Timer* const due = heap.pop_due(now);
        const bool expected = !reference.empty() && *reference.begin() <= now;
        RC_ASSERT((due != nullptr) == expected);
        if (due != nullptr) {
          RC_ASSERT(due->deadline == *reference.begin());
          reference.erase(reference.begin());
        }
      }
      RC_ASSERT(heap.size() == reference.size());
      RC_ASSERT(heap.earliest() == (reference.empty() ? kNever : *reference.begin()));
    }
  });
  REQUIRE(held);
}

}  // namespace
}  // namespace sandbay
