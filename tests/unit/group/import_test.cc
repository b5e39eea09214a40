// An import does not bring back the state that the hardware had when the export was written. An
// older state of that would give one volume what another has written, or write old data over newer
// data.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "group/export_document.h"
#include "group/import_file.h"
#include "group/service.h"
#include "pool/map_records.h"
#include "pool/sealed.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/controller_cache_rig.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::import_test {
namespace {

using testing::Books;
using testing::kMiB;
using testing::kSetUuid;
using testing::Rack;

const std::string kGroupUuid = "0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11";

std::string text_of(const Books::Entries& entries) {
  Books::Entries all = entries;
  all["group"] = "{\"format\":1,\"name\":\"g\",\"uuid\":\"" + kGroupUuid + "\"}";
  return export_text(
      {.time = WallTime(std::chrono::seconds(1'800'000'000)), .entries = {all.begin(), all.end()}});
}

// As a start does it: `text` takes the place of everything.
Task<void> take_in(metadata::Store* store, std::string text) {
  const sandbay::testing::ScratchDirectory scratch;
  std::ofstream(scratch.file("import"), std::ios::binary) << text;
  const Error error = co_await announce_import(*store, text.size(), sha256_of(text), false);
  REQUIRE(error == Error::kNone);
  const auto taken = co_await take_import(*store, scratch.file(""), "");
  INFO((taken ? std::string() : taken.error()));
  REQUIRE(taken.has_value());
}

Task<void> forget_hardware(Executor& home) {
  Books books(home);
  const MirrorRecord mirror{.image = {std::byte{1}}, .nvram = {std::byte{2}}, .stale = false};
  Books::Entries older;
  older["used/" + format_uuid(kSetUuid)] = "{\"end_block\":16,\"format\":1}";
  older["member/x/used/" + format_uuid(kSetUuid)] = "{\"end_block\":16,\"format\":1}";
  older["mirror"] = encode(mirror);
  older["member/x/mirror"] = encode(mirror);
  older["volumes-of-somebody"] = "{}";
  co_await take_in(&books, text_of(older));
  CHECK(books.entries.contains("volumes-of-somebody"));
  for (const std::string member : {"", "member/x/"}) {
    CAPTURE(member);
    CHECK_FALSE(books.entries.contains(member + "used/" + format_uuid(kSetUuid)));
    const auto record = decode_mirror(books.entries[member + "mirror"]);
    REQUIRE(record.has_value());
    CHECK(record->stale);
    CHECK(record->nvram == mirror.nvram);
  }
}

// The records from before an import --------------------------------------------------------------

Task<void> take_in_state(metadata::Store* store, std::string state, std::string text) {
  std::ofstream(import_path(state), std::ios::binary) << text;
  const Error error = co_await announce_import(*store, text.size(), sha256_of(text), false);
  REQUIRE(error == Error::kNone);
  const auto taken = co_await take_import(*store, std::move(state), "");
  INFO((taken ? std::string() : taken.error()));
  REQUIRE(taken.has_value());
}

Books::Entries group_with(std::string key) {
  return {{"group", "{\"format\":1,\"name\":\"g\",\"uuid\":\"" + kGroupUuid + "\"}"},
          {std::move(key), "{}"}};
}

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Task<void> go_back(Executor& home) {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("");
  const std::string before = before_import_path(state);
  Books books(home);
  books.entries = group_with("volumes-old");
  // More than the MiB that an import commits at once.
  books.entries["z0"] = '"' + std::string(std::size_t{900} << 10, 'z') + '"';
  books.entries["z1"] = std::string(std::size_t{130} << 10, 'z');
  books.entries["z2"] = "no JSON either";
  const Books::Entries old = books.entries;
  co_await take_in_state(&books, state, text_of(group_with("volumes-new")));
  CHECK_FALSE(books.entries.contains("volumes-old"));
  const std::string way = co_await way_before_import(books, state);
  CHECK_THAT(way, Catch::Contains("--import " + before + " --force"));
  // One more import before a start succeeds.
  co_await take_in_state(&books, state, text_of(group_with("volumes-newer")));
  const auto kept = read_export(text_in(before));
  REQUIRE(kept.has_value());
  CHECK(Books::Entries(kept->entries.begin(), kept->entries.end()) == old);

  co_await take_in_state(&books, state, text_in(before));
  for (const auto& [key, value] : old) CHECK(books.entries[key] == value);
  CHECK_FALSE(books.entries.contains("volumes-newer"));
  co_await forget_before_import(books, state);
  CHECK_FALSE(std::filesystem::exists(before));
  CHECK_FALSE(books.entries.contains(std::string(kBeforeImportKey)));
  const std::string gone = co_await way_before_import(books, state);
  CHECK(gone.empty());
}

const std::string kMap = "map/0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a12/";

std::string checkpoint_at(const std::string& key, const Uuid& log) {
  pool::CheckpointRecord record;
  record.log = log;
  return pool::sealed(key, pool::pack(record));
}

Uuid log_in(const std::string& key, const std::string& stored) {
  const auto value = pool::unsealed(key, stored);
  REQUIRE(value.has_value());
  const auto record = pool::unpack_checkpoint(*value);
  REQUIRE(record.has_value());
  return record->log;
}

// The imported pool releases what the NVRAM has of the old map.
Task<void> keep_checkpoints(Executor& home, Uuid log) {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("");
  Books books(home);
  books.entries = group_with("volumes-old");
  const std::string key = kMap + "c";
  books.entries[key] = checkpoint_at(key, log);
  books.entries[kMap + "cc"] = books.entries[key];
  const Books::Entries old = books.entries;
  co_await take_in_state(&books, state, text_of(group_with("volumes-new")));
  const auto kept = read_export(text_in(before_import_path(state)));
  REQUIRE(kept.has_value());
  Books::Entries entries(kept->entries.begin(), kept->entries.end());
  const bool needs = log != Uuid{};
  const Uuid now = log_in(key, entries[key]);
  CHECK((now == log) != needs);
  CHECK((now != Uuid{}) == needs);
  entries[key] = old.at(key);
  CHECK(entries == old);
  const bool told = std::ranges::any_of(books.entries, [](const auto& entry) {
    return entry.second.contains("pool maps that only the NVRAM has");
  });
  CHECK(told == needs);
}

// The metadata cannot be written when the records are to be deleted.
Task<void> fail_to_forget(Executor& home) {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("");
  const std::string before = before_import_path(state);
  Books books(home);
  books.entries = group_with("volumes-old");
  co_await take_in_state(&books, state, text_of(group_with("volumes-new")));
  books.failing = true;
  co_await forget_before_import(books, state);
  books.failing = false;
  CHECK(std::filesystem::exists(before));
  CHECK(books.entries.contains(std::string(kBeforeImportKey)));
  const Error error = co_await announce_import(books, 1, "", true);
  CHECK(error == Error::kNone);
  CHECK_FALSE(books.entries.contains(std::string(kBeforeImportKey)));
}

// The file of the import is damaged after some or all old records are gone.
Task<void> damage_import(Executor& home) {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("");
  const std::string text = text_of(group_with("volumes-new"));
  std::vector<Books::Entries> moments;
  Books books(home);
  books.entries = group_with("volumes-old");
  books.observer = [&] { moments.push_back(books.entries); };
  co_await take_in_state(&books, state, text);
  std::ofstream(import_path(state), std::ios::binary) << "damaged";
  for (const Books::Entries& moment : moments) {
    if (!moment.contains(std::string(kImportKey))) continue;
    Books again(home);
    again.entries = moment;
    const auto taken = co_await take_import(again, state, "");
    REQUIRE_FALSE(taken.has_value());
    const bool kept = moment.contains(std::string(kBeforeImportKey));
    CHECK(taken.error().contains("or begin with another state directory") != kept);
    CHECK(taken.error().ends_with("--import " + before_import_path(state) + " --force") == kept);
  }
}

// The power fails between any two commits of an import.
Task<void> cut_import(Executor& home) {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string state = scratch.file("");
  const std::string text = text_of(group_with("volumes-new"));
  std::vector<Books::Entries> moments;
  Books books(home);
  books.entries = group_with("volumes-old");
  const Books::Entries old = books.entries;
  books.observer = [&] { moments.push_back(books.entries); };
  co_await take_in_state(&books, state, text);
  CHECK(moments.size() >= 8);
  for (const Books::Entries& moment : moments) {
    if (!moment.contains(std::string(kImportKey))) continue;
    Books again(home);
    again.entries = moment;
    // The file is whole from the moment of its record on.
    if (!moment.contains(std::string(kBeforeImportKey))) {
      std::ofstream(before_import_path(state), std::ios::binary) << "torn";
    }
    co_await take_in_state(&again, state, text);
    CHECK(again.entries.contains("volumes-new"));
    const auto kept = read_export(text_in(before_import_path(state)));
    REQUIRE(kept.has_value());
    CHECK(Books::Entries(kept->entries.begin(), kept->entries.end()) == old);
  }
}

Task<void> import_into_nothing(Executor& home) {
  const sandbay::testing::ScratchDirectory scratch;
  Books books(home);
  co_await take_in_state(&books, scratch.file(""), text_of(group_with("volumes-new")));
  CHECK_FALSE(std::filesystem::exists(before_import_path(scratch.file(""))));
  CHECK_FALSE(books.entries.contains(std::string(kBeforeImportKey)));
  const std::string way = co_await way_before_import(books, scratch.file(""));
  CHECK(way.empty());
}

// The NVRAM has a write that was acknowledged after the export, and the drives have not.
struct Left {
  explicit Left(Executor& home) : books(home), set(testing::memory_set(home)) {}
  nvram::SimulatedBoard board{24 * kMiB};
  Books books;
  std::unique_ptr<MemoryDevice> set;
  Rack rack{.nvram = &board};
};

Task<void> import_before_the_write(Executor* home, Left* left) {
  const Books::Entries older = left->books.entries;
  co_await testing::leave_dirty(*home, left->books, left->rack, *left->set);
  co_await take_in(&left->books, text_of(older));
}

Task<void> adopt_by_word(Executor& home) {
  Left left(home);
  co_await import_before_the_write(&home, &left);
  // Nobody says anything at first; the next start has still what it waits for.
  for (int start = 0; start < 2; ++start) {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    CHECK(run->told("set barred") == 1);
    CHECK(run->told("cache stale") == 0);
    CHECK_THAT(run->cache->bar(kSetUuid), Catch::Contains("sandbay cache adopt r"));
    CHECK(run->cache->may_adopt(kSetUuid));
    co_await testing::end(*run);
  }
  {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    const auto adopted = co_await run->cache->adopt(kSetUuid);
    REQUIRE(adopted.has_value());
    CHECK(run->cache->bar(kSetUuid).empty());
    const int now = co_await testing::read(run->cache->above(kSetUuid, *left.set), 0);
    CHECK(now == 7);
    co_await testing::end(*run);
  }
  const int on_drives = co_await testing::read(*left.set, 0);
  CHECK(on_drives == 7);
  const auto run = co_await testing::begin(home, left.books, left.rack);
  CHECK(run->told("set barred") == 0);
  co_await testing::end(*run);
}

Task<void> discard_by_word(Executor& home) {
  Left left(home);
  co_await import_before_the_write(&home, &left);
  {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    const auto given = co_await run->cache->discard(kSetUuid);
    REQUIRE(given.has_value());
    CHECK(given->byte_count == 4096);
    CHECK(run->cache->bar(kSetUuid).empty());
    CHECK_FALSE(run->cache->may_adopt(kSetUuid));
    co_await testing::end(*run);
  }
  const auto run = co_await testing::begin(home, left.books, left.rack);
  CHECK(run->told("set barred") == 0);
  const int now = co_await testing::read(run->cache->above(kSetUuid, *left.set), 0);
  CHECK(now == 1);
  co_await testing::end(*run);
}

// The export is of a time when another NVRAM had the set's writes, and that is not here.
Task<void> import_of_another_nvram(Executor* home, Left* left) {
  co_await import_before_the_write(home, left);
  ImageUuid another{};
  another.fill(std::byte{9});
  left->books.entries["dirty/" + format_uuid(kSetUuid)] = encode(DirtyRecord{.nvram = another});
}

Task<void> replaced_nvram(Executor& home) {
  Left left(home);
  co_await import_of_another_nvram(&home, &left);
  const Books::Entries imported = left.books.entries;
  const testing::Content board_then(left.board);
  for (int start = 0; start < 2; ++start) {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    CHECK(run->told("cache stale") == 0);
    CHECK_THAT(run->cache->bar(kSetUuid), Catch::Contains("sandbay cache adopt r"));
    CHECK_THAT(run->cache->bar(kSetUuid), Catch::Contains("09090909"));
    CHECK(run->cache->may_adopt(kSetUuid));
    co_await testing::end(*run);
  }
  {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    const auto adopted = co_await run->cache->adopt(kSetUuid);
    REQUIRE(adopted.has_value());
    const int now = co_await testing::read(run->cache->above(kSetUuid, *left.set), 0);
    CHECK(now == 7);
    co_await testing::end(*run);
  }
  // The other answer: then the set waits for the NVRAM that the export names.
  left.books.entries = imported;
  board_then.put_into(left.board);
  for (int start = 0; start < 2; ++start) {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    if (start == 0) {
      const auto given = co_await run->cache->discard(kSetUuid);
      REQUIRE(given.has_value());
      CHECK(given->byte_count == 4096);
    }
    CHECK_THAT(run->cache->bar(kSetUuid), Catch::StartsWith("its newest writes are in NVRAM 0909"));
    CHECK_FALSE(run->cache->may_adopt(kSetUuid));
    co_await testing::end(*run);
  }
  const auto run = co_await testing::begin(home, left.books, left.rack);
  const auto given = co_await run->cache->discard(kSetUuid);
  REQUIRE(given.has_value());
  CHECK(run->cache->bar(kSetUuid).empty());
  co_await testing::end(*run);
}

// Before an operator has said anything, the NVRAM that the export names is put back.
Task<void> nvram_put_back(Executor& home) {
  Left left(home);
  co_await import_of_another_nvram(&home, &left);
  nvram::SimulatedBoard other(24 * kMiB);
  Rack rack{.nvram = &other};
  ImageUuid uuid{};
  {
    Books books(home);
    const auto run = co_await testing::begin(home, books, rack);
    uuid = run->nvram->uuid();
    co_await testing::end(*run);
  }
  left.books.entries["dirty/" + format_uuid(kSetUuid)] = encode(DirtyRecord{.nvram = uuid});
  {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    CHECK(run->cache->may_adopt(kSetUuid));
    co_await testing::end(*run);
  }
  const auto run = co_await testing::begin(home, left.books, rack);
  CHECK(run->cache->bar(kSetUuid).empty());
  CHECK_FALSE(run->cache->may_adopt(kSetUuid));
  co_await testing::end(*run);
}

// The mirror failed after the export, and has kept a write that is overwritten by now.
Task<void> old_mirror(Executor& home) {
  Left left(home);
  nvram::SimulatedBoard mirror(24 * kMiB);
  left.rack.mirror = &mirror;
  co_await testing::leave_dirty(home, left.books, left.rack, *left.set);
  const Books::Entries older = left.books.entries;
  const testing::Content mirror_then(mirror);
  {
    const auto run = co_await testing::begin(home, left.books, left.rack);
    (void)run->cache->above(kSetUuid, *left.set);
    const auto flushed = co_await run->cache->flush(std::nullopt);
    REQUIRE(flushed.has_value());
    co_await testing::end(*run);
  }
  Error error = co_await testing::write(*left.set, 0, 9);
  REQUIRE(error == Error::kNone);
  mirror_then.put_into(mirror);
  co_await take_in(&left.books, text_of(older));
  const auto run = co_await testing::begin(home, left.books, left.rack);
  const int now = co_await testing::read(run->cache->above(kSetUuid, *left.set), 0);
  CHECK(now == 9);
  co_await testing::end(*run);
}

// A volume that was made after the export had the blocks that a new one gets --------------------

std::string set_in(const sandbay::testing::ScratchDirectory& scratch) {
  return fmt::format(
      "[[drive]]\nname = \"d0\"\nfile = \"{}\"\nsize = \"72MiB\"\n"
      "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n",
      scratch.file("d0"));
}

Task<void> make_on_set(Group* group, std::string name, std::uint64_t bytes) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = bytes;
  request.specification.backing = Backing::kRaid;
  request.specification.raid = "a";
  request.access.push_back({.initiator = "*"});
  const auto made = co_await group->create_volume(std::move(request));
  INFO((made ? std::string() : made.error().message));
  REQUIRE(made.has_value());
}

constexpr std::uint32_t kRuns = 16;

Task<void> write_after_export(Group* group, std::string* text) {
  co_await make_on_set(group, "a", kMiB);
  const auto exported = co_await group->export_group();
  REQUIRE(exported.has_value());
  *text = export_text(*exported);
  co_await make_on_set(group, "b", kRuns * testing::kRunBytes);
  const auto session =
      co_await testing::log_in(group->portals()[0].listen, "iqn.2026-11.org.sandbay:b");
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::write_runs(session.get(), kRuns, 0xAB);
  co_await session->close();
}

Task<void> read_new_volume(Group* group) {
  co_await make_on_set(group, "c", kRuns * testing::kRunBytes);
  const auto session =
      co_await testing::log_in(group->portals()[0].listen, "iqn.2026-11.org.sandbay:c");
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::check_runs(session.get(), kRuns, 0);
  co_await session->close();
}

Task<void> take_in_at(std::string metadata, std::string text) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  REQUIRE(store.has_value());
  co_await take_in(store->get(), std::move(text));
  co_await (*store)->close();
}

}  // namespace

TEST_CASE("An import forgets how far sets were used, and calls mirrors stale", "[import][G-S2]") {
  sandbay::testing::run_in_world(1, forget_hardware);
}
TEST_CASE("The records from before an import come back until a start succeeds", "[import][X4]") {
  sandbay::testing::run_on_reactor(go_back);
}
TEST_CASE("The records from before an import report map changes that only an NVRAM has",
          "[import][pool][G-I3]") {
  const Uuid log = GENERATE(Uuid{}, kSetUuid);
  sandbay::testing::run_on_reactor([&](Executor& home) { return keep_checkpoints(home, log); });
}
TEST_CASE("The records from before an import stay whole when their record cannot be erased",
          "[import][G-I9]") {
  sandbay::testing::run_on_reactor(fail_to_forget);
}
TEST_CASE("A start names the way back when the file of an import is damaged", "[import][G-I10]") {
  sandbay::testing::run_on_reactor(damage_import);
}
TEST_CASE("An import that is cut keeps the records from before it", "[import][X4]") {
  sandbay::testing::run_on_reactor(cut_import);
}
TEST_CASE("An import into a new state directory keeps no records", "[import][X4]") {
  sandbay::testing::run_on_reactor(import_into_nothing);
}
TEST_CASE("Writes in NVRAM are not dropped because an import names another", "[group][cache][N7]") {
  sandbay::testing::run_in_world(1, replaced_nvram);
  sandbay::testing::run_in_world(1, nvram_put_back);
}

TEST_CASE("Writes in NVRAM that an import does not know of bar their set until they are adopted",
          "[import][cache][G-S2]") {
  sandbay::testing::run_in_world(1, adopt_by_word);
}
TEST_CASE("Writes in NVRAM that an import does not know of can be discarded",
          "[import][cache][G-S2]") {
  sandbay::testing::run_in_world(1, discard_by_word);
}
TEST_CASE("An import does not bring back what a failed mirror has kept", "[import][cache][G-S2]") {
  sandbay::testing::run_in_world(1, old_mirror);
}

TEST_CASE("A volume that is made after an import shows nothing of one that it forgot",
          "[import][group][G-S2]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = set_in(scratch);
  const std::filesystem::path state = scratch.file("state");
  std::string text;
  std::string error = run_group(state, sections, 1,
                                [&](Group& group) { return write_after_export(&group, &text); });
  REQUIRE(error == "");
  {
    const auto directory = StateDirectory::open(state);
    REQUIRE(directory.has_value());
    auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
    REQUIRE(reactors.has_value());
    (*reactors)->run([&] { return take_in_at(directory->metadata().string(), text); });
  }
  error = run_group(state, sections, 1, [](Group& group) { return read_new_volume(&group); });
  CHECK(error == "");
}

}  // namespace sandbay::group::import_test
