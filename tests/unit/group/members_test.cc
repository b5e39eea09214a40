// Members in a running group: what the file says of them, members that come to a pool and leave it,
// and what a restart finds.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/member_configuration.h"
#include "group/service.h"
#include "metadata/scoped_store.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::members_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kHead =
    "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n";
const std::string kFirst =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n";
const std::string kPool = "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

// A member with one set of about as many MiB.
std::string member(const std::string& name, const std::string& set, std::uint64_t megabytes = 72) {
  return fmt::format(
      "[[member]]\nname = \"{0}\"\n"
      "[[member.drive]]\nname = \"{1}-drive\"\nfile = \"drives/d\"\nsize = \"{2}MiB\"\n"
      "[[member.raid]]\nname = \"{1}\"\nlevel = \"jbod\"\ndrives = [\"{1}-drive\"]\n"
      "journal = \"1MiB\"\n",
      name, set, megabytes);
}

void check_mistake(const std::string& text, const std::string& expected) {
  const auto result = parse_configuration(kHead + text, "x.toml");
  REQUIRE_FALSE(result.has_value());
  std::string all;
  for (const std::string& line : result.error()) all += line + "\n";
  CHECK_THAT(all, Catch::Contains(expected));
}

CreateVolumeRequest asked(std::string name, std::uint64_t bytes) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  request.specification.name = std::move(name);
  request.specification.size_bytes = bytes;
  return request;
}

void run(const sandbay::testing::ScratchDirectory& scratch, const std::string& sections,
         const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), sections, 1, test);
  if (!error.empty()) FAIL(error);
}

// Whether the member has left its pool, within some seconds.
Task<bool> left(Group* group, std::string name) {
  for (int i = 0; i < 600; ++i) {
    const auto shown = co_await group->show_member(name);
    if (shown.has_value() && shown->state == "present") co_return true;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
  }
  co_return false;
}

