// Pools of which something is lost or full: the NVRAM that has changes of their map, the place of a
// pool in it, the disk of the metadata.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/import_file.h"
#include "group/served_pool.h"
#include "nvram/nvram.h"
#include "runtime/known.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/doubtful_store.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::pool_losses_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kSet =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n";
const std::string kNvram = "[nvram]\nsize = \"16MiB\"\npower_loss_only_emulated = true\n";
const std::string kPool = "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";
const std::string kSections = kSet + kNvram + kPool;

void run(const sandbay::testing::ScratchDirectory& scratch, const std::string& sections,
         const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), sections, 1, test);
  if (!error.empty()) FAIL(error);
}

Task<void> make(Group* group, std::string name, bool thin) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = false, .block_bytes = true}};
  request.specification.name = std::move(name);
  request.specification.size_bytes = 8 * kMiB;
  request.specification.thin = thin;
  const auto made = co_await group->create_volume(request);
  REQUIRE(made.has_value());
}

Task<void> take(Group* group, std::string name) {
  CreateSnapshotsRequest request;
  request.volumes.push_back("v");
  request.name = std::move(name);
  const auto taken = co_await group->create_snapshots(std::move(request));
  REQUIRE(taken.has_value());
}

Task<std::string> reason_of(Group* group, std::string volume) {
  const auto shown = co_await group->show_volume(std::move(volume));
  REQUIRE(shown.has_value());
  co_return shown->reason;
}

// The NVRAM of a pool -----------------------------------------------------------------------------

// Ends as with a kill: what the NVRAM has of the map is there alone.
Task<void> change_and_die(Group& group, DoubtfulStore& store, bool) {
  // In the metadata first, and what follows from it in the NVRAM.
  const auto grown = co_await group.change_volume("v", {.size_bytes = 16 * kMiB});
  REQUIRE(grown.has_value());
  const auto more = co_await group.change_volume("v", {.size_bytes = 24 * kMiB});
  REQUIRE(more.has_value());
  // Records of what the map will know nothing of, and the other way round.
  co_await make(&group, "newer", true);
  co_await take(&group, "newer");
  const auto deleted = co_await group.delete_volume("w", false);
  REQUIRE(deleted.has_value());
  const auto dropped = co_await group.delete_snapshot({"v", "older"}, false);
  REQUIRE(dropped.has_value());
  store.arm(0, false);
}

Task<void> refuse_to_discard(Group* group, std::string confirmed, Refusal::Code code,
                             std::string why) {
  const auto refused = co_await group->discard_map("p", std::move(confirmed));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == code);
  CHECK(refused.error().message == why);
}

Task<void> give_up(Group* group) {
  const auto pool = co_await group->show_pool("p");
  REQUIRE(pool.has_value());
  CHECK(pool->reason ==
        "changes of the map are in another NVRAM than the one that is here; if they cannot be "
        "brought back, give them up: sandbay pool discard p --yes-lose-data");
  co_await refuse_to_discard(group, "q", Refusal::Code::kInvalid,
                             "changes of the map of pool p would be lost for good; to confirm it "
                             "write its name once more");
  const auto given = co_await group->discard_map("p", "p");
  if (!given) FAIL(given.error().message);
  CHECK(given->reason == "changes of the map are in another NVRAM than the one that is here");
  CHECK(given->missing == std::vector<std::string>{"newer", "v/newer"});
  CHECK(given->forgotten == 2);
  CHECK(given->check.verified);
  CHECK(given->check.wrong == std::vector<std::string>{});
  co_await refuse_to_discard(group, "p", Refusal::Code::kConflict,
                             "pool \"p\" is open, with its whole map; there is nothing to give up");
  const auto events = co_await group->list_events(0);
  const bool told = std::ranges::any_of(events, [](const EventInfo& event) {
    return event.text.find("they are given up") != std::string::npos;
  });
  CHECK(told);
}

// And nothing else, once what was removed is swept.
Task<void> expect_two_branches(Group* group) {
  auto checked = co_await group->check_group();
  for (int i = 0; i < 50 && checked.at(0).branches != 2; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
    checked = co_await group->check_group();
  }
  CHECK(checked.at(0).wrong == std::vector<std::string>{});
  CHECK(checked.at(0).branches == 2);
}

Task<void> use_what_is_left(Group* group) {
  std::string reason = co_await reason_of(group, "v");
  for (int i = 0; i < 50 && !reason.empty(); ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
    reason = co_await reason_of(group, "v");
  }
  CHECK(reason.empty());
  const auto volume = co_await group->show_volume("v");
  CHECK(volume->specification.size_bytes == 24 * kMiB);
  const auto grown = co_await group->change_volume("v", {.size_bytes = 32 * kMiB});
  CHECK(grown.has_value());
  const auto snapshots = co_await group->list_snapshots("v");
  REQUIRE(snapshots.has_value());
  REQUIRE(snapshots->size() == 1);
  CHECK(snapshots->front().reason == "the map of its pool does not have it");
  const auto dropped = co_await group->delete_snapshot({"v", "newer"}, false);
  CHECK(dropped.has_value());
  const auto deleted = co_await group->delete_volume("newer", false);
  CHECK(deleted.has_value());
  co_await make(group, "w", true);
  co_await expect_two_branches(group);
}

