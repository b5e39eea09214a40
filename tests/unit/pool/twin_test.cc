// A pool against a naive twin: every volume and every snapshot is a row of cells, and what is a
// reference or a record in the pool is a copy of the row there.
//
// Random operations: writes of any size, unmapping, zeroing, snapshots, consistency groups,
// writable snapshots and clones of clones, restores to any snapshot of the family, deletes,
// expansion, shrinking, shortening of rows of parents, sweeps, checkpoints, restarts with and
// without the last checkpoint. In the end everything is removed and every page is free again.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::twin_test {
namespace {

constexpr std::uint64_t kCellsPerPage = kTestPageBytes / kCellBytes;

struct TwinVolume {
  std::unique_ptr<PoolVolume> volume;
  Cells cells;
  bool thick = false;
};

// Whose snapshot it is, as far as names go; the pool does not care.
struct TwinSnapshot {
  SnapshotKey key;
  Cells cells;
  std::unique_ptr<PoolVolume> shown;
};

class TwinRun {
 public:
  // kRows: few volumes, whose restores and changes of size make rows of parents.
  enum class Profile : std::uint8_t { kAll, kRows };

  TwinRun(Executor& home, RigOptions options, std::uint64_t seed, Profile profile)
      : rig_(home, options), random_(seed), profile_(profile) {}

  Task<void> go(int steps) {
    const std::string wrong = co_await rig_.start();
    REQUIRE(wrong == "");
    co_await create();
    for (int step = 0; step < steps; ++step) {
      INFO("step " << step);
      co_await one_step();
    }
    co_await verify_all();
    co_await remove_everything();
  }

 private:
  using Step = Task<void> (TwinRun::*)();
  struct Choice {
    unsigned weight;
    Step step;
  };
  static const std::vector<Choice> kChoices;
  static const std::vector<Choice> kRowChoices;

  Task<void> one_step() {
    unsigned total = 0;
    const std::span<const Choice> choices = rows() ? kRowChoices : kChoices;
    for (const Choice& choice : choices) total += choice.weight;
    std::uint64_t drawn = random_.below(total);
    for (const Choice& choice : choices) {
      if (drawn < choice.weight) {
        co_await (this->*choice.step)();
        co_return;
      }
      drawn -= choice.weight;
    }
  }

  bool rows() const noexcept { return profile_ == Profile::kRows; }
  TwinVolume* pick() {
    return volumes_.empty() ? nullptr : volumes_[random_.below(volumes_.size())].get();
  }
  TwinSnapshot* pick_snapshot() {
    return snapshots_.empty() ? nullptr : snapshots_[random_.below(snapshots_.size())].get();
  }
  std::pair<std::uint64_t, std::uint64_t> pick_range(const Cells& cells) {
    const std::uint64_t first = random_.below(cells.size());
    std::uint64_t most = std::min<std::uint64_t>(cells.size() - first, 40);
    if (random_.chance(0.1)) most = cells.size() - first;
    return {first, random_.between(1, most)};
  }
  // No room is no failure: then nothing may have changed.
  static bool full(Error error) { return error == Error::kNoSpace; }

  Task<void> create() {
    if (volumes_.size() >= 5) co_return;
    const std::uint64_t cells = random_.between(1, 4 * kCellsPerPage);
    const bool thick = random_.chance(0.2);
    const auto made =
        co_await rig_.pool->create({.byte_count = cells * kCellBytes, .thick = thick}, {});
    if (!made.has_value()) {
      REQUIRE(made.error() == Error::kNoSpace);
      co_return;
    }
    adopt(*made, Cells(cells), thick);
  }

  void adopt(BranchId id, Cells cells, bool thick) {
    auto volume = std::make_unique<TwinVolume>();
    volume->volume = rig_.pool->attach(id);
    REQUIRE(volume->volume != nullptr);
    REQUIRE(volume->volume->geometry().block_count * 512 == cells.size() * kCellBytes);
    volume->cells = std::move(cells);
    volume->thick = thick;
    volumes_.push_back(std::move(volume));
  }

