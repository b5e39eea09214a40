// Schedules and reserves delete snapshots by themselves, but no snapshot that a host has written
// to.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::retention_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kRack =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

Task<void> make_volume(Group* group) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  request.specification.name = "v";
  request.specification.size_bytes = 16 * kMiB;
  request.access.push_back({.initiator = "*"});
  const auto made = co_await group->create_volume(std::move(request));
  INFO((made ? std::string() : made.error().message));
  REQUIRE(made.has_value());
}

Task<void> keep_what_was_written(Group& group) {
  co_await make_volume(&group);
  const auto scheduled = co_await group.create_schedule(
      {.name = "often", .volume = "v", .every = std::chrono::seconds(1), .keep = 1});
  REQUIRE(scheduled.has_value());
  std::string first;
  for (int i = 0; i < 200 && first.empty(); ++i) {
    const auto list = co_await group.list_snapshots("v");
    if (!list->empty()) first = list->front().name;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  auto online = co_await group.online_snapshot({"v", first}, true);
  REQUIRE(online.has_value());
  auto session = co_await testing::log_in(group.portals()[0].listen, online->target);
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::write_runs(session.get(), 2, 0x5A);
  co_await session->close();
  const auto offline = co_await group.offline_snapshot({"v", first}, true);
  REQUIRE(offline.has_value());
  // Two turns later it would have been the oldest, and the reserve would have deleted it, too.
  const auto full = co_await group.change_volume(
      "v", {.snapshot_reserve = SnapshotReserve{.byte_count = 64 << 10}});
  REQUIRE(full.has_value());
  co_await Executor::current().sleep_for(std::chrono::milliseconds(2500));
  const auto kept = co_await group.show_snapshot({"v", first});
  REQUIRE(kept.has_value());
  const auto events = co_await group.list_events(0);
  CHECK(std::ranges::count_if(events, [](const EventInfo& event) {
          return event.kind == "schedule" &&
                 event.text.find("has taken writes of its own") != std::string::npos;
        }) == 1);
  online = co_await group.online_snapshot({"v", first}, true);
  REQUIRE(online.has_value());
  session = co_await testing::log_in(group.portals()[0].listen, online->target);
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::check_runs(session.get(), 2, 0x5A);
  co_await session->close();
}

}  // namespace

TEST_CASE("Retention keeps a snapshot that was written to", "[group][snapshot][G-C7]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), kRack, 1, keep_what_was_written);
  if (!error.empty()) FAIL(error);
}

}  // namespace sandbay::group::retention_test
