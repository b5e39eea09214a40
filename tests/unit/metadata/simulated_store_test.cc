// SimulatedStore through power cuts at any moment, and on logs cut short or damaged at every byte.
// The seed chooses the commits, their timing and the moment of the cut; the world chooses what of
// the un-synced bytes is left.
#include "metadata/simulated_store.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "commit_history.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::metadata::testing::simulated_store_test {
namespace {

constexpr char kPath[] = "metadata.log";

Task<std::unique_ptr<Store>> open(Executor& home) {
  auto opened = co_await open_simulated_store(home, kPath);
  if (!opened.has_value()) FAIL(opened.error());
  co_return std::move(*opened);
}

// What the committers of one opening know.
struct Progress {
  std::uint64_t asked = 0;         // Batches 1 … asked were asked for, in this order.
  std::uint64_t acknowledged = 0;  // The greatest that ended well.
  bool power = true;
};

Task<void> commit_until_cut(Executor& home, Store& store, Progress& progress, Random random,
                            Gate& gate) {
  const GateHold hold(gate);
  while (progress.power) {
    const std::uint64_t number = ++progress.asked;
    const Error error = co_await store.commit(history_batch(number, random.below(2000)));
    if (error != Error::kNone) break;
    progress.acknowledged = std::max(progress.acknowledged, number);
    if (random.chance(0.3)) co_await home.sleep_for(std::chrono::microseconds(random.below(300)));
  }
}

// Opens the store, checks what it holds, and commits on until the power is cut.
Task<void> live_until_cut(Executor& home, sim::World& world, Progress& progress, Random random) {
  auto store = co_await open(home);
  const std::uint64_t there = co_await check_history(*store, progress.asked);
  CHECK(there >= progress.acknowledged);
  // What was lost is committed anew, under the same numbers.
  progress = {.asked = there, .acknowledged = there};
  Gate gate;
  for (std::uint64_t i = random.between(1, 4); i > 0; --i) {
    REQUIRE(gate.enter());
    spawn(commit_until_cut(home, *store, progress, random.fork(), gate));
  }
  co_await home.sleep_for(std::chrono::microseconds(random.between(1, 20000)));
  world.cut_power();
  progress.power = false;
  co_await gate.close();
  co_await store->close();
}

Task<void> write_log(Executor& home, std::uint64_t count) {
  auto store = co_await open(home);
  for (std::uint64_t number = 1; number <= count; ++number) {
    const Error error = co_await store->commit(history_batch(number, 20));
    CHECK(error == Error::kNone);
  }
  co_await store->close();
}

// Opens a log, and once more after a commit, so that what opening cut off stays off.
Task<void> check_log(Executor& home, std::uint64_t most, std::uint64_t& there) {
  auto store = co_await open(home);
  there = co_await check_history(*store, most);
  const Error error = co_await store->commit(history_batch(there + 1, 20));
  CHECK(error == Error::kNone);
  co_await store->close();
  store = co_await open(home);
  const std::uint64_t after = co_await check_history(*store, there + 1);
  CHECK(after == there + 1);
  co_await store->close();
}

std::vector<std::byte> make_log(std::uint64_t count) {
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const bool wrote = world->run([&] { return write_log(home, count); });
  REQUIRE(wrote);
  return world->file_content(kPath);
}

std::uint64_t batches_in(std::vector<std::byte> log, std::uint64_t most) {
  const auto world = sim::World::create({.seed = 1});
  world->set_file_content(kPath, std::move(log));
  Executor& home = *world->executors()[0];
  std::uint64_t there = 0;
  const bool checked = world->run([&] { return check_log(home, most, there); });
  REQUIRE(checked);
  return there;
}

}  // namespace

// Goal: whatever a power cut does to the file, every acknowledged batch is there afterwards, and
// those in flight are there as a whole, in order, or not at all.
TEST_CASE("The simulated store keeps acknowledged batches through power cuts", "[metadata][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 129));
  CAPTURE(seed);
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  Progress progress;
  for (int life = 0; life < 5; ++life) {
    CAPTURE(life);
    const bool ended =
        world->run([&] { return live_until_cut(home, *world, progress, Random(seed * 100 + 7)); });
    REQUIRE(ended);
  }
}

TEST_CASE("A log cut short anywhere holds the batches before the cut", "[metadata]") {
  constexpr std::uint64_t kCount = 12;
  const std::vector<std::byte> log = make_log(kCount);
  std::uint64_t before = 0;
  for (std::size_t length = 0; length <= log.size(); ++length) {
    const auto end = log.begin() + static_cast<std::ptrdiff_t>(length);
    const std::uint64_t there = batches_in({log.begin(), end}, kCount);
    CHECK((there == before || there == before + 1));
    before = there;
  }
  CHECK(before == kCount);
}

TEST_CASE("A log with a damaged byte holds the batches before it", "[metadata]") {
  constexpr std::uint64_t kCount = 6;
  const std::vector<std::byte> log = make_log(kCount);
  std::set<std::uint64_t> seen;
  for (std::size_t at = 0; at < log.size(); ++at) {
    std::vector<std::byte> damaged = log;
    damaged[at] ^= std::byte{0x41};
    const std::uint64_t there = batches_in(std::move(damaged), kCount);
    CHECK(there < kCount);
    seen.insert(there);
  }
  CHECK(seen.size() == kCount);
}

}  // namespace sandbay::metadata::testing::simulated_store_test
