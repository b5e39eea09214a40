// Pools in a running group: what the file says of them, which sets they have, volumes that come,
// change and go, and what a restart finds.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/pool_records.h"
#include "group/service.h"
#include "runtime/known.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::pools_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kHead =
    "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n";
// Two sets: "a" of 62 pages, "b" likewise.
const std::string kSets =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[drive]]\nname = \"d1\"\nfile = \"d1\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[raid]]\nname = \"b\"\nlevel = \"raid0\"\ndrives = [\"d1\"]\njournal = \"1MiB\"\n";
const std::string kPool = "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

void check_mistake(const std::string& text, const std::string& expected) {
  const auto result = parse_configuration(kHead + text, "x.toml");
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().front());
  CHECK_THAT(result.error().front(), Catch::Contains(expected));
}

CreateVolumeRequest asked(std::string name, std::uint64_t bytes, bool thin) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = !thin, .block_bytes = true}};
  request.specification.name = std::move(name);
  request.specification.size_bytes = bytes;
  return request;
}

ChangeVolumeRequest resized(std::uint64_t bytes, bool force = false) {
  return {.size_bytes = bytes, .force = force};
}

void run(const sandbay::testing::ScratchDirectory& scratch, const std::string& sections,
         const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), sections, 1, test);
  if (!error.empty()) FAIL(error);
}

