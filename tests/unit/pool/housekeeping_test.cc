// What a pool does in the background: balance by room and by latency, classes, vacating, filling,
// flattening, trimming, paces; and what the owner is told of.
#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "block/layer.h"
#include "pool/housekeeper.h"
#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::housekeeping_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = PoolEvent::Kind;

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;

struct Events {
  std::vector<PoolEvent> all;
  void listen(Pool& pool) {
    pool.observe([this](const PoolEvent& event) { all.push_back(event); });
  }
  long count(Kind kind) const { return std::ranges::count(all, kind, &PoolEvent::kind); }
};

Task<std::unique_ptr<PoolVolume>> make_volume(Rig* rig, std::uint64_t pages,
                                              BranchOptions options) {
  options.byte_count = pages * kTestPageBytes;
  const auto made = co_await rig->pool->create(std::move(options), {});
  REQUIRE(made.has_value());
  co_return rig->pool->attach(*made);
}

Task<void> fill_volume(PoolVolume* volume, std::uint64_t pages, std::uint32_t number) {
  Random random(number);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const Error error = co_await write_cells(*volume, page * kPageCells, 1, number, random);
    REQUIRE(error == Error::kNone);
  }
}

Task<void> expect_cells(BlockDevice* volume, std::uint64_t pages, std::uint32_t number) {
  Random random(1);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const auto read = co_await read_cells(*volume, page * kPageCells, 2, random);
    REQUIRE(read.has_value());
    CHECK((*read)[0] == number);
    CHECK((*read)[1] == 0);
  }
}

Task<void> finish(Rig* rig) {
  const std::string wrong = co_await rig->check();
  CHECK(wrong == "");
  co_await rig->stop();
}

// A third store comes: pages spread, every volume over all stores.
Task<void> check_spreading(Executor& home, std::uint32_t store_pages) {
  Rig rig(home, {.stores = 2, .store_pages = store_pages});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto one = co_await make_volume(&rig, 30, {});
  auto two = co_await make_volume(&rig, 30, {});
  co_await fill_volume(one.get(), 30, 7);
  co_await fill_volume(two.get(), 30, 8);
  const std::string added = co_await rig.add_device(2);
  REQUIRE(added == "");
  const Error put = co_await rig.pool->put_store(rig.config_of(2), {});
  REQUIRE(put == Error::kNone);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(60));
  CHECK(housekeeper.views().empty());
  (void)co_await housekeeper.stop(kNever);
  for (StoreIndex store = 0; store < 3; ++store) {
    const PoolSpace space = rig.pool->space(store);
    CHECK(space.pages - space.free_pages >= 19);
    CHECK(space.pages - space.free_pages <= 21);
    for (const auto* volume : {one.get(), two.get()}) {
      CHECK(volume->branch().pages.count_on(store) >= 8);
      CHECK(volume->branch().pages.count_on(store) <= 12);
    }
  }
  co_await expect_cells(one.get(), 30, 7);
  co_await expect_cells(two.get(), 30, 8);
  one.reset();
  two.reset();
  co_await finish(&rig);
}

// What is used much leaves the slow store; what is not used stays where it is.
Task<void> check_hot_pages(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  testing::DelayDevice slow(*rig.devices[0], milliseconds(5), milliseconds(6));
  testing::DelayDevice fast(*rig.devices[1], milliseconds(1), milliseconds(2));
  rig.pool->set_device(0, &slow);
  rig.pool->set_device(1, &fast);
  auto volume = co_await make_volume(&rig, 24, {});
  co_await fill_volume(volume.get(), 24, 3);
  Housekeeper housekeeper(*rig.pool, {.balance = {.spread = 4}});
  housekeeper.start();
  std::vector<PageNumber> hot;
  for (PageNumber page = 0; page < 24 && hot.size() < 3; ++page) {
    if (volume->branch().pages.at(page).place_store == 0) hot.push_back(page);
  }
  REQUIRE(hot.size() == 3);
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    for (const PageNumber page : hot) {
      const auto read = co_await read_cells(*volume, page * kPageCells, 1, random);
      REQUIRE(read.has_value());
    }
  }
  // And the other store, so that it is known to be fast.
  for (int i = 0; i < 700; ++i) {
    const auto read = co_await read_cells(*volume, (i % 24) * kPageCells, 1, random);
    REQUIRE(read.has_value());
  }
  co_await home.sleep_for(seconds(5));
  CHECK(rig.pool->latency(0) > 2);
  CHECK(rig.pool->latency(1) == 1);
  for (const PageNumber page : hot) CHECK(volume->branch().pages.at(page).place_store == 1);
  CHECK(volume->branch().pages.count_on(0) >= 5);
  (void)co_await housekeeper.stop(kNever);
  rig.pool->set_device(0, rig.devices[0].get());
  rig.pool->set_device(1, rig.devices[1].get());
  volume.reset();
  co_await finish(&rig);
}

