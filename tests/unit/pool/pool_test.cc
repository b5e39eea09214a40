// What a pool promises, case by case: space, limits, what snapshots cost, missing stores, the
// owner's keys, fixed stores.
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::pool_test {
namespace {

constexpr std::uint64_t kChunkCells = kChunkBytes / kCellBytes;
constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;

Task<std::unique_ptr<PoolVolume>> make_volume(Rig* rig, BranchOptions options) {
  const auto made = co_await rig->pool->create(std::move(options), {});
  REQUIRE(made.has_value());
  co_return rig->pool->attach(*made);
}

Task<void> start(Rig* rig) {
  const std::string wrong = co_await rig->start();
  REQUIRE(wrong == "");
}

Task<void> finish(Rig* rig) {
  const std::string wrong = co_await rig->check();
  CHECK(wrong == "");
  const Error closed = co_await rig->close();
  CHECK(closed == Error::kNone);
}

std::uint64_t used(const Rig& rig) {
  return rig.pool->space().pages - rig.pool->space().free_pages;
}

Task<void> give_back(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  auto volume = co_await make_volume(&rig, {.byte_count = 4 * kTestPageBytes});
  Error error = co_await write_cells(*volume, 0, 4 * kPageCells, 1, random);
  CHECK(error == Error::kNone);
  CHECK(used(rig) == 4);
  error = co_await unmap_cells(*volume, 0, 2 * kPageCells, Operation::kUnmap);
  CHECK(error == Error::kNone);
  CHECK(used(rig) == 2);
  // A snapshot needs the other two: they stay as they are, and nothing is copied.
  const BranchId id = volume->branch().id();
  const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
  REQUIRE(taken.has_value());
  error = co_await unmap_cells(*volume, 0, 4 * kPageCells, Operation::kUnmap);
  CHECK(error == Error::kNone);
  CHECK(used(rig) == 2);
  CHECK(rig.pool->counters().chunks_kept == 0);
  CHECK(rig.pool->space().reserve_pages == 2);
  const auto run = co_await volume->provisioning(0, volume->geometry().block_count);
  REQUIRE(run.has_value());
  CHECK_FALSE(run->mapped);
  CHECK(run->block_count == volume->geometry().block_count);
  const Error removed =
      co_await rig.pool->remove_snapshot({.branch = id, .generation = taken->front()}, {});
  CHECK(removed == Error::kNone);
  co_await rig.sweep_all();
  CHECK(used(rig) == 0);
  volume.reset();
  co_await finish(&rig);
}

Task<void> keep_once(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  auto volume = co_await make_volume(&rig, {.byte_count = 2 * kTestPageBytes});
  Error error = co_await write_cells(*volume, 0, 2 * kPageCells, 1, random);
  CHECK(error == Error::kNone);
  const BranchId id = volume->branch().id();
  for (int i = 0; i < 100; ++i) {
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
    REQUIRE(taken.has_value());
  }
  CHECK(used(rig) == 2);
  // Three times the same cell, and one more in the same chunk: one chunk is kept.
  for (std::uint32_t i = 0; i < 3; ++i) {
    error = co_await write_cells(*volume, 3, 1, 2 + i, random);
    CHECK(error == Error::kNone);
  }
  error = co_await write_cells(*volume, 5, 1, 9, random);
  CHECK(error == Error::kNone);
  CHECK(rig.pool->counters().chunks_kept == 1);
  CHECK(rig.pool->space().kept_slots == 1);
  error = co_await write_cells(*volume, kChunkCells, 1, 9, random);
  CHECK(error == Error::kNone);
  CHECK(rig.pool->space().kept_slots == 2);
  volume.reset();
  co_await finish(&rig);
}

// Chunks that each living generation takes, oldest first.
std::vector<std::uint64_t> slots_by_snapshot(const Branch& branch) {
  std::vector<std::uint64_t> slots;
  for (const Generation generation : branch.living) slots.push_back(branch.slots_of(generation));
  return slots;
}

using Counts = std::vector<std::uint64_t>;

Task<void> reopen(Rig* rig) {
  const Error closed = co_await rig->pool->close();
  CHECK(closed == Error::kNone);
  rig->pool.reset();
  const std::string opened = co_await rig->open_pool();
  REQUIRE(opened == "");
}

Task<void> count_by_snapshot(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  auto volume = co_await make_volume(&rig, {.byte_count = 2 * kTestPageBytes});
  Error error = co_await write_cells(*volume, 0, 2 * kPageCells, 1, random);
  const BranchId id = volume->branch().id();
  // Three, and after each of them so many chunks are written from the first on.
  std::vector<Generation> generations;
  for (const std::uint32_t chunks : {3U, 1U, 5U}) {
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
    REQUIRE(taken.has_value());
    generations.push_back(taken->front());
    error = co_await write_cells(*volume, 0, chunks * kChunkCells, 2, random);
    CHECK(error == Error::kNone);
  }
  CHECK(slots_by_snapshot(volume->branch()) == Counts{3, 1, 5});
  volume.reset();
  co_await reopen(&rig);
  const Branch& branch = *rig.pool->map().find(id);
  CHECK(slots_by_snapshot(branch) == Counts{3, 1, 5});
  // What the middle one kept the oldest sees, but for the chunk that it has itself.
  error = co_await rig.pool->remove_snapshot({.branch = id, .generation = generations[1]}, {});
  CHECK(error == Error::kNone);
  CHECK(slots_by_snapshot(branch) == Counts{4, 5});
  co_await rig.sweep_all();
  CHECK(slots_by_snapshot(branch) == Counts{3, 5});
  // With the oldest goes what it alone needs, at once.
  error = co_await rig.pool->remove_snapshot({.branch = id, .generation = generations[0]}, {});
  CHECK(error == Error::kNone);
  CHECK(slots_by_snapshot(branch) == Counts{5});
  CHECK(branch.kept_for.total() == 8);
  co_await rig.sweep_all();
  CHECK(branch.kept_for.total() == 5);
  co_await finish(&rig);
}

Task<void> limit(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  std::vector<PoolEvent> events;
  rig.pool->observe([&events](const PoolEvent& event) { events.push_back(event); });
  auto volume = co_await make_volume(
      &rig, {.byte_count = 8 * kTestPageBytes, .page_limit = 3, .page_warning = 2});
  std::vector<Error> errors;
  for (std::uint64_t page = 0; page < 4; ++page) {
    const Error error = co_await write_cells(*volume, page * kPageCells, 1, 1, random);
    errors.push_back(error);
  }
  CHECK(errors == std::vector{Error::kNone, Error::kNone, Error::kNone, Error::kNoSpace});
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == PoolEvent::Kind::kPagesWarning);
  CHECK(events[1].kind == PoolEvent::Kind::kPagesLimit);
  // What is there may be overwritten, and a higher limit helps.
  Error error = co_await write_cells(*volume, 0, 1, 2, random);
  CHECK(error == Error::kNone);
  error = co_await rig.pool->set_limits(volume->branch().id(), 4, 0, {});
  CHECK(error == Error::kNone);
  error = co_await write_cells(*volume, 3 * kPageCells, 1, 1, random);
  CHECK(error == Error::kNone);
  // A thick volume that does not fit is not made.
  const auto made =
      co_await rig.pool->create({.byte_count = 97 * kTestPageBytes, .thick = true}, {});
  CHECK(made.error() == Error::kNoSpace);
  CHECK(used(rig) == 4);
  volume.reset();
  co_await finish(&rig);
}

Task<void> miss_store(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  auto on_0 = co_await make_volume(&rig, {.byte_count = kTestPageBytes, .fixed_store = 0});
  auto on_1 = co_await make_volume(&rig, {.byte_count = 2 * kTestPageBytes, .fixed_store = 1});
  for (PoolVolume* volume : {on_0.get(), on_1.get()}) {
    const Error error = co_await write_cells(*volume, 0, 1, 1, random);
    CHECK(error == Error::kNone);
  }
  rig.pool->set_device(1, nullptr);
  CHECK(on_0->health() == Health::kGood);
  CHECK(on_1->health() == Health::kMissing);
  Error error = co_await write_cells(*on_0, 0, 1, 2, random);
  CHECK(error == Error::kNone);
  error = co_await write_cells(*on_1, 0, 1, 2, random);
  CHECK(error == Error::kNotReady);
  const auto read = co_await read_cells(*on_1, 0, 1, random);
  CHECK(read.error() == Error::kNotReady);
  // What is not there yet finds no store either, but room as soon as that is back.
  error = co_await write_cells(*on_1, kPageCells, 1, 2, random);
  CHECK(error == Error::kNotReady);
  rig.pool->set_device(1, rig.devices[1].get());
  CHECK(on_1->health() == Health::kGood);
  const auto again = co_await read_cells(*on_1, 0, 1, random);
  CHECK(again == Cells{1});
  on_0.reset();
  on_1.reset();
  co_await finish(&rig);
}

Task<void> place_in_order(Executor& home) {
  Rig rig(home, {});
  co_await start(&rig);
  Random random(1);
  auto fixed = co_await make_volume(&rig, {.byte_count = 6 * kTestPageBytes, .fixed_store = 1});
  auto striped = co_await make_volume(&rig, {.byte_count = 10 * kTestPageBytes, .thick = true});
  for (std::uint64_t page = 0; page < 6; ++page) {
    const Error error = co_await write_cells(*fixed, page * kPageCells, 1, 1, random);
    CHECK(error == Error::kNone);
  }
  PageNumber last = 0;
  for (PageNumber page = 0; page < 6; ++page) {
    const Place place = fixed->branch().pages.at(page).place();
    CHECK(place.store == 1);
    CHECK((page == 0 || place.page > last));
    last = place.page;
  }
  CHECK(striped->branch().pages.count_on(0) == 5);
  CHECK(striped->branch().pages.count_on(1) == 5);
  fixed.reset();
  striped.reset();
  co_await finish(&rig);
}

// Whoever asks what is provisioned of a large volume is answered in parts, and keeps nobody waiting
// for long.
Task<void> look_in_parts(Executor& home) {
  constexpr std::uint32_t kPages = 2500;
  Rig rig(home, {.stores = 1, .store_pages = kPages});
  co_await start(&rig);
  Random random(1);
  auto volume = co_await make_volume(&rig, {.byte_count = kPages * kTestPageBytes, .thick = true});
  const Error error = co_await write_cells(*volume, 2400 * kPageCells, kPageCells, 1, random);
  CHECK(error == Error::kNone);
  const std::uint64_t blocks = volume->geometry().block_count;
  constexpr std::uint64_t kPageBlocks = kTestPageBytes / 512;
  std::vector<std::uint64_t> runs;
  std::uint64_t mapped = 0;
  for (std::uint64_t at = 0; at < blocks;) {
    const auto run = co_await volume->provisioning(at, blocks);
    REQUIRE(run.has_value());
    REQUIRE(run->block_count > 0);
    if (run->mapped) mapped += run->block_count;
    at += run->block_count;
    runs.push_back(run->block_count / kPageBlocks);
  }
  CHECK(mapped == kPageBlocks);
  CHECK(runs == std::vector<std::uint64_t>{1024, 1024, 352, 1, 99});
  volume.reset();
  co_await finish(&rig);
}

// The owner's keys change with the pool or not at all.
Task<void> take_along(Executor& home) {
  Rig rig(home, {.nvram = false});
  co_await start(&rig);
  metadata::Batch extra;
  extra.put("volume/db1", "made");
  const auto made = co_await rig.pool->create({.byte_count = kTestPageBytes}, std::move(extra));
  REQUIRE(made.has_value());
  metadata::Batch more;
  more.put("volume/db2", "made");
  const auto refused = co_await rig.pool->create(
      {.byte_count = 1000 * kTestPageBytes, .thick = true}, std::move(more));
  CHECK(refused.error() == Error::kNoSpace);
  const auto first = co_await rig.store->get("volume/db1");
  CHECK(first.value() == "made");
  const auto second = co_await rig.store->get("volume/db2");
  CHECK_FALSE(second.value().has_value());
  co_await finish(&rig);
}

}  // namespace

