// What was asked for before, and runs after, something else has changed the volume: a smaller size,
// another parent, its removal, a change of the map that failed; or a store that was to go stays.
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "block/layer.h"
#include "pool_rig.h"

namespace sandbay::pool::meanwhile_test {
namespace {

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;

Task<std::unique_ptr<PoolVolume>> make_volume(Rig* rig, std::uint64_t pages, bool thick) {
  const auto made = co_await rig->pool->create(
      {.byte_count = pages * kTestPageBytes, .thick = thick, .label = {}}, {});
  REQUIRE(made.has_value());
  co_return rig->pool->attach(*made);
}

Task<void> fill_pages(PoolVolume* volume, std::uint64_t pages, std::uint32_t number) {
  Random random(number);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const Error error = co_await write_cells(*volume, page * kPageCells, 2, number, random);
    REQUIRE(error == Error::kNone);
  }
}

Task<SnapshotKey> take_snapshot(Rig* rig, PoolVolume* volume) {
  const BranchId id = volume->branch().id();
  const auto taken = co_await rig->pool->snapshot({{.branch = id, .label = {}}}, {});
  REQUIRE(taken.has_value());
  co_return SnapshotKey{.branch = id, .generation = (*taken)[0]};
}

Task<void> finish(Rig* rig) {
  const std::string wrong = co_await rig->check();
  CHECK(wrong == "");
  co_await rig->stop();
}

struct Asked {
  Error error = Error::kNone;
  bool done = false;
};

Task<void> write_meanwhile(PoolVolume* volume, std::uint64_t first, Asked* asked) {
  Random random(first);
  asked->error = co_await write_cells(*volume, first, 2, 9, random);
  asked->done = true;
}

// Writes and unmappings that came while the volume still was as large as they wish.
Task<void> check_shrinking(Executor& home, bool thick) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 8, thick);
  co_await fill_pages(volume.get(), 8, 1);
  const BranchId id = volume->branch().id();
  const auto shrink = [](Rig* of, BranchId branch, Asked* asked) -> Task<void> {
    asked->error = co_await of->pool->shrink(branch, 3 * kTestPageBytes, {});
    asked->done = true;
  };
  Asked shrunk;
  spawn(shrink(&rig, id, &shrunk));
  std::vector<std::unique_ptr<Asked>> asked;
  // One in each of its steps.
  while (!shrunk.done) {
    const std::uint64_t now = volume->geometry().block_count * 512;
    if (now > 3 * kTestPageBytes) {
      asked.push_back(std::make_unique<Asked>());
      spawn(write_meanwhile(volume.get(), (4 + asked.size() % 4) * kPageCells, asked.back().get()));
    }
    co_await home.sleep_for(std::chrono::microseconds(20));
  }
  co_await home.sleep_for(std::chrono::seconds(1));
  unsigned refused = 0;
  for (const auto& one : asked) {
    CHECK(one->done);
    if (one->error == Error::kOutOfRange) ++refused;
  }
  // Whatever was written there meanwhile does not keep it.
  REQUIRE(shrunk.error == Error::kNone);
  CHECK(refused > 0);
  Random random(1);
  const Error behind = co_await write_cells(*volume, 3 * kPageCells, 2, 9, random);
  CHECK(behind == Error::kOutOfRange);
  const Error unmapped = co_await unmap_cells(*volume, 4 * kPageCells, 2, Operation::kUnmap);
  CHECK(unmapped == Error::kOutOfRange);
  const auto read = co_await read_cells(*volume, 4 * kPageCells, 2, random);
  CHECK(read.error() == Error::kOutOfRange);
  volume.reset();
  co_await rig.pool->close();
  rig.pool.reset();
  // It opens with all that is left.
  rig.region.reset();
  auto claimed = co_await rig.memory->claim("map", MapLog::kLeastRegionBytes);
  REQUIRE(claimed.has_value());
  rig.region = std::move(*claimed);
  const std::string opened = co_await rig.open_pool();
  REQUIRE(opened == "");
  co_await finish(&rig);
}

// Neither of two unmappings of a page sees that nothing is left of it.
Task<void> check_unmapping(Executor& home) {
  Rig rig(home, {.stores = 1, .store_pages = 8});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 1, false);
  Random random(1);
  const Error written = co_await write_cells(*volume, 0, kPageCells, 1, random);
  REQUIRE(written == Error::kNone);
  const auto unmap = [](PoolVolume* of, std::uint64_t first, Asked* asked) -> Task<void> {
    asked->error = co_await unmap_cells(*of, first, kPageCells / 2, Operation::kUnmap);
    asked->done = true;
  };
  Asked front;
  Asked back;
  spawn(unmap(volume.get(), 0, &front));
  spawn(unmap(volume.get(), kPageCells / 2, &back));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK((front.done && back.done));
  CHECK(volume->branch().pages.placed_count() == 0);
  volume.reset();
  co_await finish(&rig);
}