TEST_CASE("Sections [[pool]] are read, and the one pool is where volumes go",
          "[configuration][pool]") {
  const auto result = parse_configuration(
      kHead + kSets + kPool +
          "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n"
          "[[volume]]\nname = \"w\"\nsize = \"4MiB\"\npool = \"p\"\nthin = true\nthin_limit = 50\n"
          "[[volume]]\nname = \"m\"\nsize = \"4MiB\"\nmemory = true\n",
      "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  REQUIRE(result->pools.size() == 1);
  CHECK(result->pools[0].page_bytes == kMiB);
  CHECK(result->pools[0].members == std::vector<std::string>{"array1"});
  const VolumeSpecification& v = result->volumes[0].specification;
  CHECK(v.backing == Backing::kPool);
  CHECK(v.pool == "p");
  CHECK_FALSE(v.thin);
  CHECK(result->volumes[1].specification.thin);
  CHECK(result->volumes[1].specification.thin_limit == 50);
  CHECK(result->volumes[2].specification.backing == Backing::kMemory);
}

TEST_CASE("Mistakes about pools are told", "[configuration][pool]") {
  check_mistake("[[pool]]\npage = \"1MiB\"\n", "pool[1]");
  check_mistake("[[pool]]\nname = \"p\"\npage = \"100KiB\"\n", "multiple of 64KiB from 1MiB to");
  check_mistake("[[pool]]\nname = \"p\"\nmembers = [\"arry1\"]\n", "write \"array1\"");
  check_mistake("[[pool]]\nname = \"p\"\nmembers = []\n", "is empty");
  check_mistake(kPool + kPool, "another pool's");
  const std::string second = "[[member]]\nname = \"array2\"\n";
  check_mistake(kPool + second +
                    "[[pool]]\nname = \"q\"\nmembers = [\"array2\"]\n"
                    "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n",
                "there are several");
  check_mistake(kPool + "[[pool]]\nname = \"q\"\n", "members: \"array1\" is of pool \"p\" already");
  check_mistake(second + "[[pool]]\nname = \"q\"\nmembers = [\"array2\", \"array1\", \"array2\"]\n",
                "\"array2\" occurs twice; write it once");
  const std::string volume = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n";
  check_mistake(volume + "on = \"a\"\n", "without a pool");
  check_mistake(kPool + volume + "raid_level = \"raid9\"\n", "raid_level");
  check_mistake(kPool + volume + "pool = \"p\"\nmemory = true\n", "has one place");
  check_mistake(kPool + volume + "thin_limit = 0\n", "thin_limit");
  check_mistake(kPool + volume + "thin_warning = 50\n",
                "thin_warning: thin_warning is of thin volumes on pools; write thin = true");
  check_mistake(
      kPool + volume + "snapshot_reserve = \"0%\"\n",
      "invalid reserve \"0%\"; write a size such as \"10GiB\", 1% to 10000% of the volume");
  check_mistake(kPool + volume + "reserve_policy = \"delete\"\n",
                "write \"delete-oldest\" or \"offline\"");
  check_mistake(volume + "snapshot_reserve = \"10%\"\n", "means nothing without a pool");
}

TEST_CASE("Records of pools and snapshots read back", "[records][pool]") {
  Random random(7);
  const PoolRecord pool{.uuid = make_uuid(random),
                        .name = "p",
                        .members = {"one", "two"},
                        .page_bytes = 15 * kMiB,
                        .block_bytes = 4096,
                        .disagrees = true};
  const auto pool_back = decode_pool(encode(pool));
  REQUIRE(pool_back.has_value());
  CHECK(pool_back->uuid == pool.uuid);
  CHECK(pool_back->members == pool.members);
  CHECK(pool_back->page_bytes == pool.page_bytes);
  CHECK(pool_back->block_bytes == pool.block_bytes);
  CHECK(pool_back->disagrees);
  CHECK_FALSE(decode_pool("{\"format\":1}").has_value());
  CHECK_FALSE(decode_pool(encode(PoolRecord{.name = "p", .page_bytes = 5})).has_value());
  const SnapshotRecord snapshot{.uuid = make_uuid(random),
                                .volume = make_uuid(random),
                                .pool = pool.uuid,
                                .name = "s",
                                .time = WallTime(std::chrono::milliseconds(77)),
                                .online = true,
                                .target = "iqn.2026-11.org.sandbay:v-s",
                                .writable = true};
  const auto snapshot_back = decode_snapshot(encode(snapshot));
  REQUIRE(snapshot_back.has_value());
  CHECK(snapshot_back->volume == snapshot.volume);
  CHECK(snapshot_back->time == snapshot.time);
  CHECK(snapshot_back->target == snapshot.target);
  CHECK(snapshot_back->writable);
}

Task<void> make_and_change(Group& group) {
  const auto pool = co_await group.show_pool("p");
  REQUIRE(pool.has_value());
  CHECK(pool->reason.empty());
  REQUIRE(pool->stores.size() == 2);
  const std::uint64_t free = pool->free_bytes;
  CHECK(free > 100 * kMiB);

  const auto thick = co_await group.create_volume(asked("thick", 10 * kMiB, false));
  REQUIRE(thick.has_value());
  CHECK(thick->volume.specification.backing == Backing::kPool);
  CHECK(thick->volume.allocated_bytes == 10 * kMiB);
  const auto again = co_await group.create_volume(asked("thick", 10 * kMiB, false));
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  const auto other = co_await group.create_volume(asked("thick", 10 * kMiB, true));
  CHECK_FALSE(other.has_value());
  const auto thin = co_await group.create_volume(asked("thin", 1024 * kMiB, true));
  REQUIRE(thin.has_value());
  CHECK(thin->volume.allocated_bytes == 0);
  const auto now = co_await group.show_pool("p");
  CHECK(now->free_bytes == free - 10 * kMiB);
  CHECK(now->volumes == 2);
  CHECK(now->provisioned_bytes == 1034 * kMiB);

  const auto large = co_await group.create_volume(asked("large", 1024 * kMiB, false));
  REQUIRE_FALSE(large.has_value());
  CHECK(large.error().code == Refusal::Code::kConflict);
  CHECK_THAT(large.error().message,
             Catch::StartsWith("volume \"large\": 1.00 GiB asked, pool \"p\" has ") &&
                 Catch::EndsWith(" free; use --thin or add a member"));

  const auto grown = co_await group.change_volume("thick", resized(20 * kMiB));
  REQUIRE(grown.has_value());
  CHECK(grown->allocated_bytes == 20 * kMiB);
  const auto too_large = co_await group.change_volume("thick", resized(1024 * kMiB));
  CHECK_FALSE(too_large.has_value());
  const auto shrunk = co_await group.change_volume("thick", resized(15 * kMiB));
  REQUIRE_FALSE(shrunk.has_value());
  CHECK_THAT(shrunk.error().message,
             Catch::Contains("sandbay volume shrink thick --size 15MiB --force"));
  const auto forced = co_await group.change_volume("thick", resized(15 * kMiB, true));
  REQUIRE(forced.has_value());
  CHECK(forced->specification.size_bytes == 15 * kMiB);
  CHECK(forced->allocated_bytes == 15 * kMiB);

  const auto offline = co_await group.change_volume("thin", {.online = false, .read_only = true});
  REQUIRE(offline.has_value());
  CHECK_FALSE(offline->online);
  const auto limits = co_await group.change_volume("thin", {.thin_limit = 25});
  REQUIRE(limits.has_value());
  const auto of_thick = co_await group.change_volume("thick", {.thin_limit = 25});
  CHECK_FALSE(of_thick.has_value());
  const auto kept = co_await group.delete_pool("p");
  REQUIRE_FALSE(kept.has_value());
}

TEST_CASE("Volumes on a pool come, change and go, and are there after a restart", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets + kPool, make_and_change);
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto thick = co_await group.show_volume("thick");
    REQUIRE(thick.has_value());
    CHECK(thick->reason.empty());
    CHECK(thick->specification.size_bytes == 15 * kMiB);
    CHECK(thick->allocated_bytes == 15 * kMiB);
    const auto thin = co_await group.show_volume("thin");
    REQUIRE(thin.has_value());
    CHECK_FALSE(thin->online);
    CHECK(thin->specification.read_only);
    CHECK(thin->specification.thin_limit == 25);
    const auto deleted = co_await group.delete_volume("thick", false);
    CHECK(deleted.has_value());
    const auto deleted_thin = co_await group.delete_volume("thin", false);
    CHECK(deleted_thin.has_value());
    const auto volumes_now = co_await group.list_volumes();
    const auto& volumes = *volumes_now;
    CHECK(volumes.empty());
  });
  // What was given back is free again at the latest now.
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    CHECK(pool->volumes == 0);
  });
}