  Task<void> write() {
    TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    auto [first, count] = pick_range(volume->cells);
    if (rows() && random_.chance(0.3)) {
      first = 0;
      count = volume->cells.size();
    }
    const std::uint32_t number = ++number_;
    const Error error = co_await write_cells(*volume->volume, first, count, number, random_);
    if (full(error)) {
      // Pages before the one that found no room are written.
      co_await adopt_partial(volume, first, count, number);
      co_return;
    }
    REQUIRE(error == Error::kNone);
    std::fill_n(volume->cells.begin() + static_cast<std::ptrdiff_t>(first), count, number);
  }

  // Cells of the range are old or new; what they are from now on is what they read as.
  Task<void> adopt_partial(TwinVolume* volume, std::uint64_t first, std::uint64_t count,
                           std::uint32_t number) {
    const auto read = co_await read_cells(*volume->volume, first, count, random_);
    REQUIRE(read.has_value());
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint32_t found = (*read)[i];
      REQUIRE((found == number || found == volume->cells[first + i]));
      volume->cells[first + i] = found;
    }
  }

  Task<void> unmap() {
    TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    auto [first, count] = pick_range(volume->cells);
    if (random_.chance(0.4)) {
      first = first / kCellsPerPage * kCellsPerPage;
      count = std::min<std::uint64_t>(volume->cells.size() - first, kCellsPerPage);
    }
    const Operation how = random_.chance(0.5) ? Operation::kUnmap : Operation::kWriteZeroes;
    const Error error = co_await unmap_cells(*volume->volume, first, count, how);
    if (full(error)) {
      co_await adopt_partial(volume, first, count, 0);
      co_return;
    }
    REQUIRE(error == Error::kNone);
    std::fill_n(volume->cells.begin() + static_cast<std::ptrdiff_t>(first), count, 0U);
  }

  Task<void> verify(BlockDevice& device, const Cells& cells) {
    REQUIRE(device.geometry().block_count * 512 == cells.size() * kCellBytes);
    const auto read = co_await read_cells(device, 0, cells.size(), random_);
    REQUIRE(read.has_value());
    const auto [found, expected] = std::ranges::mismatch(*read, cells);
    if (found != read->end()) {
      INFO(device.description() << ", cell " << found - read->begin());
      CHECK(*found == *expected);
      FAIL("a cell is wrong");
    }
  }

  Task<void> verify_volume() {
    TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    co_await verify(*volume->volume, volume->cells);
  }

  Task<void> verify_snapshot() {
    TwinSnapshot* const snapshot = pick_snapshot();
    if (snapshot == nullptr) co_return;
    co_await verify_one(snapshot);
  }

  Task<void> verify_one(TwinSnapshot* snapshot) {
    if (snapshot->shown == nullptr) {
      snapshot->shown = rig_.pool->attach(snapshot->key.branch, snapshot->key.generation);
    }
    REQUIRE(snapshot->shown != nullptr);
    co_await verify(*snapshot->shown, snapshot->cells);
    const Error refused = co_await write_cells(*snapshot->shown, 0, 1, 1, random_);
    REQUIRE(refused == Error::kReadOnly);
    if (random_.chance(0.7)) snapshot->shown.reset();
  }

  Task<void> verify_all() {
    for (const auto& volume : volumes_) co_await verify(*volume->volume, volume->cells);
    for (const auto& snapshot : snapshots_) co_await verify_one(snapshot.get());
  }

  Task<void> snapshot() {
    if (volumes_.empty() || snapshots_.size() > (rows() ? 5 : 24)) co_return;
    std::vector<Pool::SnapshotOrder> orders;
    std::vector<TwinVolume*> of;
    for (const auto& volume : volumes_) {
      if (!of.empty() && random_.chance(0.7)) continue;
      orders.push_back({.branch = volume->volume->branch().id(), .label = "snapshot"});
      of.push_back(volume.get());
    }
    const auto taken = co_await rig_.pool->snapshot(std::move(orders), {});
    REQUIRE(taken.has_value());
    for (std::size_t i = 0; i < of.size(); ++i) {
      auto snapshot = std::make_unique<TwinSnapshot>();
      snapshot->key = {.branch = of[i]->volume->branch().id(), .generation = (*taken)[i]};
      snapshot->cells = of[i]->cells;
      snapshots_.push_back(std::move(snapshot));
    }
  }