// A class that had no room gets its pages when it has; fixed ones stay.
Task<void> check_classes(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 24});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto wishing = co_await make_volume(&rig, 6, {.placement = 5});
  auto fixed = co_await make_volume(&rig, 6, {.fixed_store = 0});
  co_await fill_volume(wishing.get(), 6, 4);
  co_await fill_volume(fixed.get(), 6, 5);
  StoreConfig config = rig.config_of(1);
  config.record.placement = 5;
  const Error put = co_await rig.pool->put_store(config, {});
  REQUIRE(put == Error::kNone);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(10));
  (void)co_await housekeeper.stop(kNever);
  CHECK(wishing->branch().pages.count_on(1) == 6);
  CHECK(fixed->branch().pages.count_on(0) == 6);
  co_await expect_cells(wishing.get(), 6, 4);
  wishing.reset();
  fixed.reset();
  co_await finish(&rig);
}

// A member leaves: first there is no room, then there is.
Task<void> check_vacating(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Events events;
  events.listen(*rig.pool);
  auto volume = co_await make_volume(&rig, 30, {});
  co_await fill_volume(volume.get(), 28, 6);
  const auto taken =
      co_await rig.pool->snapshot({{.branch = volume->branch().id(), .label = {}}}, {});
  REQUIRE(taken.has_value());
  co_await fill_volume(volume.get(), 28, 7);
  StoreConfig leaving = rig.config_of(0);
  leaving.record.state = StoreState::kVacating;
  const Error begun = co_await rig.pool->put_store(leaving, {});
  REQUIRE(begun == Error::kNone);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(10));
  CHECK(events.count(Kind::kVacateStuck) == 1);
  CHECK(events.count(Kind::kVacated) == 0);
  const auto views = housekeeper.views();
  REQUIRE(!views.empty());
  CHECK(views[0].kind == HousekeepingView::Kind::kVacate);
  CHECK(views[0].stuck == Error::kNoSpace);
  CHECK(views[0].left_pages > 0);
  CHECK(views[0].time_left.has_value());
  const std::string added = co_await rig.add_device(2);
  REQUIRE(added == "");
  const Error put = co_await rig.pool->put_store(rig.config_of(2), {});
  REQUIRE(put == Error::kNone);
  co_await home.sleep_for(seconds(20));
  CHECK(events.count(Kind::kVacated) == 1);
  const Error removed = co_await rig.pool->remove_store(0, {});
  CHECK(removed == Error::kNone);
  (void)co_await housekeeper.stop(kNever);
  co_await expect_cells(volume.get(), 28, 7);
  auto shown = rig.pool->attach(volume->branch().id(), (*taken)[0]);
  co_await expect_cells(shown.get(), 28, 6);
  shown.reset();
  volume.reset();
  // The rig's first store is the pool's no more.
  co_await rig.stop();
}

