// Pools and what the NVRAM has of them; and the disk of the metadata when it is full.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/import_file.h"
#include "group/served_pool.h"
#include "nvram/nvram.h"
#include "runtime/known.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/doubtful_store.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kSet =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n";
const std::string kNvram = "[nvram]\nsize = \"16MiB\"\npower_loss_only_emulated = true\n";
const std::string kPool = "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";
const std::string kSections = kSet + kNvram + kPool;

void run(const testing::ScratchDirectory& scratch, const std::string& sections,
         const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), sections, 1, test);
  if (!error.empty()) FAIL(error);
}

Task<void> take(Group* group, std::string name) {
  CreateSnapshotsRequest request;
  request.volumes.push_back("v");
  request.name = std::move(name);
  const auto taken = co_await group->create_snapshots(std::move(request));
  REQUIRE(taken.has_value());
}

Task<void> list_regions(std::string path, std::vector<std::string>* names) {
  auto memory = co_await nvram::Nvram::open(
      Executor::current(),
      {.path = std::move(path), .byte_count = 16 * kMiB, .boot_id = nvram::host_boot_id()});
  if (!memory) FAIL(memory.error());
  for (const nvram::RegionState& region : (*memory)->regions()) names->push_back(region.name);
  co_await (*memory)->close();
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
  const testing::ScratchDirectory scratch;
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
  const testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), kSet + kPool, fill_the_disk, false);
}

}  // namespace
}  // namespace sandbay::group
