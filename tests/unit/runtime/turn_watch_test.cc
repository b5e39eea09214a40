// The watch on turns: it tells work from waiting, and code that holds a reactor is named. A
// busy machine may make any turn long, so that nothing here says that a turn was short.
#include "runtime/turn_watch.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/reactor.h"

namespace sandbay {
namespace {

using namespace std::chrono_literals;

struct Reports {
  std::mutex mutex;
  std::vector<LongTurn> turns;
};

std::unique_ptr<ReactorGroup> make_watched_group(Reports& reports) {
  auto group = ReactorGroup::create({.memory_limit_bytes = 64U << 20U,
                                     .seed = 1,
                                     .on_long_turn = [&reports](const LongTurn& turn) {
                                       const std::lock_guard lock(reports.mutex);
                                       reports.turns.push_back(turn);
                                     }});
  if (!group.has_value()) FAIL(group.error().text);
  return std::move(*group);
}

Duration thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

Task<void> hold_reactor_by_working(Executor* executor, Duration work) {
  co_await executor->yield();
  const Duration until = thread_time() + work;
  while (thread_time() < until) {
  }
  co_await executor->yield();
}

Task<void> hold_reactor_by_waiting(Executor* executor) {
  co_await executor->yield();
  std::this_thread::sleep_for(60ms);  // Goes on after a signal.
  co_await executor->yield();
}

// The report comes from another thread, once the reactor has gone on.
Task<void> hold_and_wait(Executor* executor, Task<void> holder) {
  co_await executor->sleep_for(1ms);
  co_await std::move(holder);
  co_await executor->sleep_for(1ms);
}

TEST_CASE("A turn that works for long is counted as work", "[reactor][turn]") {
  Reports reports;
  auto group = make_watched_group(reports);
  Executor* const executor = group->executors()[0];
  group->run([&] { return hold_and_wait(executor, hold_reactor_by_working(executor, 60ms)); });
  const TurnFigures figures = turn_figures(*executor);
  CHECK(figures.long_turns >= 1);
  CHECK(figures.long_work_turns >= 1);
  CHECK(figures.longest >= 60ms);
  CHECK(figures.longest_work >= 59ms);
  const std::lock_guard lock(reports.mutex);
  REQUIRE_FALSE(reports.turns.empty());
}

TEST_CASE("A turn that waits in a system call is no work", "[reactor][turn]") {
  Reports reports;
  auto group = make_watched_group(reports);
  Executor* const executor = group->executors()[0];
  group->run([&] { return hold_and_wait(executor, hold_reactor_by_waiting(executor)); });
  const TurnFigures figures = turn_figures(*executor);
  CHECK(figures.long_turns >= 1);
  CHECK(figures.longest >= 60ms);
  CHECK(figures.longest_work < 60ms);
}

TEST_CASE("A turn that is short is not reported again and again", "[reactor][turn]") {
  Reports reports;
  auto group = make_watched_group(reports);
  Executor* const executor = group->executors()[0];
  const auto hold_often = [](Executor* each) -> Task<void> {
    for (int i = 0; i < 5; ++i) co_await hold_and_wait(each, hold_reactor_by_working(each, 15ms));
  };
  group->run([&] { return hold_often(executor); });
  const TurnFigures figures = turn_figures(*executor);
  CHECK(figures.long_work_turns >= 5);
  const std::lock_guard lock(reports.mutex);
  CHECK(reports.turns.size() < figures.long_turns);
}

// Where a reactor that was not seen in time leaves no name, the next is.
TEST_CASE("A long turn is reported with the coroutine that made it", "[reactor][turn]") {
  if (!turns_are_named()) SUCCEED("this build does not name turns");
  bool worker_named = !turns_are_named();
  bool waiter_named = !turns_are_named();
  for (int attempt = 0; attempt < 20 && !(worker_named && waiter_named); ++attempt) {
    Reports reports;
    auto group = make_watched_group(reports);
    Executor* const executor = group->executors()[0];
    const bool waits = attempt % 2 == 1;
    group->run([&] {
      return hold_and_wait(executor, waits ? hold_reactor_by_waiting(executor)
                                           : hold_reactor_by_working(executor, 60ms));
    });
    group.reset();
    for (const LongTurn& turn : reports.turns) {
      worker_named = worker_named || turn.place.contains("hold_reactor_by_working");
      const bool waiter = turn.place.contains("hold_reactor_by_waiting");
      waiter_named = waiter_named || (waiter && turn.blocked);
    }
  }
  CHECK(worker_named);
  CHECK(waiter_named);
}

TEST_CASE("The line about a long turn has figures, place and what was left out",
          "[reactor][turn]") {
  const LongTurn turn{.reactor = 1,
                      .length = 35ms,
                      .work = 2ms,
                      .blocked = true,
                      .place = "sandbay::group::look",
                      .further = 7};
  CHECK(describe(turn) ==
        "reactor 1 was held for 35 ms (2 ms of work, blocked in a system call) by "
        "sandbay::group::look; 7 more since the last report");
}

}  // namespace
}  // namespace sandbay
