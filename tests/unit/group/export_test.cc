// The backup of the metadata: that an export brings everything back into an empty state directory,
// that nothing damaged is taken in, and that a crash in the middle costs nothing.
#include "group/export_document.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>

#include "group/import_file.h"
#include "group/records.h"
#include "group/service.h"
#include "metadata/simulated_store.h"
#include "runtime/known.h"
#include "runtime/simulation.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group::export_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::string sections_in(const sandbay::testing::ScratchDirectory& scratch) {
  return fmt::format(
      "[[drive]]\nname = \"d0\"\nfile = \"{}\"\nsize = \"72MiB\"\n"
      "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n",
      scratch.file("d0"));
}

CreateVolumeRequest on_pool(std::string name) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = 8 * kMiB;
  request.specification.backing = Backing::kPool;
  request.specification.pool = "p";
  request.open.block_bytes = true;
  return request;
}

Task<void> provision(Group* group, std::string* text) {
  const auto pool = co_await group->create_pool({.name = "p", .members = {}, .page_bytes = kMiB});
  REQUIRE(pool.has_value());
  auto request = on_pool("v");
  request.access.push_back({.initiator = "iqn.2026-11.org.sandbay:host",
                            .address = "",
                            .chap = iscsi::ChapCredential{.user = "u", .secret = "s3cret-s3cret"}});
  const auto made = co_await group->create_volume(std::move(request));
  REQUIRE(made.has_value());
  const auto taken = co_await group->create_snapshots({.volumes = {"v"}, .name = "s"});
  REQUIRE(taken.has_value());
  const auto cloned = co_await group->clone_snapshot({"v", "s"}, "w", false);
  REQUIRE(cloned.has_value());
  const auto schedule = co_await group->create_schedule(
      {.name = "daily", .volume = "v", .every = std::chrono::hours(24), .keep = 3});
  REQUIRE(schedule.has_value());
  const auto exported = co_await group->export_group();
  REQUIRE(exported.has_value());
  *text = export_text(*exported);
}

Task<void> find_everything(Group* group, std::string* text) {
  const auto volume = co_await group->show_volume("v");
  REQUIRE(volume.has_value());
  CHECK(volume->reason.empty());
  const auto clone = co_await group->show_volume("w");
  CHECK(clone.has_value());
  const auto access = co_await group->list_access("v");
  REQUIRE(access.has_value());
  CHECK(access->front().chap_user == "u");
  const auto snapshots = co_await group->list_snapshots("v");
  REQUIRE(snapshots.has_value());
  CHECK(snapshots->size() == 1);
  const auto schedules = co_await group->list_schedules("v");
  REQUIRE(schedules.has_value());
  CHECK(schedules->front().keep == 3);
  const auto checked = co_await group->check_group();
  REQUIRE(checked.size() == 1);
  CHECK(checked.front().wrong.empty());
  CHECK(checked.front().branches > 0);
  const auto events = co_await group->list_events(0);
  const bool told = std::ranges::any_of(events, [](const EventInfo& event) {
    return event.kind == "import" && event.text.find("were taken in") != std::string::npos;
  });
  CHECK(told);
  const auto exported = co_await group->export_group();
  REQUIRE(exported.has_value());
  *text = export_text(*exported);
}

Task<void> import_in_parts(Group* group, const std::string* text, std::string* identity) {
  const GroupInfo info = co_await group->show_group();
  *identity = info.uuid;
  const std::size_t half = text->size() / 2;
  ImportPart part{.text = text->substr(0, half)};
  auto taken = co_await group->import_part(part);
  REQUIRE(taken.has_value());
  part = {.text = text->substr(half), .offset = half + 1, .last = true, .sha256 = ""};
  taken = co_await group->import_part(part);
  REQUIRE_FALSE(taken.has_value());
  CHECK(taken.error().code == Refusal::Code::kConflict);
  part.offset = half;
  part.sha256 = sha256_of(*text);
  taken = co_await group->import_part(part);
  CHECK(taken.has_value());
  // Until the next start nothing is different.
  const auto volumes_now = co_await group->list_volumes();
  const auto& volumes = *volumes_now;
  CHECK(volumes.empty());
}

