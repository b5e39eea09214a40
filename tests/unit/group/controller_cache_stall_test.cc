// What an operator is told of an NVRAM whose disk hangs for a while, and of volumes that are gone.
#include "tests/unit/block/on_executor.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing::controller_cache_stall_test {
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
  // One that was never told of, or whose last requests came when it was gone, too.
  const Error late = co_await write(device, 0, 1);
  REQUIRE(late == Error::kNone);
  REQUIRE(run->cache->cache()->volumes().contains(0));
  run->cache->know_volumes({{9, {.name = "w", .first = 64}}});
  CHECK_FALSE(run->cache->cache()->volumes().contains(0));
  co_await end(*run);
}

// What is left behind, where a checker of leaks finds it.
std::vector<std::pair<ControllerCache*, nvram::Nvram*>>& left_behind() {
  static auto& all = *new std::vector<std::pair<ControllerCache*, nvram::Nvram*>>;
  return all;
}

// Everything is on the drives, and nobody gets to know that it does not come back.
Task<void> hangs_at_the_end(Executor& home) {
  SimulatedBoard board{24 * kMiB};
  Books books(home);
  const auto set = memory_set(home);
  const auto run =
      co_await begin(home, books, {.nvram = &board, .durability = nvram::Durability::kHost});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  Error error = co_await write(device, 0, 1);
  REQUIRE(error == Error::kNone);
  co_await home.sleep_for(seconds(1));
  error = co_await write(device, 0, 2);
  REQUIRE(error == Error::kNone);
  board.sync_time = std::chrono::minutes(2);
  const TimePoint began = home.now();
  const bool ended = co_await run->cache->stop(began + seconds(5));
  CHECK_FALSE(ended);
  CHECK(home.now() - began < seconds(10));
  const int there = co_await read(*set, 0);
  CHECK(there == 2);
  left_behind().emplace_back(run->cache.release(), run->nvram.release());
  co_await home.sleep_for(std::chrono::minutes(20));
  CHECK(books.entries.contains(dirty_key(kSetUuid)));
}

// With durability process only the closing of the images waits for their disks.
Task<void> closes_while_it_hangs(Executor& home) {
  SimulatedBoard board{24 * kMiB};
  SimulatedBoard mirror{24 * kMiB};
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(home, books, {.nvram = &board, .mirror = &mirror});
  const Error error = co_await write(run->cache->above(kSetUuid, *set), 0, 1);
  REQUIRE(error == Error::kNone);
  board.sync_time = mirror.sync_time = std::chrono::minutes(2);
  const TimePoint began = home.now();
  const bool ended = co_await run->cache->stop(began + seconds(5));
  CHECK(ended);
  const bool finished = co_await run->cache->finish(began + seconds(5));
  CHECK_FALSE(finished);
  const Error closed = co_await run->nvram->close(began + seconds(5));
  CHECK(closed == Error::kTimedOut);
  CHECK(home.now() - began < seconds(10));
  CHECK(run->told("nvram failed") == 1);
  left_behind().emplace_back(run->cache.release(), run->nvram.release());
  co_await home.sleep_for(std::chrono::minutes(20));
}

// The mirror has failed, and nobody has noticed; then the disk of the NVRAM hangs.
Task<void> looks_while_it_hangs(Executor& home) {
  SimulatedBoard board{24 * kMiB};
  SimulatedBoard mirror{24 * kMiB};
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(
      home, books, {.nvram = &board, .mirror = &mirror, .durability = nvram::Durability::kHost});
  const Error error = co_await write(run->cache->above(kSetUuid, *set), 0, 1);
  REQUIRE(error == Error::kNone);
  co_await home.sleep_for(seconds(1));
  board.sync_time = std::chrono::minutes(2);
  const Error again = co_await write(run->cache->above(kSetUuid, *set), 100, 1);
  REQUIRE(again == Error::kNone);
  mirror.cut_short(0);
  const TimePoint began = home.now();
  co_await run->cache->check_images();
  CHECK(home.now() - began < seconds(1));
  CHECK(run->told("mirror lost") == 1);
  board.sync_time = std::chrono::microseconds(100);
  co_await home.sleep_for(std::chrono::minutes(10));
  co_await end(*run);
}

}  // namespace

TEST_CASE("A stop ends in time while the disk of the NVRAM hangs", "[group][cache]") {
  const bool to_host = GENERATE(true, false);
  sandbay::testing::run_in_world(1, to_host ? hangs_at_the_end : closes_while_it_hangs);
}

TEST_CASE("A failed mirror is noticed while the disk of the NVRAM hangs", "[group][cache]") {
  sandbay::testing::run_in_world(1, looks_while_it_hangs);
}

TEST_CASE("An NVRAM whose disk hangs is told, and not again and again", "[group][cache]") {
  sandbay::testing::run_in_world(1, hangs);
}

TEST_CASE("Volumes that are gone leave nothing in the cache", "[group][cache]") {
  sandbay::testing::run_in_world(1, forgets);
}

}  // namespace sandbay::group::testing::controller_cache_stall_test