TEST_CASE("Reserves are read, and come to what they say of a volume", "[configuration][pool]") {
  const auto bytes_of = [](std::string_view text, std::uint64_t volume) {
    const auto reserve = parse_reserve(text);
    REQUIRE(reserve.has_value());
    CHECK(format_reserve(*reserve) == text);
    return reserve->bytes_of(volume);
  };
  CHECK(bytes_of("20%", 64 * kMiB) == 64 * kMiB / 5);
  CHECK(bytes_of("100%", kLargestVolumeBytes) == kLargestVolumeBytes);
  CHECK(bytes_of("10000%", kLargestVolumeBytes) == 100 * kLargestVolumeBytes);
  CHECK(bytes_of("10GiB", kMiB) == 10240 * kMiB);
  CHECK(bytes_of("none", kMiB) == 0);
  for (const char* wrong : {"", "%", "0%", "10001%", "-1%", "1.5%", "20", "0B", "5 %", "+5%"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_reserve(wrong).has_value());
  }
}

// They are of the volume in the metadata: the file says nothing of some, and of others what it had
// when it was made.
TEST_CASE("Limits that were changed at run time count after a restart", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string volume =
      "[[volume]]\nname = \"v\"\nsize = \"8MiB\"\nthin = true\nsnapshot_reserve = \"10%\"\n";
  run(scratch, kSets + kPool + volume, [](Group& group) -> Task<void> {
    const auto made = co_await group.show_volume("v");
    REQUIRE(made.has_value());
    CHECK(made->specification.snapshot_reserve == SnapshotReserve{.percent = 10});
    const auto changed = co_await group.change_volume(
        "v", {.thin_limit = 25,
              .snapshot_reserve = SnapshotReserve{.byte_count = 3 * kMiB},
              .reserve_policy = ReservePolicy::kOffline,
              .operations_limit = 500,
              .bytes_limit = 40 * kMiB});
    REQUIRE(changed.has_value());
  });
  run(scratch, kSets + kPool + volume, [](Group& group) -> Task<void> {
    const auto again = co_await group.show_volume("v");
    REQUIRE(again.has_value());
    CHECK(again->specification.operations_limit == 500);
    CHECK(again->specification.bytes_limit == 40 * kMiB);
    CHECK(again->specification.thin_limit == 25);
    CHECK(again->specification.reserve_policy == ReservePolicy::kOffline);
    CHECK(again->reserve_bytes == 3 * kMiB);
  });
}

