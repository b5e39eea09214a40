// What may happen between two commits of a change of pools: others' changes, a crash, a clock that
// is put elsewhere, and metadata that are an older copy when the daemon comes back.
#include <fmt/chrono.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "group/event_log.h"
#include "group/pool_records.h"
#include "group/records.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group::pool_steps_test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::string member(const std::string& name, const std::string& set) {
  return fmt::format(
      "[[member]]\nname = \"{0}\"\n"
      "[[member.drive]]\nname = \"{1}-drive\"\nfile = \"drives/d\"\nsize = \"72MiB\"\n"
      "[[member.raid]]\nname = \"{1}\"\nlevel = \"jbod\"\ndrives = [\"{1}-drive\"]\n"
      "journal = \"1MiB\"\n",
      name, set);
}

const std::string kFirst =
    "[[drive]]\nname = \"d0\"\nfile = \"../d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n";
const std::string kPool =
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\nmembers = [\"array1\", \"array2\"]\n";

CreateVolumeRequest asked(std::string name, std::uint64_t bytes) {
  CreateVolumeRequest request{.open = {.thin = true, .block_bytes = true}};
  request.specification.name = std::move(name);
  request.specification.size_bytes = bytes;
  request.specification.backing = Backing::kPool;
  request.specification.pool = "p";
  return request;
}

void run(const sandbay::testing::ScratchDirectory& scratch, const std::string& sections,
         const GroupTest& test) {
  const std::string error = run_group(scratch.file("state"), sections, 1, test);
  if (!error.empty()) FAIL(error);
}

bool puts(const metadata::Batch& batch, std::string_view prefix) {
  return std::ranges::any_of(batch.changes(), [prefix](const metadata::Batch::Change& change) {
    return change.kind == metadata::Batch::Kind::kPut && change.key.starts_with(prefix);
  });
}

bool erases(const metadata::Batch& batch, std::string_view prefix) {
  return std::ranges::any_of(batch.changes(), [prefix](const metadata::Batch::Change& change) {
    return change.kind == metadata::Batch::Kind::kErase && change.key.starts_with(prefix);
  });
}

// Once armed, holds the first commit that changes a pool's record and its map together, or fails
// all that change a map, or that delete a snapshot.
class SteppingStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }

  void arm() { armed_ = true; }
  Event held;
  Event release;
  bool fails_maps = false;
  bool fails_deletions = false;

 private:
  static Task<Error> do_commit(SteppingStore* self, metadata::Batch batch) {
    if (self->fails_maps && puts(batch, "map/")) co_return Error::kHardware;
    if (self->fails_deletions && erases(batch, kSnapshotPrefix)) co_return Error::kHardware;
    if (self->armed_ && puts(batch, kPoolPrefix) && puts(batch, "map/")) {
      self->armed_ = false;
      self->held.set();
      co_await self->release.wait();
    }
    co_return co_await self->below_.commit(std::move(batch));
  }
  bool armed_ = false;
};

using SteppingTest = Task<void> (*)(Group& group, SteppingStore& store);

Task<void> serve_in_steps(Configuration configuration, std::string metadata, SteppingTest test) {
  auto opened = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!opened) FAIL(opened.error());
  SteppingStore store(**opened);
  auto group = co_await Group::start(std::move(configuration), store);
  if (!group) FAIL(group.error().text);
  co_await test(**group, store);
  co_await (*group)->shutdown();
  co_await store.close();
}

void run_in_steps(const std::filesystem::path& path, const std::string& sections,
                  SteppingTest test) {
  auto configuration = parse_configuration(
      fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = "
                  "\"127.0.0.1:0\"\n{}",
                  path.string(), sections),
      "test.toml");
  if (!configuration) FAIL(configuration.error().front());
  const auto state = StateDirectory::open(path);
  REQUIRE(state);
  for (const MemberConfiguration& one : configuration->members) {
    REQUIRE(state->make_member(one.name).has_value());
  }
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(reactors);
  (*reactors)->run(
      [&] { return serve_in_steps(*configuration, state->metadata().string(), test); });
}

Task<void> make_pool(Group* group, std::string name, Event* ended) {
  const auto made = co_await group->create_pool({.name = name, .members = {}, .page_bytes = kMiB});
  CHECK(made.has_value());
  ended->set();
}

