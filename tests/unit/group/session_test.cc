// Management against sessions that are there: our own initiator is logged in over loopback while
// volumes are listed, expanded, deleted and sessions dropped.
#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "runtime/buffer.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::session_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

using Code = Refusal::Code;
using Session = std::unique_ptr<iscsi::InitiatorSession>;

Task<std::expected<Session, iscsi::LoginFailure>> log_in(std::string portal, std::string target,
                                                         std::string secret) {
  iscsi::InitiatorOptions options;
  options.endpoint = Endpoint::parse(portal).value();
  options.initiator_name = "iqn.2026-11.org.sandbay:tester";
  options.target_name = std::move(target);
  options.reconnect = false;
  if (!secret.empty()) options.chap = iscsi::ChapIdentity{.user = "host", .secret = secret};
  auto session = co_await iscsi::InitiatorSession::login(std::move(options));
  co_return session;
}

// READ CAPACITY (10): the last LBA, or the sense.
Task<iscsi::InitiatorSession::Reply> read_capacity(iscsi::InitiatorSession* session) {
  iscsi::ScsiRequest request;
  request.cdb[0] = std::byte{0x25};
  request.data_in = co_await Executor::current().buffers().allocate(8);
  auto reply = co_await session->execute(std::move(request));
  co_return reply;
}

std::uint64_t block_count_in(const iscsi::InitiatorSession::Reply& reply) {
  std::byte bytes[8];
  reply.data_in.copy_to(bytes);
  std::uint64_t last = 0;
  for (int i = 0; i < 4; ++i) last = last << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return last + 1;
}

Task<void> use_while_managed(Group& group) {
  CreateVolumeRequest request;
  request.specification.name = "a";
  request.specification.size_bytes = 4 * kMiB;
  const auto made = co_await group.create_volume(request);
  REQUIRE(made.has_value());
  const std::string target = made->volume.specification.target;
  const std::string portal = group.portals()[0].listen;

  // Nobody may use it before an access record says so, and then only with the secret.
  const auto denied = co_await log_in(portal, target, "");
  REQUIRE_FALSE(denied.has_value());
  const auto added = co_await group.add_access(
      "a", {.initiator = "iqn.2026-11.org.sandbay:*",
            .address = "127.0.0.0/8",
            .chap = iscsi::ChapCredential{.user = "host", .secret = "secretsecret"}});
  REQUIRE(added.has_value());
  const auto wrong = co_await log_in(portal, target, "secretsecreT");
  REQUIRE_FALSE(wrong.has_value());
  auto session = co_await log_in(portal, target, "secretsecret");
  if (!session) FAIL(session.error().message);

  const auto sessions = co_await group.list_sessions();
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].initiator_name == "iqn.2026-11.org.sandbay:tester");
  CHECK(sessions[0].target_name == target);
  const auto volume = co_await group.show_volume("a");
  CHECK(volume->sessions == 1);

  // The first commands tell of the unit attentions that a new nexus has.
  auto reply = co_await read_capacity(session->get());
  for (int i = 0; i < 8 && !reply.result.good(); ++i) {
    reply = co_await read_capacity(session->get());
  }
  REQUIRE(reply.result.good());
  CHECK(block_count_in(reply) == 4 * kMiB / 512);

  ChangeVolumeRequest larger{.size_bytes = 8 * kMiB, .name = std::nullopt};
  const auto expanded = co_await group.change_volume("a", larger);
  REQUIRE(expanded.has_value());
  reply = co_await read_capacity(session->get());
  CHECK(reply.result.sense_key() == scsi::SenseKey::kUnitAttention);
  CHECK(reply.result.additional() == scsi::Additional::kCapacityDataHasChanged);
  reply = co_await read_capacity(session->get());
  REQUIRE(reply.result.good());
  CHECK(block_count_in(reply) == 8 * kMiB / 512);

  const auto in_use = co_await group.delete_volume("a", false);
  REQUIRE_FALSE(in_use.has_value());
  CHECK(in_use.error().code == Code::kConflict);
  CHECK(
      in_use.error().message ==
      fmt::format("volume \"a\" is in use: 1 session with {}; log out first, or force it", target));
  const auto forced = co_await group.delete_volume("a", true);
  CHECK(forced.has_value());
  reply = co_await read_capacity(session->get());
  CHECK_FALSE(reply.result.good());
  const auto left = co_await group.list_sessions();
  CHECK(left.empty());
  co_await (*session)->close();
}

