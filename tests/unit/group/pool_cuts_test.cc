// Operations on a pool's volumes that end after any of their commits, as after a kill: the next
// start finds them done or undone, and what was begun and cannot be undone it finishes.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/doubtful_store.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::pool_cuts_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kSections =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

void run(const sandbay::testing::ScratchDirectory& scratch, const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), kSections, 1, test);
  if (!error.empty()) FAIL(error);
}

// Thick; with an hourly schedule and three snapshots, of which one is online and takes writes.
Task<void> provision(Group& group) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  request.specification.name = "v";
  request.specification.size_bytes = 16 * kMiB;
  const auto made = co_await group.create_volume(request);
  REQUIRE(made.has_value());
  const auto schedule = co_await group.create_schedule(
      {.name = "hourly", .volume = "v", .every = std::chrono::hours(1), .keep = 3});
  REQUIRE(schedule.has_value());
  for (const char* const name : {"s1", "s2", "s3"}) {
    const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = name});
    REQUIRE(taken.has_value());
  }
  const auto online = co_await group.online_snapshot({"v", "s2"}, true);
  REQUIRE(online.has_value());
}

// What is there of it; -1: nothing at all.
Task<int> count_of_all(Group& group) {
  const auto volume = co_await group.show_volume("v");
  const auto targets_now = co_await group.list_targets();
  const auto& targets = *targets_now;
  if (!volume.has_value()) co_return targets.empty() ? -1 : 0;
  CHECK(volume->reason.empty());
  const auto snapshots = co_await group.list_snapshots("v");
  const auto schedules = co_await group.list_schedules("v");
  REQUIRE(snapshots.has_value());
  REQUIRE(schedules.has_value());
  const auto online = std::ranges::count_if(
      *snapshots, [](const SnapshotInfo& one) { return one.online && one.reason.empty(); });
  // The schedule has perhaps taken one, too.
  const auto own = std::ranges::count_if(
      *snapshots, [](const SnapshotInfo& one) { return one.schedule.empty(); });
  co_return static_cast<int>(own + online + std::ssize(*schedules) + std::ssize(targets));
}
constexpr int kAll = 3 + 1 + 1 + 2;

Task<void> try_to_delete(Group& group, DoubtfulStore& store, unsigned commits, bool there_after_all,
                         bool* deleted) {
  co_await provision(group);
  store.arm(commits, there_after_all);
  const auto gone = co_await group.delete_volume("v", true);
  *deleted = gone.has_value();
  if (*deleted) co_return;
  // Where a start may know nothing of them they are not served.
  const auto volume = co_await group.show_volume("v");
  CHECK_FALSE(volume->reason.empty());
  const auto snapshot = co_await group.show_snapshot({"v", "s2"});
  CHECK_FALSE(snapshot->reason.empty());
}

Task<void> check_all_or_none(Group& group, int expected) {
  const int count = co_await count_of_all(group);
  CHECK(count == expected);
  const auto checked = co_await group.check_group();
  CHECK(checked.at(0).wrong.empty());
}

TEST_CASE("A volume goes with all its snapshots, or stays with all of them, whatever commit fails",
          "[group][pool]") {
  const bool there_after_all = GENERATE(false, true);
  bool deleted = false;
  for (unsigned commits = 0; !deleted; ++commits) {
    REQUIRE(commits < 20);
    const sandbay::testing::ScratchDirectory scratch;
    run_doubtfully(
        scratch.file("state"), kSections,
        [&](Group& group, DoubtfulStore& store, bool there) {
          return try_to_delete(group, store, commits, there, &deleted);
        },
        there_after_all);
    const int expected = deleted || there_after_all ? -1 : kAll;
    run(scratch, [expected](Group& group) { return check_all_or_none(group, expected); });
  }
}

// The wish, the stamps of the sets that lose pages, and the map.
constexpr unsigned kShrinkCommits = 3;

Task<void> try_to_shrink(Group& group, DoubtfulStore& store, unsigned commits) {
  co_await provision(group);
  store.arm(commits, false);
  const auto shrunk = co_await group.change_volume("v", {.size_bytes = 8 * kMiB, .force = true});
  CHECK(shrunk.has_value() == (commits == kShrinkCommits));
  const auto volume = co_await group.show_volume("v");
  CHECK(volume->specification.size_bytes == (commits == kShrinkCommits ? 8 : 16) * kMiB);
}

Task<void> check_size(Group& group, std::uint64_t expected) {
  const auto volume = co_await group.show_volume("v");
  REQUIRE(volume.has_value());
  CHECK(volume->reason.empty());
  CHECK(volume->specification.size_bytes == expected);
  CHECK(volume->allocated_bytes == expected);
  const auto checked = co_await group.check_group();
  CHECK(checked.at(0).wrong.empty());
}

TEST_CASE("A volume that has begun to shrink is smaller after a restart", "[group][pool]") {
  const unsigned commits = GENERATE(range(0U, kShrinkCommits + 1));
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(
      scratch.file("state"), kSections,
      [commits](Group& group, DoubtfulStore& store, bool) {
        return try_to_shrink(group, store, commits);
      },
      false);
  const std::uint64_t expected = (commits == 0 ? 16 : 8) * kMiB;
  run(scratch, [expected](Group& group) { return check_size(group, expected); });
  // Nothing of it is left to be done: it may grow, and stays so.
  run(scratch, [](Group& group) -> Task<void> {
    const auto grown = co_await group.change_volume("v", {.size_bytes = 20 * kMiB});
    CHECK(grown.has_value());
  });
  run(scratch, [](Group& group) { return check_size(group, 20 * kMiB); });
}

}  // namespace
}  // namespace sandbay::group::pool_cuts_test