TEST_CASE("Sections [[member]] have the keys of the top of the file, and files of their own",
          "[configuration][member]") {
  const auto result = parse_configuration(
      kHead + kFirst + member("array2", "b") + "[member.nvram]\nsize = \"64MiB\"\n" +
          "[member.cache]\nmemory = \"32MiB\"\nnvram = \"18MiB\"\n" +
          "[[pool]]\nname = \"q\"\nmembers = [\"array2\"]\n" +
          "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nraid = \"b\"\n",
      "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  REQUIRE(result->members.size() == 1);
  const MemberConfiguration& second = result->members[0];
  CHECK(second.name == "array2");
  CHECK(second.hardware.drives.size() == 1);
  CHECK(second.hardware.set("b") != nullptr);
  CHECK(second.hardware.nvram.has_value());
  CHECK(second.hardware.cache.has_value());
  const Configuration own = configuration_of(*result, second);
  CHECK(own.state == std::filesystem::path("s/members/array2"));
  CHECK(own.hardware.set("b") != nullptr);
  CHECK(own.hardware.set("a") == nullptr);
  CHECK(member_names(*result) == std::vector<std::string>{"array1", "array2"});
}

TEST_CASE("Mistakes in [[member]] stand at their line and key", "[configuration][member]") {
  const std::string second = member("array2", "b");
  check_mistake("[[member]]\n", "member[1].name: is missing");
  check_mistake(kFirst + member("array1", "b"), "member[1].name: array1 is another member's");
  check_mistake(kFirst + member("array2", "a"), "member[1].raid[1].name: a is a set of another");
  check_mistake(kFirst + second +
                    "[[member]]\nname = \"array3\"\n[[member.drive]]\nname = \"d0\"\n"
                    "memory = true\nsize = \"8MiB\"\n",
                "member[2].drive[1].name: d0 is a drive of another");
  check_mistake(
      "[[member]]\nname = \"m\"\n[[member.drive]]\nname = \"x\"\nfile = \"d\"\n"
      "size = \"1KiB\"\n",
      "x.toml:11: member[1].drive[1].size: 1KiB is out of range");
  check_mistake("[[member]]\nname = \"m\"\ncolour = \"red\"\n", "member[1].colour: is not a key");
  check_mistake(kFirst + second + "[[pool]]\nname = \"p\"\nmembers = [\"array3\"]\n",
                "there is no member \"array3\"");
  check_mistake(kFirst + member("array2", "second") +
                    "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nraid = \"secnd\"\n",
                "there is no set \"secnd\"; write \"second\"");
  const std::string cache = "[member.cache]\nmemory = \"400MiB\"\n";
  CHECK(parse_configuration(kHead + kFirst + second + cache, "x.toml").has_value());
  check_mistake(
      kFirst + "[cache]\nmemory = \"600MiB\"\n" + second + cache + member("array3", "c") + cache,
      "x.toml:42: member[2].cache.memory: 400MiB is more than the 24MiB that other "
      "members' caches leave of group.memory_limit, 1GiB; write less, or a larger limit");
  check_mistake("[[member]]\nname = \"m\"\n[member.faults]\nenabled = true\n",
                "member[1].faults: is not a key");
}

Task<void> use_scopes() {
  const sandbay::testing::ScratchDirectory scratch;
  auto store = co_await metadata::open_rocksdb_store(Executor::current(),
                                                     {.path = scratch.file("metadata")});
  REQUIRE(store.has_value());
  metadata::Store& whole = **store;
  metadata::ScopedStore one(whole, "member/a/");
  metadata::ScopedStore other(whole, "member/b/");
  metadata::Batch batch;
  batch.put("x/1", "a1");
  batch.put("x/2", "a2");
  batch.put("y", "ay");
  const Error put = co_await one.commit(std::move(batch));
  CHECK(put == Error::kNone);
  metadata::Batch second;
  second.put("x/1", "b1");
  const Error put_other = co_await other.commit(std::move(second));
  CHECK(put_other == Error::kNone);
  const auto value = co_await one.get("x/1");
  REQUIRE(value.has_value());
  CHECK(*value == "a1");
  const auto listed = co_await one.list("x/", "x/1", 10);
  REQUIRE(listed.has_value());
  REQUIRE(listed->size() == 1);
  CHECK(listed->front().first == "x/2");
  metadata::Batch third;
  third.erase_prefix("");
  const Error erased = co_await one.commit(std::move(third));
  CHECK(erased == Error::kNone);
  const auto all = co_await whole.list("", "", 10);
  REQUIRE(all.has_value());
  REQUIRE(all->size() == 1);
  CHECK(all->front().first == "member/b/x/1");
  co_await whole.close();
}

TEST_CASE("A scope of a store is a store of its own", "[metadata]") {
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  REQUIRE(group.has_value());
  (*group)->run(use_scopes);
}

Task<void> come_and_go(Group& group) {
  const auto before = co_await group.list_members();
  REQUIRE(before.size() == 2);
  CHECK(before[0].state == "member");
  CHECK(before[0].pool == "p");
  CHECK(before[1].state == "present");
  CHECK(before[1].health == "good");
  const auto pool = co_await group.show_pool("p");
  REQUIRE(pool.has_value());
  CHECK(pool->stores.size() == 1);
  const auto made = co_await group.create_volume(asked("v", 40 * kMiB));
  REQUIRE(made.has_value());
  const auto too_large = co_await group.create_volume(asked("w", 60 * kMiB));
  CHECK_FALSE(too_large.has_value());

  const auto nowhere = co_await group.add_member("array3", "p");
  CHECK_FALSE(nowhere.has_value());
  const auto no_pool = co_await group.add_member("array2", "q");
  CHECK_FALSE(no_pool.has_value());
  const auto added = co_await group.add_member("array2", "");
  REQUIRE(added.has_value());
  CHECK(added->state == "member");
  CHECK(added->free_bytes > 50 * kMiB);
  const auto again = co_await group.add_member("array2", "p");
  CHECK(again.has_value());
  // Usable at once.
  const auto large = co_await group.create_volume(asked("w", 60 * kMiB));
  REQUIRE(large.has_value());
  const auto drives = co_await group.list_drives();
  REQUIRE(drives.size() == 2);
  CHECK(drives[1].member == "array2");

  const auto full = co_await group.remove_member("array1");
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().code == Refusal::Code::kConflict);
  CHECK_THAT(full.error().message, Catch::Contains("would have to move, the rest of pool \"p\" "
                                                   "has ") &&
                                       Catch::Contains("add a member"));
  const auto deleted = co_await group.delete_volume("w", false);
  CHECK(deleted.has_value());
}

