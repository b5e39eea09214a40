// Portals of the group and of its members: what the file says of them, where logins go, and how
// initiators leave a member that leaves its pool.
#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "group/portal_configuration.h"
#include "iscsi/initiator.h"
#include "runtime/buffer.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::portals_test {
namespace {

using Session = std::unique_ptr<iscsi::InitiatorSession>;

const std::string kHead =
    "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:3260\"\n";

std::string member(const std::string& name, const std::string& portal) {
  return fmt::format(
      "[[member]]\nname = \"{0}\"\n"
      "[[member.drive]]\nname = \"{0}-d\"\nfile = \"drives/d\"\nsize = \"72MiB\"\n"
      "[[member.raid]]\nname = \"{0}-set\"\nlevel = \"jbod\"\ndrives = [\"{0}-d\"]\n"
      "journal = \"1MiB\"\n"
      "[[member.portal]]\nlisten = \"{1}\"\n",
      name, portal);
}

std::string first_mistake(const std::string& text) {
  const auto result = parse_configuration(kHead + text, "x.toml");
  return result ? "no mistake" : result.error().front();
}

TEST_CASE("A group's portal balances over those of its members with its tag",
          "[configuration][portal]") {
  const auto result =
      parse_configuration(kHead + "[[portal]]\nlisten = \"127.0.0.1:3261\"\nmember = \"array1\"\n" +
                              "[[portal]]\nlisten = \"127.0.0.1:3262\"\ngroup_tag = 2\n" +
                              "[[portal]]\nlisten = \"127.0.0.1:3263\"\nbalance = false\n" +
                              member("two", "127.0.0.1:3264") + "advertised = \"192.0.2.2:3260\"\n",
                          "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  REQUIRE(result->portals.size() == 5);
  const bool expected[] = {true, false, false, false, false};
  for (std::size_t i = 0; i < 5; ++i) CHECK(balances(result->portals[i], *result) == expected[i]);
  CHECK(result->portals[1].member == "array1");
  CHECK(result->portals[4].member == "two");
  CHECK(result->portals[4].advertised->to_string() == "192.0.2.2:3260");
}

TEST_CASE("A group with one portal balances nothing", "[configuration][portal]") {
  const auto result = parse_configuration(kHead, "x.toml");
  REQUIRE(result.has_value());
  CHECK_FALSE(balances(result->portals[0], *result));
}

TEST_CASE("Mistakes in portals stand at their line and key", "[configuration][portal]") {
  CHECK(first_mistake("[[portal]]\nlisten = \"127.0.0.1:1\"\nmember = \"two\"\n") ==
        "x.toml:8: portal[2].member: \"two\" is not the member at the top of this file; write "
        "\"array1\", or the portal in the other's section [[member]]");
  CHECK(first_mistake("balance = true\n") ==
        "x.toml:4: portal[1].balance: there is nothing to balance over; write a section "
        "[[member.portal]] with group_tag 1, or leave it out");
  CHECK(first_mistake(
            "[[portal]]\nlisten = \"127.0.0.1:1\"\nmember = \"array1\"\nbalance = true\n") ==
        "x.toml:9: portal[2].balance: is of the group's portals; leave it out, or member");
  CHECK(first_mistake(member("two", "127.0.0.1:3260")) ==
        "x.toml:18: member[1].portal[1].listen: 127.0.0.1:3260 is the address of another portal; "
        "give each its own");
  CHECK(first_mistake(member("two", "127.0.0.1:8260")) ==
        "x.toml:17: member[1].portal[1].listen: 127.0.0.1:8260 is taken by the management "
        "interface at 127.0.0.1:8260; give each its own port");
  CHECK(first_mistake(member("two", "127.0.0.1:1") + "advertised = \"127.0.0.1:3260\"\n") ==
        "x.toml:17: member[1].portal[1].advertised: 127.0.0.1:3260 is what the group's portal is "
        "known as; a member's needs an address of its own");
  CHECK(first_mistake(member("two", "127.0.0.1:1") + "balance = true\n") ==
        "x.toml:19: member[1].portal[1].balance: is not a key here; keys here are listen, "
        "advertised, group_tag, rate, latency, mtu, frame_overhead, packet_headers");
  CHECK(first_mistake("[[member]]\nname = \"far\"\nremote = \"192.0.2.1\"\n"
                      "target = \"iqn.2026-11.org.sandbay:far\"\n"
                      "[[member.portal]]\nlisten = \"127.0.0.1:1\"\n") ==
        "x.toml:10: member[1].portal: is of members of this daemon: initiators reach the volumes "
        "on one elsewhere here; leave it out");
  CHECK(
      first_mistake("[limits]\nlogout_time = \"1500ms\"\n") ==
      "x.toml:7: limits.logout_time: is not a whole number of seconds; write one such as \"15s\"");
  CHECK(first_mistake("[limits]\nlogout_time = \"10min\"\n") ==
        "x.toml:7: limits.logout_time: 10min is out of range; write a time from 1s to 300s");
}

TEST_CASE("What discovery names for a portal is an address, auto or none") {
  const auto result = parse_configuration(kHead + "advertised = \"auto\"\n", "x.toml");
  REQUIRE(result.has_value());
  CHECK(result->portals[0].as_reached);
  CHECK_FALSE(result->portals[0].advertised.has_value());
  CHECK(describe(parse_advertised("auto").value()) == "auto");
  CHECK(describe(parse_advertised("none").value()).empty());
  CHECK(describe(parse_advertised("192.0.2.1").value()) == "192.0.2.1:3260");
  CHECK(first_mistake("advertised = \"here\"\n") ==
        "x.toml:6: portal[1].advertised: \"here\" is not an address; write one such as "
        "127.0.0.1:3260 or [::1]:3260, \"auto\" or \"none\"");
  CHECK_FALSE(parse_advertised("192.0.2.1:0").has_value());
  CHECK_FALSE(parse_advertised("[::]:3260").has_value());
}

// Running -----------------------------------------------------------------------------------------

const std::string kTwoMembers =
    "[[portal]]\nlisten = \"127.0.0.1:0\"\nmember = \"array1\"\n"
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n" +
    member("two", "127.0.0.1:0") +
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\nmembers = [\"array1\"]\n"
    "[[volume]]\nname = \"v\"\nsize = \"8MiB\"\n[[volume.access]]\ninitiator = \"*\"\n";

Task<Session> log_in(Group* group) {
  iscsi::InitiatorOptions options;
  options.endpoint = Endpoint::parse(group->portals().front().listen).value();
  options.target_name = "iqn.2026-11.org.sandbay:v";
  auto session = co_await iscsi::InitiatorSession::login(std::move(options));
  REQUIRE(session.has_value());
  co_return std::move(*session);
}

// The addresses that discovery through a portal names for the only target.
Task<std::vector<std::string>> named_at(const std::string& portal) {
  iscsi::InitiatorOptions options;
  options.endpoint = Endpoint::parse(portal).value();
  auto session = co_await iscsi::InitiatorSession::login(std::move(options));
  REQUIRE(session.has_value());
  auto targets = co_await (*session)->send_targets();
  REQUIRE(targets.has_value());
  REQUIRE(targets->size() == 1);
  co_await (*session)->close();
  co_return std::move(targets->front().addresses);
}

using Names = std::vector<std::string>;

Task<void> name_anew(Group& group) {
  const std::string first = group.portals()[0].listen;
  const std::string second = group.portals()[1].listen;
  Names names = co_await named_at(first);
  CHECK(names == Names{first + ",1", second + ",2"});
  auto changed = co_await group.advertise(first, "192.0.2.1");
  REQUIRE(changed.has_value());
  CHECK(changed->advertised == "192.0.2.1:3260");
  names = co_await named_at(second);
  CHECK(names == Names{"192.0.2.1:3260,1", second + ",2"});
  // An initiator that asks there logs in there; elsewhere it still needs an address.
  changed = co_await group.advertise(first, "auto");
  REQUIRE(changed.has_value());
  names = co_await named_at(first);
  CHECK(names.empty());
  names = co_await named_at(second);
  CHECK(names == Names{first + ",1", second + ",2"});
  changed = co_await group.advertise(first, "none");
  REQUIRE(changed.has_value());
  names = co_await named_at(first);
  CHECK(names == Names{first + ",1", second + ",2"});
  changed = co_await group.advertise("127.0.0.1:1", "auto");
  CHECK(changed.error().message ==
        fmt::format("there is no portal 127.0.0.1:1; there are {}, {}", first, second));
  changed = co_await group.advertise(first, "0.0.0.0");
  CHECK(changed.error().code == Refusal::Code::kInvalid);
}

// By portal: the group's, the first member's, the second's.
std::vector<std::uint32_t> connections(const Group& group) {
  std::vector<std::uint32_t> counts;
  for (const PortalInfo& portal : group.portals()) counts.push_back(portal.connections);
  return counts;
}

// Within some seconds.
Task<bool> come_to(Group* group, std::vector<std::uint32_t> expected) {
  for (int i = 0; i < 200 && connections(*group) != expected; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  co_return connections(*group) == expected;
}

Task<void> members_come_and_go(Group& group) {
  const std::vector<PortalInfo> portals = group.portals();
  REQUIRE(portals.size() == 3);
  CHECK_FALSE(portals[0].takes_logins);
  CHECK(portals[1].takes_logins);
  CHECK_FALSE(portals[2].takes_logins);  // Of no pool yet.
  const auto circle = co_await group.advertise(portals[1].listen, portals[0].listen);
  CHECK(circle.error().code == Refusal::Code::kConflict);
  std::vector<Session> sessions;
  for (int i = 0; i < 2; ++i) sessions.push_back(co_await log_in(&group));
  CHECK(connections(group) == std::vector<std::uint32_t>{0, 2, 0});
  const auto added = co_await group.add_member("two", "p");
  REQUIRE(added.has_value());
  REQUIRE(added->portals.size() == 1);
  CHECK(added->portals[0].takes_logins);
  for (int i = 0; i < 2; ++i) sessions.push_back(co_await log_in(&group));
  CHECK(connections(group) == std::vector<std::uint32_t>{0, 2, 2});
  const auto listed = co_await group.list_sessions();
  REQUIRE(listed.size() == 4);
  CHECK(listed.back().connections[0].member == "two");

  const auto removed = co_await group.remove_member("array1");
  REQUIRE(removed.has_value());
  const bool moved = co_await come_to(&group, {0, 0, 4});
  CHECK(moved);
  for (const Session& session : sessions) {
    iscsi::ScsiRequest request;
    request.cdb[0] = std::byte{0x12};
    request.cdb[4] = std::byte{36};
    request.data_in = co_await Executor::current().buffers().allocate(36);
    const auto reply = co_await session->execute(std::move(request));
    CHECK(reply.result.good());
  }
  std::string told;
  for (int i = 0; i < 100 && told.empty(); ++i) {
    const auto events = co_await group.list_events(0);
    for (const EventInfo& event : events) {
      if (event.text.find("portals") != std::string::npos) told = event.text;
    }
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(told ==
        "member array1: 2 connections asked to leave its portals, of which 0 had to be dropped");
  for (const Session& session : sessions) co_await session->close();
}

TEST_CASE("Initiators come to members' portals and leave them with their members",
          "[group][portal]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error =
      run_group(scratch.file("state"), kTwoMembers, reactors, members_come_and_go);
  if (!error.empty()) FAIL(error);
}

TEST_CASE("What discovery names for a portal changes while the daemon runs", "[group][portal]") {
  const std::string sections =
      "[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup_tag = 2\n"
      "[[volume]]\nname = \"v\"\nsize = \"8MiB\"\nmemory = true\n"
      "[[volume.access]]\ninitiator = \"*\"\n";
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), sections, 2, name_anew);
  if (!error.empty()) FAIL(error);
}

}  // namespace
}  // namespace sandbay::group::portals_test
