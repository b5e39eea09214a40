// Pools and what the NVRAM has of them.
#include <algorithm>
#include <catch2/catch.hpp>

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

}  // namespace
}  // namespace sandbay::group
