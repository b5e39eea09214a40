// Goal: with many volumes and snapshots no turn of executor 0 is long, and an operation on one
// volume costs the same as with few others. Method: a running group with a pool; processor time of
// the thread, turn by turn.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "group/service.h"
#include "group/shared_answer.h"
#include "runtime/known.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"
#include "tests/unit/group/turns.h"

namespace sandbay::group {
namespace {

const std::string kPool =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

void run(const sandbay::testing::ScratchDirectory& scratch, const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), kPool, 1, test);
  if (!error.empty()) FAIL(error);
}

CreateVolumeRequest thin_volume(std::string name) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = std::uint64_t{4} << 20;
  request.specification.backing = Backing::kPool;
  request.specification.pool = "p";
  request.specification.thin = true;
  return request;
}

Task<void> make_volumes(Group* group, std::string prefix, int count) {
  for (int i = 0; i < count; ++i) {
    const auto made = co_await group->create_volume(thin_volume(fmt::format("{}{}", prefix, i)));
    if (!made) FAIL(made.error().message);
  }
}

Task<void> take_snapshots(Group* group, std::vector<std::string> volumes, int count) {
  for (int i = 0; i < count; ++i) {
    const auto taken =
        co_await group->create_snapshots({.volumes = volumes, .name = fmt::format("s{}", i)});
    if (!taken) FAIL(taken.error().message);
  }
}

// The best of some rounds, which are apart: other programs slow a processor down for a while.
Task<Duration> time_of_making(Group* group, std::string prefix) {
  Duration least = Duration::max();
  for (int round = 0; round < 12; ++round) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    const Duration begun = sandbay::testing::thread_time();
    co_await make_volumes(group, fmt::format("{}{}-", prefix, round), 5);
    least = std::min(least, sandbay::testing::thread_time() - begun);
  }
  co_return least;
}

Task<void> create_beside_snapshots(Group* group) {
  co_await make_volumes(group, "v", 40);
  const Duration without = co_await time_of_making(group, "a");
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back(fmt::format("v{}", i));
  co_await take_snapshots(group, std::move(names), 50);
  const Duration with = co_await time_of_making(group, "b");
  CAPTURE(without.count(), with.count());
  CHECK(with < 3 * without);
}

// A volume or snapshot has its identifiers until it is deleted, also under another name.
Task<void> follow_identifiers(Group* group, const Configuration* configuration) {
  const auto with_serial = [](std::string name) {
    CreateVolumeRequest request = thin_volume(std::move(name));
    request.specification.serial = "S1";
    return request;
  };
  auto made = co_await group->create_volume(with_serial("v"));
  REQUIRE(made.has_value());
  made = co_await group->create_volume(with_serial("w"));
  REQUIRE_FALSE(made.has_value());
  CHECK_THAT(made.error().message, Catch::Contains("serial \"S1\" is that of volume \"v\" too"));
  const auto renamed = co_await group->change_volume("v", {.name = "x"});
  REQUIRE(renamed.has_value());
  made = co_await group->create_volume(with_serial("w"));
  REQUIRE_FALSE(made.has_value());
  CHECK_THAT(made.error().message, Catch::Contains("that of volume \"x\" too"));
  const auto taken = co_await group->create_snapshots({.volumes = {"x"}, .name = "s"});
  REQUIRE(taken.has_value());
  CreateVolumeRequest same = thin_volume("w");
  same.specification.naa =
      configuration->identity.naa_for(known(parse_uuid(taken->snapshots[0].uuid)));
  made = co_await group->create_volume(same);
  REQUIRE_FALSE(made.has_value());
  CHECK_THAT(made.error().message, Catch::Contains("that of snapshot \"x-s\" too"));
  const auto dropped = co_await group->delete_snapshot({.volume = "x", .snapshot = "s"}, false);
  REQUIRE(dropped.has_value());
  made = co_await group->create_volume(same);
  CHECK(made.has_value());
  const auto deleted = co_await group->delete_volume("x", false);
  REQUIRE(deleted.has_value());
  made = co_await group->create_volume(with_serial("y"));
  CHECK(made.has_value());
}