TEST_CASE("unmapping gives pages back, or leaves them to snapshots as they are", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return give_back(home); });
}

TEST_CASE("a first overwrite keeps one chunk, however many snapshots there are", "[pool]") {
  testing::run_in_world(2, [](Executor& home) { return keep_once(home); });
}

TEST_CASE("what each snapshot takes is counted, over an end and a beginning as well", "[pool]") {
  testing::run_in_world(7, [](Executor& home) { return count_by_snapshot(home); });
}

TEST_CASE("a thin volume warns and stops at its limits", "[pool]") {
  testing::run_in_world(3, [](Executor& home) { return limit(home); });
}

TEST_CASE("a missing store concerns those who have pages there, until it is back", "[pool]") {
  testing::run_in_world(4, [](Executor& home) { return miss_store(home); });
}

TEST_CASE("a fixed volume lies in ascending order, others over all stores", "[pool]") {
  testing::run_in_world(5, [](Executor& home) { return place_in_order(home); });
}

TEST_CASE("what is provisioned of a large volume is told in parts", "[pool]") {
  testing::run_in_world(8, [](Executor& home) { return look_in_parts(home); });
}

TEST_CASE("the owner's keys change with the pool or not at all", "[pool]") {
  testing::run_in_world(6, [](Executor& home) { return take_along(home); });
}

}  // namespace sandbay::pool::pool_test
