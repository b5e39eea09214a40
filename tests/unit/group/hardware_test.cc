// A group with RAID sets on real reactors: sets are made once and found again, volumes share them,
// drives fail and are replaced, and what file and drives disagree in is told.
#include <fmt/core.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::hardware_test {
namespace {

std::string file_drives(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += fmt::format(
        "[[drive]]\nname = \"d{0}\"\nfile = \"drives/d{0}.img\"\nsize = \"64MiB\"\n", i);
  }
  return text;
}

const std::string kMirror =
    file_drives(2) + "[[raid]]\nname = \"r\"\nlevel = \"raid1\"\ndrives = [\"d0\", \"d1\"]\n";

VolumeSpecification on_set(std::string name, std::uint64_t megabytes) {
  return {.name = std::move(name),
          .backing = Backing::kRaid,
          .raid = "r",
          .size_bytes = megabytes << 20};
}

Task<void> make(Group* group, std::string name, std::uint64_t megabytes, bool works = true) {
  const auto made =
      co_await group->create_volume({.specification = on_set(std::move(name), megabytes)});
  INFO((made ? std::string() : made.error().message));
  CHECK(made.has_value() == works);
}

Task<void> share_a_set(Group& group) {
  co_await make(&group, "a", 16);
  co_await make(&group, "b", 16);
  co_await make(&group, "c", 64, false);  // No place.
  auto set = co_await group.show_set("r");
  REQUIRE(set.has_value());
  CHECK(set->raid.running);
  CHECK(set->volumes == std::vector<std::string>{"a", "b"});
  CHECK(set->free_bytes == set->raid.byte_count - (std::uint64_t{32} << 20));
  CHECK(set->notes.empty());
  const auto blocked = co_await group.change_volume("a", {.size_bytes = 17U << 20});
  CHECK(!blocked.has_value());  // b lies behind it.
  const auto grown = co_await group.change_volume("b", {.size_bytes = 20U << 20});
  CHECK(grown.has_value());
  const auto deleted = co_await group.delete_volume("a", false);
  CHECK(deleted.has_value());
  co_await make(&group, "d", 8);
  co_await make(&group, "e", 8);   // Both where a was.
  co_await make(&group, "b", 20);  // There already, as it is.
}

Task<void> is_as_it_was(Group& group) {
  const auto set = co_await group.show_set("r");
  REQUIRE(set.has_value());
  CHECK(set->raid.running);
  CHECK(set->volumes == std::vector<std::string>{"b", "d", "e"});
  const auto volume = co_await group.show_volume("b");
  REQUIRE(volume.has_value());
  CHECK(volume->specification.size_bytes == 20U << 20);
  CHECK(volume->health == "good");
  CHECK(volume->reason.empty());
  const auto missing = co_await group.show_set("q");
  CHECK(!missing.has_value());
}

TEST_CASE("Volumes share a set, and are there after a restart", "[group][hardware]") {
  const unsigned reactors = GENERATE(1U, 2U);
  CAPTURE(reactors);
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  CHECK(run_group(state, kMirror, reactors, share_a_set) == "");
  CHECK(run_group(state, kMirror, reactors, is_as_it_was) == "");
}

bool has_event(const std::vector<EventInfo>& events, std::string_view kind) {
  return std::ranges::any_of(events, [&](const EventInfo& event) { return event.kind == kind; });
}

// Told once, and shown for as long as it is so.
Task<void> loses_its_file(Group& group) {
  const auto before = co_await group.show_drive("d1");
  REQUIRE(before.has_value());
  CHECK(before->raid.why.empty());
  std::filesystem::remove(before->path);
  Executor& home = Executor::current();
  std::vector<EventInfo> events;
  const TimePoint deadline = home.now() + std::chrono::seconds(20);
  while (!has_event(events, "drive file gone") && home.now() < deadline) {
    co_await home.sleep_for(std::chrono::milliseconds(50));
    events = co_await group.list_events(0);
  }
  co_await home.sleep_for(std::chrono::milliseconds(1200));  // It is looked at again.
  events = co_await group.list_events(0);
  CHECK(std::ranges::count(events, "drive file gone", &EventInfo::kind) == 1);
  const auto after = co_await group.show_drive("d1");
  REQUIRE(after.has_value());
  CHECK(after->raid.why.find("removed or renamed") != std::string::npos);
  const auto other = co_await group.show_drive("d0");
  REQUIRE(other.has_value());
  CHECK(other->raid.why.empty());
}