Task<void> refuse_import(Group* group, const std::string* text) {
  ImportPart part{.text = *text, .last = true, .sha256 = sha256_of(*text)};
  const auto refused = co_await group->import_part(part);
  REQUIRE_FALSE(refused.has_value());
  CHECK_THAT(refused.error().message, Catch::Contains("has 2 volumes and 1 pools already"));
}

Task<Refusal> refused_import(Group* group, const std::string* text, std::string sha256) {
  ImportPart part{.text = *text, .last = true, .sha256 = std::move(sha256)};
  const auto refused = co_await group->import_part(std::move(part));
  REQUIRE_FALSE(refused.has_value());
  co_return refused.error();
}

CreateVolumeRequest in_memory(std::string name) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = kMiB;
  request.specification.backing = Backing::kMemory;
  return request;
}

// Nothing is announced that the next start would not take in, and what is announced can go again.
Task<void> import_wrongly(Group* group, const std::string* text) {
  const std::string right = sha256_of(*text);
  Refusal refusal = co_await refused_import(group, text, sha256_of("another"));
  CHECK(refusal.code == Refusal::Code::kInvalid);
  CHECK_THAT(refusal.message, Catch::Contains("is not what was taken in"));
  const std::string noise = "no export";
  refusal = co_await refused_import(group, &noise, sha256_of(noise));
  CHECK_THAT(refusal.message, Catch::Contains("is not JSON"));
  auto made = co_await group->create_volume(in_memory("m"));
  REQUIRE(made.has_value());
  auto deleted = co_await group->delete_volume("m", false);
  REQUIRE(deleted.has_value());

  ImportPart whole{.text = *text, .last = true, .sha256 = right};
  auto taken = co_await group->import_part(whole);
  REQUIRE(taken.has_value());
  // It would be forgotten at the next start.
  made = co_await group->create_volume(in_memory("m"));
  REQUIRE_FALSE(made.has_value());
  CHECK_THAT(made.error().message, Catch::Contains("an import waits"));
  const auto pool = co_await group->create_pool({.name = "q", .members = {}, .page_bytes = kMiB});
  REQUIRE_FALSE(pool.has_value());
  CHECK_THAT(pool.error().message, Catch::Contains("an import waits"));
  const auto access = co_await group->add_access("m", {});
  REQUIRE_FALSE(access.has_value());
  CHECK_THAT(access.error().message, Catch::Contains("an import waits"));
  const auto removed = co_await group->remove_member("array1");
  REQUIRE_FALSE(removed.has_value());
  CHECK_THAT(removed.error().message, Catch::Contains("an import waits"));
  // Another begins, and does not get far: nothing is announced any more.
  taken = co_await group->import_part({.text = "x", .offset = 0});
  REQUIRE(taken.has_value());
  made = co_await group->create_volume(in_memory("kept"));
  CHECK(made.has_value());
}

Task<void> find_kept(Group* group) {
  const auto volumes_now = co_await group->list_volumes();
  const auto& volumes = *volumes_now;
  REQUIRE(volumes.size() == 1);
  CHECK(volumes.front().name == "kept");
}

Task<void> refuse_foreign(Group* group, const std::string* text) {
  const Refusal refusal = co_await refused_import(group, text, sha256_of(*text));
  CHECK_THAT(refusal.message, Catch::Contains("is of group"));
}

// As the daemon does it: what was imported is taken in before the group starts.
Task<void> take_in(std::filesystem::path state, std::string metadata, std::string* error) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  REQUIRE(store.has_value());
  const auto taken = co_await take_import(**store, state, "");
  if (!taken) *error = taken.error();
  co_await (*store)->close();
}

void start_over(const std::filesystem::path& path) {
  const auto state = StateDirectory::open(path);
  REQUIRE(state.has_value());
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  REQUIRE(reactors.has_value());
  std::string error;
  (*reactors)->run([&] { return take_in(path, state->metadata().string(), &error); });
  CHECK(error.empty());
}

