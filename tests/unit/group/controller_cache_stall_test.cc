// What an operator is told of an NVRAM whose disk hangs for a while, and of volumes that are gone.
#include "tests/unit/block/on_executor.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing {
namespace {

using Catch::Contains;
using nvram::SimulatedBoard;
using std::chrono::seconds;

// Its syncs take so long while it writes once.
Task<void> stall(Executor& home, BlockDevice* device, SimulatedBoard* board, Lba lba) {
  const Duration usual = std::exchange(board->sync_time, seconds(5));
  const Error through = co_await write(*device, lba, 2);
  REQUIRE(through == Error::kNone);
  board->sync_time = usual;
  co_await home.sleep_for(seconds(1));
}

Task<void> hangs(Executor& home) {
  SimulatedBoard board{24 * kMiB};
  Books books(home);
  const auto set = memory_set(home);
  const auto run =
      co_await begin(home, books, {.nvram = &board, .durability = nvram::Durability::kHost});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  const Error first = co_await write(device, 0, 1);
  REQUIRE(first == Error::kNone);
  co_await home.sleep_for(seconds(1));
  CHECK(run->cache->show({}).notes.empty());

  co_await stall(home, &device, &board, 100);
  const int there = co_await read(*set, 100);
  CHECK(there == 2);
  CHECK(run->told("nvram slow") == 1);
  CHECK_THAT(run->text("nvram slow"), Contains("writes go through"));
  const std::vector<std::string> notes = run->cache->show({}).notes;
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Contains("writes go through"));
  co_await home.sleep_for(seconds(20));
  CHECK(run->told("nvram slow") == 2);  // It is well again.
  CHECK(run->cache->show({}).notes.empty());
  // Not each time, and again after a while.
  co_await stall(home, &device, &board, 200);
  co_await home.sleep_for(seconds(70));
  CHECK(run->told("nvram slow") == 2);
  co_await stall(home, &device, &board, 300);
  co_await home.sleep_for(seconds(20));
  CHECK(run->told("nvram slow") == 4);
  co_await end(*run);
}

Task<void> forgets(Executor& home) {
  SimulatedBoard board{24 * kMiB};
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(home, books, {.nvram = &board});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  run->cache->know_volumes({{0, {.name = "v", .first = 0}}, {9, {.name = "w", .first = 64}}});
  const Error first = co_await write(device, 0, 1);
  REQUIRE(first == Error::kNone);
  REQUIRE(run->cache->cache()->volumes().contains(0));
  run->cache->know_volumes({{9, {.name = "w", .first = 64}}});
  CHECK_FALSE(run->cache->cache()->volumes().contains(0));
  co_await end(*run);
}

}  // namespace

TEST_CASE("An NVRAM whose disk hangs is told, and not again and again", "[group][cache]") {
  sandbay::testing::run_in_world(1, hangs);
}

TEST_CASE("Volumes that are gone leave nothing in the cache", "[group][cache]") {
  sandbay::testing::run_in_world(1, forgets);
}

}  // namespace sandbay::group::testing