TEST_CASE("That a drive's file goes while it serves is told", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  CHECK(run_group(state, kMirror, 1, loses_its_file) == "");
}

Task<void> fail_and_replace(Group& group) {
  const auto refused = co_await group.fail_drive("d9");
  CHECK(refused.error().code == Refusal::Code::kNotFound);
  const auto failed = co_await group.fail_drive("d0");
  REQUIRE(failed.has_value());
  CHECK(failed->raid.use == raid::DriveUse::kFailed);
  const auto beyond = co_await group.fail_drive("d1");
  REQUIRE(!beyond.has_value());
  CHECK(beyond.error().code == Refusal::Code::kConflict);
  auto set = co_await group.show_set("r");
  CHECK(set->raid.running);
  CHECK(set->raid.health == Health::kDegraded);
  const auto replaced = co_await group.replace_drive("r:0", "d2");
  INFO((replaced ? std::string() : replaced.error().message));
  REQUIRE(replaced.has_value());
  for (int i = 0; i < 1000; ++i) {
    const auto events = co_await group.list_events(0);
    if (has_event(events, "rebuild ended")) break;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  set = co_await group.show_set("r");
  CHECK(set->raid.roles[0].drive == "d2");
  CHECK(set->raid.roles[0].stale_regions == 0);
  CHECK(!set->notes.empty());  // The file names d0.
  const auto events = co_await group.list_events(0);
  CHECK(has_event(events, "rebuild ended"));
  const auto later = co_await group.list_events(events.back().number);
  CHECK(later.empty());
}

TEST_CASE("A failed drive is replaced, beyond redundancy none fails", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const std::string sections =
      file_drives(3) + "[[raid]]\nname = \"r\"\nlevel = \"raid1\"\ndrives = [\"d0\", \"d1\"]\n";
  CHECK(run_group(state, sections, 1, fail_and_replace) == "");
}

Task<void> tells_that_no_drive_is_there(Group& group) {
  const auto set = co_await group.show_set("r");
  REQUIRE(set.has_value());
  CHECK(!set->raid.running);
  CHECK(set->raid.refusal.find("all drives of set") != std::string::npos);
  const auto volume = co_await group.show_volume("b");
  REQUIRE(volume.has_value());
  CHECK(volume->health == "missing");
  CHECK(!volume->reason.empty());
  co_await make(&group, "z", 1, false);
}

TEST_CASE("A set whose drives have gone is never made anew", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  REQUIRE(run_group(state, kMirror, 1, share_a_set) == "");
  std::filesystem::rename(state / "drives", state / "away");
  CHECK(run_group(state, kMirror, 1, tells_that_no_drive_is_there) == "");
  std::filesystem::remove_all(state / "drives");
  std::filesystem::rename(state / "away", state / "drives");
  CHECK(run_group(state, kMirror, 1, is_as_it_was) == "");
}

Task<void> no_faults(Group& group) {
  const auto added = co_await group.add_faults({"at=drive:d0 do=fail"});
  REQUIRE(!added.has_value());
  CHECK(added.error().message.find("faults are not enabled") != std::string::npos);
}

Task<void> faults(Group& group) {
  const auto wrong = co_await group.add_faults({"at=drive:d9 do=fail"});
  CHECK(!wrong.has_value());
  const auto added = co_await group.add_faults({"at=drive:d0 do=smart wear=90"});
  REQUIRE(added.has_value());
  const auto drive = co_await group.show_drive("d0");
  CHECK(drive->wear_percent == 90);
  auto info = co_await group.list_faults();
  CHECK(info.rules.size() == 1);
  CHECK(info.firings == 1);
  const auto cleared = co_await group.clear_fault(added->front().rule.id);
  CHECK(cleared.has_value());
  const auto again = co_await group.clear_fault(added->front().rule.id);
  CHECK(!again.has_value());
  info = co_await group.list_faults();
  CHECK(info.rules.empty());
}

TEST_CASE("Faults are there where they are enabled", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  CHECK(run_group(state, kMirror, 1, no_faults) == "");
  CHECK(run_group(state, kMirror + "[faults]\nenabled = true\n", 1, faults) == "");
}

std::string text_of(const std::vector<EventInfo>& events, std::string_view kind) {
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->kind == kind) return event->text;
  }
  return {};
}