TEST_CASE("Volumes are managed while a session uses them", "[group][session]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), "", reactors, use_while_managed);
  if (!error.empty()) FAIL(error);
}

Task<void> drop_one(Group& group) {
  const std::string portal = group.portals()[0].listen;
  auto session = co_await log_in(portal, "iqn.2026-11.org.sandbay:v", "");
  REQUIRE(session.has_value());
  const auto tsih = (*session)->tsih();
  const auto dropped = co_await group.drop_session(tsih);
  CHECK(dropped.has_value());
  const auto left = co_await group.list_sessions();
  CHECK(left.empty());
  const auto again = co_await group.drop_session(tsih);
  REQUIRE_FALSE(again.has_value());
  CHECK(again.error().code == Code::kNotFound);
  co_await (*session)->close();
}

Task<void> log_out_on_request(Group& group) {
  const std::string portal = group.portals()[0].listen;
  auto session = co_await log_in(portal, "iqn.2026-11.org.sandbay:v", "");
  REQUIRE(session.has_value());
  const auto tsih = (*session)->tsih();
  const auto absent = co_await group.drop_session(tsih, {.cid = 7});
  REQUIRE_FALSE(absent.has_value());
  CHECK(absent.error().code == Code::kNotFound);
  CHECK(absent.error().message ==
        fmt::format("there is no session {} with a connection 7; see the session list", tsih));
  const auto asked = co_await group.request_negotiation(tsih, std::chrono::seconds(5));
  CHECK(asked.has_value());
  const auto nobody =
      co_await group.request_negotiation(static_cast<std::uint16_t>(tsih + 1), Duration{0});
  CHECK_FALSE(nobody.has_value());
  // The initiator does as it is told, long before its time is over.
  const TimePoint before = Executor::current().now();
  const auto dropped =
      co_await group.drop_session(tsih, {.logout_time = std::chrono::seconds(120)});
  CHECK(dropped.has_value());
  CHECK(Executor::current().now() - before < std::chrono::seconds(60));
  const auto left = co_await group.list_sessions();
  CHECK(left.empty());
  CHECK((*session)->counters().async_messages == 2);
  co_await (*session)->close();
}

TEST_CASE("An initiator is asked to log out before its session is dropped", "[group][session]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error =
      run_group(scratch.file("state"),
                "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = \"*\"\n",
                reactors, log_out_on_request);
  if (!error.empty()) FAIL(error);
}

TEST_CASE("A session is dropped by its number", "[group][session]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error =
      run_group(scratch.file("state"),
                "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = \"*\"\n",
                reactors, drop_one);
  if (!error.empty()) FAIL(error);
}

Task<void> leave_a_session(Group& group) {
  auto session = co_await log_in(group.portals()[0].listen, "iqn.2026-11.org.sandbay:v", "");
  REQUIRE(session.has_value());
  // The group shuts down while it is logged in; the initiator sees its connection end.
  co_await group.shutdown();
  const auto reply = co_await read_capacity(session->get());
  CHECK_FALSE(reply.result.good());
  co_await (*session)->close();
}

TEST_CASE("Shutdown ends sessions that are there", "[group][session]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error =
      run_group(scratch.file("state"),
                "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = \"*\"\n",
                2, leave_a_session);
  if (!error.empty()) FAIL(error);
}

}  // namespace
}  // namespace sandbay::group::session_test