// A clone that is made whole is removed: what is copied behind the sweep does not stay.
Task<void> check_removing(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 8, false);
  co_await fill_pages(volume.get(), 8, 1);
  const SnapshotKey key = co_await take_snapshot(&rig, volume.get());
  const auto cloned = co_await rig.pool->clone(key, {.byte_count = 0, .label = {}}, {});
  REQUIRE(cloned.has_value());
  PageNumber next = 0;
  const auto begun = co_await rig.pool->make_independent(*cloned, &next, 2);
  REQUIRE(begun == true);
  const Error removed = co_await rig.pool->remove(*cloned, {});
  REQUIRE(removed == Error::kNone);
  const auto gone_on = co_await rig.pool->make_independent(*cloned, &next, 2);
  CHECK(gone_on.error() == Error::kNotFound);
  co_await rig.sweep_all();
  CHECK(rig.pool->map().branches().size() == 1);
  volume.reset();
  co_await finish(&rig);
}

// A child was taken half over its parent when that took over its own parent.
Task<void> check_flattening_twice(Executor& home) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 6, false);
  co_await fill_pages(volume.get(), 6, 7);
  std::vector<SnapshotKey> keys;
  for (int i = 0; i < 2; ++i) {
    const SnapshotKey key = co_await take_snapshot(&rig, volume.get());
    const auto restored = co_await rig.pool->restore(*volume, key, {});
    REQUIRE(restored.has_value());
    keys.push_back(key);
  }
  // The middle one is an heir now only to the child; the first still has its snapshot.
  const Error first = co_await rig.pool->remove_snapshot(keys[1], {});
  REQUIRE(first == Error::kNone);
  const auto begun = co_await rig.pool->flatten(0, 3);
  REQUIRE(begun == true);
  const Error second = co_await rig.pool->remove_snapshot(keys[0], {});
  REQUIRE(second == Error::kNone);
  PageNumber next = 0;
  for (bool more = true; more;) {
    const auto filled = co_await rig.pool->make_independent(keys[1].branch, &next, 2);
    REQUIRE(filled.has_value());
    more = *filled;
  }
  for (bool more = true; more;) {
    const auto flattened = co_await rig.pool->flatten(0, 3);
    REQUIRE(flattened.has_value());
    more = *flattened;
  }
  CHECK(rig.pool->parent_count(volume->branch()) == 0);
  Random random(1);
  for (std::uint64_t page = 0; page < 6; ++page) {
    const auto read = co_await read_cells(*volume, page * kPageCells, 2, random);
    REQUIRE(read.has_value());
    CHECK(*read == Cells(2, 7));
  }
  volume.reset();
  co_await rig.sweep_all();
  co_await finish(&rig);
}

Task<void> unmap_meanwhile(PoolVolume* volume, std::uint64_t first, Asked* asked) {
  asked->error = co_await unmap_cells(*volume, first, 2, Operation::kUnmap);
  asked->done = true;
}

// Changes that came before a restore: some wait for a rate limit, some at the volume's door.
Task<void> check_restoring(Executor& home, bool limited) {
  Rig rig(home, {.stores = 2, .store_pages = 48});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  auto volume = co_await make_volume(&rig, 8, false);
  co_await fill_pages(volume.get(), 8, 1);
  const SnapshotKey key = co_await take_snapshot(&rig, volume.get());
  co_await fill_pages(volume.get(), 8, 2);
  // The limit lets one pass each second; the first one uses up the burst.
  if (limited) volume->set_rate_limits({.operations_per_second = 1, .bytes_per_second = 0});
  std::vector<Asked> asked(8);
  if (limited) spawn(write_meanwhile(volume.get(), 0, &asked[0]));
  if (limited) co_await home.sleep_for(std::chrono::milliseconds(1));
  bool switched = false;
  auto restore = [](Rig* of, PoolVolume* on, SnapshotKey to, bool* done) -> Task<void> {
    const auto restored = co_await of->pool->restore(*on, to, {}, [done] { *done = true; });
    REQUIRE(restored.has_value());
  };
  if (!limited) spawn(restore(&rig, volume.get(), key, &switched));
  // Without a limit they come while the door is closed for the restore.
  for (std::uint64_t page = 1; page < 8; ++page) {
    Asked* const to = &asked[page];
    spawn(page % 2 == 0 ? write_meanwhile(volume.get(), page * kPageCells, to)
                        : unmap_meanwhile(volume.get(), page * kPageCells, to));
  }
  if (limited) co_await restore(&rig, volume.get(), key, &switched);
  co_await home.sleep_for(std::chrono::seconds(20));
  CHECK(switched);
  for (std::uint64_t page = 1; page < 8; ++page) {
    CAPTURE(page);
    CHECK(asked[page].done);
    CHECK(asked[page].error == Error::kCancelled);
  }
  volume->set_rate_limits({});
  Random random(1);
  for (std::uint64_t page = 0; page < 8; ++page) {
    const auto read = co_await read_cells(*volume, page * kPageCells, 2, random);
    REQUIRE(read.has_value());
    CHECK(*read == Cells(2, 1));
  }
  // Later changes are written.
  Asked after;
  co_await write_meanwhile(volume.get(), 0, &after);
  CHECK(after.error == Error::kNone);
  volume.reset();
  co_await rig.sweep_all();
  co_await finish(&rig);
}