TEST_CASE("A member comes to a pool, leaves it with a restart in between, and comes again",
          "[group][member]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = kFirst + member("array2", "b") + kPool;
  run(scratch, sections, come_and_go);
  run(scratch, sections, [](Group& group) -> Task<void> {
    const auto there = co_await group.show_member("array2");
    REQUIRE(there.has_value());
    CHECK(there->pool == "p");
    // What was deleted may still be swept.
    for (int i = 0; i < 100; ++i) {
      const auto pool = co_await group.show_pool("p");
      if (pool->free_bytes > 90 * kMiB) break;
      co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    }
    const auto leaving = co_await group.remove_member("array1");
    INFO((leaving ? std::string() : leaving.error().message));
    REQUIRE(leaving.has_value());
    CreateVolumeRequest late = asked("late", 4 * kMiB);
    late.open = {.backing = true, .thin = false, .block_bytes = true};
    late.specification.thin = true;
    late.specification.on = "a";
    const auto refused = co_await group.create_volume(std::move(late));
    REQUIRE_FALSE(refused.has_value());
    CHECK_THAT(refused.error().message, Catch::Contains("is being emptied"));
  });
  run(scratch, sections, [](Group& group) -> Task<void> {
    const bool gone = co_await left(&group, "array1");
    CHECK(gone);
    const auto pool = co_await group.show_pool("p");
    REQUIRE(pool.has_value());
    CHECK(pool->members == std::vector<std::string>{"array2"});
    CHECK(pool->leaving.empty());
    REQUIRE(pool->stores.size() == 1);
    CHECK(pool->stores[0].member == "array2");
    const auto volume = co_await group.show_volume("v");
    REQUIRE(volume.has_value());
    CHECK(volume->allocated_bytes == 40 * kMiB);
    const auto checked = co_await group.check_group();
    REQUIRE(checked.size() == 1);
    CHECK(checked[0].wrong.empty());
    const auto events = co_await group.list_events(0);
    const auto wrong = std::ranges::count_if(events, [](const EventInfo& event) {
      return event.kind == "vacate" && event.severity == Severity::kError;
    });
    CHECK(wrong == 0);
    const auto back = co_await group.add_member("array1", "p");
    REQUIRE(back.has_value());
    CHECK(back->free_bytes > 50 * kMiB);
  });
}

TEST_CASE("A set that was not free joins its pool when its member is added again",
          "[group][member]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kFirst, [](Group& group) -> Task<void> {
    CreateVolumeRequest request;
    request.specification.name = "own";
    request.specification.size_bytes = 8 * kMiB;
    request.specification.backing = Backing::kRaid;
    request.specification.raid = "a";
    const auto made = co_await group.create_volume(std::move(request));
    INFO((made ? std::string() : made.error().message));
    REQUIRE(made.has_value());
    const auto pool =
        co_await group.create_pool({.name = "p", .members = {"array1"}, .page_bytes = kMiB});
    INFO((pool ? std::string() : pool.error().message));
    REQUIRE(pool.has_value());
    auto shown = co_await group.show_pool("p");
    REQUIRE(shown.has_value());
    CHECK(shown->stores.empty());
    CHECK(shown->outside.size() == 1);
    const auto deleted = co_await group.delete_volume("own", false);
    CHECK(deleted.has_value());
    // Of the deleted one something may still be under way for a moment.
    for (int i = 0; i < 100 && shown->stores.empty(); ++i) {
      const auto removed = co_await group.remove_member("array1");
      CHECK(removed.has_value());
      const auto added = co_await group.add_member("array1", "p");
      CHECK(added.has_value());
      shown = co_await group.show_pool("p");
      REQUIRE(shown.has_value());
      co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    }
    CHECK(shown->stores.size() == 1);
    CHECK(shown->outside.empty());
  });
}

TEST_CASE("A volume that is to stay on a set keeps its member", "[group][member]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = kFirst + member("array2", "b") +
                               "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n"
                               "members = [\"array1\", \"array2\"]\n";
  run(scratch, sections, [](Group& group) -> Task<void> {
    CreateVolumeRequest request = asked("fixed", 8 * kMiB);
    request.specification.on = "b";
    const auto made = co_await group.create_volume(std::move(request));
    INFO((made ? std::string() : made.error().message));
    REQUIRE(made.has_value());
    const auto shown = co_await group.show_member("array2");
    REQUIRE(shown.has_value());
    CHECK(shown->size_bytes - shown->free_bytes == 8 * kMiB);
    const auto removed = co_await group.remove_member("array2");
    REQUIRE_FALSE(removed.has_value());
    CHECK_THAT(removed.error().message, Catch::Contains("volume fixed is to stay on a set"));
    const auto deleted = co_await group.delete_volume("fixed", false);
    CHECK(deleted.has_value());
  });
}

}  // namespace
}  // namespace sandbay::group::members_test