TEST_CASE("A set with volumes of its own is no part of a pool, and a set of a pool takes none",
          "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string own = "[[volume]]\nname = \"own\"\nsize = \"4MiB\"\nraid = \"a\"\n";
  run(scratch, kSets + kPool + own, [](Group& group) -> Task<void> {
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    REQUIRE(pool->stores.size() == 1);
    CHECK(pool->stores[0].set == "b");
    REQUIRE(pool->outside.size() == 1);
    CHECK(pool->outside[0].set == "a");
    CHECK(pool->outside[0].reason == "own stands on it by itself");
    CreateVolumeRequest request;
    request.specification.name = "direct";
    request.specification.size_bytes = 4 * kMiB;
    request.specification.backing = Backing::kRaid;
    request.specification.raid = "b";
    const auto refused = co_await group.create_volume(request);
    REQUIRE_FALSE(refused.has_value());
    CHECK_THAT(refused.error().message, Catch::Contains("belongs to pool \"p\""));
    CreateVolumeRequest on = asked("on", 4 * kMiB, false);
    on.specification.on = "a";
    const auto not_there = co_await group.create_volume(on);
    REQUIRE_FALSE(not_there.has_value());
    on.specification.on = "b";
    const auto there = co_await group.create_volume(on);
    CHECK(there.has_value());
  });
}

TEST_CASE("A pool is made and deleted at run time", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets, [](Group& group) -> Task<void> {
    const auto file = co_await group.create_volume(asked("file", 4 * kMiB, false));
    REQUIRE(file.has_value());
    CHECK(file->volume.specification.backing == Backing::kState);
    CHECK(file->volume.specification.thin);
    const CreatePoolRequest request{.name = "q", .members = {}, .page_bytes = kMiB};
    const auto made = co_await group.create_pool(request);
    REQUIRE(made.has_value());
    CHECK(made->created);
    CHECK(made->pool.stores.size() == 2);
    const auto again = co_await group.create_pool(request);
    REQUIRE(again.has_value());
    CHECK_FALSE(again->created);
    const auto second =
        co_await group.create_pool({.name = "r", .members = {"array1"}, .page_bytes = kMiB});
    REQUIRE_FALSE(second.has_value());
    CHECK_THAT(second.error().message, Catch::Contains("is of pool \"q\""));
    const auto twice = co_await group.create_pool(
        {.name = "r", .members = {"array1", "array1"}, .page_bytes = kMiB});
    REQUIRE_FALSE(twice.has_value());
    CHECK_THAT(twice.error().message, Catch::Contains("\"array1\" occurs twice; write it once"));
    const auto deleted = co_await group.delete_pool("q");
    REQUIRE(deleted.has_value());
    const auto list = co_await group.list_pools();
    CHECK(list.empty());
    const auto nothing = co_await group.delete_pool("q");
    CHECK_FALSE(nothing.has_value());
  });
  run(scratch, kSets, [](Group& group) -> Task<void> {
    const auto list = co_await group.list_pools();
    CHECK(list.empty());
  });
}