void run(const std::filesystem::path& state, const std::string& sections, const GroupTest& test) {
  const std::string error = run_group(state, sections, 1, test);
  if (!error.empty()) FAIL(error);
}

ExportedGroup small_group() {
  const std::string uuid = "0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11";
  return {.time = WallTime(std::chrono::seconds(1'800'000'000)),
          .entries = {{"event/0000000000000001", "history"},
                      {"group", "{\"format\":1,\"name\":\"g\",\"uuid\":\"" + uuid + "\"}"},
                      {"map/" + uuid + "m\x01\xFF", std::string("\0\x7F\x80", 3)},
                      {"odd", "no JSON \xFF"},
                      {"spaced", "{\"a\": 1}"}}};
}

TEST_CASE("An export brings everything back on the same drives", "[export]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = sections_in(scratch);
  std::string text;
  run(scratch.file("one"), sections, [&](Group& group) { return provision(&group, &text); });
  CHECK(text.find("s3cret-s3cret") != std::string::npos);
  // The directory is lost; an empty group takes the export, and at its next start it is the old.
  const std::filesystem::path fresh = scratch.file("two");
  std::string other;
  run(fresh, "", [&](Group& group) { return import_in_parts(&group, &text, &other); });
  start_over(fresh);
  CHECK_FALSE(std::filesystem::exists(fresh / "import"));
  std::string again;
  run(fresh, sections, [&](Group& group) { return find_everything(&group, &again); });
  const auto before = read_export(text);
  const auto after = read_export(again);
  REQUIRE(before.has_value());
  REQUIRE(after.has_value());
  CHECK(after->uuid == before->uuid);
  CHECK(after->uuid != other);
  run(fresh, sections, [&](Group& group) { return refuse_import(&group, &text); });
}

Task<void> make_thick(Group* group, std::string name) {
  CreateVolumeRequest request = on_pool(std::move(name));
  request.open.thin = false;
  request.specification.thin = false;
  const auto made = co_await group->create_volume(std::move(request));
  REQUIRE(made.has_value());
}

Task<void> keep_export(Group* group, std::string* text) {
  const auto exported = co_await group->export_group();
  REQUIRE(exported.has_value());
  *text = export_text(*exported);
}

// The pages of the second volume are freed between the two exports.
Task<void> export_twice(Group* group, std::string* older, std::string* newer) {
  const auto pool = co_await group->create_pool({.name = "p", .members = {}, .page_bytes = kMiB});
  REQUIRE(pool.has_value());
  co_await make_thick(group, "v");
  co_await make_thick(group, "w");
  co_await keep_export(group, older);
  const auto deleted = co_await group->delete_volume("w", false);
  REQUIRE(deleted.has_value());
  bool free = false;
  for (int i = 0; i < 200 && !free; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    const auto now = co_await group->show_pool("p");
    REQUIRE(now.has_value());
    free = now->size_bytes == now->free_bytes + 8 * kMiB;
  }
  CHECK(free);
  co_await keep_export(group, newer);
}

Task<void> import_whole(Group* group, const std::string* text) {
  const auto taken =
      co_await group->import_part({.text = *text, .last = true, .sha256 = sha256_of(*text)});
  REQUIRE(taken.has_value());
}

const std::string kOlderMap =
    "the pool's map is older than it: pages that the map has there may belong to others now; "
    "import "
    "a newer export of the group, or give up all of the pool's data on it: sandbay pool "
    "accept-older-map p --yes-lose-data";

// The words of the group that has imported the map.
std::string older_in(const std::filesystem::path& state) {
  return fmt::format(
      "{}; to bring back the records from before the import, start sandbayd with --import {} "
      "--force",
      kOlderMap, before_import_path(state));
}

Task<void> expect_older_map(Group* group, std::filesystem::path state) {
  const std::string why = "set a: " + older_in(state);
  const auto pool = co_await group->show_pool("p");
  REQUIRE(pool.has_value());
  CHECK(pool->reason == why);
  const auto volume = co_await group->show_volume("v");
  REQUIRE(volume.has_value());
  CHECK(volume->reason == "pool \"p\" is not open: " + why);
  const auto checked = co_await group->check_group();
  CHECK(checked.at(0).wrong == std::vector<std::string>{"it is not open: " + why});
  const auto given = co_await group->discard_map("p", "p");
  REQUIRE_FALSE(given.has_value());
  CHECK_THAT(given.error().message, Catch::Contains(why));
}

Task<void> expect_volume(Group* group) {
  auto volume = co_await group->show_volume("v");
  // It comes back within a second.
  for (int i = 0; i < 100 && volume.has_value() && !volume->reason.empty(); ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    volume = co_await group->show_volume("v");
  }
  REQUIRE(volume.has_value());
  CHECK(volume->reason == "");
}

TEST_CASE("A pool is not opened from an export older than the end of a volume",
          "[export][pool][G-S2]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = sections_in(scratch);
  std::string older;
  std::string newer;
  run(scratch.file("one"), sections,
      [&](Group& group) { return export_twice(&group, &older, &newer); });
  const std::filesystem::path two = scratch.file("two");
  run(two, "", [&](Group& group) { return import_whole(&group, &older); });
  start_over(two);
  run(two, sections, [&](Group& group) { return expect_older_map(&group, two); });
  // That has changed nothing on the set.
  const std::filesystem::path three = scratch.file("three");
  run(three, "", [&](Group& group) { return import_whole(&group, &newer); });
  start_over(three);
  run(three, sections, [](Group& group) { return expect_volume(&group); });
}

Task<void> refuse_to_accept(Group* group, std::string confirmed, Refusal::Code code) {
  const auto refused = co_await group->accept_older_map("p", std::move(confirmed));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == code);
}

// The set is newer than the map.
Task<void> accept_for(Group* group, std::string set, std::filesystem::path state) {
  const auto accepted = co_await group->accept_older_map("p", "p");
  if (!accepted) FAIL(accepted.error().message);
  CHECK(accepted->reason == "set " + set + ": " + older_in(state));
  CHECK(accepted->check.verified);
  CHECK(accepted->check.wrong == std::vector<std::string>{});
  co_await refuse_to_accept(group, "p", Refusal::Code::kConflict);
}

Task<void> insist(Group* group, std::filesystem::path state) {
  co_await refuse_to_accept(group, "q", Refusal::Code::kInvalid);
  co_await accept_for(group, "a", state);
  const auto events = co_await group->list_events(0);
  const bool told = std::ranges::any_of(events, [](const EventInfo& event) {
    return event.text.find("its older map is used") != std::string::npos;
  });
  CHECK(told);
  co_await expect_volume(group);
}

TEST_CASE("A pool opens with an older map when the operator insists", "[export][pool][G-S2]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = sections_in(scratch);
  std::string older;
  std::string newer;
  run(scratch.file("one"), sections,
      [&](Group& group) { return export_twice(&group, &older, &newer); });
  const std::filesystem::path two = scratch.file("two");
  run(two, "", [&](Group& group) { return import_whole(&group, &older); });
  start_over(two);
  run(two, sections, [&](Group& group) { return insist(&group, two); });
  run(two, sections, [](Group& group) { return expect_volume(&group); });
  // The map that was newer is older than the word.
  const std::filesystem::path three = scratch.file("three");
  run(three, "", [&](Group& group) { return import_whole(&group, &newer); });
  start_over(three);
  run(three, sections, [&](Group& group) { return expect_older_map(&group, three); });
}

Task<std::string> reason_of_set(Group* group, std::size_t store) {
  const auto pool = co_await group->show_pool("p");
  REQUIRE(pool.has_value());
  REQUIRE(pool->stores.size() > store);
  co_return pool->stores[store].reason;
}

// The second set comes back when the pool is open.
Task<void> insist_twice(Group* group, std::filesystem::path state, std::filesystem::path drive) {
  const std::string older = older_in(state);
  co_await accept_for(group, "a", state);
  std::string reason = co_await reason_of_set(group, 1);
  CHECK_FALSE(reason.empty());
  std::filesystem::rename(drive.string() + ".away", drive);
  for (int i = 0; i < 300 && reason != older; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
    reason = co_await reason_of_set(group, 1);
  }
  CHECK(reason == older);
  co_await accept_for(group, "b", state);
  reason = co_await reason_of_set(group, 1);
  CHECK(reason == "");
}

TEST_CASE("An open pool uses a newer set when the operator insists", "[export][pool][G-S2]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto second = [&](const std::string& size) {
    return sections_in(scratch) +
           fmt::format(
               "[[drive]]\nname = \"d1\"\nfile = \"{}\"\n{}"
               "[[drive]]\nname = \"d2\"\nfile = \"{}\"\nsize = \"72MiB\"\n"
               "[[raid]]\nname = \"b\"\nlevel = \"raid0\"\ndrives = [\"d1\", \"d2\"]\n"
               "journal = \"1MiB\"\n",
               scratch.file("d1"), size, scratch.file("d2"));
  };
  const std::string sections = second("size = \"72MiB\"\n");
  std::string older;
  std::string newer;
  run(scratch.file("one"), sections,
      [&](Group& group) { return export_twice(&group, &older, &newer); });
  const std::filesystem::path two = scratch.file("two");
  run(two, "", [&](Group& group) { return import_whole(&group, &older); });
  start_over(two);
  const std::filesystem::path drive = scratch.file("d1");
  std::filesystem::rename(drive, drive.string() + ".away");
  run(two, second(""), [&](Group& group) { return insist_twice(&group, two, drive); });
  run(two, sections, [](Group& group) { return expect_volume(&group); });
}

