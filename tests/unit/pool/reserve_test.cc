// Copies in the background leave free pages to hosts: a copy begins only when all of it fits, stops
// at the reserve if hosts claim the room meanwhile, and goes on when pages become free.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "pool/housekeeper.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::reserve_test {
namespace {

using std::chrono::seconds;
using Kind = PoolEvent::Kind;

constexpr std::uint64_t kReserveCells = kTestPageBytes / kCellBytes;

Task<std::unique_ptr<PoolVolume>> make_full(Rig* rig, std::uint64_t pages) {
  const auto made = co_await rig->pool->create({.byte_count = pages * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig->pool->attach(*made);
  Random random(1);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const Error error = co_await write_cells(*volume, page * kReserveCells, 1, 9, random);
    REQUIRE(error == Error::kNone);
  }
  co_return volume;
}

Task<void> snapshot_and_restore(Rig* rig, PoolVolume* volume) {
  const BranchId id = volume->branch().id();
  const auto taken = co_await rig->pool->snapshot({{.branch = id, .label = {}}}, {});
  REQUIRE(taken.has_value());
  const auto restored =
      co_await rig->pool->restore(*volume, {.branch = id, .generation = (*taken)[0]}, {});
  REQUIRE(restored.has_value());
}

// A row of two parents, both with snapshots, so that only a copy of all 20 pages shortens it.
Task<void> wait_for_room(Executor& home) {
  Rig rig(home, {.stores = 1, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  std::vector<PoolEvent> events;
  rig.pool->observe([&events](const PoolEvent& event) { events.push_back(event); });
  auto volume = co_await make_full(&rig, 20);
  auto ballast = co_await make_full(&rig, 10);
  for (int i = 0; i < 2; ++i) co_await snapshot_and_restore(&rig, volume.get());
  Housekeeper housekeeper(*rig.pool, {.most_parents = 1});
  housekeeper.start();
  co_await home.sleep_for(seconds(150));
  CHECK(rig.pool->space().free_pages == 18);
  CHECK(rig.pool->parent_count(volume->branch()) == 2);
  const auto views = housekeeper.views();
  const auto view =
      std::ranges::find(views, HousekeepingView::Kind::kFlatten, &HousekeepingView::kind);
  REQUIRE(view != views.end());
  CHECK(view->stuck == Error::kNoSpace);
  CHECK(view->branch == volume->branch().id());
  CHECK(view->needed_pages == 20);
  CHECK(view->room_pages == 13);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Kind::kCopyWaits);
  CHECK(events[0].needed_pages == 20);
  CHECK(events[0].room_pages == 13);

  const BranchId freed = ballast->branch().id();
  ballast.reset();
  const Error removed = co_await rig.pool->remove(freed, {});
  REQUIRE(removed == Error::kNone);
  co_await home.sleep_for(seconds(5));
  CHECK(rig.pool->parent_count(volume->branch()) <= 1);
  CHECK(rig.pool->space().free_pages == 8);
  CHECK(housekeeper.views().empty());
  (void)co_await housekeeper.stop(kNever);
  volume.reset();
  const std::string damage = co_await rig.check();
  CHECK(damage == "");
  co_await rig.stop();
}

Task<void> stop_at_reserve(Executor& home) {
  Rig rig(home, {.stores = 1, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_full(&rig, 16);
  const auto cloned =
      co_await rig.pool->clone({.branch = volume->branch().id(), .generation = kLive}, {}, {});
  REQUIRE(cloned.has_value());
  PageNumber next = 0;
  auto more = co_await rig.pool->make_independent(*cloned, &next, 4);
  REQUIRE(more == true);
  auto other = co_await make_full(&rig, 14);
  more = co_await rig.pool->make_independent(*cloned, &next, 16);
  REQUIRE_FALSE(more.has_value());
  CHECK(more.error() == Error::kNoSpace);
  CHECK(rig.pool->space().free_pages == 4);
  // The reserve is the hosts'.
  auto last = co_await make_full(&rig, 4);
  CHECK(rig.pool->space().free_pages == 0);
  more = co_await rig.pool->make_independent(*cloned, &next, 16);
  CHECK(more.error() == Error::kNoSpace);
  CHECK(rig.pool->pages_awaited(*cloned) == 10);
  volume.reset();
  other.reset();
  last.reset();
  const std::string damage = co_await rig.check();
  CHECK(damage == "");
  co_await rig.stop();
}

}  // namespace

TEST_CASE("A row of parents is copied only when the copy fits beside the reserve", "[pool][P-4]") {
  testing::run_in_world(1, wait_for_room);
}

TEST_CASE("A copy stops at the reserve when hosts claim its room", "[pool][P-4]") {
  testing::run_in_world(1, stop_at_reserve);
}

}  // namespace sandbay::pool::reserve_test
