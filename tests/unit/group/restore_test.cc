// Restoring a volume that hosts use: nothing that they sent before is in the restored content, and
// they learn of it before they see any of it. Making one read-only: nothing that they sent before
// changes it afterwards. Our own initiator is logged in over loopback.
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::restore_test {
namespace {

using testing::HostReply;
using testing::HostSession;

const std::string kSections =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n"
    "[[volume]]\nname = \"v\"\nsize = \"8MiB\"\npool = \"p\"\nthin = true\n"
    "  [[volume.access]]\n  initiator = \"*\"\n";

struct Sent {
  bool done = false;
  iscsi::ScsiResult result;
};

Task<void> write_later(iscsi::InitiatorSession* session, std::uint32_t index, Sent* sent) {
  const HostReply reply = co_await testing::write_run(session, index, 2);
  sent->result = reply.result;
  sent->done = true;
}

// Sent while a limit lets two pass in a second, with time for them to arrive.
constexpr std::uint32_t kQueued = 16;

Task<void> queue_writes(iscsi::InitiatorSession* session, std::vector<Sent>* sent) {
  for (std::uint32_t i = 0; i < kQueued; ++i) spawn(write_later(session, i, &sent->at(i)));
  co_await Executor::current().sleep_for(std::chrono::milliseconds(300));
}

Task<void> wait_for_all(std::vector<Sent>* sent) {
  for (const Sent& one : *sent) {
    for (int i = 0; i < 1000 && !one.done; ++i) {
      co_await Executor::current().sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(one.done);
  }
}

// How many of them were refused as cleared; the others took effect before the restore.
long cleared_of(const std::vector<Sent>& sent) {
  long cleared = 0;
  for (const Sent& one : sent) {
    if (one.result.good()) continue;
    CHECK(one.result.sense_key() == scsi::SenseKey::kAbortedCommand);
    CHECK(one.result.additional() == scsi::Additional::kCommandsClearedByDeviceServer);
    ++cleared;
  }
  return cleared;
}

Task<void> restore_with_writes_queued(Group& group, bool offline) {
  const HostSession session =
      co_await testing::log_in(group.portals()[0].listen, "iqn.2026-11.org.sandbay:v");
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::write_runs(session.get(), kQueued, 1);
  const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = "s"});
  REQUIRE(taken.has_value());
  const auto limited = co_await group.change_volume("v", {.operations_limit = 2});
  REQUIRE(limited.has_value());
  std::vector<Sent> sent(kQueued);
  co_await queue_writes(session.get(), &sent);
  if (offline) {
    const auto changed = co_await group.change_volume("v", {.online = false});
    REQUIRE(changed.has_value());
    // Those that waited have ended, long before the limit would have let them pass.
    co_await Executor::current().sleep_for(std::chrono::milliseconds(500));
    for (const Sent& one : sent) CHECK(one.done);
  }
  const auto restored = co_await group.restore_snapshot({"v", "s"}, !offline);
  REQUIRE(restored.has_value());
  const auto unlimited = co_await group.change_volume("v", {.operations_limit = 0});
  REQUIRE(unlimited.has_value());
  const auto back = co_await group.change_volume("v", {.online = true});
  REQUIRE(back.has_value());
  co_await wait_for_all(&sent);
  CHECK(cleared_of(sent) > 0);
  const HostReply told = co_await testing::read_run(session.get(), 0);
  CHECK(told.result.sense_key() == scsi::SenseKey::kUnitAttention);
  CHECK(told.result.additional() == scsi::Additional::kMediumMayHaveChanged);
  co_await testing::check_runs(session.get(), kQueued, 1);
  co_await session->close();
}

Task<void> read_only_with_writes_queued(Group& group) {
  CreateVolumeRequest request;  // Only the file changes a volume that it declares.
  request.specification.name = "w";
  request.specification.backing = Backing::kPool;
  request.specification.pool = "p";
  request.specification.thin = true;
  request.specification.size_bytes = std::uint64_t{8} << 20;
  const auto made = co_await group.create_volume(request);
  REQUIRE(made.has_value());
  const auto access = co_await group.add_access("w", {});
  REQUIRE(access.has_value());
  const HostSession session =
      co_await testing::log_in(group.portals()[0].listen, "iqn.2026-11.org.sandbay:w");
  REQUIRE(session != nullptr);
  co_await testing::settle(session.get());
  co_await testing::write_runs(session.get(), kQueued, 1);
  const auto limited = co_await group.change_volume("w", {.operations_limit = 2});
  REQUIRE(limited.has_value());
  std::vector<Sent> sent(kQueued);
  co_await queue_writes(session.get(), &sent);
  const auto changed = co_await group.change_volume("w", {.read_only = true});
  REQUIRE(changed.has_value());
  const auto unlimited = co_await group.change_volume("w", {.operations_limit = 0});
  REQUIRE(unlimited.has_value());
  co_await wait_for_all(&sent);
  CHECK(cleared_of(sent) > 0);
  co_await testing::settle(session.get());
  for (std::uint32_t run = 0; run < kQueued; ++run) {
    CAPTURE(run);
    const HostReply reply = co_await testing::read_run(session.get(), run);
    REQUIRE(reply.result.good());
    std::array<std::byte, 1> first{};
    reply.data_in.copy_to(first);
    CHECK(first[0] == std::byte{sent[run].result.good() ? std::uint8_t{2} : std::uint8_t{1}});
  }
  co_await session->close();
}

}  // namespace

TEST_CASE("A volume that becomes read-only ends the writes that are queued",
          "[group][volume][N14]") {
  const unsigned reactors = GENERATE(1U, 2U);
  CAPTURE(reactors);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), kSections, reactors, [](Group& group) {
    return read_only_with_writes_queued(group);
  });
  if (!error.empty()) FAIL(error);
}

TEST_CASE("A restored volume has nothing of the writes that were queued before",
          "[group][snapshot][G-S5]") {
  const bool offline = GENERATE(true, false);
  const unsigned reactors = GENERATE(1U, 2U);
  CAPTURE(offline, reactors);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error =
      run_group(scratch.file("state"), kSections, reactors,
                [offline](Group& group) { return restore_with_writes_queued(group, offline); });
  if (!error.empty()) FAIL(error);
}

}  // namespace sandbay::group::restore_test