// It cannot be emptied while it is away, and that is told, once.
Task<void> check_vacating_what_is_away(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Events events;
  events.listen(*rig.pool);
  auto volume = co_await make_volume(&rig, 8, {});
  co_await fill_volume(volume.get(), 8, 6);
  StoreConfig leaving = rig.config_of(0);
  leaving.record.state = StoreState::kVacating;
  leaving.device = nullptr;
  const Error begun = co_await rig.pool->put_store(leaving, {});
  REQUIRE(begun == Error::kNone);
  rig.pool->set_device(0, nullptr);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(10));
  CHECK(events.count(Kind::kVacateStuck) == 1);
  rig.pool->set_device(0, rig.devices[0].get());
  co_await home.sleep_for(seconds(20));
  CHECK(events.count(Kind::kVacateStuck) == 1);
  CHECK(events.count(Kind::kVacated) == 1);
  (void)co_await housekeeper.stop(kNever);
  volume.reset();
  co_await finish(&rig);
}

// Whoever sees that a store is empty takes it away at once, wherever the housekeeper is with it.
Task<void> check_vacating_what_goes(Executor& home) {
  Rig rig(home, {.stores = 3, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Events events;
  events.listen(*rig.pool);
  auto volume = co_await make_volume(&rig, 8, {.fixed_store = 0});
  co_await fill_volume(volume.get(), 8, 6);
  Housekeeper housekeeper(*rig.pool, {.balances = false, .pause = milliseconds(1)});
  housekeeper.start();
  StoreConfig leaving = rig.config_of(2);
  for (int round = 0; round < 100; ++round) {
    leaving.record.state = StoreState::kVacating;
    const Error begun = co_await rig.pool->put_store(leaving, {});
    REQUIRE(begun == Error::kNone);
    co_await home.sleep_for(std::chrono::microseconds(20 * round));
    const Error removed = co_await rig.pool->remove_store(2, {});
    REQUIRE(removed == Error::kNone);
    co_await home.sleep_for(milliseconds(5));
    CHECK(housekeeper.views().empty());
    leaving.record.state = StoreState::kActive;
    const Error added = co_await rig.pool->put_store(leaving, {});
    REQUIRE(added == Error::kNone);
  }
  CHECK(events.count(Kind::kVacated) > 0);
  CHECK(events.count(Kind::kVacated) < 100);
  CHECK(events.count(Kind::kVacateStuck) == 0);
  (void)co_await housekeeper.stop(kNever);
  volume.reset();
  co_await finish(&rig);
}

// Has a volatile cache, and counts flushes.
class CountsFlushes final : public Layer {
 public:
  explicit CountsFlushes(BlockDevice& below) : Layer(below) {
    geometry_ = below.geometry();
    geometry_.volatile_cache = true;
    geometry_.non_volatile_cache = false;
  }
  const Geometry& geometry() const noexcept override { return geometry_; }
  int count() const noexcept { return count_; }

 protected:
  Task<Completion> flush(Request request) override {
    ++count_;
    return below().submit(std::move(request));
  }

 private:
  Geometry geometry_;
  int count_ = 0;
};

// A store that all pages have left may have lost what was written there before: the volume's next
// flush asks it, and no other.
Task<void> check_flush_behind_moves(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  CountsFlushes notes(*rig.devices[0]);
  rig.pool->set_device(0, &notes);
  auto volume = co_await make_volume(&rig, 2, {.fixed_store = 0});
  co_await fill_volume(volume.get(), 2, 6);
  for (const PageNumber page : {PageNumber{0}, PageNumber{1}}) {
    const Error moved = co_await rig.pool->move_page(volume->branch().id(), page, 1);
    CHECK(moved == Error::kNone);
  }
  CHECK(volume->branch().pages.count_on(0) == 0);
  const int before = notes.count();
  const auto flush = [](BlockDevice* device) -> Task<Error> {
    Request request{.operation = Operation::kFlush};
    const Completion completion = co_await device->submit(std::move(request));
    co_return completion.error;
  };
  // While it is away it says nothing, and keeps nobody waiting.
  rig.pool->set_device(0, nullptr);
  Error error = co_await flush(volume.get());
  CHECK(error == Error::kNone);
  rig.pool->set_device(0, &notes);
  for (int i = 0; i < 3; ++i) {
    error = co_await flush(volume.get());
    CHECK(error == Error::kNone);
    CHECK(notes.count() == before + 1);
  }
  rig.pool->set_device(0, rig.devices[0].get());
  volume.reset();
  co_await finish(&rig);
}

Task<void> write_one(PoolVolume* volume, std::uint64_t cell, Error* error) {
  Random random(1);
  *error = co_await write_cells(*volume, cell, 1, 7, random);
}

// A store comes back, with a volatile cache, while what surrounds a write is still being read
// elsewhere: what is recorded as data is on its drives all the same.
Task<void> check_force_after_return(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  testing::DelayDevice slow(*rig.devices[0], milliseconds(5), milliseconds(6));
  CountsFlushes has_cache(*rig.devices[1]);
  testing::RecordingDevice recorder(has_cache);
  auto parent = co_await make_volume(&rig, 1, {.fixed_store = 0});
  Random random(1);
  Error error = co_await write_cells(*parent, 0, kPageCells, 6, random);
  REQUIRE(error == Error::kNone);
  const SnapshotKey live{.branch = parent->branch().id(), .generation = kLive};
  const auto cloned = co_await rig.pool->clone(live, {.fixed_store = 1, .label = {}}, {});
  REQUIRE(cloned.has_value());
  auto clone = rig.pool->attach(*cloned);
  error = co_await write_cells(*clone, 0, 1, 7, random);
  REQUIRE(error == Error::kNone);
  rig.pool->set_device(0, &slow);
  rig.pool->set_device(1, nullptr);
  // Of the second chunk, the rest of which is the parent's.
  error = Error::kNotReady;
  spawn(write_one(clone.get(), kChunkBytes / kCellBytes, &error));
  co_await home.sleep_for(milliseconds(1));
  rig.pool->set_device(1, &recorder);
  co_await home.sleep_for(seconds(1));
  CHECK(error == Error::kNone);
  REQUIRE(recorder.count(Operation::kWrite) == 1);
  CHECK(recorder.seen().back().force_unit_access);
  rig.pool->set_device(0, rig.devices[0].get());
  rig.pool->set_device(1, rig.devices[1].get());
  parent.reset();
  clone.reset();
  co_await finish(&rig);
}

// Restores upon restores: rows of parents stay short, and pages are taken over, not copied.
Task<void> check_flattening(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 10, {});
  co_await fill_volume(volume.get(), 10, 1);
  constexpr std::uint32_t kRounds = 12;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const BranchId id = volume->branch().id();
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = {}}}, {});
    REQUIRE(taken.has_value());
    const SnapshotKey key{.branch = id, .generation = (*taken)[0]};
    // One page is overwritten, in part, and comes back by the restore.
    co_await fill_volume(volume.get(), 1, 100 + round);
    const auto restored = co_await rig.pool->restore(*volume, key, {});
    REQUIRE(restored.has_value());
    const Error removed = co_await rig.pool->remove_snapshot(key, {});
    REQUIRE(removed == Error::kNone);
  }
  CHECK(rig.pool->parent_count(volume->branch()) == kRounds);
  Housekeeper housekeeper(*rig.pool, {.most_parents = 0});
  housekeeper.start();
  co_await home.sleep_for(seconds(30));
  (void)co_await housekeeper.stop(kNever);
  CHECK(rig.pool->parent_count(volume->branch()) == 0);
  CHECK(rig.pool->counters().pages_adopted >= 9);
  CHECK(rig.pool->counters().bytes_copied <= 3 * kRounds * kChunkBytes);
  co_await expect_cells(volume.get(), 10, 1);
  volume.reset();
  co_await finish(&rig);
}

