// The last free page: while the background has claimed it, a write that needs it waits, and fails
// only when no page has come back.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::last_page_test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;

struct Ended {
  bool done = false;
  Error error = Error::kNone;
};

// A pool with one free page, and stores that hang when they are asked to.
struct Scarcity {
  Scarcity(Executor& home, std::uint32_t stores)
      : rig(home, {.stores = stores, .store_pages = 4}) {}

  Task<void> start() {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    rig.pool->observe([this](const PoolEvent& event) {
      if (event.kind == PoolEvent::Kind::kPoolFull) ++told;
    });
    for (std::uint32_t i = 0; i < rig.devices.size(); ++i) {
      hung.push_back(std::make_unique<testing::HungDevice>(*rig.devices[i]));
      rig.pool->set_device(static_cast<StoreIndex>(i), hung[i].get());
    }
    const auto made = co_await rig.pool->create({.byte_count = 16 * kTestPageBytes}, {});
    REQUIRE(made.has_value());
    volume = rig.pool->attach(*made);
    while (rig.pool->space().free_pages > 1) {
      const Error error = co_await write_page(pages++);
      REQUIRE(error == Error::kNone);
    }
  }
  Task<Error> write_page(std::uint64_t page) {
    Random random(1);
    const Error error = co_await write_cells(*volume, page * kPageCells, kPageCells, 1, random);
    co_return error;
  }
  Task<void> stop() {
    volume.reset();
    for (std::size_t i = 0; i < hung.size(); ++i) {
      rig.pool->set_device(static_cast<StoreIndex>(i), rig.devices[i].get());
    }
    const std::string damage = co_await rig.check();
    CHECK(damage == "");
    co_await rig.stop();
  }

  Rig rig;
  std::vector<std::unique_ptr<testing::HungDevice>> hung;
  std::unique_ptr<PoolVolume> volume;
  std::uint64_t pages = 0;  // That are written.
  int told = 0;             // That the pool is full.
};

Task<void> write_beside(Scarcity* of, std::uint64_t page, Ended* ended) {
  ended->error = co_await of->write_page(page);
  ended->done = true;
}

Task<void> trim_beside(Scarcity* of, Ended* ended) {
  (void)co_await of->rig.pool->trim(1);
  ended->done = true;
}

Task<void> move_beside(Scarcity* of, PageNumber page, StoreIndex target, Ended* ended) {
  ended->error = co_await of->rig.pool->move_page(of->volume->branch().id(), page, target);
  ended->done = true;
}

// Two writes want the page that is being unmapped.
Task<void> want_trimmed_page(Executor& home) {
  Scarcity pool(home, 1);
  co_await pool.start();
  const Error last = co_await pool.write_page(pool.pages);
  REQUIRE(last == Error::kNone);
  const Error unmapped = co_await unmap_cells(*pool.volume, 0, kPageCells, Operation::kUnmap);
  REQUIRE(unmapped == Error::kNone);
  pool.hung[0]->hang_only(Operation::kUnmap);
  Ended trimmed;
  spawn(trim_beside(&pool, &trimmed));
  co_await home.sleep_for(milliseconds(10));
  REQUIRE(pool.hung[0]->held() == 1);
  REQUIRE(pool.rig.pool->space().free_pages == 0);
  std::vector<Ended> writes(2);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    spawn(write_beside(&pool, pool.pages + 1 + i, &writes[i]));
  }
  co_await home.sleep_for(milliseconds(10));
  CHECK_FALSE(writes[0].done);
  CHECK_FALSE(writes[1].done);
  CHECK(pool.told == 0);
  pool.hung[0]->release();
  co_await home.sleep_for(milliseconds(10));
  REQUIRE((trimmed.done && writes[0].done && writes[1].done));
  CHECK(std::ranges::count(writes, Error::kNone, &Ended::error) == 1);
  CHECK(std::ranges::count(writes, Error::kNoSpace, &Ended::error) == 1);
  CHECK(pool.told == 1);
  co_await pool.stop();
}

// The first page that lies elsewhere.
PageNumber page_not_on(const Branch& branch, StoreIndex store) {
  PageNumber page = 0;
  while (branch.pages.at(page).place_store == store) ++page;
  return page;
}

StoreIndex store_with_room(const Rig& rig) {
  const auto room = std::ranges::find_if(rig.pool->map().stores(), [](const auto& store) {
    return store.second.pages.free_count() > 0;
  });
  return room->first;
}

Task<void> want_target_of_move(Executor& home) {
  Scarcity pool(home, 2);
  co_await pool.start();
  const StoreIndex target = store_with_room(pool.rig);
  pool.hung[target]->hang_only(Operation::kWrite);
  Ended moved;
  spawn(move_beside(&pool, page_not_on(pool.volume->branch(), target), target, &moved));
  co_await home.sleep_for(milliseconds(10));
  REQUIRE(pool.hung[target]->held() == 1);
  Ended written;
  spawn(write_beside(&pool, pool.pages, &written));
  co_await home.sleep_for(milliseconds(10));
  CHECK_FALSE(written.done);
  CHECK(pool.told == 0);
  pool.hung[target]->release();
  co_await home.sleep_for(milliseconds(10));
  REQUIRE((moved.done && written.done));
  CHECK(written.error == Error::kNone);
  CHECK(pool.told == 0);
  co_await pool.stop();
}

// The write needs the page for what a snapshot keeps of the very page that moves.
Task<void> write_moving_page(Executor& home) {
  Scarcity pool(home, 2);
  co_await pool.start();
  const Branch& branch = pool.volume->branch();
  // The pace lets one page pass, and holds the next one between its copy and its end.
  pool.rig.pool->set_pace(kTestPageBytes / 4);
  StoreIndex target = store_with_room(pool.rig);
  const Error first =
      co_await pool.rig.pool->move_page(branch.id(), page_not_on(branch, target), target);
  REQUIRE(first == Error::kNone);
  target = store_with_room(pool.rig);
  const PageNumber page = page_not_on(branch, target);
  const auto taken = co_await pool.rig.pool->snapshot({{.branch = branch.id(), .label = {}}}, {});
  REQUIRE(taken.has_value());
  Ended moved;
  spawn(move_beside(&pool, page, target, &moved));
  co_await home.sleep_for(milliseconds(100));
  REQUIRE_FALSE(moved.done);
  Ended written;
  spawn(write_beside(&pool, page, &written));
  co_await home.sleep_for(milliseconds(100));
  CHECK_FALSE(written.done);
  co_await home.sleep_for(std::chrono::seconds(10));
  REQUIRE((moved.done && written.done));
  CHECK(written.error == Error::kNone);
  CHECK(pool.told == 0);
  pool.rig.pool->set_pace(0);
  co_await pool.stop();
}

}  // namespace

TEST_CASE("A write waits for the last page while it is unmapped below", "[pool][P-7]") {
  testing::run_in_world(1, want_trimmed_page);
}

TEST_CASE("A write waits for the last page while another one moves there", "[pool][P-7]") {
  testing::run_in_world(1, want_target_of_move);
  testing::run_in_world(1, write_moving_page);
}

}  // namespace sandbay::pool::last_page_test
