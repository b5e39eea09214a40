// Room for requests in the kernel, in a simulated world: limits of a room and of the one around it,
// turns, and waiters that are cancelled.
#include "runtime/kernel_room.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "runtime/cancellation.h"
#include "runtime/simulation.h"

namespace sandbay::detail {
namespace {

using namespace std::chrono_literals;

void run(Task<void> (*body)(Executor* home)) {
  const auto world = sim::World::create({});
  REQUIRE(world->run([&] { return body(world->executors()[0]); }));
}

Task<void> enter_and_note(KernelRoom* room, int number, std::vector<int>* entered) {
  const bool in = co_await room->enter(nullptr);
  if (in) entered->push_back(number);
}

Task<void> enter_or_cancel(KernelRoom* room, Cancellation* cancellation, int* refused) {
  const bool in = co_await room->enter(cancellation);
  if (!in) ++*refused;
}

TEST_CASE("Rooms inside a room share it, and those who wait enter in turn", "[kernel_room][N7]") {
  run([](Executor* home) -> Task<void> {
    const auto outer = std::make_shared<KernelRoom>(3, nullptr);
    KernelRoom first(2, outer);
    KernelRoom second(2, outer);
    std::vector<int> entered;
    for (int i = 0; i < 4; ++i) {
      spawn(enter_and_note(&first, i, &entered));
      co_await home->sleep_for(1ms);
    }
    for (int i = 4; i < 6; ++i) {
      spawn(enter_and_note(&second, i, &entered));
      co_await home->sleep_for(1ms);
    }
    CHECK(entered == std::vector<int>{0, 1, 4});  // 2 and 3 wait for the first room, 5 for both.
    second.leave();
    co_await home->sleep_for(1ms);
    CHECK(entered == std::vector<int>{0, 1, 4, 5});
    for (int i = 0; i < 2; ++i) {
      first.leave();
      co_await home->sleep_for(1ms);
    }
    CHECK(entered == std::vector<int>{0, 1, 4, 5, 2, 3});
  });
}

TEST_CASE("A waiter that can be cancelled keeps its turn, and leaves at once", "[kernel_room]") {
  run([](Executor* home) -> Task<void> {
    KernelRoom room(1, nullptr);
    std::vector<int> entered;
    spawn(enter_and_note(&room, 0, &entered));
    Cancellation patient;
    Cancellation impatient;
    int refused = 0;
    bool in = false;
    spawn([](KernelRoom* r, Cancellation* c, bool* done) -> Task<void> {
      const bool handed = co_await r->enter(c);
      *done = handed;
    }(&room, &patient, &in));
    co_await home->sleep_for(1s);
    spawn(enter_and_note(&room, 1, &entered));
    spawn(enter_or_cancel(&room, &impatient, &refused));
    co_await home->sleep_for(1s);
    impatient.cancel();
    co_await home->yield();
    co_await home->sleep_for(1ms);
    CHECK(refused == 1);
    room.leave();
    co_await home->sleep_for(1ms);
    CHECK(in);
    CHECK(entered == std::vector<int>{0});
    room.leave();
    co_await home->sleep_for(1ms);
    CHECK(entered == std::vector<int>{0, 1});
  });
}

TEST_CASE("A cancelled waiter gives back the rooms it has entered", "[kernel_room][N7]") {
  run([](Executor* home) -> Task<void> {
    const auto outer = std::make_shared<KernelRoom>(1, nullptr);
    KernelRoom first(1, outer);
    KernelRoom second(1, outer);
    std::vector<int> entered;
    spawn(enter_and_note(&first, 0, &entered));
    Cancellation cancellation;
    int refused = 0;
    spawn(enter_or_cancel(&second, &cancellation, &refused));  // Waits for the outer room.
    spawn(enter_or_cancel(&second, &cancellation, &refused));  // Waits for the second.
    spawn(enter_and_note(&second, 1, &entered));
    co_await home->sleep_for(1s);
    CHECK(refused == 0);
    cancellation.cancel();
    co_await home->sleep_for(1s);
    CHECK(refused == 2);
    CHECK(entered == std::vector<int>{0});
    first.leave();
    co_await home->sleep_for(1ms);
    CHECK(entered == std::vector<int>{0, 1});
  });
}

}  // namespace
}  // namespace sandbay::detail
