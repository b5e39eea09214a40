// Events, conditions, mutexes and gates on a simulated executor: every case runs with several
// seeds, so with the ready set in several orders.
#include "runtime/sync.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "runtime/cancellation.h"
#include "runtime/simulation.h"

namespace sandbay {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeeds = 20;

// Runs `body` once for each seed in a world of its own.
template <class Body>
void for_seeds(Body body) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    auto world = sim::World::create({.seed = seed});
    REQUIRE(world->run([&] { return body(*world->executors()[0]); }));
  }
}

Task<void> wait_and_count(Event& event, int& count) {
  co_await event.wait();
  ++count;
}

TEST_CASE("An event wakes all who wait, and later ones do not wait", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Event event;
    int count = 0;
    for (int i = 0; i < 5; ++i) spawn(wait_and_count(event, count));
    co_await executor.sleep_for(1ms);
    CHECK(count == 0);
    event.set();
    CHECK(count == 0);  // Never inline.
    co_await executor.sleep_for(1ms);
    CHECK(count == 5);
    spawn(wait_and_count(event, count));
    CHECK(count == 6);
    event.reset();
    CHECK_FALSE(event.is_set());
    spawn(wait_and_count(event, count));
    CHECK(count == 6);
    event.set();
    co_await executor.sleep_for(1ms);
    CHECK(count == 7);
  });
}

TEST_CASE("An event may go while those it woke are still in the ready queue", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    auto event = std::make_unique<Event>();
    int count = 0;
    for (int i = 0; i < 3; ++i) spawn(wait_and_count(*event, count));
    event->set();
    event.reset();
    co_await executor.sleep_for(1ms);
    CHECK(count == 3);
  });
}

TEST_CASE("wait_until() says whether the event came before the deadline", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Event event;
    const TimePoint start = executor.now();
    const bool early = co_await event.wait_until(start + 5ms);
    CHECK_FALSE(early);
    CHECK(executor.now() == start + 5ms);

    bool woken = false;
    spawn([](Event& waited, Executor& home, bool& result) -> Task<void> {
      result = co_await waited.wait_until(home.now() + 5ms);
    }(event, executor, woken));
    co_await executor.sleep_for(1ms);
    event.set();
    co_await executor.sleep_for(10ms);
    CHECK(woken);
    const bool set_already = co_await event.wait_until(executor.now());
    CHECK(set_already);
    event.reset();
    const bool past = co_await event.wait_until(executor.now() - 1s);
    CHECK_FALSE(past);
  });
}

TEST_CASE("A deadline and a wake-up at the same instant wake once", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Event event;
    int wakes = 0;
    spawn([](Event& waited, Executor& home, int& count) -> Task<void> {
      static_cast<void>(co_await waited.wait_until(home.now() + 5ms));
      ++count;
    }(event, executor, wakes));
    co_await executor.sleep_for(5ms);
    event.set();
    co_await executor.sleep_for(5ms);
    CHECK(wakes == 1);
  });
}

Task<void> append_when_notified(Condition& condition, std::vector<int>& order, int number) {
  co_await condition.wait();
  order.push_back(number);
}

TEST_CASE("A condition wakes one or all, oldest first", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Condition condition;
    std::vector<int> order;
    condition.notify_one();  // Nobody there: not remembered.
    for (int i = 0; i < 4; ++i) spawn(append_when_notified(condition, order, i));
    condition.notify_one();
    co_await executor.sleep_for(1ms);
    CHECK(order == std::vector<int>{0});
    condition.notify_one();
    co_await executor.sleep_for(1ms);
    CHECK(order == std::vector<int>{0, 1});
    condition.notify_all();
    co_await executor.sleep_for(1ms);
    CHECK(order.size() == 4);
    const bool woken = co_await condition.wait_until(executor.now() + 1ms);
    CHECK_FALSE(woken);
  });
}

TEST_CASE("One who timed out is skipped by the next notification", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Condition condition;
    std::vector<int> order;
    bool first = true;
    spawn([](Condition& waited, Executor& home, bool& result) -> Task<void> {
      result = co_await waited.wait_until(home.now() + 1ms);
    }(condition, executor, first));
    spawn(append_when_notified(condition, order, 2));
    co_await executor.sleep_for(2ms);
    CHECK_FALSE(first);
    condition.notify_one();
    co_await executor.sleep_for(1ms);
    CHECK(order == std::vector<int>{2});
  });
}

