// Reserves of snapshots in a running group: a host overwrites its volume, and what its snapshots
// keep costs the oldest of them, or takes them offline.
#include <algorithm>
#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "runtime/buffer.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::reserve_test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kRack =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

using Session = std::unique_ptr<iscsi::InitiatorSession>;

Task<Session> log_in(Group* group, std::string target) {
  iscsi::InitiatorOptions options;
  options.endpoint = Endpoint::parse(group->portals()[0].listen).value();
  options.initiator_name = "iqn.2026-11.org.sandbay:tester";
  options.target_name = std::move(target);
  options.reconnect = false;
  auto session = co_await iscsi::InitiatorSession::login(std::move(options));
  if (!session) FAIL(session.error().message);
  co_return std::move(*session);
}

// So many chunks of 64 KiB from the first on, also past the unit attentions of a new nexus.
Task<void> write_chunks(iscsi::InitiatorSession* session, unsigned count) {
  constexpr std::size_t kBytes = std::size_t{64} << 10;
  for (unsigned chunk = 0; chunk < count; ++chunk) {
    bool good = false;
    for (int tries = 0; tries < 8 && !good; ++tries) {
      iscsi::ScsiRequest request;
      request.cdb[0] = std::byte{0x2a};  // WRITE (10) of 128 blocks.
      request.cdb[4] = static_cast<std::byte>(chunk >> 1U);
      request.cdb[5] = static_cast<std::byte>((chunk & 1U) << 7U);
      request.cdb[8] = std::byte{128};
      request.data_out = co_await Executor::current().buffers().allocate(kBytes);
      const auto reply = co_await session->execute(std::move(request));
      good = reply.result.good();
    }
    REQUIRE(good);
  }
}

Task<void> make_volume(Group* group, SnapshotReserve reserve, ReservePolicy policy) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  VolumeSpecification& s = request.specification;
  s.name = "v";
  s.size_bytes = 16 * kMiB;
  s.snapshot_reserve = reserve;
  s.reserve_policy = policy;
  request.access.push_back({.initiator = "*"});
  const auto made = co_await group->create_volume(std::move(request));
  if (!made) FAIL(made.error().message);
}

Task<void> take(Group* group, std::string name) {
  const auto taken = co_await group->create_snapshots({.volumes = {"v"}, .name = name});
  if (!taken) FAIL(taken.error().message);
}

// Their names, oldest first, when there are so many; or whatever there is after some seconds.
Task<std::string> names(Group* group, std::size_t count) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    const auto list = co_await group->list_snapshots("v");
    text.clear();
    for (const SnapshotInfo& one : *list) text += one.name + " ";
    if (list->size() == count) break;
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  co_return text;
}

// It is told when it is done.
Task<bool> told(Group* group, std::string words) {
  for (int i = 0; i < 100; ++i) {
    const auto events = co_await group->list_events(0);
    const bool there = std::ranges::any_of(events, [&](const EventInfo& event) {
      return event.kind == "snapshot reserve" && event.text.find(words) != std::string::npos;
    });
    if (there) co_return true;
    co_await Executor::current().sleep_for(milliseconds(50));
  }
  co_return false;
}

Task<void> lose_the_oldest(Group& group) {
  co_await make_volume(&group, {.byte_count = kMiB}, ReservePolicy::kDeleteOldest);
  const Session host = co_await log_in(&group, "iqn.2026-11.org.sandbay:v");
  co_await write_chunks(host.get(), 10);
  for (const char* name : {"a", "b", "c"}) {
    co_await take(&group, name);
    co_await write_chunks(host.get(), 4);
  }
  const auto list = co_await group.list_snapshots("v");
  REQUIRE(list->size() == 3);
  for (const SnapshotInfo& one : *list) CHECK(one.kept_bytes == kMiB / 4);
  auto volume = co_await group.show_volume("v");
  CHECK(volume->snapshot_bytes == kMiB / 4 * 3);
  CHECK(volume->reserve_bytes == kMiB);
  // The oldest is in use, so the next one goes; what the oldest sees of it stays.
  const auto online = co_await group.online_snapshot({"v", "a"}, false);
  REQUIRE(online.has_value());
  const Session reader = co_await log_in(&group, online->target);
  co_await write_chunks(host.get(), 10);
  auto left = co_await names(&group, 2);
  CHECK(left == "a c ");
  const bool deleted = co_await told(&group, "snapshot b is deleted");
  CHECK(deleted);
  co_await Executor::current().sleep_for(milliseconds(1500));
  left = co_await names(&group, 2);
  CHECK(left == "a c ");
  volume = co_await group.show_volume("v");
  CHECK(volume->snapshot_bytes <= kMiB);
  CHECK(volume->reserve_deleted == 1);
  CHECK(volume->reserve_taken_offline == 0);
  // Those that nobody uses go when less is left for them.
  co_await reader->close();
  const auto less = co_await group.change_volume(
      "v", {.snapshot_reserve = SnapshotReserve{.byte_count = 64 << 10}});
  REQUIRE(less.has_value());
  left = co_await names(&group, 0);
  CHECK(left.empty());
  co_await take(&group, "d");
  co_await write_chunks(host.get(), 1);
  co_await Executor::current().sleep_for(milliseconds(1500));
  left = co_await names(&group, 1);
  CHECK(left == "d ");
  co_await host->close();
}

Task<void> go_offline(Group& group) {
  co_await make_volume(&group, {.percent = 1}, ReservePolicy::kOffline);
  const Session host = co_await log_in(&group, "iqn.2026-11.org.sandbay:v");
  co_await write_chunks(host.get(), 9);
  co_await take(&group, "a");
  const auto online = co_await group.online_snapshot({"v", "a"}, false);
  REQUIRE(online.has_value());
  co_await write_chunks(host.get(), 8);
  auto shown = co_await group.show_snapshot({"v", "a"});
  for (int i = 0; i < 200 && shown->online; ++i) {
    co_await Executor::current().sleep_for(milliseconds(50));
    shown = co_await group.show_snapshot({"v", "a"});
  }
  CHECK_FALSE(shown->online);
  CHECK(shown->kept_bytes == kMiB / 2);
  const bool said = co_await told(&group, "they are offline, and none is taken");
  CHECK(said);
  const auto volume = co_await group.show_volume("v");
  CHECK(volume->reserve_taken_offline == 1);
  // The volume goes on, and its snapshot stays what it is.
  co_await write_chunks(host.get(), 9);
  const auto more = co_await group.create_snapshots({.volumes = {"v"}, .name = "more"});
  REQUIRE_FALSE(more.has_value());
  CHECK_THAT(more.error().message,
             Catch::Contains("its snapshots take 576 KiB, and have a reserve of 164 KiB"));
  auto again = co_await group.online_snapshot({"v", "a"}, false);
  CHECK_FALSE(again.has_value());
  const auto raised =
      co_await group.change_volume("v", {.snapshot_reserve = SnapshotReserve{.percent = 50}});
  REQUIRE(raised.has_value());
  again = co_await group.online_snapshot({"v", "a"}, false);
  CHECK(again.has_value());
  co_await host->close();
}

TEST_CASE("A full reserve costs the oldest snapshot that nobody uses", "[group][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), kRack, 1, lose_the_oldest);
  if (!error.empty()) FAIL(error);
}

TEST_CASE("Snapshots are offline while their reserve is full, where that is wanted",
          "[group][snapshot]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), kRack, 1, go_offline);
  if (!error.empty()) FAIL(error);
}

}  // namespace
}  // namespace sandbay::group::reserve_test