  Task<void> clone() {
    if (volumes_.size() >= (rows() ? 2 : 6)) co_return;
    SnapshotKey key;
    Cells cells;
    if (random_.chance(0.3)) {
      const TwinVolume* const volume = pick();
      if (volume == nullptr) co_return;
      key = {.branch = volume->volume->branch().id(), .generation = kLive};
      cells = volume->cells;
    } else {
      const TwinSnapshot* const snapshot = pick_snapshot();
      if (snapshot == nullptr) co_return;
      key = snapshot->key;
      cells = snapshot->cells;
    }
    BranchOptions options;
    if (random_.chance(0.3)) {
      cells.resize(cells.size() + random_.below(kCellsPerPage));
      options.byte_count = cells.size() * kCellBytes;
    }
    const auto made = co_await rig_.pool->clone(key, std::move(options), {});
    REQUIRE(made.has_value());
    adopt(*made, std::move(cells), false);
  }

  Task<void> restore() {
    TwinVolume* const volume = pick();
    const TwinSnapshot* snapshot = pick_snapshot();
    if (volume == nullptr || snapshot == nullptr) co_return;
    if (rows() && random_.chance(0.5)) snapshot = snapshots_.back().get();
    const auto restored = co_await rig_.pool->restore(*volume->volume, snapshot->key, {});
    if (!restored.has_value()) {
      REQUIRE(volume->thick);
      REQUIRE(restored.error() == Error::kNoSpace);
      co_return;
    }
    volume->cells = snapshot->cells;
  }

