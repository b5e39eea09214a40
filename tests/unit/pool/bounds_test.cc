// Sizes that change along a row of parents: whichever parent leaves the row, every volume and every
// snapshot reads as before, also behind the ends of the others.
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "block/layer.h"
#include "pool/sealed.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::bounds_test {
namespace {

constexpr std::uint64_t kBoundCells = kTestPageBytes / kCellBytes;
constexpr std::uint64_t kBoundPages = 4;

// A volume of four pages whose restores make a row of parents.
struct BoundRow {
  explicit BoundRow(Executor& home) : rig(home, {.nvram = false}) {}

  Task<void> begin() {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    const auto made = co_await rig.pool->create({.byte_count = kBoundPages * kTestPageBytes}, {});
    REQUIRE(made.has_value());
    volume = rig.pool->attach(*made);
    Random random(1);
    const Error error = co_await write_cells(*volume, 0, kBoundPages * kBoundCells, 7, random);
    REQUIRE(error == Error::kNone);
  }

  Task<SnapshotKey> take() {
    const BranchId id = volume->branch().id();
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = {}}}, {});
    REQUIRE(taken.has_value());
    co_return SnapshotKey{.branch = id, .generation = (*taken)[0]};
  }

  Task<void> restore(SnapshotKey key) {
    const auto restored = co_await rig.pool->restore(*volume, key, {});
    REQUIRE(restored.has_value());
  }

  Task<void> shrink_to(std::uint64_t pages) {
    const Error error =
        co_await rig.pool->shrink(volume->branch().id(), pages * kTestPageBytes, {});
    REQUIRE(error == Error::kNone);
  }

  Task<void> expand_to(std::uint64_t pages) {
    const Error error =
        co_await rig.pool->expand(volume->branch().id(), pages * kTestPageBytes, {});
    REQUIRE(error == Error::kNone);
  }

  Task<void> remove(SnapshotKey key) {
    const Error error = co_await rig.pool->remove_snapshot(key, {});
    REQUIRE(error == Error::kNone);
  }

  Task<void> shorten(std::uint32_t most_parents) {
    for (bool more = true; more;) {
      const auto flattened = co_await rig.pool->flatten(most_parents, 100);
      REQUIRE(flattened.has_value());
      more = *flattened;
    }
    co_await rig.sweep_all();
  }

  Task<void> finish() {
    volume.reset();
    const std::string wrong = co_await rig.check();
    CHECK(wrong == "");
    co_await rig.stop();
  }

  Rig rig;
  std::unique_ptr<PoolVolume> volume;
};

// The first cell of each page.
Task<Cells> first_cells(BlockDevice* device) {
  Random random(1);
  const std::uint64_t pages = device->geometry().block_count * 512 / kTestPageBytes;
  Cells cells;
  for (std::uint64_t page = 0; page < pages; ++page) {
    const auto read = co_await read_cells(*device, page * kBoundCells, 1, random);
    REQUIRE(read.has_value());
    cells.push_back(read->front());
  }
  co_return cells;
}

// A snapshot of four pages on a branch that has two now; its parent has two as well, and gets the
// pages of the first.
Task<SnapshotKey> put_large_snapshot(BoundRow* row) {
  const SnapshotKey oldest = co_await row->take();
  co_await row->restore(oldest);
  const SnapshotKey large = co_await row->take();
  co_await row->shrink_to(2);
  co_await row->take();
  co_await row->restore(large);
  const SnapshotKey kept = co_await row->take();
  co_await row->shrink_to(2);
  co_await row->remove(oldest);
  co_await row->remove(large);
  co_return kept;
}

Task<void> expect_large_snapshot(BoundRow* row, SnapshotKey kept) {
  auto shown = row->rig.pool->attach(kept.branch, kept.generation);
  REQUIRE(shown != nullptr);
  const Cells cells = co_await first_cells(shown.get());
  CHECK(cells == Cells{7, 7, 7, 7});
}

Task<void> check_large_snapshot(Executor& home) {
  BoundRow row(home);
  co_await row.begin();
  const SnapshotKey kept = co_await put_large_snapshot(&row);
  co_await expect_large_snapshot(&row, kept);
  co_await row.shorten(1);
  CHECK(row.rig.pool->parent_count(row.volume->branch()) == 1);
  co_await expect_large_snapshot(&row, kept);
  co_await row.finish();
}

// The volume is expanded from two pages to four; its parent has two, and loses its own parent,
// whose zeros hide the data of a snapshot of four pages.
Task<void> put_expanded_volume(BoundRow* row) {
  const SnapshotKey oldest = co_await row->take();
  co_await row->restore(oldest);
  co_await row->shrink_to(2);
  const SnapshotKey small = co_await row->take();
  co_await row->restore(small);
  co_await row->remove(small);
  const SnapshotKey last = co_await row->take();
  co_await row->restore(last);
  co_await row->expand_to(4);
}