// The records from before the import have the only map that fits the set.
Task<void> keep_before_import(Group* group, std::filesystem::path state) {
  co_await expect_older_map(group, state);
  co_await group->end_import();
  CHECK(std::filesystem::exists(before_import_path(state)));
}

Task<void> forget_what_came_back(Group* group, std::filesystem::path state) {
  co_await expect_volume(group);
  co_await group->end_import();
  CHECK_FALSE(std::filesystem::exists(before_import_path(state)));
}

Task<void> import_over_pool(Group* group, const std::string* text) {
  const auto taken = co_await group->import_part(
      {.text = *text, .last = true, .sha256 = sha256_of(*text), .force = true});
  REQUIRE(taken.has_value());
}

TEST_CASE("The records from before an import stay while its map is older than a set",
          "[export][pool][G-I1]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = sections_in(scratch);
  const std::filesystem::path state = scratch.file("state");
  std::string older;
  std::string newer;
  run(state, sections, [&](Group& group) { return export_twice(&group, &older, &newer); });
  run(state, sections, [&](Group& group) { return import_over_pool(&group, &older); });
  start_over(state);
  run(state, sections, [&](Group& group) { return keep_before_import(&group, state); });
  // The operator follows the refusal.
  std::ifstream file(before_import_path(state), std::ios::binary);
  const std::string before{std::istreambuf_iterator<char>(file), {}};
  run(state, sections, [&](Group& group) { return import_over_pool(&group, &before); });
  start_over(state);
  run(state, sections, [&](Group& group) { return forget_what_came_back(&group, state); });
}