// It begins as a copy of all, since a snapshot of the parent is there; then that goes, and it goes
// on as a taking over of the parent alone. Zeros of the parent hide what lies behind them all the
// time.
Task<void> check_changed_flattening(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 4, {});
  co_await fill_volume(volume.get(), 4, 35);
  const auto restore_here = [](Rig* of, PoolVolume* on) -> Task<SnapshotKey> {
    const BranchId id = on->branch().id();
    const auto taken = co_await of->pool->snapshot({{.branch = id, .label = {}}}, {});
    REQUIRE(taken.has_value());
    const SnapshotKey key{.branch = id, .generation = (*taken)[0]};
    const auto restored = co_await of->pool->restore(*on, key, {});
    REQUIRE(restored.has_value());
    co_return key;
  };
  co_await restore_here(&rig, volume.get());
  const Error unmapped = co_await unmap_cells(*volume, 0, 4 * kPageCells, Operation::kUnmap);
  REQUIRE(unmapped == Error::kNone);
  const SnapshotKey zeros = co_await restore_here(&rig, volume.get());
  REQUIRE(rig.pool->parent_count(volume->branch()) == 2);
  const auto begun = co_await rig.pool->flatten(1, 2);
  REQUIRE(begun == true);
  const Error removed = co_await rig.pool->remove_snapshot(zeros, {});
  REQUIRE(removed == Error::kNone);
  for (bool more = true; more;) {
    const auto again = co_await rig.pool->flatten(1, 2);
    REQUIRE(again.has_value());
    more = *again;
  }
  CHECK(rig.pool->parent_count(volume->branch()) == 1);
  co_await expect_cells(volume.get(), 4, 0);
  volume.reset();
  co_await finish(&rig);
}

