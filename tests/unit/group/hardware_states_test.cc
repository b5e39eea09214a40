// What rules for faults are told of all sets together: it is true as long as it is true of one.
#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/doubtful_store.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

std::string two_mirrors() {
  std::string text;
  for (const char* name : {"a0", "a1", "a2", "b0", "b1", "b2"}) {
    text += fmt::format("[[drive]]\nname = \"{0}\"\nfile = \"drives/{0}.img\"\nsize = \"32MiB\"\n",
                        name);
  }
  for (const char* name : {"a", "b"}) {
    text += fmt::format(
        "[[raid]]\nname = \"{0}\"\nlevel = \"raid1\"\ndrives = [\"{0}0\", \"{0}1\"]\n", name);
  }
  return text + "[faults]\nenabled = true\n";
}

// Whether a rule that waits for nothing else than the state fires.
Task<bool> holds(Group* group, std::string state) {
  const FaultsInfo before = co_await group->list_faults();
  const auto added = co_await group->add_faults({"at=drive:a1 do=smart wear=10 state=" + state});
  REQUIRE(added.has_value());
  const FaultsInfo after = co_await group->list_faults();
  const auto cleared = co_await group->clear_fault(added->front().rule.id);
  CHECK(cleared.has_value());
  co_return after.firings > before.firings;
}

Task<void> replace(Group* group, std::string set) {
  const auto replaced = co_await group->replace_drive(set + ":0", set + "2");
  INFO((replaced ? std::string() : replaced.error().message));
  REQUIRE(replaced.has_value());
  for (unsigned i = 0;; ++i) {
    const auto shown = co_await group->show_set(set);
    REQUIRE(shown.has_value());
    if (shown->raid.health == Health::kGood) break;
    REQUIRE(i < 1000);
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
}

Task<void> states_of_both(Group& group) {
  bool degraded = co_await holds(&group, "degraded");
  CHECK_FALSE(degraded);
  for (const char* drive : {"a0", "b0"}) {
    const auto failed = co_await group.fail_drive(drive);
    REQUIRE(failed.has_value());
  }
  degraded = co_await holds(&group, "degraded");
  CHECK(degraded);
  co_await replace(&group, "a");
  degraded = co_await holds(&group, "degraded");
  CHECK(degraded);  // The other one still is.
  co_await replace(&group, "b");
  for (unsigned i = 0; i < 1000; ++i) {  // What is told follows in a moment.
    degraded = co_await holds(&group, "degraded");
    if (!degraded) break;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  CHECK_FALSE(degraded);
  const bool rebuilding = co_await holds(&group, "rebuilding");
  CHECK_FALSE(rebuilding);
}

// A degraded set waits for its record; the hosts' writes fail meanwhile, and work afterwards.
Task<void> set_of_hung_metadata(Group& group, DoubtfulStore& store, bool /*unused*/) {
  CreateVolumeRequest wanted;
  wanted.specification = {
      .name = "v", .backing = Backing::kRaid, .raid = "a", .size_bytes = 8 << 20};
  wanted.access.push_back({.initiator = "*"});
  const auto made = co_await group.create_volume(wanted);
  INFO((made ? std::string() : made.error().message));
  REQUIRE(made.has_value());
  const auto host =
      co_await testing::log_in(group.portals()[0].listen, "iqn.2026-11.org.sandbay:v");
  REQUIRE(host != nullptr);
  co_await testing::settle(host.get());
  store.hold(std::string(kSetPrefix));
  const TimePoint begun = Executor::current().now();
  const auto failed = co_await group.fail_drive("a0");
  CHECK_FALSE(failed.has_value());
  bool refused = false;
  for (std::uint32_t run = 0; run < 4; ++run) {
    const testing::HostReply reply = co_await testing::write_run(host.get(), run, 1);
    refused |= !reply.result.good();
  }
  CHECK(refused);
  CHECK(Executor::current().now() - begun < std::chrono::seconds(15));
  store.release();
  // The record that was held ends in a moment, and a host whose write timed out tries again.
  bool good = false;
  for (int tries = 0; tries < 100 && !good; ++tries) {
    const testing::HostReply reply = co_await testing::write_run(host.get(), 0, 2);
    good = reply.result.good();
    if (!good) co_await Executor::current().sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(good);
  co_await testing::write_runs(host.get(), 4, 2);
  co_await host->close();
  co_await replace(&group, "a");
}

}  // namespace

TEST_CASE("A set does not wait for metadata that hangs", "[group][hardware][N7]") {
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(std::filesystem::path(scratch.file("state")), two_mirrors(), set_of_hung_metadata,
                 false);
}

TEST_CASE("A state for rules holds as long as it does of one set", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  CHECK(run_group(state, two_mirrors(), 1, states_of_both) == "");
}

}  // namespace sandbay::group