// The NVRAM with what was changed last; it is kept.
std::filesystem::path lose_changes(const sandbay::testing::ScratchDirectory& scratch) {
  run(scratch, kSections, [](Group& group) -> Task<void> {
    co_await make(&group, "v", true);
    co_await make(&group, "w", false);
    co_await take(&group, "older");
    co_await refuse_to_discard(
        &group, "p", Refusal::Code::kConflict,
        "pool \"p\" is open, with its whole map; there is nothing to give up");
  });
  run_doubtfully(scratch.file("state"), kSections, change_and_die, false);
  std::filesystem::path image = scratch.file("state") + "/nvram.img";
  std::filesystem::rename(image, image.string() + ".lost");
  return image;
}

TEST_CASE("A pool goes on without what was lost with its NVRAM, when somebody says so",
          "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path image = lose_changes(scratch);
  run(scratch, kSections, [](Group& group) -> Task<void> {
    co_await give_up(&group);
    co_await use_what_is_left(&group);
  });
  // What is lost comes back, and nothing of it counts.
  std::filesystem::rename(image.string() + ".lost", image);
  run(scratch, kSections, [](Group& group) -> Task<void> {
    const std::string reason = co_await reason_of(&group, "v");
    CHECK(reason.empty());
    co_await expect_two_branches(&group);
  });
}