// Notes what is unmapped.
class NotesUnmaps final : public Layer {
 public:
  using Layer::Layer;
  std::vector<Extent> unmapped;

 protected:
  Task<Completion> unmap(Request request) override {
    unmapped.push_back(request.extent);
    return below().submit(std::move(request));
  }
};

Task<void> check_trimming(Executor& home) {
  Rig rig(home, {.stores = 1, .store_pages = 20});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  NotesUnmaps notes(*rig.devices[0]);
  rig.pool->set_device(0, &notes);
  auto volume = co_await make_volume(&rig, 8, {});
  co_await fill_volume(volume.get(), 8, 1);
  CHECK(!rig.pool->needs_trim());
  const Error unmapped =
      co_await unmap_cells(*volume, 2 * kPageCells, 3 * kPageCells, Operation::kUnmap);
  REQUIRE(unmapped == Error::kNone);
  CHECK(rig.pool->needs_trim());
  // A page that is used again first is let be.
  co_await fill_volume(volume.get(), 3, 2);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(2));
  (void)co_await housekeeper.stop(kNever);
  CHECK(rig.pool->counters().pages_trimmed == 2);
  REQUIRE(notes.unmapped.size() == 2);
  constexpr std::uint64_t kPageBlocks = kTestPageBytes / 512;
  CHECK(notes.unmapped[0] == Extent{.first = 3 * kPageBlocks, .block_count = kPageBlocks});
  CHECK(notes.unmapped[1] == Extent{.first = 4 * kPageBlocks, .block_count = kPageBlocks});
  CHECK(rig.pool->space().free_pages == 20 - 6);
  rig.pool->set_device(0, rig.devices[0].get());
  volume.reset();
  co_await finish(&rig);
}

Task<void> check_thresholds(Executor& home) {
  RigOptions options{.stores = 1, .store_pages = 20};
  options.pool.free_warning_percent = 25;
  Rig rig(home, options);
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Events events;
  events.listen(*rig.pool);
  auto volume = co_await make_volume(&rig, 40, {.page_limit = 12, .page_warning = 10});
  co_await fill_volume(volume.get(), 9, 1);
  CHECK(events.all.empty());
  co_await fill_volume(volume.get(), 12, 1);
  CHECK(events.count(Kind::kPagesWarning) == 1);
  CHECK(events.count(Kind::kPagesLimit) == 0);
  Random random(1);
  Error error = co_await write_cells(*volume, 12 * kPageCells, 1, 1, random);
  CHECK(error == Error::kNoSpace);
  CHECK(events.count(Kind::kPagesLimit) == 1);
  // What it has it may overwrite, and with another limit it goes on.
  error = co_await write_cells(*volume, 0, 1, 1, random);
  CHECK(error == Error::kNone);
  error = co_await rig.pool->set_limits(volume->branch().id(), 0, 0, {});
  CHECK(error == Error::kNone);
  CHECK(events.count(Kind::kFreeWarning) == 0);
  co_await fill_volume(volume.get(), 16, 1);
  CHECK(events.count(Kind::kFreeWarning) == 1);
  // Full.
  for (std::uint64_t page = 16; page < 40 && error == Error::kNone; ++page) {
    error = co_await write_cells(*volume, page * kPageCells, 1, 1, random);
  }
  CHECK(error == Error::kNoSpace);
  CHECK(events.count(Kind::kPoolFull) == 1);
  volume.reset();
  co_await finish(&rig);
}