  Task<void> remove_snapshot() {
    if (snapshots_.empty()) co_return;
    const std::size_t at = random_.below(snapshots_.size());
    snapshots_[at]->shown.reset();
    const Error error = co_await rig_.pool->remove_snapshot(snapshots_[at]->key, {});
    REQUIRE(error == Error::kNone);
    snapshots_.erase(snapshots_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  Task<void> remove_volume() {
    if (volumes_.size() < 2) co_return;
    const std::size_t at = random_.below(volumes_.size());
    const BranchId id = volumes_[at]->volume->branch().id();
    volumes_[at]->volume.reset();
    std::erase_if(snapshots_, [id](const auto& one) { return one->key.branch == id; });
    const Error error = co_await rig_.pool->remove(id, {});
    REQUIRE(error == Error::kNone);
    volumes_.erase(volumes_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  Task<void> resize() {
    TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    const BranchId id = volume->volume->branch().id();
    std::uint64_t cells = random_.between(1, 5 * kCellsPerPage);
    if (rows() && random_.chance(0.8)) cells = (random_.chance(0.5) ? 2 : 4) * kCellsPerPage;
    Error error = Error::kNone;
    if (cells >= volume->cells.size()) {
      error = co_await rig_.pool->expand(id, cells * kCellBytes, {});
    } else {
      error = co_await rig_.pool->shrink(id, cells * kCellBytes, {});
      if (full(error)) {
        const std::uint64_t behind = volume->cells.size() - cells;
        co_await adopt_partial(volume, cells, behind, 0);
        co_return;
      }
    }
    if (full(error)) co_return;
    REQUIRE(error == Error::kNone);
    volume->cells.resize(cells);
  }

  Task<void> sweep() {
    const auto more = co_await rig_.pool->sweep(static_cast<std::uint32_t>(random_.between(1, 20)));
    REQUIRE(more.has_value());
  }

  Task<void> check() {
    const std::string wrong = co_await rig_.check();
    REQUIRE(wrong == "");
  }

  Task<void> make_independent() {
    const TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    if (random_.chance(0.4)) {
      const auto more = co_await rig_.pool->flatten(1, 6);
      REQUIRE((more.has_value() || full(more.error())));
      co_await rig_.pool->trim(5);
      co_return;
    }
    PageNumber next = 0;
    const bool whole = random_.chance(0.7);
    while (true) {
      const auto more =
          co_await rig_.pool->make_independent(volume->volume->branch().id(), &next, 2);
      if (!more.has_value()) {
        REQUIRE(more.error() == Error::kNoSpace);
        co_return;
      }
      if (!*more) {
        REQUIRE(!volume->volume->branch().has_parent());
        co_return;
      }
      if (!whole) co_return;
    }
  }

  // Until no branch has more than one parent.
  Task<void> shorten_rows() {
    while (true) {
      const auto more = co_await rig_.pool->flatten(1, 6);
      if (!more.has_value()) {
        REQUIRE(more.error() == Error::kNoSpace);
        co_return;
      }
      if (!*more) co_return;
    }
  }

  Task<void> move() {
    const auto target = static_cast<StoreIndex>(random_.below(2));
    if (random_.chance(0.5)) {
      const TwinVolume* const volume = pick();
      if (volume == nullptr) co_return;
      const auto page = static_cast<PageNumber>(random_.below(5));
      const Error error =
          co_await rig_.pool->move_page(volume->volume->branch().id(), page, target);
      REQUIRE((error == Error::kNone || error == Error::kNotFound || full(error)));
      co_return;
    }
    co_await vacate(target);
  }

  // A store is emptied and comes back.
  Task<void> vacate(StoreIndex index) {
    StoreConfig store = rig_.config_of(index);
    store.record.state = StoreState::kVacating;
    const Error begun = co_await rig_.pool->put_store(store, {});
    REQUIRE(begun == Error::kNone);
    while (true) {
      const auto more = co_await rig_.pool->vacate(index, 3);
      if (!more.has_value()) {
        REQUIRE(more.error() == Error::kNoSpace);
        break;
      }
      if (!*more) {
        REQUIRE(rig_.pool->space(index).free_pages == rig_.pool->space(index).pages);
        break;
      }
    }
    const Error ended = co_await rig_.pool->put_store(rig_.config_of(index), {});
    REQUIRE(ended == Error::kNone);
  }

  Task<void> provisioning() {
    const TwinVolume* const volume = pick();
    if (volume == nullptr) co_return;
    const std::uint64_t blocks = volume->volume->geometry().block_count;
    const std::uint64_t per_cell = kCellBytes / 512;
    for (Lba at = 0; at < blocks;) {
      const auto run = co_await volume->volume->provisioning(at, blocks);
      REQUIRE(run.has_value());
      REQUIRE(run->block_count > 0);
      REQUIRE(at + run->block_count <= blocks);
      // What is not mapped reads as zeros.
      for (Lba lba = at; !run->mapped && lba < at + run->block_count; lba += per_cell) {
        REQUIRE(volume->cells[lba / per_cell] == 0);
      }
      at += run->block_count;
    }
  }

  // The branches of the volumes are all that is needed to find them again.
  Task<void> restart() {
    std::vector<BranchId> ids;
    for (const auto& volume : volumes_) {
      ids.push_back(volume->volume->branch().id());
      volume->volume.reset();
    }
    for (const auto& snapshot : snapshots_) snapshot->shown.reset();
    const PoolSpace before = rig_.pool->space();
    if (random_.chance(0.5)) {
      const Error error = co_await rig_.close();
      REQUIRE(error == Error::kNone);
    } else {
      co_await rig_.stop();
    }
    const std::string wrong = co_await rig_.start();
    REQUIRE(wrong == "");
    const PoolSpace after = rig_.pool->space();
    REQUIRE(after.reserve_pages == before.reserve_pages);
    REQUIRE(after.kept_slots == before.kept_slots);
    REQUIRE(after.free_pages >= before.free_pages);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      volumes_[i]->volume = rig_.pool->attach(ids[i]);
      REQUIRE(volumes_[i]->volume != nullptr);
    }
    co_await verify_all();
  }

  Task<void> remove_everything() {
    while (!snapshots_.empty()) co_await remove_snapshot();
    for (const auto& volume : volumes_) {
      const BranchId id = volume->volume->branch().id();
      volume->volume.reset();
      const Error error = co_await rig_.pool->remove(id, {});
      REQUIRE(error == Error::kNone);
    }
    co_await rig_.sweep_all();
    const std::string wrong = co_await rig_.check();
    CHECK(wrong == "");
    CHECK(rig_.pool->map().branches().empty());
    CHECK(rig_.pool->space().free_pages == rig_.pool->space().pages);
    const Error error = co_await rig_.close();
    CHECK(error == Error::kNone);
  }

  Rig rig_;
  Random random_;
  const Profile profile_;
  std::uint32_t number_ = 0;
  std::vector<std::unique_ptr<TwinVolume>> volumes_;
  std::vector<std::unique_ptr<TwinSnapshot>> snapshots_;
};

const std::vector<TwinRun::Choice> TwinRun::kChoices = {{40, &TwinRun::write},
                                                        {12, &TwinRun::unmap},
                                                        {8, &TwinRun::verify_volume},
                                                        {8, &TwinRun::verify_snapshot},
                                                        {10, &TwinRun::snapshot},
                                                        {3, &TwinRun::create},
                                                        {4, &TwinRun::clone},
                                                        {3, &TwinRun::restore},
                                                        {6, &TwinRun::remove_snapshot},
                                                        {2, &TwinRun::remove_volume},
                                                        {3, &TwinRun::resize},
                                                        {8, &TwinRun::sweep},
                                                        {2, &TwinRun::check},
                                                        {2, &TwinRun::restart},
                                                        {2, &TwinRun::provisioning},
                                                        {3, &TwinRun::make_independent},
                                                        {4, &TwinRun::move}};

const std::vector<TwinRun::Choice> TwinRun::kRowChoices = {
    {8, &TwinRun::write},         {2, &TwinRun::unmap},
    {6, &TwinRun::verify_volume}, {6, &TwinRun::verify_snapshot},
    {14, &TwinRun::snapshot},     {1, &TwinRun::clone},
    {16, &TwinRun::restore},      {12, &TwinRun::remove_snapshot},
    {1, &TwinRun::remove_volume}, {16, &TwinRun::resize},
    {4, &TwinRun::sweep},         {1, &TwinRun::check},
    {1, &TwinRun::restart},       {8, &TwinRun::shorten_rows}};

Task<void> run_twin(Executor& home, std::uint64_t seed, bool nvram, TwinRun::Profile profile) {
  TwinRun run(home, {.nvram = nvram}, seed, profile);
  co_await run.go(profile == TwinRun::Profile::kRows ? 100 : 300);
}

// SANDBAY_LONG=n: so many seeds.
std::uint64_t seed_count() {
  const char* const text = std::getenv("SANDBAY_LONG");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 16;
}

}  // namespace

TEST_CASE("a pool is what its twin is, whatever is done to it", "[pool]") {
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, seed_count() + 1));
  CAPTURE(seed);
  const bool nvram = seed % 2 == 0;
  testing::run_in_world(
      seed, [&](Executor& home) { return run_twin(home, seed, nvram, TwinRun::Profile::kAll); });
}

TEST_CASE("A pool is what its twin is when sizes change along rows of parents",
          "[pool][P-1][P-2]") {
  // The rows that uncover such faults are rare, and a run is short.
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, 20 * seed_count() + 1));
  CAPTURE(seed);
  const bool nvram = seed % 2 == 0;
  testing::run_in_world(
      seed, [&](Executor& home) { return run_twin(home, seed, nvram, TwinRun::Profile::kRows); });
}

}  // namespace sandbay::pool::twin_test