bool has_line(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

Task<void> fail_to_settle(Group& group, DoubtfulStore& store, bool go_on) {
  // The word and the map without what is lost; what follows from that cannot be written.
  store.arm(2, false);
  const auto given = co_await group.discard_map("p", "p");
  if (!given) FAIL(given.error().message);
  CHECK_FALSE(given->check.verified);
  CHECK(has_line(given->check.wrong, "volume v: has 16MiB in the map, and should have 24MiB"));
  // It is tried again every second, and it is not served meanwhile.
  co_await Executor::current().sleep_for(std::chrono::milliseconds(1200));
  const std::string reason = co_await reason_of(&group, "v");
  CHECK_THAT(reason, Catch::Contains("should have 24MiB"));
  if (!go_on) co_return;
  store.disarm();
  co_await use_what_is_left(&group);
}

Task<void> expect_settled(Group* group) {
  const auto volume = co_await group->show_volume("v");
  CHECK(volume->specification.size_bytes == 32 * kMiB);
  const auto events = co_await group->list_events(0);
  const bool told = std::ranges::any_of(events, [](const EventInfo& event) {
    return event.text.find("the rest agrees with the records") != std::string::npos;
  });
  CHECK(told);
}

TEST_CASE("Sizes that cannot be settled when changes are given up are settled later",
          "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  (void)lose_changes(scratch);
  const bool killed = GENERATE(false, true);
  CAPTURE(killed);
  run_doubtfully(scratch.file("state"), kSet + kPool, fail_to_settle, !killed);
  if (killed) {
    run(scratch, kSections, [](Group& group) -> Task<void> { co_await use_what_is_left(&group); });
  }
  run(scratch, kSections, [](Group& group) -> Task<void> { co_await expect_settled(&group); });
}

// Sets of a pool that come to be another's --------------------------------------------------------

// A member with the set "b".
std::string second_member(const std::string& name) {
  return "[[member]]\nname = \"" + name +
         "\"\n[[member.drive]]\nname = \"e0\"\nfile = \"e0\"\nsize = \"72MiB\"\n"
         "[[member.raid]]\nname = \"b\"\nlevel = \"jbod\"\ndrives = [\"e0\"]\n"
         "journal = \"1MiB\"\n";
}

const std::string kOfBoth =
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\nmembers = [\"array1\", \"array2\"]\n";

Task<std::size_t> stores_of(Group* group, std::string pool) {
  const auto shown = co_await group->show_pool(std::move(pool));
  REQUIRE(shown.has_value());
  co_return shown->stores.size();
}

Task<void> move_set_and_die(Group& group, DoubtfulStore& store, bool) {
  const auto leaving = co_await group.remove_member("array2");
  REQUIRE(leaving.has_value());
  std::size_t stores = 2;
  for (int i = 0; i < 200 && stores != 1; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    stores = co_await stores_of(&group, "p");
  }
  REQUIRE(stores == 1);
  const auto made =
      co_await group.create_pool({.name = "q", .members = {"array2"}, .page_bytes = kMiB});
  if (!made) FAIL(made.error().message);
  stores = co_await stores_of(&group, "q");
  CHECK(stores == 1);
  store.arm(0, false);
}

Task<void> give_up_both(Group* group) {
  const auto given = co_await group->discard_map("p", "p");
  if (!given) FAIL(given.error().message);
  CAPTURE(given->check.wrong);
  CHECK(has_line(given->check.wrong,
                 "set b: its member is of pool q, which is not open; open or discard that"));
  // Of whatever is on it, until it is known whose it is.
  const auto pool = co_await group->show_pool("p");
  REQUIRE(pool.has_value());
  REQUIRE(pool->stores.size() == 2);
  CHECK(pool->stores[1].reason == "its member is of pool q, which is not open");
  const auto other = co_await group->discard_map("q", "q");
  if (!other) FAIL(other.error().message);
}

TEST_CASE("A set that a map counts again is whose it has become", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = kSet + kNvram + second_member("array2") + kOfBoth;
  run(scratch, sections, [](Group& group) -> Task<void> { co_await make(&group, "v", true); });
  run_doubtfully(scratch.file("state"), sections, move_set_and_die, false);
  const std::filesystem::path image = scratch.file("state") + "/nvram.img";
  std::filesystem::rename(image, image.string() + ".lost");
  run(scratch, sections, [](Group& group) -> Task<void> {
    co_await give_up_both(&group);
    std::size_t stores = 2;
    for (int i = 0; i < 200 && stores != 1; ++i) {
      co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
      stores = co_await stores_of(&group, "p");
    }
    CHECK(stores == 1);
    co_await Executor::current().sleep_for(std::chrono::seconds(2));
    const auto other = co_await group.show_pool("q");
    REQUIRE(other.has_value());
    REQUIRE(other->stores.size() == 1);
    CHECK(other->stores[0].set == "b");
    CHECK(other->stores[0].reason.empty());
    const auto checked = co_await group.check_group();
    for (const PoolCheckInfo& one : checked) CHECK(one.wrong.empty());
  });
}

// Ends with what kept the group from starting.
std::string run_as(const sandbay::testing::ScratchDirectory& scratch, const std::string& first,
                   const std::string& sections, const GroupTest& test) {
  const std::string text = "[group]\nname = \"test\"\nmember = \"" + first + "\"\nstate = \"" +
                           scratch.file("state") + "\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n" +
                           sections;
  auto configuration = parse_configuration(text, "test.toml");
  if (!configuration) return configuration.error().front();
  return run_configured(std::move(*configuration), 1, test);
}

Task<void> expect_service(Group& group) {
  const auto volume = co_await group.show_volume("v");
  REQUIRE(volume.has_value());
  CHECK(volume->reason.empty());
  CHECK(volume->health == "good");
  const auto pool = co_await group.show_pool("p");
  REQUIRE(pool.has_value());
  CHECK(pool->stores.size() == 2);
  for (const PoolStoreInfo& store : pool->stores) {
    CAPTURE(store.set);
    CHECK(store.reason.empty());
    CHECK(store.state == "active");
  }
}

TEST_CASE("A pool serves from its sets, whatever their members are called", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = kSet + second_member("array2");
  run(scratch, sections + kOfBoth,
      [](Group& group) -> Task<void> { co_await make(&group, "v", false); });
  const std::string renamed = run_as(scratch, "x", sections, expect_service);
  CHECK(renamed.empty());
  // Drives that were moved to a member outside.
  const std::filesystem::path members = scratch.file("state") + "/members";
  const std::string moved = kSet + second_member("array3");
  const std::string empty = run_as(scratch, "array1", kSet + "[[member]]\nname = \"array3\"\n",
                                   [](Group&) -> Task<void> { co_return; });
  CHECK(empty.empty());
  std::filesystem::rename(members / "array2" / "e0", members / "array3" / "e0");
  run(scratch, moved, expect_service);
}

Task<void> list_regions(std::string path, std::vector<std::string>* names) {
  auto memory = co_await nvram::Nvram::open(
      Executor::current(),
      {.path = std::move(path), .byte_count = 16 * kMiB, .boot_id = nvram::host_boot_id()});
  if (!memory) FAIL(memory.error());
  for (const nvram::RegionState& region : (*memory)->regions()) names->push_back(region.name);
  co_await (*memory)->close();
}

// The mirror has no copy of the map's log.
TEST_CASE("A pool with a mirrored NVRAM opens with its whole map when the NVRAM is gone",
          "[group][pool][N12]") {
  const sandbay::testing::ScratchDirectory scratch;
  const bool was_mirrored = GENERATE(true, false);
  const std::string nvram = "[nvram]\nsize = \"32MiB\"\npower_loss_only_emulated = true\n";
  const std::string cache = "[cache]\nmemory = \"16MiB\"\nnvram = \"18MiB\"\n";
  const std::string mirrored = kSet + nvram + "mirror = \"mirror.img\"\n" + cache + kPool;
  const std::string alone = kSet + nvram + cache + kPool;
  const std::string& before = was_mirrored ? mirrored : alone;
  run(scratch, before, [](Group& group) -> Task<void> {
    co_await make(&group, "v", true);
    co_await make(&group, "w", false);
    co_await take(&group, "older");
  });
  run_doubtfully(scratch.file("state"), before, change_and_die, false);
  if (!was_mirrored) {
    // Groups that the NVRAM kept before it had a mirror still count.
    run_doubtfully(
        scratch.file("state"), mirrored,
        [](Group&, DoubtfulStore&, bool) -> Task<void> { co_return; }, false);
  }
  const std::filesystem::path image = scratch.file("state") + "/nvram.img";
  std::filesystem::rename(image, image.string() + ".lost");
  run(scratch, mirrored, [](Group& group) -> Task<void> {
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    CHECK(pool->reason.empty());
    CHECK_FALSE(pool->map_in_nvram);
    const auto volume = co_await group.show_volume("v");
    REQUIRE(volume.has_value());
    CHECK(volume->reason.empty());
    CHECK(volume->specification.size_bytes == 24 * kMiB);
  });
}

Task<void> forget_pool(Group& group, DoubtfulStore& store, bool) {
  const auto pool = co_await group.show_pool("p");
  REQUIRE(pool.has_value());
  metadata::Batch batch;
  const Uuid uuid = known(parse_uuid(pool->uuid));
  batch.erase(pool_key(uuid));
  batch.erase_prefix(map_prefix(uuid));
  store.arm(1, false);
  const Error error = co_await store.commit(std::move(batch));
  REQUIRE(error == Error::kNone);
}

TEST_CASE("A pool that is no more has no place in the NVRAM after the next start",
          "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kSections, [](Group&) -> Task<void> { co_return; });
  // Killed between its record and that.
  run_doubtfully(scratch.file("state"), kSections, forget_pool, false);
  run(scratch, kSections, [](Group& group) -> Task<void> {
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    CHECK(pool->map_in_nvram);
  });
  std::vector<std::string> names;
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(reactors.has_value());
  const std::string image = scratch.file("state") + "/nvram.img";
  (*reactors)->run([&] { return list_regions(image, &names); });
  const auto maps = std::ranges::count_if(
      names, [](const std::string& name) { return name.starts_with(kRegionPrefix); });
  CHECK(maps == 1);
}

// The disk of the metadata ------------------------------------------------------------------------

bool has_event(const std::vector<EventInfo>& events, const std::string& text) {
  return std::ranges::any_of(
      events, [&](const EventInfo& event) { return event.text.find(text) != std::string::npos; });
}

Task<void> fill_the_disk(Group& group, DoubtfulStore& store, bool) {
  // What the pool has free is less than what the volume might take.
  CreateVolumeRequest large{.open = {.backing = true, .thin = false, .block_bytes = true}};
  large.specification.name = "v";
  large.specification.size_bytes = 200 * kMiB;
  large.specification.thin = true;
  const auto made = co_await group.create_volume(large);
  REQUIRE(made.has_value());
  co_await take(&group, "s");
  store.error = Error::kNoSpace;
  store.arm(0, false);
  const auto restored = co_await group.restore_snapshot({"v", "s"}, false);
  REQUIRE_FALSE(restored.has_value());
  CHECK_THAT(restored.error().message,
             Catch::Contains("keeps its content: the metadata cannot be written: no space"));
  const auto cloned = co_await group.clone_snapshot({"v", "s"}, "clone", false);
  REQUIRE_FALSE(cloned.has_value());
  CHECK_THAT(cloned.error().message, Catch::Contains("the metadata cannot be written: no space"));
  const auto checked = co_await group.check_group();
  REQUIRE(checked.size() == 1);
  CHECK_FALSE(checked[0].verified);
  CHECK_THAT(checked[0].wrong.at(0),
             Catch::Contains("cannot be written: no space left; make room"));
  auto events = co_await group.list_events(0);
  CHECK(has_event(events, "pool p: its map cannot be changed"));
  CHECK_FALSE(has_event(events, "pool p: its map can be changed again"));
  store.disarm();
  for (int i = 0; i < 150 && !has_event(events, "pool p: its map can be changed again"); ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
    events = co_await group.list_events(0);
  }
  CHECK(has_event(events, "pool p: its map can be changed again"));
  const auto again = co_await group.check_group();
  CHECK((again.at(0).verified && again.at(0).wrong.empty()));
}

TEST_CASE("A full disk of the metadata is what operations name, and its end is told",
          "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), kSet + kPool, fill_the_disk, false);
}

}  // namespace
}  // namespace sandbay::group::pool_losses_test