Task<void> wait_for_event(Group* group, std::string kind) {
  for (int i = 0; i < 500; ++i) {
    const auto events = co_await group->list_events(0);
    if (has_event(events, kind)) co_return;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("no such event: " + kind);
}

// A drive with the superblock of another group's set is refused as a spare, and taken once erased.
Task<void> erases_a_strange_spare(Group& group) {
  auto events = co_await group.list_events(0);
  const std::string refusal = text_of(events, "spare");
  CAPTURE(refusal);
  CHECK(refusal.find("drive d0: no spare") != std::string::npos);
  CHECK(refusal.find("sandbay drive erase d0") != std::string::npos);
  auto drive = co_await group.show_drive("d0");
  CHECK(drive->raid.use == raid::DriveUse::kStranger);
  const auto member = co_await group.erase_drive("d2");
  REQUIRE(!member.has_value());
  CHECK(member.error().code == Refusal::Code::kConflict);
  CHECK(member.error().message.find("d2") != std::string::npos);
  const auto unknown = co_await group.erase_drive("d9");
  CHECK(unknown.error().code == Refusal::Code::kNotFound);
  const auto erased = co_await group.erase_drive("d0");
  INFO((erased ? std::string() : erased.error().message));
  REQUIRE(erased.has_value());
  CHECK(erased->raid.use == raid::DriveUse::kSpare);  // The file says so.
  events = co_await group.list_events(0);
  CHECK(has_event(events, "drive erased"));
}

Task<void> is_a_spare(Group& group) {
  const auto drive = co_await group.show_drive("d0");
  CHECK(drive->raid.use == raid::DriveUse::kSpare);
  const auto set = co_await group.show_set("r");
  CHECK(set->raid.running);
  // What happened before the restart is still told.
  const auto events = co_await group.list_events(0);
  CHECK(has_event(events, "drive erased"));
}

Task<void> nothing(Group& /*group*/) { co_return; }

TEST_CASE("A spare of another group is refused with what to do, and taken when it is erased",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto other = std::filesystem::path(scratch.file("other"));
  const auto state = std::filesystem::path(scratch.file("state"));
  REQUIRE(run_group(other, kMirror, 1, nothing) == "");
  std::filesystem::create_directories(state / "drives");
  std::filesystem::copy_file(other / "drives/d0.img", state / "drives/d0.img");
  std::string sections = file_drives(3);
  sections.insert(sections.find("[[drive]]\nname = \"d1\""), "spare = true\n");
  sections += "[[raid]]\nname = \"r\"\nlevel = \"raid1\"\ndrives = [\"d1\", \"d2\"]\n";
  CHECK(run_group(state, sections, 1, erases_a_strange_spare) == "");
  CHECK(run_group(state, sections, 1, is_a_spare) == "");
}

// A drive's file that was away at the start comes back while the group runs.
Task<void> takes_what_comes(Group& group, std::filesystem::path state) {
  auto drive = co_await group.show_drive("d1");
  CHECK(drive->raid.use == raid::DriveUse::kAbsent);
  CHECK(!drive->raid.why.empty());
  auto set = co_await group.show_set("r");
  CHECK(set->raid.running);
  CHECK(set->raid.health == Health::kDegraded);
  std::filesystem::remove_all(state / "drives/d1.img");
  std::filesystem::rename(state / "away.img", state / "drives/d1.img");
  co_await wait_for_event(&group, "drive present");
  for (int i = 0; i < 500; ++i) {
    set = co_await group.show_set("r");
    if (set->raid.health == Health::kGood) break;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(set->raid.health == Health::kGood);
  drive = co_await group.show_drive("d1");
  CHECK(drive->raid.use == raid::DriveUse::kMember);
  CHECK(drive->raid.health == Health::kGood);
}

TEST_CASE("A drive that was absent at the start is taken in when it comes", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  REQUIRE(run_group(state, kMirror, 1, nothing) == "");
  std::filesystem::rename(state / "drives/d1.img", state / "away.img");
  std::filesystem::create_directory(state / "drives/d1.img");  // No file: cannot be opened.
  CHECK(run_group(state, kMirror, 1,
                  [state](Group& group) { return takes_what_comes(group, state); }) == "");
}

}  // namespace
}  // namespace sandbay::group::hardware_test
