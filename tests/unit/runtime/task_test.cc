// Tasks: laziness, values, chains without stack growth, lifetimes.
#include "runtime/task.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "runtime/executor.h"
#include "runtime/simulation.h"

namespace sandbay {
namespace {

Task<int> give(int value) { co_return value; }

Task<int> add(int left, int right) {
  const int one = co_await give(left);
  const int other = co_await give(right);
  co_return one + other;
}

Task<void> mark(bool& ran) {
  ran = true;
  co_return;
}

Task<void> store(Task<int> task, int& result) { result = co_await std::move(task); }

TEST_CASE("A task that is never awaited never runs", "[task]") {
  bool ran = false;
  {
    const Task<void> task = mark(ran);
  }
  REQUIRE_FALSE(ran);
  spawn(mark(ran));
  REQUIRE(ran);
}

TEST_CASE("Values come out of chains of tasks", "[task]") {
  int result = 0;
  spawn(store(add(2, 3), result));
  REQUIRE(result == 5);
}

Task<std::unique_ptr<std::string>> make_text(std::string text) {
  co_return std::make_unique<std::string>(std::move(text));
}

Task<void> store_text(std::unique_ptr<std::string>& result) {
  Task<std::unique_ptr<std::string>> task = make_text("a text too long for the small buffer");
  Task<std::unique_ptr<std::string>> moved = std::move(task);
  result = co_await std::move(moved);
}

TEST_CASE("Move-only values pass through, and tasks can be moved", "[task]") {
  std::unique_ptr<std::string> result;
  spawn(store_text(result));
  REQUIRE(result != nullptr);
  REQUIRE(*result == "a text too long for the small buffer");
}

Task<void> await_many(int times, std::uint64_t& sum) {
  for (int i = 0; i < times; ++i) sum += static_cast<std::uint64_t>(co_await give(1));
}

TEST_CASE("A million tasks that end at once do not grow the stack", "[task]") {
  std::uint64_t sum = 0;
  spawn(await_many(1'000'000, sum));
  REQUIRE(sum == 1'000'000);
}

struct CountsLives {
  explicit CountsLives(int& counter) : lives(counter) { ++lives; }
  CountsLives(const CountsLives&) = delete;
  ~CountsLives() { --lives; }
  int& lives;
};

Task<void> hold_and_sleep(Executor& executor, int& lives) {
  const auto held = std::make_shared<CountsLives>(lives);
  co_await executor.sleep_for(std::chrono::milliseconds(1));
  CHECK(lives > 0);
}

Task<void> spawn_holders(Executor& executor, int& lives) {
  for (int i = 0; i < 10; ++i) spawn(hold_and_sleep(executor, lives));
  CHECK(lives == 10);
  co_await executor.sleep_for(std::chrono::milliseconds(2));
}

TEST_CASE("A spawned task frees what it holds when it ends", "[task]") {
  int lives = 0;
  auto world = sim::World::create({.seed = 1});
  Executor& executor = *world->executors()[0];
  REQUIRE(world->run([&] { return spawn_holders(executor, lives); }));
  REQUIRE(lives == 0);
}

Task<unsigned> where() { co_return Executor::current().index(); }

Task<void> visit_all(std::span<Executor* const> executors) {
  for (Executor* executor : executors) {
    const unsigned index = co_await invoke_on(*executor, where());
    CHECK(index == executor->index());
    CHECK(Executor::current().index() == 0);
  }
}

TEST_CASE("invoke_on() runs there and comes back", "[task][executor]") {
  auto world = sim::World::create({.seed = 1, .executors = 4});
  REQUIRE(world->run([&] { return visit_all(world->executors()); }));
  REQUIRE(Executor::current_or_null() == nullptr);
}

}  // namespace
}  // namespace sandbay
