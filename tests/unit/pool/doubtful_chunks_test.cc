// Goal: a pool that is opened with an older map never shows anything but what was written since.
// Method: the older map of a volume comes back after its pages have moved and others have written
// to their places; the owner insists on it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/simulation.h"
#include "tests/unit/pool/older_map.h"

namespace sandbay::pool::doubtful_chunks_test {
namespace {

constexpr std::uint64_t kChunkCells = kChunkBytes / kCellBytes;
constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;
constexpr std::uint64_t kBlocksPerCell = kCellBytes / 512;
constexpr std::uint32_t kForeign = 7;

// Both pages of the volume have other owners by the newer map.
Task<BranchId> fall_behind(Rig* rig) {
  co_await begin(rig);
  const BranchId branch = co_await provision(rig);
  auto older = co_await list_map(rig);
  for (const PageNumber page : {0U, 1U}) {
    const Place from = rig->pool->map().find(branch)->pages.at(page).place();
    const Error moved =
        co_await rig->pool->move_page(branch, page, static_cast<StoreIndex>(1 - from.store));
    REQUIRE(moved == Error::kNone);
  }
  const auto other = co_await rig->pool->create({.byte_count = 8 * kTestPageBytes}, {});
  REQUIRE(other.has_value());
  auto volume = rig->pool->attach(*other);
  Random random{1};
  const Error error = co_await write_cells(*volume, 0, 8 * kPageCells, kForeign, random);
  REQUIRE(error == Error::kNone);
  volume.reset();
  co_await close_rig(rig);
  co_await bring_back(&rig->home, std::move(older));
  co_return branch;
}

// The rig ends with the older map, and all stores are used.
Task<BranchId> insist_on_older(Rig* rig) {
  const BranchId branch = co_await fall_behind(rig);
  rig->options().missing = true;
  co_await begin(rig);
  rig->options().missing = false;
  for (StoreIndex store = 0; store < rig->devices.size(); ++store) {
    BlockDevice* const device = rig->devices[store].get();
    const Error refused = co_await rig->pool->admit(store, device);
    CHECK(refused == Error::kMiscompare);
    const Error accepted = co_await rig->pool->admit(store, device, OlderMap::kAccept);
    REQUIRE(accepted == Error::kNone);
  }
  co_return branch;
}

Task<void> die_and_start(Rig* rig) {
  co_await rig->stop();
  co_await begin(rig);
}

Task<std::uint64_t> count_doubtful(Rig* rig) {
  const CheckReport report = co_await rig->pool->check();
  CHECK(report.error == Error::kNone);
  CHECK(report.wrong == std::vector<std::string>{});
  co_return report.doubtful_chunks;
}

// The cells are a medium error, and the first bad block is that of the cell `bad`.
Task<void> expect_medium_error(BlockDevice* volume, std::uint64_t first, std::uint64_t count,
                               std::uint64_t bad) {
  Random random{2};
  const Extent extent{.first = first * kBlocksPerCell, .block_count = count * kBlocksPerCell};
  const Completion read =
      co_await testing::read_blocks(*volume, extent, testing::Cut::kAligned, random);
  CHECK(read.error == Error::kMediumError);
  CHECK(read.first_bad_lba == bad * kBlocksPerCell);
}

Task<void> expect_cells(BlockDevice* volume, std::uint64_t first, std::uint64_t count,
                        std::uint32_t number) {
  Random random{3};
  const auto read = co_await read_cells(*volume, first, count, random);
  REQUIRE(read.has_value());
  CHECK(*read == Cells(count, number));
}

Task<Error> put_cells(BlockDevice* volume, std::uint64_t first, std::uint64_t count,
                      std::uint32_t number) {
  Random random{4};
  const Error error = co_await write_cells(*volume, first, count, number, random);
  co_return error;
}

Task<void> read_and_rewrite(Executor& home) {
  Rig rig(home, stamped_options());
  const BranchId branch = co_await insist_on_older(&rig);
  auto volume = rig.pool->attach(branch);
  std::uint64_t doubtful = co_await count_doubtful(&rig);
  CHECK(doubtful == 2 * kTestPageChunks);
  co_await expect_medium_error(volume.get(), 3, 1, 3);
  Request advice{.operation = Operation::kAdvise, .extent = {.first = 0, .block_count = 64}};
  const Completion advised = co_await volume->submit(std::move(advice));
  CHECK(advised.error == Error::kNone);
  // A write of a part leaves the rest unknown.
  Error error = co_await put_cells(volume.get(), 1, kChunkCells, 2);
  CHECK(error == Error::kMediumError);
  error = co_await put_cells(volume.get(), 0, 2 * kChunkCells - 1, 2);
  CHECK(error == Error::kMediumError);
  error = co_await put_cells(volume.get(), kChunkCells, 2 * kChunkCells, 3);
  CHECK(error == Error::kNone);
  co_await expect_cells(volume.get(), kChunkCells, 2 * kChunkCells, 3);
  co_await expect_medium_error(volume.get(), kChunkCells, 3 * kChunkCells, 3 * kChunkCells);
  error = co_await put_cells(volume.get(), kChunkCells + 1, 1, 4);
  CHECK(error == Error::kNone);
  doubtful = co_await count_doubtful(&rig);
  CHECK(doubtful == 2 * kTestPageChunks - 2);
  volume.reset();
  // A kill changes nothing of that, and the store needs no word any more.
  co_await die_and_start(&rig);
  volume = rig.pool->attach(branch);
  co_await expect_cells(volume.get(), kChunkCells, 1, 3);
  co_await expect_cells(volume.get(), kChunkCells + 1, 1, 4);
  co_await expect_medium_error(volume.get(), 0, 1, 0);
  error = co_await unmap_cells(*volume, kPageCells, kPageCells, Operation::kUnmap);
  CHECK(error == Error::kNone);
  co_await expect_cells(volume.get(), kPageCells, kPageCells, 0);
  // The page gets a place anew, be it the doubtful one.
  error = co_await put_cells(volume.get(), kPageCells, 1, 5);
  CHECK(error == Error::kNone);
  error = co_await put_cells(volume.get(), kPageCells + 1, 1, 5);
  CHECK(error == Error::kNone);
  co_await expect_cells(volume.get(), kPageCells, 2, 5);
  doubtful = co_await count_doubtful(&rig);
  CHECK(doubtful == kTestPageChunks - 2);
  volume.reset();
  co_await close_rig(&rig);
}

// A chunk that cannot be read is not copied either, and stays in doubt where it is.
Task<void> stop_copies(Executor& home) {
  Rig rig(home, stamped_options());
  const BranchId branch = co_await insist_on_older(&rig);
  const Place from = rig.pool->map().find(branch)->pages.at(0).place();
  const auto to = static_cast<StoreIndex>(1 - from.store);
  Error error = co_await rig.pool->move_page(branch, 0, to);
  CHECK(error == Error::kMediumError);
  CHECK(rig.pool->map().find(branch)->pages.at(0).place() == from);
  const auto made = co_await rig.pool->clone({.branch = branch, .generation = kLive}, {}, {});
  REQUIRE(made.has_value());
  auto clone = rig.pool->attach(*made);
  co_await expect_medium_error(clone.get(), 2, 1, 2);
  error = co_await put_cells(clone.get(), 0, 1, 2);
  CHECK(error == Error::kMediumError);
  error = co_await put_cells(clone.get(), 0, kChunkCells, 2);
  CHECK(error == Error::kNone);
  co_await expect_cells(clone.get(), 0, kChunkCells, 2);
  PageNumber next = 0;
  const auto copied = co_await rig.pool->make_independent(*made, &next, 10);
  CHECK_FALSE(copied.has_value());
  co_await expect_medium_error(clone.get(), kChunkCells, 1, kChunkCells);
  clone.reset();
  co_await close_rig(&rig);
}

// Neither the map that was newer nor the older one once more is used without a word.
Task<void> refuse_other_maps(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  auto older = co_await list_map(&rig);
  auto again = older;
  co_await move_first_page(&rig, branch);
  auto newer = co_await list_map(&rig);
  co_await close_rig(&rig);
  co_await bring_back(&home, std::move(older));
  rig.options().missing = true;
  co_await begin(&rig);
  rig.options().missing = false;
  const Error accepted = co_await rig.pool->admit(0, rig.devices[0].get(), OlderMap::kAccept);
  CHECK(accepted == Error::kNone);
  co_await rig.stop();
  for (auto* map : {&newer, &again}) {
    co_await bring_back(&home, std::move(*map));
    const std::string wrong = co_await rig.start();
    CHECK(wrong == "store 0: its pages may have other owners: the map is older than it");
    co_await rig.end();
  }
}

Task<void> refuse_damaged_list(Executor& home) {
  Rig rig(home, stamped_options());
  (void)co_await insist_on_older(&rig);
  auto entries = co_await list_map(&rig);
  co_await close_rig(&rig);
  const auto list = std::ranges::find_if(
      entries, [](const metadata::Entry& entry) { return entry.first.starts_with("pool/1/q"); });
  REQUIRE(list != entries.end());
  list->second.front() = static_cast<char>(list->second.front() ^ 1);
  co_await bring_back(&home, std::move(entries));
  const std::string wrong = co_await rig.start();
  CHECK(wrong == "the list of doubtful chunks is damaged: its checksum is wrong");
  co_await rig.end();
}

// A store that leaves takes its list along.
Task<void> forget_with_store(Executor& home) {
  Rig rig(home, stamped_options());
  const BranchId branch = co_await insist_on_older(&rig);
  const Error removed = co_await rig.pool->remove(branch, {});
  REQUIRE(removed == Error::kNone);
  co_await rig.sweep_all();
  for (const std::uint32_t store : {0U, 1U}) {
    StoreConfig config = rig.config_of(store);
    config.record.state = StoreState::kVacating;
    Error error = co_await rig.pool->put_store(config, {});
    REQUIRE(error == Error::kNone);
    error = co_await rig.pool->remove_store(config.record.index, {});
    CHECK(error == Error::kNone);
  }
  const auto left = co_await rig.store->list("pool/1/q", "", 1);
  REQUIRE(left.has_value());
  CHECK(left->empty());
  co_await close_rig(&rig);
}

// Counts commits, and fails them when it is asked to.
class CountedStore final : public metadata::Store {
 public:
  explicit CountedStore(std::unique_ptr<metadata::Store> below) : below_(std::move(below)) {}