Task<bool> reaches(Group* group, std::string name, std::string state) {
  for (int i = 0; i < 600; ++i) {
    const auto shown = co_await group->show_member(name);
    if (shown.has_value() && shown->state == state) co_return true;
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  co_return false;
}

// The pools are gone over while the member's last set goes; a new one comes between.
TEST_CASE("A pool is made while a member is being seen off", "[group][member]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string others =
      member("array3", "c") + "[[pool]]\nname = \"q\"\npage = \"1MiB\"\nmembers = [\"array3\"]\n";
  run_in_steps(scratch.file("state"), kFirst + member("array2", "b") + kPool + others,
               [](Group& group, SteppingStore& store) -> Task<void> {
                 const auto volume = co_await group.create_volume(asked("v", 20 * kMiB));
                 REQUIRE(volume.has_value());
                 store.arm();
                 const auto leaving = co_await group.remove_member("array2");
                 REQUIRE(leaving.has_value());
                 co_await store.held.wait();
                 Event ended;
                 spawn(make_pool(&group, "r", &ended));
                 co_await Executor::current().sleep_for(milliseconds(200));
                 store.release.set();
                 co_await ended.wait();
                 const bool left = co_await reaches(&group, "array2", "present");
                 CHECK(left);
                 const auto pools = co_await group.list_pools();
                 CHECK(pools.size() == 3);
               });
}

// Its record says already that it stays, and its sets are still to be emptied.
TEST_CASE("A member that was to leave and stays takes pages again, also after a crash",
          "[group][member]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections = kFirst + member("array2", "b") + kPool;
  run_in_steps(scratch.file("state"), sections,
               [](Group& group, SteppingStore& store) -> Task<void> {
                 const auto volume = co_await group.create_volume(asked("v", 40 * kMiB));
                 REQUIRE(volume.has_value());
                 const auto leaving = co_await group.remove_member("array2");
                 REQUIRE(leaving.has_value());
                 CHECK(leaving->sets.at(0).state == "vacating");
                 store.fails_maps = true;
                 (void)co_await group.add_member("array2", "p");
                 const auto shown = co_await group.show_member("array2");
                 CHECK(shown->state == "member");
               });
  run(scratch, sections, [](Group& group) -> Task<void> {
    std::string state;
    for (int i = 0; i < 100 && state != "active"; ++i) {
      const auto shown = co_await group.show_member("array2");
      REQUIRE(shown.has_value());
      CHECK(shown->state == "member");
      state = shown->sets.at(0).state;
      co_await Executor::current().sleep_for(milliseconds(50));
    }
    CHECK(state == "active");
  });
}

Task<void> take_hourly(Group& group) {
  const auto volume = co_await group.create_volume(asked("v", 4 * kMiB));
  REQUIRE(volume.has_value());
  const auto made = co_await group.create_schedule(
      {.name = "hourly", .volume = "v", .every = std::chrono::hours(1), .keep = 2});
  REQUIRE(made.has_value());
  for (int i = 0; i < 100; ++i) {
    const auto list = co_await group.list_snapshots("v");
    if (!list->empty()) co_return;
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  FAIL("none was taken");
}

// All snapshots in the metadata are so much younger, as after a clock that was put back.
Task<void> make_younger(std::string metadata, std::chrono::hours by) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!store) FAIL(store.error());
  const auto list = co_await (*store)->list(std::string(kSnapshotPrefix), "", 10);
  REQUIRE(list.has_value());
  REQUIRE(list->size() == 1);
  metadata::Batch batch;
  for (const auto& [key, value] : *list) {
    auto record = decode_snapshot(value);
    REQUIRE(record.has_value());
    record->time += by;
    batch.put(key, encode(*record));
  }
  const Error error = co_await (*store)->commit(std::move(batch));
  CHECK(error == Error::kNone);
  co_await (*store)->close();
}

TEST_CASE("A clock that is put back floods nobody with snapshots, and silences no schedule",
          "[group][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string pool = kFirst + "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";
  run(scratch, pool, take_hourly);
  {
    const auto state = StateDirectory::open(scratch.file("state"));
    REQUIRE(state);
    auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
    REQUIRE(reactors);
    (*reactors)->run(
        [&] { return make_younger(state->metadata().string(), std::chrono::hours(24)); });
  }
  run(scratch, pool, [](Group& group) -> Task<void> {
    const auto before = co_await group.list_snapshots("v");
    REQUIRE(before->size() == 1);
    co_await Executor::current().sleep_for(std::chrono::seconds(4));
    const auto list = co_await group.list_snapshots("v");
    // The order is that in which they were taken, and the oldest by that goes first.
    REQUIRE(list->size() == 2);
    CHECK(list->at(0).name == before->at(0).name);
    CHECK(list->at(1).time < list->at(0).time);
  });
}