Task<std::unique_ptr<PoolVolume>> clone_of(Rig* rig, const PoolVolume* volume,
                                           StoreIndex fixed_store) {
  const auto made = co_await rig->pool->clone(
      {.branch = volume->branch().id(), .generation = kLive}, {.fixed_store = fixed_store}, {});
  REQUIRE(made.has_value());
  co_return rig->pool->attach(*made);
}

// The first waits for a store that is away; the second does not wait for the first.
Task<void> check_stuck_fill(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  std::vector<std::unique_ptr<PoolVolume>> all;
  for (const StoreIndex store : {0, 1}) {
    all.push_back(co_await make_volume(&rig, 6, {.fixed_store = store}));
    co_await fill_volume(all.back().get(), 6, 5);
    all.push_back(co_await clone_of(&rig, all.back().get(), 1));
  }
  rig.pool->set_device(0, nullptr);
  Events events;
  events.listen(*rig.pool);
  Housekeeper housekeeper(*rig.pool, {});
  CHECK(housekeeper.fill(all[1]->branch().id()) == Error::kNone);
  CHECK(housekeeper.fill(all[3]->branch().id()) == Error::kNone);
  housekeeper.start();
  co_await home.sleep_for(seconds(5));
  CHECK_FALSE(all[3]->branch().has_parent());
  CHECK(all[1]->branch().has_parent());
  CHECK(events.count(Kind::kFillFailed) == 1);
  rig.pool->set_device(0, rig.devices[0].get());
  co_await home.sleep_for(seconds(5));
  CHECK_FALSE(all[1]->branch().has_parent());
  (void)co_await housekeeper.stop(kNever);
  co_await expect_cells(all[1].get(), 6, 5);
  co_await expect_cells(all[3].get(), 6, 5);
  all.clear();
  co_await finish(&rig);
}

// Likewise rows of parents.
Task<void> check_stuck_row(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  std::vector<std::unique_ptr<PoolVolume>> all;
  for (const StoreIndex store : {0, 1}) {
    all.push_back(co_await make_volume(&rig, 4, {.fixed_store = store}));
    co_await fill_volume(all.back().get(), 4, 5);
    for (int i = 0; i < 2; ++i) all.push_back(co_await clone_of(&rig, all.back().get(), 1));
  }
  rig.pool->set_device(0, nullptr);
  for (int i = 0; i < 20; ++i) (void)co_await rig.pool->flatten(1, 4);
  CHECK(rig.pool->parent_count(all[2]->branch()) == 2);
  CHECK(rig.pool->parent_count(all[5]->branch()) <= 1);
  rig.pool->set_device(0, rig.devices[0].get());
  for (int i = 0; i < 20; ++i) (void)co_await rig.pool->flatten(1, 4);
  CHECK(rig.pool->parent_count(all[2]->branch()) <= 1);
  co_await expect_cells(all[2].get(), 4, 5);
  all.clear();
  co_await finish(&rig);
}

