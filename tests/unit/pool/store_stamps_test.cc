// Goal: a map that an export listed is not used once its pages may have other owners.
// Method: the entries that were listed while the log was held replace all later ones, as an import
// replaces them, and the pool is opened on its stores again.
#include <catch2/catch.hpp>
#include <string>

#include "tests/unit/pool/older_map.h"

namespace sandbay::pool {
namespace {

constexpr std::string_view kRefusal =
    "store 0: its pages may have other owners: the map is older than it";

Task<std::string> why_not(Rig* rig) {
  const std::string wrong = co_await rig->start();
  if (wrong.empty()) co_await rig->stop();
  if (!wrong.empty()) co_await rig->end();
  co_return wrong;
}

Task<void> refuse_after(Executor& home, bool delete_volume) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  if (delete_volume) {
    const Error removed = co_await rig.pool->remove(branch, {});
    REQUIRE(removed == Error::kNone);
    co_await rig.sweep_all();
  } else {
    co_await move_first_page(&rig, branch);
  }
  const auto newer = co_await list_map(&rig);
  co_await finish(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
  // Nothing was changed by that.
  co_await bring_back(&home, newer);
  const std::string right = co_await why_not(&rig);
  CHECK(right == "");
}

// New pages and snapshots take nothing from anybody.
Task<void> accept_without_moves(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  (void)co_await provision(&rig);
  const auto taken = co_await rig.pool->snapshot({{.branch = branch, .label = "s"}}, {});
  REQUIRE(taken.has_value());
  co_await finish(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == "");
}

// Two maps go on from one export; each is refused where the other has moved pages.
Task<void> tell_branches_apart(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  (void)co_await provision(&rig);
  const auto abandoned = co_await list_map(&rig);
  co_await finish(&rig);
  co_await bring_back(&home, older);
  co_await begin(&rig);
  co_await move_first_page(&rig, branch);
  co_await finish(&rig);
  co_await bring_back(&home, abandoned);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
}

// A store that was missing while pages were freed gets the stamp before it is used.
Task<void> stamp_what_returns(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  const auto older = co_await list_map(&rig);
  for (const StoreIndex store : {0, 1}) rig.pool->set_device(store, nullptr);
  const Error removed = co_await rig.pool->remove(branch, {});
  REQUIRE(removed == Error::kNone);
  co_await rig.sweep_all();
  for (const StoreIndex store : {0, 1}) {
    CHECK(rig.pool->device(store) == nullptr);
    const Error admitted = co_await rig.pool->admit(store, rig.devices[store].get());
    CHECK(admitted == Error::kNone);
    CHECK(rig.pool->device(store) == rig.devices[store].get());
  }
  co_await finish(&rig);
  co_await bring_back(&home, older);
  const std::string wrong = co_await why_not(&rig);
  CHECK(wrong == kRefusal);
}

// Every start ends an era, and stamps are written once in each.
Task<void> survive_starts(Executor& home) {
  Rig rig(home, stamped_options());
  co_await begin(&rig);
  const BranchId branch = co_await provision(&rig);
  for (int start = 0; start < 3; ++start) {
    co_await move_first_page(&rig, branch);
    CHECK(rig.pool->log().counters().failed_groups == 0);
    // As after a kill.
    co_await rig.stop();
    co_await begin(&rig);
  }
  co_await finish(&rig);
}

}  // namespace

TEST_CASE("A map older than the move of a page is refused", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, [](Executor& home) { return refuse_after(home, false); });
}

TEST_CASE("A map older than the end of a volume is refused", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, [](Executor& home) { return refuse_after(home, true); });
}

TEST_CASE("An older map is accepted when no page has another owner since", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, accept_without_moves);
}

TEST_CASE("A map is refused when another one from the same export has moved pages",
          "[pool][stamps][G-S2]") {
  testing::run_in_world(7, tell_branches_apart);
}

TEST_CASE("A store that was missing is stamped when it returns", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, stamp_what_returns);
}

TEST_CASE("A pool opens after each kill with the stamps that it wrote", "[pool][stamps][G-S2]") {
  testing::run_in_world(7, survive_starts);
}

}  // namespace sandbay::pool