TEST_CASE("The file makes no pool of a member that is another's by now", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets, [](Group& group) -> Task<void> {
    const auto made = co_await group.create_pool({.name = "q", .members = {}, .page_bytes = kMiB});
    REQUIRE(made.has_value());
  });
  const auto nothing = [](Group&) -> Task<void> { co_return; };
  CHECK_THAT(run_group(scratch.file("state"), kSets + kPool, 1, nothing),
             Catch::Contains("pool \"p\": member \"array1\" is of pool \"q\""));
}

// The same clone once more is the same volume; another of its name is a conflict.
Task<void> repeat_the_clone(Group* group, std::string uuid) {
  const auto again = co_await group->clone_snapshot({"v", "s"}, "copy", true);
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  CHECK(again->volume.uuid == uuid);
  const auto thinner = co_await group->clone_snapshot({"v", "s"}, "copy", false);
  REQUIRE_FALSE(thinner.has_value());
  CHECK_THAT(thinner.error().message, Catch::Contains("exists already, and is a full copy"));
  const auto other = co_await group->clone_snapshot({"w", ""}, "copy", true);
  REQUIRE_FALSE(other.has_value());
  CHECK_THAT(other.error().message, Catch::Contains("is a clone of something else"));
}

// How often it was told that the clone is whole, once that is as often as is expected.
Task<long> times_whole(Group* group, long expected) {
  long told = 0;
  for (int i = 0; i < 1000 && told < expected; ++i) {
    const auto events = co_await group->list_events(0);
    told = std::ranges::count_if(events, [](const EventInfo& event) {
      return event.kind == "copy" && event.text.find("volume copy of") != std::string::npos;
    });
    co_await Executor::current().sleep_for(std::chrono::milliseconds(10));
  }
  co_return told;
}

// A full copy that is restored is made whole anew, in the branch that it has then.
Task<void> restore_the_clone(Group* group) {
  long told = co_await times_whole(group, 1);
  CHECK(told == 1);
  const auto taken = co_await group->create_snapshots({.volumes = {"copy"}, .name = "early"});
  REQUIRE(taken.has_value());
  const auto restored = co_await group->restore_snapshot({"copy", "early"}, false);
  REQUIRE(restored.has_value());
  told = co_await times_whole(group, 2);
  CHECK(told == 2);
  const auto deleted = co_await group->delete_snapshot({"copy", "early"}, false);
  CHECK(deleted.has_value());
}

Task<void> take_and_use_snapshots(Group& group) {
  const auto v = co_await group.create_volume(asked("v", 8 * kMiB, false));
  REQUIRE(v.has_value());
  const auto w = co_await group.create_volume(asked("w", 4 * kMiB, true));
  REQUIRE(w.has_value());
  const auto both = co_await group.create_snapshots({.volumes = {"v", "w"}, .name = "s"});
  REQUIRE(both.has_value());
  REQUIRE(both->snapshots.size() == 2);
  CHECK(both->created);
  CHECK(both->snapshots[0].size_bytes == 8 * kMiB);
  CHECK(both->snapshots[0].time == both->snapshots[1].time);
  const auto again = co_await group.create_snapshots({.volumes = {"v", "w"}, .name = "s"});
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  const auto by_time = co_await group.create_snapshots({.volumes = {"v"}, .name = ""});
  REQUIRE(by_time.has_value());
  const auto twice = co_await group.create_snapshots({.volumes = {"v", "v"}, .name = "twice"});
  CHECK_FALSE(twice.has_value());
  const auto nobody = co_await group.create_snapshots({.volumes = {"x"}, .name = "s"});
  CHECK_FALSE(nobody.has_value());

  const auto kept = co_await group.delete_volume("v", false);
  REQUIRE_FALSE(kept.has_value());
  CHECK_THAT(kept.error().message, Catch::Contains("has 2 snapshots"));
  const auto grown = co_await group.change_volume("v", resized(16 * kMiB));
  REQUIRE(grown.has_value());
  const auto restored = co_await group.restore_snapshot({"v", "s"}, false);
  REQUIRE(restored.has_value());
  CHECK(restored->specification.size_bytes == 8 * kMiB);
  const auto online = co_await group.online_snapshot({"v", "s"}, true);
  REQUIRE(online.has_value());
  CHECK(online->target == "iqn.2026-11.org.sandbay:v-s");
  const auto other_way = co_await group.online_snapshot({"v", "s"}, false);
  CHECK_FALSE(other_way.has_value());
  const auto cloned = co_await group.clone_snapshot({"v", "s"}, "copy", true);
  REQUIRE(cloned.has_value());
  CHECK(cloned->volume.specification.size_bytes == 8 * kMiB);
  co_await restore_the_clone(&group);
  co_await repeat_the_clone(&group, cloned->volume.uuid);
  const auto live = co_await group.clone_snapshot({"w", ""}, "copy-of-w", false);
  REQUIRE(live.has_value());
  const auto used = co_await group.delete_snapshot({"v", "s"}, false);
  REQUIRE_FALSE(used.has_value());
  CHECK_THAT(used.error().message, Catch::Contains("is online"));
}

