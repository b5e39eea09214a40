// A volume's limit of pages, where it reads pages through a parent: after a restore, and in a
// clone. Such pages count once the volume has them itself, and the limit refuses none of them.
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::limit_test {
namespace {

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;

using Errors = std::vector<Error>;

Task<Errors> write_pages(PoolVolume* volume, std::uint64_t first, std::uint64_t count) {
  Random random(1);
  Errors errors;
  for (std::uint64_t page = first; page < first + count; ++page) {
    const Error error = co_await write_cells(*volume, page * kPageCells, 1, 2, random);
    errors.push_back(error);
  }
  co_return errors;
}

// A volume of which four pages have data, as many as it may have, and a snapshot of it.
struct Limited {
  explicit Limited(Executor& home) : rig(home, {.stores = 1, .store_pages = 48}) {}

  Task<void> start() {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    rig.pool->observe([this](const PoolEvent& event) {
      if (event.kind == PoolEvent::Kind::kPagesLimit) ++told;
    });
    const auto made =
        co_await rig.pool->create({.byte_count = 16 * kTestPageBytes, .page_limit = 4}, {});
    REQUIRE(made.has_value());
    volume = rig.pool->attach(*made);
    const Errors written = co_await write_pages(volume.get(), 0, 4);
    REQUIRE(written == Errors(4, Error::kNone));
    const auto taken = co_await rig.pool->snapshot({{.branch = *made, .label = {}}}, {});
    REQUIRE(taken.has_value());
    snapshot = {.branch = *made, .generation = (*taken)[0]};
  }
  Task<void> stop() {
    volume.reset();
    co_await rig.sweep_all();
    const std::string damage = co_await rig.check();
    CHECK(damage == "");
    co_await rig.stop();
  }

  Rig rig;
  std::unique_ptr<PoolVolume> volume;
  SnapshotKey snapshot;
  int told = 0;  // That a write has failed for the limit.
};

// `unmapped`: before the restore, so that only the snapshot has these pages.
Task<void> overwrite_after_restore(Executor& home, bool unmapped) {
  Limited limited(home);
  co_await limited.start();
  if (unmapped) {
    const Error error = co_await unmap_cells(*limited.volume, 0, 4 * kPageCells, Operation::kUnmap);
    REQUIRE(error == Error::kNone);
  }
  const auto restored = co_await limited.rig.pool->restore(*limited.volume, limited.snapshot, {});
  REQUIRE(restored.has_value());
  PoolVolume* const volume = limited.volume.get();
  const Branch& branch = volume->branch();
  Errors written = co_await write_pages(volume, 4, 5);
  CHECK(written == Errors{Error::kNone, Error::kNone, Error::kNone, Error::kNone, Error::kNoSpace});
  CHECK(limited.told == 1);
  written = co_await write_pages(volume, 0, 2);
  CHECK(written == Errors(2, Error::kNone));
  CHECK(limited.told == 1);
  CHECK(branch.pages.placed_count() == 6);
  // It takes over the rest, and has more than it may; it still has all of it.
  const Error removed = co_await limited.rig.pool->remove_snapshot(limited.snapshot, {});
  REQUIRE(removed == Error::kNone);
  Result<bool> more = true;
  while (more == true) more = co_await limited.rig.pool->flatten(0, 4);
  REQUIRE(more == false);
  CHECK(branch.pages.placed_count() == 8);
  CHECK(limited.told == 1);
  written = co_await write_pages(volume, 0, 8);
  CHECK(written == Errors(8, Error::kNone));
  written = co_await write_pages(volume, 8, 1);
  CHECK(written == Errors{Error::kNoSpace});
  co_await limited.stop();
}

Task<void> copy_whole(Executor& home) {
  Limited limited(home);
  co_await limited.start();
  const auto made = co_await limited.rig.pool->clone(limited.snapshot, {.page_limit = 2}, {});
  REQUIRE(made.has_value());
  PageNumber next = 0;
  Result<bool> more = true;
  while (more == true) more = co_await limited.rig.pool->make_independent(*made, &next, 4);
  CHECK(more == false);
  auto clone = limited.rig.pool->attach(*made);
  CHECK(clone->branch().pages.placed_count() == 4);
  const Errors written = co_await write_pages(clone.get(), 3, 2);
  CHECK(written == Errors{Error::kNone, Error::kNoSpace});
  clone.reset();
  co_await limited.stop();
}

}  // namespace

TEST_CASE("A restored volume at its limit may overwrite all its data", "[pool][P-7]") {
  for (const bool unmapped : {false, true}) {
    testing::run_in_world(
        1, [unmapped](Executor& home) { return overwrite_after_restore(home, unmapped); });
  }
}

TEST_CASE("A limit below its data does not stop the full copy of a clone", "[pool][P-7]") {
  testing::run_in_world(1, copy_whole);
}

}  // namespace sandbay::pool::limit_test