Task<void> check_expanded_volume(Executor& home) {
  BoundRow row(home);
  co_await row.begin();
  co_await put_expanded_volume(&row);
  const Cells before = co_await first_cells(row.volume.get());
  CHECK(before == Cells{7, 7, 0, 0});
  co_await row.shorten(2);
  CHECK(row.rig.pool->parent_count(row.volume->branch()) == 2);
  const Cells after = co_await first_cells(row.volume.get());
  CHECK(after == Cells{7, 7, 0, 0});
  co_await row.finish();
}

// Puts the values of the map back into the form of version 2: a branch has kind 5, and its record
// ends with its label.
Task<void> put_version_2(Rig* rig) {
  auto opened = co_await metadata::open_simulated_store(rig->home, "metadata");
  REQUIRE(opened.has_value());
  metadata::Store& store = **opened;
  const std::string prefix = rig->options().pool.map.prefix;
  const auto entries = co_await store.list(prefix, "", 1000);
  REQUIRE(entries.has_value());
  metadata::Batch batch;
  for (const auto& [key, stored] : *entries) {
    auto value = unsealed(key, stored);
    REQUIRE(value.has_value());
    if (key[prefix.size()] == 'b') {
      REQUIRE((*value)[0] == 11);
      (*value)[0] = 5;
      value->resize(value->size() - sizeof(PageNumber));
    } else if (key[prefix.size()] == 'c') {
      REQUIRE((*value)[0] == 3);
      (*value)[0] = 2;
    } else {
      continue;
    }
    batch.put(key, sealed(key, *value));
  }
  const Error error = co_await store.commit(std::move(batch));
  REQUIRE(error == Error::kNone);
  co_await store.close();
}

Task<void> check_version_2(Executor& home, bool expanded) {
  BoundRow row(home);
  co_await row.begin();
  SnapshotKey kept;
  if (expanded) {
    co_await put_expanded_volume(&row);
  } else {
    kept = co_await put_large_snapshot(&row);
  }
  const BranchId id = row.volume->branch().id();
  row.volume.reset();
  const Error closed = co_await row.rig.close();
  REQUIRE(closed == Error::kNone);
  co_await put_version_2(&row.rig);
  const std::string wrong = co_await row.rig.start();
  REQUIRE(wrong == "");
  row.volume = row.rig.pool->attach(id);
  co_await row.shorten(expanded ? 2 : 1);
  if (expanded) {
    const Cells cells = co_await first_cells(row.volume.get());
    CHECK(cells == Cells{7, 7, 0, 0});
  } else {
    co_await expect_large_snapshot(&row, kept);
  }
  co_await row.finish();
}

// Notes whether the last write was forced to the medium.
class NotesForce final : public Layer {
 public:
  using Layer::Layer;
  unsigned writes = 0;
  bool last_forced = false;

 protected:
  Task<Completion> write(Request request) override {
    ++writes;
    last_forced = request.force_unit_access;
    return below().submit(std::move(request));
  }
};

Task<void> check_durable_zeros(Executor& home) {
  BoundRow row(home);
  row.rig.options().stores = 1;
  co_await row.begin();
  NotesForce notes(*row.rig.devices[0]);
  row.rig.pool->set_device(0, &notes);
  const std::uint64_t bytes = 2 * kTestPageBytes + kCellBytes;
  const Error error = co_await row.rig.pool->shrink(row.volume->branch().id(), bytes, {});
  REQUIRE(error == Error::kNone);
  CHECK(notes.writes > 0);
  CHECK(notes.last_forced);
  row.rig.pool->set_device(0, row.rig.devices[0].get());
  co_await row.finish();
}

}  // namespace

TEST_CASE("A shrink forces the zeros in the last chunk to the medium", "[pool][P-2]") {
  testing::run_in_world(1, [](Executor& home) { return check_durable_zeros(home); });
}

TEST_CASE("A snapshot keeps its end when a row of smaller parents is shortened", "[pool][P-1]") {
  testing::run_in_world(1, [](Executor& home) { return check_large_snapshot(home); });
}

TEST_CASE("Expanded space reads as zeros when a row of parents is shortened", "[pool][P-2]") {
  testing::run_in_world(1, [](Executor& home) { return check_expanded_volume(home); });
}

TEST_CASE("A map of version 2 opens and keeps its contents when rows are shortened",
          "[pool][P-1][P-2]") {
  const bool expanded = GENERATE(false, true);
  testing::run_in_world(1, [expanded](Executor& home) { return check_version_2(home, expanded); });
}

}  // namespace sandbay::pool::bounds_test