Task<void> delete_with_snapshots(Group* group) {
  constexpr int kSnapshots = 2200;
  co_await make_volumes(group, "v", 1);
  co_await take_snapshots(group, {"v0"}, kSnapshots);
  const auto refused = co_await group->delete_volume("v0", false);
  REQUIRE_FALSE(refused.has_value());
  sandbay::testing::Turns turns;
  turns.start();
  const auto listed = co_await group->list_snapshots("v0");
  co_await turns.stop();
  REQUIRE(listed.has_value());
  REQUIRE(listed->size() == kSnapshots);
  for (std::size_t i = 0; i < listed->size(); ++i) {
    if ((*listed)[i].name != fmt::format("s{}", i)) FAIL("snapshots are listed in another order");
  }
  CHECK(turns.longest() <= sandbay::testing::kLongestTurn);
  turns.start();
  const auto deleted = co_await group->delete_volume("v0", true);
  co_await turns.stop();
  if (!deleted) FAIL(deleted.error().message);
  CAPTURE(turns.longest().count(), turns.spent().count());
  CHECK(turns.longest() <= sandbay::testing::kLongestTurn);
  CHECK(turns.spent() <= 20 * sandbay::testing::kLongestTurn);
  // The map has no trace of them.
  const auto checked = co_await group->check_group();
  REQUIRE(checked.size() == 1);
  CHECK(checked[0].wrong == std::vector<std::string>{});
  const auto pools = co_await group->list_pools();
  CHECK(pools[0].snapshots == 0);
}

struct Asked {
  std::size_t left = 0;
  Event ended;
};

Task<void> ask(Group* group, std::size_t number, std::size_t expected, Asked* asked) {
  if (number % 2 == 0) {
    const auto list = co_await group->list_volumes();
    CHECK(list->size() == expected);
  } else {
    const auto all = co_await group->measure();
    CHECK(all->volumes.size() == expected);
    CHECK(all->targets.size() == expected);
  }
  if (--asked->left == 0) asked->ended.set();
}

Task<void> ask_for_lists(Group* group) {
  constexpr int kVolumes = 300;
  co_await make_volumes(group, "v", kVolumes);
  sandbay::testing::Turns turns;
  turns.start();
  Asked asked{.left = 64, .ended = {}};
  for (std::size_t i = 0; i < 64; ++i) spawn(ask(group, i, kVolumes, &asked));
  co_await asked.ended.wait();
  co_await turns.stop();
  CAPTURE(turns.longest().count(), turns.spent().count());
  CHECK(turns.longest() <= sandbay::testing::kLongestTurn);
}

struct Looks {
  Executor* home = nullptr;
  int now = 0;
  int looks = 0;
};

Task<int> look(Looks* looks) {
  ++looks->looks;
  const int seen = looks->now;
  for (int i = 0; i < 10; ++i) co_await looks->home->yield();
  co_return seen;
}

Task<void> ask_once(SharedAnswer<int>* answer, Looks* looks, Asked* asked) {
  const int before = looks->now;
  const auto seen = co_await answer->ask();
  // The look began after the question.
  CHECK(*seen >= before);
  if (--asked->left == 0) asked->ended.set();
}

Task<void> share(Executor& home) {
  Looks looks{.home = &home};
  SharedAnswer<int> answer([&looks] { return look(&looks); });
  Asked asked{.left = 64, .ended = {}};
  for (int i = 0; i < 64; ++i) {
    looks.now = i;
    spawn(ask_once(&answer, &looks, &asked));
    if (i == 31) co_await home.yield();
  }
  co_await asked.ended.wait();
  CHECK(looks.looks == 2);
  const auto later = co_await answer.ask();
  CHECK(*later == 63);
  CHECK(looks.looks == 3);
}

}  // namespace

TEST_CASE("Making a volume costs the same with many snapshots", "[many][pool][G-C1]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, [](Group& group) { return create_beside_snapshots(&group); });
}

TEST_CASE("Identifiers belong to a volume or snapshot until it is deleted",
          "[many][identity][G-C1]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto configuration = parse_configuration(
      "[group]\nname = \"test\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n", "x.toml");
  REQUIRE(configuration.has_value());
  run(scratch, [&](Group& group) { return follow_identifiers(&group, &*configuration); });
}

TEST_CASE("A volume with many snapshots is deleted in short turns", "[many][pool][G-C2]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, [](Group& group) { return delete_with_snapshots(&group); });
}

TEST_CASE("Lists and figures for many at once are made in short turns", "[many][views][G-L1]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, [](Group& group) { return ask_for_lists(&group); });
}

TEST_CASE("All who ask at the same time share one look", "[many][views][G-L1]") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) sandbay::testing::run_in_world(seed, share);
}

}  // namespace sandbay::group
