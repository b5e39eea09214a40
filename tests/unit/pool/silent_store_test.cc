// A store that goes while nobody has told the pool yet: it says not ready to what was to be put
// there. Volumes without pages on it notice nothing, nothing leaks, and where no other store has
// room, everything waits for it.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::silent_store_test {
namespace {

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;
constexpr std::uint64_t kChunkCells = kChunkBytes / kCellBytes;

Task<std::unique_ptr<PoolVolume>> make_volume(Rig* rig, BranchOptions options) {
  const auto made = co_await rig->pool->create(std::move(options), {});
  REQUIRE(made.has_value());
  co_return rig->pool->attach(*made);
}

Task<void> finish(Rig* rig) {
  for (std::size_t i = 0; i < rig->devices.size(); ++i) {
    rig->pool->set_device(static_cast<StoreIndex>(i), rig->devices[i].get());
  }
  const std::string wrong = co_await rig->check();
  CHECK(wrong == "");
  co_await rig->stop();
}

enum class Change : std::uint8_t { kWrite, kUnmap, kNewPage };

// Store 1 is where everything new would go, and goes itself.
Task<void> change_meanwhile(Executor& home, Change change) {
  Rig rig(home, {});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Random random(1);
  testing::FaultyDevice going(*rig.devices[1]);
  rig.pool->set_device(1, &going);
  auto volume = co_await make_volume(&rig, {.byte_count = 4 * kTestPageBytes, .fixed_store = 0});
  auto striped = co_await make_volume(&rig, {.byte_count = 4 * kTestPageBytes});
  Error error = co_await write_cells(*volume, 0, kPageCells, 1, random);
  REQUIRE(error == Error::kNone);
  const BranchId id = volume->branch().id();
  const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
  REQUIRE(taken.has_value());
  rig.pool->set_latency(0, 1e6);
  error = co_await write_cells(*volume, 0, kChunkCells, 2, random);
  REQUIRE(error == Error::kNone);
  REQUIRE(volume->branch().record.kept.on(1) == 1);

  going.fail({.error = Error::kNotReady});
  PoolVolume& changed = change == Change::kNewPage ? *striped : *volume;
  if (change == Change::kUnmap) {
    error = co_await unmap_cells(changed, kChunkCells, 2 * kChunkCells, Operation::kUnmap);
  } else {
    error = co_await write_cells(changed, kChunkCells, 2 * kChunkCells, 3, random);
  }
  CHECK(error == Error::kNone);
  CHECK(going.struck() > 0);
  CHECK(changed.serves());
  CHECK(changed.branch().pages.count_on(1) == 0);
  CHECK(volume->branch().record.kept.on(1) == 1);
  CHECK(volume->branch().record.kept.on(0) == (change == Change::kNewPage ? 0 : 2));
  Cells wanted(3 * kChunkCells, change == Change::kUnmap ? 0 : 3);
  std::fill_n(wanted.begin(), kChunkCells, change == Change::kNewPage ? 0 : 2);
  auto found = co_await read_cells(changed, 0, 3 * kChunkCells, random);
  CHECK(found == wanted);

  // It comes back, and what it keeps is what it was.
  going.clear();
  auto snapshot = rig.pool->attach(id, (*taken)[0]);
  found = co_await read_cells(*snapshot, 0, kPageCells, random);
  CHECK(found == Cells(kPageCells, 1));
  snapshot.reset();
  volume.reset();
  striped.reset();
  co_await finish(&rig);
}

// One that has gone for a moment is asked again a little later.
Task<void> come_back(Executor& home) {
  Rig rig(home, {});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Random random(1);
  testing::FaultyDevice going(*rig.devices[1]);
  rig.pool->set_device(1, &going);
  rig.pool->set_latency(0, 1e6);
  auto volume = co_await make_volume(&rig, {.byte_count = 8 * kTestPageBytes});
  going.fail({.error = Error::kNotReady, .times = 1});
  std::vector<std::uint64_t> there;
  for (std::uint64_t page = 0; page < 3; ++page) {
    if (page == 2) co_await home.sleep_for(std::chrono::seconds(2));
    const Error error = co_await write_cells(*volume, page * kPageCells, 1, 1, random);
    CHECK(error == Error::kNone);
    there.push_back(volume->branch().pages.count_on(1));
  }
  CHECK(there == std::vector<std::uint64_t>{0, 0, 1});
  volume.reset();
  co_await finish(&rig);
}

// There is no other: the host is told, and is not kept waiting when the store is back.
Task<void> have_no_other(Executor& home) {
  Rig rig(home, {.stores = 1});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Random random(1);
  testing::FaultyDevice going(*rig.devices[0]);
  rig.pool->set_device(0, &going);
  auto volume = co_await make_volume(&rig, {.byte_count = 2 * kTestPageBytes});
  going.fail({.error = Error::kNotReady});
  Error error = co_await write_cells(*volume, 0, 1, 1, random);
  CHECK(error == Error::kNotReady);
  CHECK(rig.pool->space().free_pages == rig.pool->space().pages);
  going.clear();
  error = co_await write_cells(*volume, 0, 1, 1, random);
  CHECK(error == Error::kNone);
  volume.reset();
  co_await finish(&rig);
}

// Room on a store that is away is no lack of room.
Task<void> wait_for_room(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 4});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Random random(1);
  std::vector<PoolEvent::Kind> events;
  rig.pool->observe([&events](const PoolEvent& event) { events.push_back(event.kind); });
  auto volume = co_await make_volume(&rig, {.byte_count = 9 * kTestPageBytes});
  rig.pool->set_device(1, nullptr);
  std::vector<Error> errors;
  for (std::uint64_t page = 0; page < 9; ++page) {
    if (page == 5) rig.pool->set_device(1, rig.devices[1].get());
    const std::uint64_t at = page - (page >= 5 ? 1 : 0);
    const Error error = co_await write_cells(*volume, at * kPageCells, 1, 1, random);
    errors.push_back(error);
  }
  std::vector<Error> wanted(9, Error::kNone);
  wanted[4] = Error::kNotReady;
  CHECK(errors == wanted);
  CHECK(std::ranges::count(events, PoolEvent::Kind::kPoolFull) == 0);
  CHECK(std::ranges::count(events, PoolEvent::Kind::kRoomAway) == 1);
  const Error full = co_await write_cells(*volume, 8 * kPageCells, 1, 1, random);
  CHECK(full == Error::kNoSpace);
  CHECK(std::ranges::count(events, PoolEvent::Kind::kPoolFull) == 1);
  volume.reset();
  co_await finish(&rig);
}

}  // namespace

TEST_CASE("what is kept goes elsewhere when the store for it has gone", "[pool]") {
  for (const Change change : {Change::kWrite, Change::kUnmap, Change::kNewPage}) {
    testing::run_in_world(1, [change](Executor& home) { return change_meanwhile(home, change); });
  }
}

TEST_CASE("a store that did not answer for a moment gets new pages again", "[pool]") {
  testing::run_in_world(2, [](Executor& home) { return come_back(home); });
}

TEST_CASE("without another store a new page waits for the one that is away", "[pool]") {
  testing::run_in_world(3, [](Executor& home) { return have_no_other(home); });
  testing::run_in_world(4, [](Executor& home) { return wait_for_room(home); });
}

}  // namespace sandbay::pool::silent_store_test