// The names that a schedule would give in the next seconds are those of other snapshots.
Task<void> take_beside_same_names(Group& group) {
  const auto volume = co_await group.create_volume(asked("v", 4 * kMiB));
  REQUIRE(volume.has_value());
  const auto now = std::chrono::floor<std::chrono::seconds>(wall_time());
  constexpr std::size_t kTaken = 12;
  for (std::size_t second = 0; second < kTaken; ++second) {
    const std::string name =
        fmt::format("hourly-{:%Y-%m-%d-%H%M%S}", now + std::chrono::seconds(second));
    const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = name});
    REQUIRE(taken.has_value());
  }
  const auto made = co_await group.create_schedule(
      {.name = "hourly", .volume = "v", .every = std::chrono::hours(1), .keep = 2});
  REQUIRE(made.has_value());
  co_await Executor::current().sleep_for(std::chrono::seconds(2));
  const auto list = co_await group.list_snapshots("v");
  REQUIRE(list->size() == kTaken + 1);
  CHECK_THAT(list->back().name, Catch::StartsWith("hourly-") && Catch::EndsWith("-2"));
}

TEST_CASE("A schedule takes a snapshot when another one has the name of that second",
          "[group][snapshot][P-7]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch, kFirst + "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n", take_beside_same_names);
}

// Deleting fails, taking does not.
Task<void> take_without_deleting(Group& group, SteppingStore& store) {
  const auto volume = co_await group.create_volume(asked("v", 4 * kMiB));
  REQUIRE(volume.has_value());
  const auto longest = co_await group.create_schedule(
      {.name = std::string(46, 'x'), .volume = "v", .every = std::chrono::hours(1), .keep = 1});
  REQUIRE_FALSE(longest.has_value());
  CHECK_THAT(longest.error().message, Catch::Contains("write 45 at most"));
  store.fails_deletions = true;
  const auto made = co_await group.create_schedule(
      {.name = std::string(45, 'x'), .volume = "v", .every = std::chrono::seconds(1), .keep = 1});
  REQUIRE(made.has_value());
  std::size_t taken = 0;
  for (int i = 0; i < 400 && taken < 4; ++i) {
    const auto list = co_await group.list_snapshots("v");
    taken = list->size();
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  CHECK(taken >= 4);
  const auto events = co_await group.list_events(0);
  CHECK(std::ranges::count(events, "schedule", &EventInfo::kind) == 1);
  store.fails_deletions = false;
  for (int i = 0; i < 400 && taken > 1; ++i) {
    const auto list = co_await group.list_snapshots("v");
    taken = list->size();
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  CHECK(taken == 1);
}

TEST_CASE("A schedule goes on where its old snapshots cannot be deleted", "[group][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  run_in_steps(scratch.file("state"), kFirst + "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n",
               take_without_deleting);
}

void copy_state(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

TEST_CASE("Metadata that are older than the drives serve nothing of them", "[group][pool]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string pool = kFirst + "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";
  const auto nothing = [](Group&) -> Task<void> { co_return; };
  run(scratch, pool, [](Group& group) -> Task<void> {
    const auto volume = co_await group.create_volume(asked("v", 4 * kMiB));
    REQUIRE(volume.has_value());
  });
  copy_state(scratch.file("state"), scratch.file("old"));
  run(scratch, pool, nothing);
  copy_state(scratch.file("state"), scratch.file("new"));
  copy_state(scratch.file("old"), scratch.file("state"));
  run(scratch, pool, [](Group& group) -> Task<void> {
    const auto set = co_await group.show_set("a");
    REQUIRE(set.has_value());
    CHECK_FALSE(set->raid.running);
    const auto volume = co_await group.show_volume("v");
    REQUIRE(volume.has_value());
    CHECK(volume->health == "missing");
    const auto events = co_await group.list_events(0);
    CHECK(std::ranges::any_of(events, [](const EventInfo& event) {
      return event.text.find("the metadata are an older copy") != std::string::npos;
    }));
  });
  // The newest serves, as if nothing had been.
  copy_state(scratch.file("new"), scratch.file("state"));
  run(scratch, pool, [](Group& group) -> Task<void> {
    const auto volume = co_await group.show_volume("v");
    REQUIRE(volume.has_value());
    CHECK(volume->health == "good");
  });
}

}  // namespace
}  // namespace sandbay::group::pool_steps_test