// What cannot be read stays, and everything else leaves; that is told once.
Task<void> check_bad_pages(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  testing::FaultyDevice faulty(*rig.devices[0]);
  rig.pool->set_device(0, &faulty);
  auto volume = co_await make_volume(&rig, 20, {.fixed_store = 0});
  co_await fill_volume(volume.get(), 20, 6);
  constexpr std::uint64_t kPageBlocks = kTestPageBytes / 512;
  faulty.fail({.operation = Operation::kRead,
               .extent = {.first = 0, .block_count = 9 * kPageBlocks},
               .error = Error::kMediumError});
  StoreConfig leaving = rig.config_of(0);
  leaving.device = &faulty;
  leaving.record.state = StoreState::kVacating;
  const Error put = co_await rig.pool->put_store(leaving, {});
  REQUIRE(put == Error::kNone);
  Events events;
  events.listen(*rig.pool);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(10));
  CHECK(volume->branch().pages.count_on(0) == 9);
  CHECK(events.count(Kind::kVacateStuck) == 1);
  const auto views = housekeeper.views();
  const auto vacating =
      std::ranges::find(views, HousekeepingView::Kind::kVacate, &HousekeepingView::kind);
  REQUIRE(vacating != views.end());
  CHECK(vacating->stuck == Error::kMediumError);
  faulty.clear();
  co_await home.sleep_for(seconds(10));
  CHECK(volume->branch().pages.count_on(0) == 0);
  CHECK(events.count(Kind::kVacated) == 1);
  (void)co_await housekeeper.stop(kNever);
  co_await expect_cells(volume.get(), 20, 6);
  rig.pool->set_device(0, rig.devices[0].get());
  volume.reset();
  co_await finish(&rig);
}

// A store that holds a copy does not hold up the end.
Task<void> check_bounded_stop(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  testing::HungDevice hung(*rig.devices[0]);
  rig.pool->set_device(0, &hung);
  auto volume = co_await make_volume(&rig, 6, {.fixed_store = 0});
  co_await fill_volume(volume.get(), 6, 6);
  StoreConfig leaving = rig.config_of(0);
  leaving.device = &hung;
  leaving.record.state = StoreState::kVacating;
  const Error put = co_await rig.pool->put_store(leaving, {});
  REQUIRE(put == Error::kNone);
  hung.hang();
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  co_await home.sleep_for(seconds(1));
  CHECK(hung.held() > 0);
  const TimePoint begun = home.now();
  const bool ended = co_await housekeeper.stop(begun + seconds(2));
  CHECK_FALSE(ended);
  CHECK(home.now() - begun == seconds(2));
  hung.release();
  const bool ended_now = co_await housekeeper.stop(kNever);
  CHECK(ended_now);
  rig.pool->set_device(0, rig.devices[0].get());
  co_await expect_cells(volume.get(), 6, 6);
  volume.reset();
  co_await finish(&rig);
}

// Copies take their time, and hosts do not wait for them.
Task<void> check_pace(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 40});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 8, {.fixed_store = 0});
  Random random(1);
  Error error = co_await write_cells(*volume, 0, 8 * kPageCells, 3, random);
  REQUIRE(error == Error::kNone);
  StoreConfig leaving = rig.config_of(0);
  leaving.record.state = StoreState::kVacating;
  error = co_await rig.pool->put_store(leaving, {});
  REQUIRE(error == Error::kNone);
  Housekeeper housekeeper(*rig.pool,
                          {.busy_bytes_per_second = 1 << 20, .idle_bytes_per_second = 1 << 20});
  housekeeper.start();
  const TimePoint begun = home.now();
  co_await home.sleep_for(milliseconds(500));
  const std::uint64_t soon = rig.pool->counters().bytes_copied;
  CHECK(soon <= std::uint64_t{2} << 20);
  const TimePoint asked = home.now();
  error = co_await write_cells(*volume, 0, 8, 4, random);
  CHECK(error == Error::kNone);
  CHECK(home.now() - asked < milliseconds(10));
  while (rig.pool->space(0).free_pages < rig.pool->space(0).pages) {
    co_await home.sleep_for(milliseconds(10));
  }
  CHECK(home.now() - begun >= seconds(7));
  CHECK(home.now() - begun <= seconds(10));
  (void)co_await housekeeper.stop(kNever);
  volume.reset();
  co_await finish(&rig);
}

