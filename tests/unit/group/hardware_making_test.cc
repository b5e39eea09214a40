// Making sets: what is erased when that is cut short, and what a new volume shows of drives that
// were not as blank as they looked.
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "group/records.h"
#include "raid/superblock.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::hardware_making_test {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kDriveBytes = 64 * kMiB;

const std::string kMirror = R"(
[[drive]]
name = "d0"
file = "drives/d0.img"
size = "64MiB"
[[drive]]
name = "d1"
file = "drives/d1.img"
size = "64MiB"
[[raid]]
name = "r"
level = "raid1"
drives = ["d0", "d1"]
)";

using StoreTest = std::function<Task<void>(metadata::Store& store)>;

Task<void> open_and_use(std::string path, const StoreTest* use) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = path});
  REQUIRE(store.has_value());
  co_await (*use)(**store);
  co_await (*store)->close();
}

void use_store(const std::filesystem::path& state, const StoreTest& use) {
  const auto directory = StateDirectory::open(state);
  REQUIRE(directory.has_value());
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(group.has_value());
  (*group)->run([&] { return open_and_use(directory->metadata().string(), &use); });
}

Task<void> put(metadata::Store* store, std::string key, std::string value) {
  metadata::Batch batch;
  batch.put(key, value);
  const Error error = co_await store->commit(std::move(batch));
  CHECK(error == Error::kNone);
}

Task<void> has_no_intent(metadata::Store& store) {
  const auto found = co_await store.list(std::string(kMakingPrefix), "", 10);
  REQUIRE(found.has_value());
  CHECK(found->empty());
}

std::vector<std::byte> read_file(const std::filesystem::path& path, std::uint64_t offset,
                                 std::size_t byte_count) {
  std::vector<std::byte> bytes(byte_count);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(byte_count));
  REQUIRE(file.gcount() == static_cast<std::streamsize>(byte_count));
  return bytes;
}

// A drive's file of the right size with these bytes at `offset`.
void make_drive(const std::filesystem::path& path, std::uint64_t offset,
                const std::vector<std::byte>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).close();
  std::filesystem::resize_file(path, kDriveBytes);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

bool all_are(const std::vector<std::byte>& bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte one) { return one == std::byte(value); });
}

Task<void> nothing(Group& /*group*/) { co_return; }

const std::vector<std::byte> kData(64 << 10, std::byte{0xab});

TEST_CASE("Another disk under a drive's name is not erased for a set that was begun",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const MakingRecord making{
      .set = Uuid{1}, .drives = {"d0", "d1"}, .drive_uuids = {Uuid{2}, Uuid{3}}};
  const std::string intent =
      GENERATE(0, 1) == 0 ? encode(making) : R"({"format":1,"drives":["d0","d1"]})";
  make_drive(state / "drives/d0.img", 8192, kData);
  use_store(state,
            [&intent](metadata::Store& store) { return put(&store, making_key("r"), intent); });
  CHECK(run_group(state, kMirror, 1, nothing) == "");
  CHECK(read_file(state / "drives/d0.img", 8192, kData.size()) == kData);
  use_store(state, has_no_intent);
}

Task<void> note_uuid(Group* group, Uuid* uuid) {
  const auto set = co_await group->show_set("r");
  REQUIRE(set.has_value());
  *uuid = set->raid.uuid;
}

Uuid drive_uuid(const std::filesystem::path& path) {
  const auto superblock = raid::decode_superblock(read_file(path, 0, raid::kSuperblockBytes));
  REQUIRE(superblock.has_value());
  return superblock->superblock.drive_uuid;
}

Task<void> begin_again(metadata::Store* store, MakingRecord making) {
  metadata::Batch batch;
  batch.put(making_key("r"), encode(making));
  batch.erase(set_key(making.set));
  batch.erase(used_key(making.set));
  const Error error = co_await store->commit(std::move(batch));
  CHECK(error == Error::kNone);
}

Task<void> was_made_anew(Group* group, Uuid before) {
  Uuid now{};
  co_await note_uuid(group, &now);
  CHECK(now != before);
  const auto set = co_await group->show_set("r");
  CHECK(set->raid.running);
  const auto events = co_await group->list_events(0);
  CHECK(std::ranges::count(events, "drive erased", &EventInfo::kind) == 2);
}