TEST_CASE("Snapshots are taken, shown, restored and cloned, and are there after a restart",
          "[group][pool][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets + kPool, take_and_use_snapshots);
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto list = co_await group.list_snapshots("v");
    REQUIRE(list.has_value());
    REQUIRE(list->size() == 2);
    CHECK(list->at(0).name == "s");
    CHECK(list->at(0).online);
    CHECK(list->at(0).writable);
    CHECK(list->at(0).reason.empty());
    const auto targets_now = co_await group.list_targets();
    const auto& targets = *targets_now;
    CHECK(std::ranges::count(targets, list->at(0).target, &TargetInfo::name) == 1);
    const auto offline = co_await group.offline_snapshot({"v", "s"}, false);
    REQUIRE(offline.has_value());
    CHECK(offline->target.empty());
    const auto deleted = co_await group.delete_snapshot({"v", "s"}, false);
    CHECK(deleted.has_value());
    const auto gone = co_await group.show_snapshot({"v", "s"});
    CHECK_FALSE(gone.has_value());
    const auto volume = co_await group.delete_volume("v", true);
    CHECK(volume.has_value());
    const auto clone = co_await group.show_volume("copy");
    REQUIRE(clone.has_value());
    CHECK(clone->reason.empty());
    const auto checked = co_await group.check_group();
    REQUIRE(checked.size() == 1);
    CHECK(checked[0].wrong.empty());
  });
}

Task<void> take_slowly(Group* group, bool* ended) {
  const auto taken = co_await group->create_snapshots({.volumes = {"v"}, .name = "s"});
  CHECK(taken.has_value());
  *ended = true;
}

TEST_CASE("A rule is cleared while a change hangs for it", "[group][pool][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string faults = "[faults]\nenabled = true\n";
  run(scratch, kSets + kPool + faults, [](Group& group) -> Task<void> {
    CreateVolumeRequest request = asked("v", 8 * kMiB, false);
    request.specification.on = "a";
    const auto made = co_await group.create_volume(request);
    REQUIRE(made.has_value());
    const auto rule = co_await group.add_faults({"at=drive:d0 op=flush do=hold"});
    REQUIRE(rule.has_value());
    bool ended = false;
    spawn(take_slowly(&group, &ended));
    co_await Executor::current().sleep_for(std::chrono::milliseconds(200));
    CHECK_FALSE(ended);
    const auto cleared = co_await group.clear_fault("");
    CHECK(cleared.has_value());
    while (!ended) co_await Executor::current().sleep_for(std::chrono::milliseconds(10));
  });
}

constexpr const char* kShown = "iqn.2026-11.org.sandbay:v-s";  // Where a snapshot of v is.