// A clone is made whole, and the snapshot may go.
Task<void> check_filling(Executor& home) {
  Rig rig(home, {});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Events events;
  events.listen(*rig.pool);
  auto volume = co_await make_volume(&rig, 10, {});
  co_await fill_volume(volume.get(), 10, 9);
  const auto made =
      co_await rig.pool->clone({.branch = volume->branch().id(), .generation = kLive}, {}, {});
  REQUIRE(made.has_value());
  auto copy = rig.pool->attach(*made);
  Housekeeper housekeeper(*rig.pool, {});
  housekeeper.start();
  CHECK(housekeeper.fill(999) == Error::kNotFound);
  CHECK(housekeeper.fill(*made) == Error::kNone);
  co_await home.sleep_for(seconds(5));
  CHECK(events.count(Kind::kFilled) == 1);
  CHECK(housekeeper.views().empty());
  (void)co_await housekeeper.stop(kNever);
  CHECK(!copy->branch().has_parent());
  co_await fill_volume(volume.get(), 10, 10);
  co_await expect_cells(copy.get(), 10, 9);
  copy.reset();
  volume.reset();
  co_await finish(&rig);
}

// A store that is not there is not flushed: the volume that has pages there is told.
Task<void> check_flush(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 20, .files = true});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto here = co_await make_volume(&rig, 2, {.fixed_store = 0});
  auto there = co_await make_volume(&rig, 2, {.fixed_store = 1});
  co_await fill_volume(here.get(), 2, 1);
  co_await fill_volume(there.get(), 2, 1);
  rig.pool->set_device(1, nullptr);
  Completion done = co_await testing::do_without_data(*here, Operation::kFlush, {});
  CHECK(done.error == Error::kNone);
  done = co_await testing::do_without_data(*there, Operation::kFlush, {});
  CHECK(done.error == Error::kNotReady);
  const auto refused =
      co_await rig.pool->snapshot({{.branch = there->branch().id(), .label = {}}}, {});
  CHECK(refused == std::unexpected(Error::kNotReady));
  rig.pool->set_device(1, rig.devices[1].get());
  here.reset();
  there.reset();
  co_await finish(&rig);
}

}  // namespace

TEST_CASE("pages spread to a store that was added, of every volume", "[pool]") {
  // Full or nearly empty: the load follows the pages.
  for (const std::uint32_t store_pages : {40U, 400U}) {
    testing::run_in_world(
        1, [store_pages](Executor& home) { return check_spreading(home, store_pages); });
  }
}
TEST_CASE("hot pages leave a slow store", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_hot_pages(home); });
}
TEST_CASE("pages go to the class they wish, and fixed ones stay", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_classes(home); });
}
TEST_CASE("a store that leaves is emptied as soon as there is room", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_vacating(home); });
}

TEST_CASE("A store that is to be emptied and is away is told of", "[pool][housekeeping]") {
  testing::run_in_world(1, [](Executor& home) { return check_vacating_what_is_away(home); });
}

TEST_CASE("A store may go while it is looked at whether it is empty", "[pool][housekeeping]") {
  testing::run_in_world(1, [](Executor& home) { return check_vacating_what_goes(home); });
}

TEST_CASE("A flush asks what its pages were moved away from", "[pool][housekeeping]") {
  testing::run_in_world(1, [](Executor& home) { return check_flush_behind_moves(home); });
}
TEST_CASE("A member that comes back meanwhile is not trusted with its cache", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_force_after_return(home); });
}
TEST_CASE("what cannot go on in the background holds up nothing else", "[pool]") {
  testing::run_in_world(21, [](Executor& home) { return check_stuck_fill(home); });
  testing::run_in_world(22, [](Executor& home) { return check_stuck_row(home); });
  testing::run_in_world(23, [](Executor& home) { return check_bad_pages(home); });
}

TEST_CASE("what hangs in the background does not hold up the end", "[pool]") {
  testing::run_in_world(24, [](Executor& home) { return check_bounded_stop(home); });
}

TEST_CASE("rows of parents are kept short, without copies where nobody else needs them", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_flattening(home); });
  testing::run_in_world(2, [](Executor& home) { return check_changed_flattening(home); });
}
TEST_CASE("pages that are free are unmapped below, once", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_trimming(home); });
}
TEST_CASE("thin volumes are warned and stopped", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_thresholds(home); });
}
TEST_CASE("copying keeps to its pace, and hosts do not wait for it", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_pace(home); });
}
TEST_CASE("a clone is made whole in the background", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_filling(home); });
}
TEST_CASE("a flush fails where a store with pages is missing, and only there", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_flush(home); });
}

}  // namespace sandbay::pool::housekeeping_test
