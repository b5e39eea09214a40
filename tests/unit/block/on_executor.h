// Runs a test's coroutine on a real reactor or in a simulated world, until it ends.
//
// `start` is a plain lambda that calls a coroutine function with the test's own objects, which stay
// alive because the call returns only when the coroutine has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <catch2/catch.hpp>

#include "runtime/reactor.h"
#include "runtime/simulation.h"

namespace sandbay::testing {

using Start = std::function<Task<void>(Executor& home)>;

inline void run_on_reactor(const Start& start) {
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  if (!group.has_value()) FAIL(group.error().text);
  Executor& home = *(*group)->executors()[0];
  (*group)->run([&] { return start(home); });
}

inline void run_in_world(std::uint64_t seed, const Start& start) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return start(home); });
  REQUIRE(ended);
}

}  // namespace sandbay::testing