TEST_CASE("What was written of a set that was begun is erased, and the set is made anew",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const auto other = std::filesystem::path(scratch.file("other"));
  Uuid set{};
  REQUIRE(run_group(state, kMirror, 1, [&set](Group& group) { return note_uuid(&group, &set); }) ==
          "");
  const MakingRecord making{
      .set = set,
      .drives = {"d0", "d1"},
      .drive_uuids = {drive_uuid(state / "drives/d0.img"), drive_uuid(state / "drives/d1.img")}};
  use_store(state, [&making](metadata::Store& store) { return begin_again(&store, making); });
  SECTION("as it was left") {
    CHECK(run_group(state, kMirror, 1,
                    [set](Group& group) { return was_made_anew(&group, set); }) == "");
  }
  SECTION("but not the drive of another set of that name") {
    REQUIRE(run_group(other, kMirror, 1, nothing) == "");
    std::filesystem::copy_file(other / "drives/d0.img", state / "drives/d0.img",
                               std::filesystem::copy_options::overwrite_existing);
    CHECK(run_group(state, kMirror, 1, nothing) == "");
    CHECK(drive_uuid(state / "drives/d0.img") == drive_uuid(other / "drives/d0.img"));
  }
  SECTION("but not where something else stands beside it") {
    auto file =
        std::fstream(state / "drives/d0.img", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(32 << 10);
    file.write("mine", 4);
    file.close();
    CHECK(run_group(state, kMirror, 1, nothing) == "");
    CHECK(read_file(state / "drives/d0.img", 32 << 10, 4)[0] == std::byte{'m'});
  }
}

Task<void> is_refused(Group& group) {
  const auto set = co_await group.show_set("r");
  REQUIRE(set.has_value());
  CHECK(!set->raid.running);
}

Task<void> names_the_drive_that_is_not_there(Group& group) {
  const auto set = co_await group.show_set("r");
  REQUIRE(set.has_value());
  CHECK_THAT(set->raid.refusal, Catch::Contains("drive d1 is not there: ") &&
                                    Catch::Contains("nowhere/d1.img") && !Catch::Contains("erase"));
}

TEST_CASE("A set whose drive is not there is not told to erase it", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  std::string text = kMirror;
  text.replace(text.find("drives/d1.img"), 6, "nowhere");
  CHECK(run_group(scratch.file("state"), text, 1, names_the_drive_that_is_not_there) == "");
}

TEST_CASE("A set that is refused leaves neither an intent nor anything on its drives",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  CHECK(run_group(state,
                  kMirror + "[faults]\nenabled = true\nrules = [\"at=drive:d1 op=write "
                            "do=write.error\"]\n",
                  1, is_refused) == "");
  use_store(state, has_no_intent);
  CHECK(all_are(read_file(state / "drives/d0.img", 0, 2 * kMiB), 0));
}

Task<void> make_volume(Group& group) {
  VolumeSpecification wanted{
      .name = "v", .backing = Backing::kRaid, .raid = "r", .size_bytes = 48 * kMiB};
  const auto made = co_await group.create_volume({.specification = wanted});
  INFO((made ? std::string() : made.error().message));
  CHECK(made.has_value());
}

std::uint64_t stored_bytes(const std::filesystem::path& path) {
  struct stat about{};
  REQUIRE(::stat(path.c_str(), &about) == 0);
  return static_cast<std::uint64_t>(about.st_blocks) * 512;
}

// Its place is cleared while it is there.
Task<void> becomes_cleared(Group& group) {
  for (unsigned i = 0;; ++i) {
    const auto volume = co_await group.show_volume("v");
    REQUIRE(volume.has_value());
    if (volume->uncleared_bytes == 0) break;
    REQUIRE(i < 1000);
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
}

Task<void> make_and_clear(Group& group) {
  co_await make_volume(group);
  co_await becomes_cleared(group);
}

Task<void> make_anew(Group& group) {
  co_await make_volume(group);
  const auto deleted = co_await group.delete_volume("v", false);
  CHECK(deleted.has_value());
  co_await make_and_clear(group);
}

Task<void> make_and_expand(Group& group) {
  VolumeSpecification wanted{
      .name = "v", .backing = Backing::kRaid, .raid = "r", .size_bytes = 10 * kMiB};
  const auto made = co_await group.create_volume({.specification = wanted});
  CHECK(made.has_value());
  const auto grown = co_await group.change_volume("v", {.size_bytes = 48 * kMiB});
  CHECK(grown.has_value());
  co_await becomes_cleared(group);
}

Task<void> nothing_is_left_to_clear(metadata::Store& store) {
  const auto found = co_await store.list(std::string(kClearingPrefix), "", 10);
  REQUIRE(found.has_value());
  CHECK(found->empty());
}

TEST_CASE("A new volume shows nothing of what was on drives that look blank", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const bool later = GENERATE(false, true);
  const bool anew = GENERATE(false, true);
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) {
    make_drive(state / name, 30 * kMiB, kData);
  }
  if (later) CHECK(run_group(state, kMirror, 1, nothing) == "");
  CHECK(run_group(state, kMirror, 2, anew ? make_anew : make_and_expand) == "");
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) {
    CHECK(all_are(read_file(state / name, 30 * kMiB, kData.size()), 0));
  }
  use_store(state, nothing_is_left_to_clear);
}

TEST_CASE("Clearing a new volume goes on after a restart", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) {
    make_drive(state / name, 30 * kMiB, kData);
  }
  CHECK(run_group(state, kMirror, 1, make_volume) == "");
  CHECK(run_group(state, kMirror, 1, becomes_cleared) == "");
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) {
    CHECK(all_are(read_file(state / name, 30 * kMiB, kData.size()), 0));
  }
  use_store(state, nothing_is_left_to_clear);
}

TEST_CASE("Nothing is cleared for a volume on drives that are nothing but holes",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  if (GENERATE(false, true)) CHECK(run_group(state, kMirror, 1, nothing) == "");
  CHECK(run_group(state, kMirror, 1, make_volume) == "");
  CHECK(stored_bytes(state / "drives/d0.img") < 8 * kMiB);
}

}  // namespace
}  // namespace sandbay::group::hardware_making_test