struct Critical {
  Mutex mutex;
  int inside = 0;
  int most_inside = 0;
  std::vector<int> order;
};

Task<void> enter_critical(Critical& critical, Executor& executor, int number) {
  co_await critical.mutex.lock();
  ++critical.inside;
  critical.most_inside = std::max(critical.most_inside, critical.inside);
  critical.order.push_back(number);
  co_await executor.sleep_for(100us);
  co_await executor.yield();
  --critical.inside;
  critical.mutex.unlock();
}

TEST_CASE("A mutex admits one at a time, first come first served", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Critical critical;
    for (int i = 0; i < 10; ++i) spawn(enter_critical(critical, executor, i));
    CHECK(critical.mutex.locked());
    co_await executor.sleep_for(1s);
    CHECK(critical.most_inside == 1);
    CHECK(critical.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK_FALSE(critical.mutex.locked());
  });
}

TEST_CASE("A mutex that is handed over cannot be snatched", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Critical critical;
    co_await critical.mutex.lock();
    spawn(enter_critical(critical, executor, 1));
    critical.mutex.unlock();
    // The waiter has not run yet, but it holds the mutex.
    CHECK(critical.mutex.locked());
    spawn(enter_critical(critical, executor, 2));
    co_await executor.sleep_for(1s);
    CHECK(critical.order == std::vector<int>{1, 2});
  });
}

Task<void> hold_for(Gate& gate, Executor& executor, Duration duration) {
  const GateHold hold(gate);
  co_await executor.sleep_for(duration);
}

TEST_CASE("A gate closes when everything has left", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Gate gate;
    const TimePoint start = executor.now();
    for (int i = 1; i <= 3; ++i) {
      CHECK(gate.enter());
      spawn(hold_for(gate, executor, i * 1ms));
    }
    CHECK(gate.count() == 3);
    const bool in_time = co_await gate.close_until(start + 2500us);
    CHECK_FALSE(in_time);
    CHECK(gate.closed());
    CHECK_FALSE(gate.enter());
    CHECK(gate.count() == 1);
    co_await gate.close();
    CHECK(executor.now() == start + 3ms);
    CHECK(gate.count() == 0);
    co_await gate.close();  // Again: at once.
    const bool again = co_await gate.close_until(executor.now());
    CHECK(again);
  });
}

TEST_CASE("Draining a gate leaves it open", "[sync]") {
  for_seeds([](Executor& executor) -> Task<void> {
    Gate gate;
    co_await gate.drain();
    CHECK(gate.enter());
    spawn(hold_for(gate, executor, 1ms));
    co_await gate.drain();
    CHECK(gate.count() == 0);
    CHECK(gate.enter());
    gate.leave();
  });
}

TEST_CASE("A gate hold that was moved from does not leave", "[sync]") {
  Gate gate;
  REQUIRE(gate.enter());
  {
    GateHold hold(gate);
    const GateHold moved(std::move(hold));
    REQUIRE(gate.count() == 1);
  }
  REQUIRE(gate.count() == 0);
}

struct CountingHook : Cancellation::Hook {
  explicit CountingHook(Cancellation* cancellation)
      : Hook(cancellation, [](Hook& hook) { ++static_cast<CountingHook&>(hook).calls; }) {}
  int calls = 0;
};

TEST_CASE("Cancelling calls every hook that is still there, once", "[cancellation]") {
  Cancellation cancellation;
  CountingHook first(&cancellation);
  CountingHook nobody(nullptr);
  auto gone = std::make_unique<CountingHook>(&cancellation);
  CountingHook last(&cancellation);
  gone.reset();
  REQUIRE_FALSE(cancellation.cancelled());
  cancellation.cancel();
  cancellation.cancel();
  REQUIRE(cancellation.cancelled());
  REQUIRE(first.calls == 1);
  REQUIRE(last.calls == 1);
  REQUIRE(nobody.calls == 0);
  // Registered too late: the operation is expected to look at cancelled() itself.
  CountingHook late(&cancellation);
  cancellation.cancel();
  REQUIRE(late.calls == 0);
}

TEST_CASE("A hook may outlive its cancellation", "[cancellation]") {
  auto cancellation = std::make_unique<Cancellation>();
  CountingHook hook(cancellation.get());
  cancellation.reset();
  REQUIRE(hook.calls == 0);
}

}  // namespace
}  // namespace sandbay