TEST_CASE("An import that the next start could not take in is not announced", "[export]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string text = export_text(small_group());
  const std::filesystem::path state = scratch.file("state");
  run(state, "", [&](Group& group) { return import_wrongly(&group, &text); });
  start_over(state);
  run(state, "", [](Group& group) { return find_kept(&group); });
  const auto configuration =
      parse_configuration(fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n"
                                      "uuid = \"11111111-2222-4333-8444-555555555555\"\n"
                                      "[[portal]]\nlisten = \"127.0.0.1:0\"\n",
                                      scratch.file("other")),
                          "test.toml");
  REQUIRE(configuration.has_value());
  const std::string error = run_configured(
      *configuration, 1, [&](Group& group) { return refuse_foreign(&group, &text); });
  CHECK(error == "");
}

Task<void> import_places(Group* group, const std::filesystem::path* allowed) {
  const auto import_of = [](const std::string& path) {
    VolumeRecord record;
    record.uuid = known(parse_uuid("1b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11"));
    record.specification.name = "v";
    record.specification.backing = Backing::kFile;
    record.specification.path = path;
    record.specification.size_bytes = kMiB;
    record.specification.target = "iqn.2026-11.org.sandbay:v";
    ExportedGroup exported = small_group();
    exported.entries.push_back({volume_key(record.uuid), encode(record)});
    const std::string text = export_text(exported);
    return ImportPart{.text = text, .last = true, .sha256 = sha256_of(text)};
  };
  for (const char* path : {"/etc/cron.d/evil", "../outside", "/dev/null"}) {
    CAPTURE(path);
    const auto refused = co_await group->import_part(import_of(path));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Refusal::Code::kForbidden);
    CHECK_THAT(refused.error().message, Catch::Contains("management.volume_paths"));
  }
  const auto taken = co_await group->import_part(import_of(*allowed / "image"));
  CHECK(taken.has_value());
}

