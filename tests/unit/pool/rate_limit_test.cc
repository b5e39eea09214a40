// RateLimit: rates over a while, evenness, order, changes, cancellation; and a volume that has one.
#include <vector>

#include <catch2/catch.hpp>

#include "pool/rate_limit.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::rate_limit_test {
namespace {

using std::chrono::milliseconds;

struct Passed {
  std::vector<TimePoint> times;
  std::vector<int> order;
  unsigned running = 0;
};

Task<void> pass_once(RateLimit* limit, Executor* home, std::uint64_t bytes, int number,
                     Passed* passed) {
  ++passed->running;
  if (!limit->try_pass(home->now(), bytes)) {
    const Error error = co_await limit->pass(*home, bytes, nullptr, kNever);
    CHECK(error == Error::kNone);
  }
  passed->times.push_back(home->now());
  passed->order.push_back(number);
  --passed->running;
}

Task<void> pass_many(RateLimit* limit, Executor* home, int count, std::uint64_t bytes,
                     Passed* passed) {
  for (int i = 0; i < count; ++i) spawn(pass_once(limit, home, bytes, i, passed));
  while (passed->running > 0) co_await home->sleep_for(milliseconds(1));
}

Task<void> check_rate(Executor& home, RateLimits limits, std::uint64_t bytes, Duration each) {
  RateLimit limit;
  limit.set(limits, home.now());
  Passed passed;
  const TimePoint begun = home.now();
  constexpr int kCount = 400;
  co_await pass_many(&limit, &home, kCount, bytes, &passed);
  REQUIRE(passed.times.size() == kCount);
  CHECK(std::ranges::is_sorted(passed.order));
  // None is earlier than its share allows, and none much later: no lumps.
  for (int i = 0; i < kCount; ++i) {
    const Duration due = each * i - RateLimit::kBurst;
    const Duration at = passed.times[static_cast<std::size_t>(i)] - begun;
    CHECK(at >= due);
    CHECK(at <= std::max(due, Duration{}) + milliseconds(1));
  }
}

Task<void> check_change(Executor& home) {
  RateLimit limit;
  limit.set({.operations_per_second = 1}, home.now());
  Passed passed;
  const TimePoint begun = home.now();
  for (int i = 0; i < 5; ++i) spawn(pass_once(&limit, &home, 0, i, &passed));
  co_await home.sleep_for(milliseconds(20));
  CHECK(passed.times.size() == 1);
  limit.set({}, home.now());
  while (passed.running > 0) co_await home.sleep_for(milliseconds(1));
  CHECK(home.now() - begun < milliseconds(40));
  CHECK(passed.times.size() == 5);
}

Task<void> wait_with(RateLimit* limit, Executor* home, Cancellation* cancellation,
                     TimePoint deadline, Error* ended) {
  *ended = co_await limit->pass(*home, 0, cancellation, deadline);
}

// Whoever leaves the queue leaves no gap, be he the first or in the middle.
Task<void> check_leaving(Executor& home) {
  RateLimit limit;
  limit.set({.operations_per_second = 10}, home.now());
  CHECK(limit.try_pass(home.now(), 0));
  const TimePoint begun = home.now();
  Cancellation first;
  Cancellation middle;
  Error ended[4] = {Error::kExists, Error::kExists, Error::kExists, Error::kExists};
  spawn(wait_with(&limit, &home, &first, kNever, &ended[0]));
  spawn(wait_with(&limit, &home, nullptr, begun + milliseconds(50), &ended[1]));
  spawn(wait_with(&limit, &home, &middle, kNever, &ended[2]));
  spawn(wait_with(&limit, &home, nullptr, kNever, &ended[3]));
  co_await home.sleep_for(milliseconds(10));
  middle.cancel();
  first.cancel();
  co_await home.sleep_for(milliseconds(10));
  CHECK(ended[0] == Error::kCancelled);
  CHECK(ended[2] == Error::kCancelled);
  CHECK(ended[1] == Error::kExists);
  co_await home.sleep_for(milliseconds(100));
  CHECK(ended[1] == Error::kTimedOut);
  CHECK(ended[3] == Error::kNone);
}

Task<void> check_volume(Executor& home) {
  Rig rig(home, {});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto made = co_await rig.pool->create({.byte_count = 4 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig.pool->attach(*made);
  Random random(1);
  Error error = co_await write_cells(*volume, 0, 8, 1, random);
  CHECK(error == Error::kNone);
  volume->set_rate_limits({.operations_per_second = 0, .bytes_per_second = 1 << 20});
  const TimePoint begun = home.now();
  // 1 MiB in pieces of 64 KiB: a second, less the burst and the last one.
  for (int i = 0; i < 17; ++i) error = co_await write_cells(*volume, 0, 8, 1, random);
  CHECK(error == Error::kNone);
  CHECK(home.now() - begun >= milliseconds(900));
  CHECK(home.now() - begun <= milliseconds(1100));
  CHECK(volume->rate_limit().delayed_count() >= 15);
  volume.reset();
  co_await rig.stop();
}

}  // namespace

TEST_CASE("a limit lets pass so many a second, evenly and in order", "[pool]") {
  testing::run_in_world(1, [](Executor& home) {
    return check_rate(home, {.operations_per_second = 1000}, 0, milliseconds(1));
  });
  testing::run_in_world(2, [](Executor& home) {
    return check_rate(home, {.bytes_per_second = 4'000'000}, 20'000, milliseconds(5));
  });
  testing::run_in_world(3, [](Executor& home) {
    return check_rate(home, {.operations_per_second = 200, .bytes_per_second = 4'000'000}, 4096,
                      milliseconds(5));
  });
}

TEST_CASE("a limit that is lifted lets everybody go", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_change(home); });
}

TEST_CASE("who is cancelled or late leaves a limit's queue", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_leaving(home); });
}

TEST_CASE("a volume keeps to its limits", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_volume(home); });
}

}  // namespace sandbay::pool::rate_limit_test