  bool failing = false;
  std::uint64_t commits = 0;

  Executor& home() const noexcept override { return below_->home(); }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    return below_->get(std::move(key));
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t limit) override {
    return below_->list(std::move(prefix), std::move(after), limit);
  }
  Task<Error> commit(metadata::Batch batch) override {
    ++commits;
    if (failing) co_return Error::kNoSpace;
    co_return co_await below_->commit(std::move(batch));
  }
  bool in_doubt() const noexcept override { return false; }
  Task<void> close() override { return below_->close(); }

 private:
  std::unique_ptr<metadata::Store> below_;
};

Task<void> rewrite_chunk(PoolVolume* volume, std::uint32_t chunk, std::uint32_t* ended) {
  const Error error = co_await put_cells(volume, chunk * kChunkCells, kChunkCells, 9);
  CHECK(error == Error::kNone);
  ++*ended;
}

Task<void> share_commits(Executor& home) {
  Rig rig(home, stamped_options());
  const BranchId branch = co_await insist_on_older(&rig);
  co_await rig.pool->stop();
  rig.pool.reset();
  auto counted = std::make_unique<CountedStore>(std::move(rig.store));
  CountedStore& store = *counted;
  rig.store = std::move(counted);
  const std::string wrong = co_await rig.open_pool();
  REQUIRE(wrong == "");
  auto volume = rig.pool->attach(branch);
  store.commits = 0;
  store.failing = true;
  Error error = co_await put_cells(volume.get(), 0, kChunkCells, 9);
  CHECK(error == Error::kNoSpace);
  co_await expect_medium_error(volume.get(), 0, 1, 0);
  store.failing = false;
  CHECK(store.commits == 1);
  std::uint32_t ended = 0;
  for (std::uint32_t chunk = 0; chunk < 2 * kTestPageChunks; ++chunk) {
    spawn(rewrite_chunk(volume.get(), chunk, &ended));
  }
  while (ended < 2 * kTestPageChunks) co_await home.sleep_for(std::chrono::milliseconds(1));
  // The first one, and those who waited for it.
  CHECK(store.commits <= 3);
  co_await expect_cells(volume.get(), 0, 2 * kPageCells, 9);
  // A chunk that is good again costs no commit.
  const std::uint64_t commits = store.commits;
  error = co_await put_cells(volume.get(), 0, kChunkCells, 8);
  CHECK(error == Error::kNone);
  CHECK(store.commits == commits);
  volume.reset();
  co_await close_rig(&rig);
}

// Crashes -----------------------------------------------------------------------------------------

RigOptions volatile_options() {
  return {.spare_bytes = StoreStamps::kBytes, .nvram = false, .files = true};
}

struct Cut {
  std::shared_ptr<const sim::FilesSnapshot> files;
  std::uint32_t acknowledged = 0;  // Whole chunks from the first on.
};

struct Cuts {
  sim::World* world = nullptr;
  std::vector<Cut> cuts;
  std::uint32_t acknowledged = 0;
  BranchId branch = 0;
};

constexpr std::uint32_t kRewritten = 6;

Task<void> rewrite_while_cut(Executor& home, Cuts* cuts) {
  Rig rig(home, volatile_options());
  cuts->branch = co_await insist_on_older(&rig);
  auto volume = rig.pool->attach(cuts->branch);
  cuts->world->observe_writes([cuts](const std::string&) {
    cuts->cuts.push_back({cuts->world->snapshot_files(), cuts->acknowledged});
  });
  // Half of them one by one, the others together.
  std::uint32_t ended = 0;
  for (std::uint32_t chunk = 0; chunk < kRewritten / 2; ++chunk) {
    co_await rewrite_chunk(volume.get(), chunk, &ended);
    cuts->acknowledged = ended;
  }
  for (std::uint32_t chunk = kRewritten / 2; chunk < kRewritten; ++chunk) {
    spawn(rewrite_chunk(volume.get(), chunk, &ended));
  }
  while (ended < kRewritten) co_await home.sleep_for(std::chrono::milliseconds(1));
  cuts->world->observe_writes({});
  volume.reset();
  co_await rig.stop();
}

Task<void> look_after_cut(Executor& home, const Cut* cut, BranchId branch) {
  Rig rig(home, volatile_options());
  co_await begin(&rig);
  auto volume = rig.pool->attach(branch);
  Random random{5};
  for (std::uint32_t chunk = 0; chunk < 2 * kTestPageChunks; ++chunk) {
    CAPTURE(chunk);
    const auto read = co_await read_cells(*volume, chunk * kChunkCells, kChunkCells, random);
    if (read.has_value()) {
      CHECK(chunk < kRewritten);
      CHECK(*read == Cells(kChunkCells, 9));
    } else {
      CHECK(read.error() == Error::kMediumError);
      CHECK(chunk >= cut->acknowledged);
    }
  }
  volume.reset();
  co_await rig.stop();
}

// At each write while the owner's word takes effect: afterwards the store is refused, or in doubt.
Task<void> insist_while_cut(Executor& home, Cuts* cuts) {
  Rig rig(home, volatile_options());
  cuts->branch = co_await fall_behind(&rig);
  rig.options().missing = true;
  co_await begin(&rig);
  cuts->world->observe_writes(
      [cuts](const std::string&) { cuts->cuts.push_back({cuts->world->snapshot_files(), 0}); });
  for (const StoreIndex store : {0, 1}) {
    const Error accepted =
        co_await rig.pool->admit(store, rig.devices[store].get(), OlderMap::kAccept);
    REQUIRE(accepted == Error::kNone);
  }
  cuts->world->observe_writes({});
  co_await rig.stop();
}

Task<void> expect_refused_or_doubtful(Executor& home, BranchId branch) {
  Rig rig(home, volatile_options());
  rig.options().missing = true;
  co_await begin(&rig);
  for (const StoreIndex store : {0, 1}) {
    const Error admitted = co_await rig.pool->admit(store, rig.devices[store].get());
    CHECK((admitted == Error::kNone || admitted == Error::kMiscompare));
  }
  auto volume = rig.pool->attach(branch);
  Random random{6};
  for (std::uint32_t chunk = 0; chunk < 2 * kTestPageChunks; ++chunk) {
    const auto read = co_await read_cells(*volume, chunk * kChunkCells, kChunkCells, random);
    REQUIRE_FALSE(read.has_value());
    CHECK((read.error() == Error::kMediumError || read.error() == Error::kNotReady));
  }
  volume.reset();
  co_await rig.stop();
}

using Run = std::function<Task<void>(Executor& home, Cuts* cuts)>;
using Look = std::function<Task<void>(Executor& home, const Cut* cut, BranchId branch)>;

void cut_anywhere(const Run& run, const Look& look) {
  Cuts cuts;
  {
    const auto world = sim::World::create({.seed = 11});
    cuts.world = world.get();
    Executor& home = *world->executors()[0];
    const bool ended = world->run([&] { return run(home, &cuts); });
    REQUIRE(ended);
  }
  REQUIRE(cuts.cuts.size() >= 4);
  for (std::size_t i = 0; i < cuts.cuts.size(); ++i) {
    CAPTURE(i);
    const auto world = sim::World::create({.seed = 100 + i, .files = cuts.cuts[i].files});
    world->cut_power();
    Executor& home = *world->executors()[0];
    const bool ended = world->run([&] { return look(home, &cuts.cuts[i], cuts.branch); });
    REQUIRE(ended);
  }
}

}  // namespace

