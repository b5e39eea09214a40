// A volume's place on a set while the volume comes and goes: nobody else gets it as long as a drive
// may still change it, and no record of it is left behind.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "group/records.h"
#include "metadata/rocksdb_store.h"
#include "runtime/reactor.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::clearing_places_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

const std::string kSections = R"(
[faults]
enabled = true
seed = 1
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

// So that what is on it has to be cleared.
void write_something(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).close();
  std::filesystem::resize_file(path, 64 * kMiB);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(30 * kMiB));
  file << "what was here before";
  REQUIRE(file.good());
}

CreateVolumeRequest volume_of(std::string name, std::uint64_t size_bytes) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.backing = Backing::kRaid;
  request.specification.raid = "r";
  request.specification.size_bytes = size_bytes;
  return request;
}

Task<std::uint64_t> free_bytes(Group* group) {
  const auto set = co_await group->show_set("r");
  REQUIRE(set.has_value());
  co_return set->free_bytes;
}

// A drive takes its time for a chunk of a volume that is deleted meanwhile.
Task<void> delete_while_held(Group* group) {
  const std::uint64_t before = co_await free_bytes(group);
  const auto fault = co_await group->add_faults(
      {"at=drive:d0 op=unmap,write_zeroes origin=clearing do=slow latency=2500ms..2500ms count=1"});
  REQUIRE(fault.has_value());
  auto made = co_await group->create_volume(volume_of("a", 40 * kMiB));
  REQUIRE(made.has_value());
  co_await Executor::current().sleep_for(50ms);
  const auto deleted = co_await group->delete_volume("a", false);
  REQUIRE(deleted.has_value());
  std::uint64_t now_free = co_await free_bytes(group);
  CHECK(now_free == before - 40 * kMiB);
  made = co_await group->create_volume(volume_of("b", 40 * kMiB));
  CHECK_FALSE(made.has_value());
  for (unsigned i = 0; now_free != before && i < 1000; ++i) {
    co_await Executor::current().sleep_for(20ms);
    now_free = co_await free_bytes(group);
  }
  CHECK(now_free == before);
  made = co_await group->create_volume(volume_of("b", 40 * kMiB));
  CHECK(made.has_value());
}

// The end comes while it is held.
Task<void> end_while_held(Group* group) {
  const auto fault = co_await group->add_faults(
      {"at=drive:d0 op=unmap,write_zeroes origin=clearing do=slow latency=1500ms..1500ms count=1"});
  REQUIRE(fault.has_value());
  const auto made = co_await group->create_volume(volume_of("c", 20 * kMiB));
  REQUIRE(made.has_value());
  co_await Executor::current().sleep_for(50ms);
  const auto deleted = co_await group->delete_volume("c", false);
  CHECK(deleted.has_value());
}

Task<void> leave_remains(metadata::Store* store) {
  metadata::Batch batch;
  for (const std::uint8_t byte : {3, 7}) {
    Uuid uuid{};
    uuid.fill(byte);
    batch.put(clearing_key(uuid), "of a volume that is gone");
    batch.put(clearing_key(uuid) + "/0000000000000000/00000001", "0");
  }
  const Error error = co_await store->commit(std::move(batch));
  CHECK(error == Error::kNone);
}

Task<void> count_records(metadata::Store* store, std::size_t* records) {
  const auto found = co_await store->list(std::string(kClearingPrefix), "", 100);
  REQUIRE(found.has_value());
  *records = found->size();
}

void use_store(const std::filesystem::path& state,
               const std::function<Task<void>(metadata::Store*)>& use) {
  auto reactor = ReactorGroup::create({.count = 1});
  REQUIRE(reactor.has_value());
  const auto with = [](std::string path,
                       const std::function<Task<void>(metadata::Store*)>* then) -> Task<void> {
    auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = path});
    REQUIRE(store.has_value());
    co_await (*then)(store->get());
    co_await (*store)->close();
  };
  (*reactor)->run([&] { return with((state / "metadata").string(), &use); });
}

Task<void> make_one(Group* group) {
  const auto made = co_await group->create_volume(volume_of("d", 8 * kMiB));
  CHECK(made.has_value());
}

}  // namespace

TEST_CASE("The place of a deleted volume is taken as long as a drive may change it",
          "[clearing][group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) write_something(state / name);
  CHECK(run_group(state, kSections, 1, [](Group& group) { return delete_while_held(&group); }) ==
        "");
  CHECK(run_group(state, kSections, 1, [](Group& group) { return end_while_held(&group); }) == "");
}

TEST_CASE("What was to be cleared of volumes that are gone is forgotten", "[clearing][group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  for (const char* name : {"drives/d0.img", "drives/d1.img"}) write_something(state / name);
  CHECK(run_group(state, kSections, 1, [](Group& group) { return make_one(&group); }) == "");
  std::size_t before = 0;
  use_store(state, [&](metadata::Store* store) { return count_records(store, &before); });
  use_store(state, leave_remains);
  std::size_t records = 0;
  use_store(state, [&](metadata::Store* store) { return count_records(store, &records); });
  CHECK(records == before + 4);
  CHECK(run_group(state, kSections, 1, [](Group&) -> Task<void> { co_return; }) == "");
  use_store(state, [&](metadata::Store* store) { return count_records(store, &records); });
  CHECK(records <= before);
}

}  // namespace sandbay::group::clearing_places_test