TEST_CASE("An import has volumes only where management may make them", "[G-S6][export]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path state = scratch.file("state");
  run(state, "", [&](Group& group) { return import_places(&group, &state); });
}

VolumeRecord imported_volume(std::string_view uuid, std::string name, std::uint32_t lun) {
  VolumeRecord record;
  record.uuid = known(parse_uuid(uuid));
  record.specification.name = std::move(name);
  record.specification.backing = Backing::kMemory;
  record.specification.size_bytes = kMiB;
  record.specification.target = "iqn.2026-11.org.sandbay:v";
  record.specification.lun = lun;
  return record;
}

// Why an import of two volumes, changed by `change`, and of `more` records is refused.
template <class Change>
Task<std::string> refusal_of(Group* group, Change change, std::vector<metadata::Entry> more = {}) {
  VolumeRecord one = imported_volume("1b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11", "one", 0);
  VolumeRecord two = imported_volume("2b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11", "two", 1);
  change(one.specification, two.specification);
  ExportedGroup exported = small_group();
  exported.entries.push_back({volume_key(one.uuid), encode(one)});
  exported.entries.push_back({volume_key(two.uuid), encode(two)});
  for (metadata::Entry& entry : more) exported.entries.push_back(std::move(entry));
  const std::string text = export_text(exported);
  const auto taken = co_await group->import_part(
      ImportPart{.text = text, .last = true, .sha256 = sha256_of(text), .force = true});
  co_return taken ? std::string() : taken.error().message;
}