TEST_CASE("A snapshot that goes offline leaves volumes behind its target alone",
          "[group][pool][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto v = co_await group.create_volume(asked("v", 8 * kMiB, false));
    REQUIRE(v.has_value());
    const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = "s"});
    REQUIRE(taken.has_value());
    const auto online = co_await group.online_snapshot({"v", "s"}, false);
    REQUIRE(online.has_value());
    REQUIRE(online->target == kShown);
    CreateVolumeRequest request = asked("w", 4 * kMiB, true);
    request.specification.target = kShown;
    const auto refused = co_await group.create_volume(request);
    REQUIRE_FALSE(refused.has_value());
    CHECK_THAT(refused.error().message, Catch::Contains("exports snapshot \"s\""));
  });
  // The file may put one there all the same.
  const std::string volume = "[[volume]]\nname = \"w\"\nsize = \"4MiB\"\nlun = 1\ntarget = \"" +
                             std::string(kShown) + "\"\n";
  run(scratch, kSets + kPool + volume, [](Group& group) -> Task<void> {
    const auto offline = co_await group.offline_snapshot({"v", "s"}, true);
    REQUIRE(offline.has_value());
    const auto volumes_now = co_await group.list_volumes();
    const auto& volumes = *volumes_now;
    CHECK(volumes.size() == 2);
    const auto shown = co_await group.show_target(kShown);
    REQUIRE(shown.has_value());
    CHECK(shown->units.size() == 1);
    const auto access = co_await group.add_access("w", {});
    CHECK(access.has_value());
  });
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto access = co_await group.list_access("w");
    REQUIRE(access.has_value());
    CHECK(access->size() == 1);
    const auto deleted = co_await group.delete_volume("w", true);
    CHECK(deleted.has_value());
    const auto online = co_await group.online_snapshot({"v", "s"}, false);
    CHECK(online.has_value());
  });
}

TEST_CASE("Volumes of a set that is away say so, and come back with it", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    for (const std::string set : {"a", "b"}) {
      CreateVolumeRequest request = asked("on-" + set, 4 * kMiB, false);
      request.specification.on = set;
      const auto made = co_await group.create_volume(request);
      REQUIRE(made.has_value());
    }
  });
  const std::filesystem::path drive = scratch.file("state") + "/d0";
  std::filesystem::rename(drive, drive.string() + ".away");
  std::string without_making = kSets;
  without_making.replace(without_making.find("size = \"72MiB\"\n"), 15, "");
  run(scratch, without_making + kPool, [](Group& group) -> Task<void> {
    const auto away = co_await group.show_volume("on-a");
    REQUIRE(away.has_value());
    CHECK(away->health == "missing");
    CHECK_FALSE(away->reason.empty());
    const auto there = co_await group.show_volume("on-b");
    REQUIRE(there.has_value());
    CHECK(there->health == "good");
    CHECK(there->reason.empty());
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    CHECK_FALSE(pool->stores.at(0).reason.empty());
    const auto taken = co_await group.create_snapshots({.volumes = {"on-a"}, .name = "s"});
    REQUIRE_FALSE(taken.has_value());
    CHECK_THAT(taken.error().message, Catch::Contains("is on set a, which is offline"));
    const auto cloned = co_await group.clone_snapshot({"on-a", ""}, "copy", false);
    REQUIRE_FALSE(cloned.has_value());
    CHECK_THAT(cloned.error().message, Catch::Contains("is on set a, which is offline"));
    const auto other = co_await group.create_snapshots({.volumes = {"on-b"}, .name = "s"});
    CHECK(other.has_value());
  });
  std::filesystem::rename(drive.string() + ".away", drive);
  run(scratch, kSets + kPool, [](Group& group) -> Task<void> {
    const auto back = co_await group.show_volume("on-a");
    REQUIRE(back.has_value());
    CHECK(back->health == "good");
  });
}

}  // namespace
}  // namespace sandbay::group::pools_test