// Puts a store before it passes on a certain read of a copy.
class PutsAtRead final : public Layer {
 public:
  using Layer::Layer;
  void put_at(std::uint64_t read, Pool* pool, StoreConfig put) {
    left_ = read;
    pool_ = pool;
    put_ = std::move(put);
  }
  bool has_put() const { return pool_ != nullptr && left_ == 0; }

 private:
  Task<Completion> read(Request request) override {
    if (left_ > 0 && request.origin == Origin::kCopy && --left_ == 0) {
      const Error error = co_await pool_->put_store(put_, {});
      CHECK(error == Error::kNone);
    }
    co_return co_await below().submit(std::move(request));
  }

  std::uint64_t left_ = 0;
  Pool* pool_ = nullptr;
  StoreConfig put_;
};

Task<void> vacate_meanwhile(Pool* pool, StoreIndex store, Asked* asked) {
  const auto more = co_await pool->vacate(store, 100);
  if (!more.has_value()) asked->error = more.error();
  asked->done = true;
}

Task<void> read_meanwhile(BlockDevice* volume, Cells* cells, bool* done) {
  Random random(1);
  auto read = co_await read_cells(*volume, 0, kPageCells, random);
  if (read.has_value()) *cells = std::move(*read);
  *done = true;
}

// The other store has room for a page and for slots of half of what is kept, so the rest finds room
// only in the store that is to stay.
Task<void> check_staying(Executor& home, std::uint64_t read) {
  Rig rig(home, {.stores = 1, .nvram = false});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  PutsAtRead staying(*rig.devices[0]);
  StoreConfig config = rig.config_of(0);
  config.device = &staying;
  rig.pool->set_device(0, &staying);
  auto volume = co_await make_volume(&rig, 1, false);
  Random random(read);
  std::vector<SnapshotKey> keys;
  for (std::uint32_t number = 1; number <= 3; ++number) {
    const Error error = co_await write_cells(*volume, 0, kPageCells, number, random);
    REQUIRE(error == Error::kNone);
    if (number < 3) keys.push_back(co_await take_snapshot(&rig, volume.get()));
  }
  const std::string added = co_await rig.add_device(1);
  REQUIRE(added == "");
  StoreConfig small = rig.config_of(1);
  small.record.page_count = 2;
  Error put = co_await rig.pool->put_store(small, {});
  REQUIRE(put == Error::kNone);
  staying.put_at(read, rig.pool.get(), config);
  config.record.state = StoreState::kVacating;
  put = co_await rig.pool->put_store(config, {});
  REQUIRE(put == Error::kNone);
  Asked vacated;
  spawn(vacate_meanwhile(rig.pool.get(), 0, &vacated));
  co_await home.sleep_for(std::chrono::seconds(10));
  CHECK(staying.has_put());
  CHECK(vacated.done);
  CHECK(vacated.error == Error::kInvalid);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    auto shown = rig.pool->attach(keys[i].branch, keys[i].generation);
    Cells cells;
    bool done = false;
    spawn(read_meanwhile(shown.get(), &cells, &done));
    co_await home.sleep_for(std::chrono::seconds(10));
    CHECK(done);
    // A pass that still goes on ends now.
    rig.pool->hurry();
    while (!done) co_await home.sleep_for(std::chrono::milliseconds(1));
    CHECK(cells == Cells(kPageCells, i + 1));
  }
  volume.reset();
  co_await finish(&rig);
}

}  // namespace

TEST_CASE("Vacating a store ends when the store is to stay", "[pool][P-5]") {
  // While its page is copied; while what is kept is copied.
  for (const std::uint64_t read : {1, 2, 12}) {
    CAPTURE(read);
    testing::run_in_world(read, [read](Executor& home) { return check_staying(home, read); });
  }
}
TEST_CASE("changes that wait while a volume is restored change nothing", "[pool][G-S5]") {
  for (const bool limited : {false, true}) {
    testing::run_in_world(1, [limited](Executor& home) { return check_restoring(home, limited); });
  }
}
TEST_CASE("what waits while a volume is made smaller does not write behind its end", "[pool]") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const bool thick = seed % 2 == 0;
    testing::run_in_world(seed, [thick](Executor& home) { return check_shrinking(home, thick); });
  }
}
TEST_CASE("a page that is unmapped in two parts at once is given back", "[pool]") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    testing::run_in_world(seed, [](Executor& home) { return check_unmapping(home); });
  }
}
TEST_CASE("a clone that is removed while it is made whole leaves nothing", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_removing(home); });
}
TEST_CASE("a pass over a parent begins anew when that has got data", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return check_flattening_twice(home); });
}

}  // namespace sandbay::pool::meanwhile_test