Task<void> import_with_which_no_start_succeeds(Group* group) {
  using Specification = VolumeSpecification;
  const auto nothing = [](Specification&, Specification&) {};
  std::string refused = co_await refusal_of(
      group, [](Specification& one, Specification&) { one.target = "no iscsi name"; });
  CHECK_THAT(refused, Catch::Contains("volume \"one\": target: \"no iscsi name\" is not an iSCSI"));
  refused = co_await refusal_of(
      group, [](Specification&, Specification& two) { two.target = "iqn.2026-11.x:\x01"; });
  CHECK_THAT(refused, Catch::Contains("volume \"two\": target: "));
  refused = co_await refusal_of(group, [](Specification&, Specification& two) { two.lun = 0; });
  CHECK_THAT(refused, Catch::Contains("LUN 0 of iqn.2026-11.org.sandbay:v is volume \"one\""));
  refused =
      co_await refusal_of(group, [](Specification&, Specification& two) { two.lun = 70'000; });
  CHECK_THAT(refused, Catch::Contains("lun 70000 is out of range"));
  // The start warns of such a volume and goes on.
  refused =
      co_await refusal_of(group, [](Specification&, Specification& two) { two.name = "one"; });
  CHECK(refused.empty());
  TargetRecord target{.name = "iqn.2026-11.org.sandbay:v"};
  target.access.push_back({.id = 1, .record = {.initiator = "*", .address = "no address"}});
  refused = co_await refusal_of(group, nothing, {{target_key(target.name), encode(target)}});
  CHECK_THAT(refused, Catch::Contains("iqn.2026-11.org.sandbay:v: access: "));
  refused = co_await refusal_of(group, nothing, {{"schedule/x", "{}"}});
  CHECK_THAT(refused, Catch::Contains("record schedule/x "));
  refused = co_await refusal_of(group, nothing);
  CHECK(refused.empty());
}

TEST_CASE("An import with which no start succeeds is refused", "[X4][export]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), "",
      [](Group& group) { return import_with_which_no_start_succeeds(&group); });
}

Task<void> export_twice(Group* group) {
  const auto fault = co_await group->add_faults(
      {"at=drive:d0 op=unmap,write_zeroes origin=clearing do=slow latency=500ms..500ms"});
  REQUIRE(fault.has_value());
  CreateVolumeRequest request = in_memory("v");
  request.specification.backing = Backing::kRaid;
  request.specification.raid = "a";
  request.specification.size_bytes = 40 * kMiB;
  const auto made = co_await group->create_volume(std::move(request));
  REQUIRE(made.has_value());
  auto exported = co_await group->export_group();
  REQUIRE_FALSE(exported.has_value());
  CHECK(exported.error().code == Refusal::Code::kConflict);
  CHECK_THAT(exported.error().message, Catch::Contains("volume \"v\": "));
  const auto cleared = co_await group->clear_fault("");
  REQUIRE(cleared.has_value());
  for (int i = 0; i < 500 && !exported.has_value(); ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
    exported = co_await group->export_group();
  }
  CHECK(exported.has_value());
}

TEST_CASE("There is no export while a volume's place is being cleared", "[export]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string drive = scratch.file("d0");
  std::ofstream(drive, std::ios::binary).close();
  std::filesystem::resize_file(drive, 72 * kMiB);
  std::fstream file(drive, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(30 * kMiB));
  file << "what was here before";
  file.close();
  run(scratch.file("state"), "[faults]\nenabled = true\n" + sections_in(scratch),
      [](Group& group) { return export_twice(&group); });
}

TEST_CASE("An export is the same bytes when it is read again", "[export]") {
  const ExportedGroup group = small_group();
  const std::string text = export_text(group);
  CHECK(text.find("\"time\": \"2027-01-15T08:00:00Z\"") != std::string::npos);
  CHECK(text.find("{\"key\": \"group\", \"value\": {") != std::string::npos);
  const auto read = read_export(text);
  INFO((read ? std::string() : read.error()));
  REQUIRE(read.has_value());
  CHECK(read->name == "g");
  CHECK(read->entries == std::vector(group.entries.begin() + 1, group.entries.end()));
}

TEST_CASE("What was cut or changed is no export", "[export]") {
  const std::string text = export_text(small_group());
  for (std::size_t end = 0; end < text.size() - 2; end += 7) {
    CHECK_FALSE(read_export(text.substr(0, end)).has_value());
  }
  const auto changed = [&](const std::string& old, const std::string& fresh) {
    std::string copy = text;
    const auto at = copy.find(old);
    REQUIRE(at != std::string::npos);
    copy.replace(at, old.size(), fresh);
    const auto read = read_export(copy);
    return read ? std::string() : read.error();
  };
  CHECK_THAT(changed("007f80", "007f81"), Catch::Contains("checksum"));
  CHECK_THAT(changed("007f80", "007f8"), Catch::Contains("is cut"));
  CHECK_THAT(changed("007f80", "00zf80"), Catch::Contains("hexadecimal"));
  CHECK_THAT(changed("\"odd\"", "\"even\""), Catch::Contains("checksum"));
  CHECK_THAT(changed("\"sandbay_export\": 1", "\"sandbay_export\": 2"), Catch::Contains("format"));
  const auto empty = read_export("{}");
  REQUIRE_FALSE(empty.has_value());
  CHECK_THAT(empty.error(),
             Catch::Contains("not a usable export: key 'sandbay_export' not found; name a"));
  CHECK_FALSE(read_export("[[[").has_value());
}

// The commit with that number fails, and all after it.
class EndingStore final : public sandbay::testing::ForwardingStore {
 public:
  EndingStore(metadata::Store& below, unsigned commits) : ForwardingStore(below), left_(commits) {}
  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }

 private:
  static Task<Error> do_commit(EndingStore* self, metadata::Batch batch) {
    if (self->left_ == 0) {
      co_await self->home().yield();
      co_return Error::kHardware;
    }
    --self->left_;
    co_return co_await self->below_.commit(std::move(batch));
  }
  unsigned left_;
};