TEST_CASE("A chunk in doubt is a medium error until it is written as a whole or unmapped",
          "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, read_and_rewrite);
}

TEST_CASE("A chunk in doubt is neither moved nor copied", "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, stop_copies);
}

TEST_CASE("A pool refuses every other map after its owner has insisted on one",
          "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, refuse_other_maps);
}

TEST_CASE("A pool is not opened when its list of doubtful chunks is damaged",
          "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, refuse_damaged_list);
}

TEST_CASE("A store that leaves its pool takes its doubtful chunks along",
          "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, forget_with_store);
}

TEST_CASE("Writes to chunks in doubt that wait together share a commit", "[pool][doubtful][G-S2]") {
  testing::run_in_world(7, share_commits);
}

TEST_CASE("A chunk in doubt shows only what was written since, after a crash at any write",
          "[pool][doubtful][G-S2]") {
  cut_anywhere(rewrite_while_cut, look_after_cut);
}

TEST_CASE("A store is refused or in doubt after a crash while its owner insists",
          "[pool][doubtful][G-S2]") {
  cut_anywhere(insist_while_cut, [](Executor& home, const Cut*, BranchId branch) {
    return expect_refused_or_doubtful(home, branch);
  });
}

}  // namespace sandbay::pool::doubtful_chunks_test