// What the store holds after an import that ends at its nth commit, and another start.
Task<void> import_twice(Executor* home, std::filesystem::path state, std::string text,
                        unsigned commits, std::vector<metadata::Entry>* result, bool* failed) {
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  metadata::Batch old;
  old.put("audit/0000000000000001", "history");
  old.put("volume/old", "old");
  Error error = co_await (*store)->commit(std::move(old));
  CHECK(error == Error::kNone);
  error = co_await announce_import(**store, text.size(), sha256_of(text), false);
  CHECK(error == Error::kNone);
  EndingStore ending(**store, commits);
  const auto first = co_await take_import(ending, state, "");
  *failed = !first.has_value();
  const auto second = co_await take_import(**store, state, "");
  CHECK(second.has_value());
  const auto all = co_await (*store)->list("", "", std::numeric_limits<std::size_t>::max());
  REQUIRE(all.has_value());
  *result = *all;
  // That it was taken in is told, unless the crash came between.
  std::erase_if(*result,
                [](const metadata::Entry& entry) { return entry.first.starts_with(kEventPrefix); });
  co_await (*store)->close();
}

TEST_CASE("An import that a crash cuts short is done again at the next start", "[export]") {
  const sandbay::testing::ScratchDirectory scratch;
  ExportedGroup group = small_group();
  // An import commits each MiB: the second commit has what is behind these.
  group.entries.emplace_back("x0", '"' + std::string(std::size_t{900} << 10, 'x') + '"');
  group.entries.emplace_back("x1", std::string(std::size_t{130} << 10, 'x'));
  group.entries.emplace_back("x2", "no JSON either");
  const std::string text = export_text(group);
  std::ofstream(scratch.file("import")) << text;
  std::vector<metadata::Entry> expected(group.entries.begin() + 1, group.entries.end());
  expected.emplace(expected.begin(), "audit/0000000000000001", "history");
  expected.emplace_back(std::string(kUncheckedKey), "{}");
  std::ranges::sort(expected);
  unsigned failures = 0;
  for (bool failed = true; failed; ++failures) {
    std::vector<metadata::Entry> result;
    auto world = sim::World::create({.seed = 1});
    Executor* const home = world->executors()[0];
    const bool ended = world->run(
        [&] { return import_twice(home, scratch.file(""), text, failures, &result, &failed); });
    CHECK(ended);
    CAPTURE(failures);
    CHECK(result == expected);
  }
  CHECK(failures > 3);
}

TEST_CASE("What cannot be taken in at a start changes nothing there", "[export]") {
  const sandbay::testing::ScratchDirectory scratch;
  const bool changed = GENERATE(true, false);
  const std::string text = export_text(small_group());
  std::ofstream(scratch.file("import")) << text << (changed ? " " : "");
  const std::string uuid = changed ? "" : "11111111-2222-4333-8444-555555555555";
  auto world = sim::World::create({.seed = 1});
  Executor* const home = world->executors()[0];
  std::string error;
  const auto take = [](Executor* executor, std::filesystem::path state, std::string announced,
                       std::string group, std::string* said) -> Task<void> {
    auto store = co_await metadata::open_simulated_store(*executor, "metadata");
    REQUIRE(store.has_value());
    const Error committed =
        co_await announce_import(**store, announced.size(), sha256_of(announced), false);
    CHECK(committed == Error::kNone);
    const auto taken = co_await take_import(**store, state, group);
    if (!taken) *said = taken.error();
    const auto there = co_await (*store)->list("group", "", 1);
    CHECK((there.has_value() && there->empty()));
    co_await (*store)->close();
  };
  const bool ended = world->run([&] { return take(home, scratch.file(""), text, uuid, &error); });
  CHECK(ended);
  CHECK_THAT(error, Catch::Contains(changed ? "is not what was taken in" : "is of group"));
}

}  // namespace
}  // namespace sandbay::group::export_test
