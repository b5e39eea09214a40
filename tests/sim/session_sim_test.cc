// Goal: whatever happens to a session's connections, nothing acknowledged is lost, nothing old
// comes back, nothing hangs, and the session goes on. Method: our initiator against our target in a
// simulated world. The seed chooses everything: the schedule, the negotiated parameters, the I/O,
// and what breaks when.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "rig.h"
#include "seeds.h"

namespace sandbay::simtest {
namespace {

using iscsi::InitiatorOptions;
using iscsi::InitiatorSession;

const char* pick(Random& random, std::initializer_list<const char*> choices) {
  return *(choices.begin() + random.below(choices.size()));
}

std::map<std::string, std::string> random_keys(Random& random) {
  return {
      {"HeaderDigest", pick(random, {"None", "CRC32C", "CRC32C,None"})},
      {"DataDigest", pick(random, {"None", "CRC32C", "None,CRC32C"})},
      {"InitialR2T", pick(random, {"Yes", "No"})},
      {"ImmediateData", pick(random, {"Yes", "No"})},
      {"MaxRecvDataSegmentLength",
       pick(random, {"512", "1024", "4096", "8192", "65536", "262144"})},
      {"FirstBurstLength", pick(random, {"512", "2048", "16384", "65536"})},
      {"MaxBurstLength", pick(random, {"65536", "262144", "16776192"})},
      {"MaxOutstandingR2T", pick(random, {"1", "2", "8"})},
      {"DataPDUInOrder", pick(random, {"Yes", "No"})},
      {"DataSequenceInOrder", pick(random, {"Yes", "No"})},
  };
}

RigOptions random_rig(std::uint64_t seed) {
  Random random(seed);
  std::map<std::string, std::string> keys = random_keys(random);
  // Whatever a connection asks for can be granted.
  keys["HeaderDigest"] = pick(random, {"None,CRC32C", "CRC32C,None"});
  keys["DataDigest"] = pick(random, {"None,CRC32C", "CRC32C,None"});
  iscsi::TransferPace pace;
  if (random.chance(0.3)) {
    pace = {.at_once = static_cast<unsigned>(random.below(4)),
            .turnaround = std::chrono::microseconds(random.below(500)),
            .per_connection = std::chrono::microseconds(random.below(200))};
  }
  return {
      .seed = seed,
      .executors = static_cast<unsigned>(random.between(1, 2)),
      .block_bytes = random.chance(0.5) ? 512U : 4096U,
      .block_count = random.between(16, 256),
      .device_delay = std::chrono::microseconds(random.below(3000)),
      .target_keys = std::move(keys),
      .target_queue_depth = static_cast<std::uint32_t>(random.between(1, 64)),
      .pace = pace,
  };
}

InitiatorOptions random_session(Rig& rig, std::uint32_t connections) {
  Random& random = rig.random();
  InitiatorOptions options{
      .endpoint = rig.endpoint(),
      .target_name = kTargetName,
      .connections = connections,
      .path_policy =
          random.chance(0.5) ? iscsi::PathPolicy::kRoundRobin : iscsi::PathPolicy::kLeastQueueDepth,
      .keys = random_keys(random),
      .first_cmd_sn = random.chance(0.5) ? 1 : 0xFFFFFFF0U,
      .queue_depth = static_cast<std::uint32_t>(random.between(1, 64)),
      .receive_buffer_bytes = random.chance(0.5) ? 8192U : 262144U,
  };
  for (std::uint32_t index = 0; index < connections; ++index) {
    iscsi::InitiatorConnectionOptions connection;
    connection.executor = &rig.executor(static_cast<unsigned>(random.below(rig.executor_count())));
    connection.keys["HeaderDigest"] = pick(random, {"None", "CRC32C"});
    connection.keys["DataDigest"] = pick(random, {"None", "CRC32C"});
    options.connection_options.push_back(std::move(connection));
  }
  return options;
}

Task<std::unique_ptr<InitiatorSession>> log_in(Rig& rig, InitiatorOptions options) {
  auto session = co_await InitiatorSession::login(std::move(options));
  if (!session.has_value()) {
    rig.clients().complain("login: " + session.error().message);
    co_return std::unique_ptr<InitiatorSession>();
  }
  co_return std::move(*session);
}

// What happens to a session while clients use it.
using Trouble = std::function<Task<void>(Rig& rig, InitiatorSession& session)>;

struct Scenario {
  std::uint32_t connections = 1;
  std::uint32_t clients = 6;
  std::uint32_t operations = 25;  // Per client.
  bool aborts = false;
  Trouble trouble;
};

Task<void> trouble_then_leave(Trouble trouble, Rig& rig, InitiatorSession& session, Gate& gate) {
  co_await trouble(rig, session);
  gate.leave();
}

bool enter(Gate& gate) {
  const bool entered = gate.enter();
  return entered;
}

Task<void> play(Rig& rig, Scenario scenario) {
  std::unique_ptr<InitiatorSession> session =
      co_await log_in(rig, random_session(rig, scenario.connections));
  if (session == nullptr) co_return;
  Gate gate;
  if (scenario.trouble && enter(gate)) {
    spawn(trouble_then_leave(scenario.trouble, rig, *session, gate));
  }
  for (std::uint32_t index = 0; index < scenario.clients && enter(gate); ++index) {
    spawn(rig.clients().client(*session, scenario.operations, scenario.aborts, gate));
  }
  co_await gate.close();
  if (!rig.clients().failed()) co_await rig.clients().flush_once(*session, false);
  if (!rig.clients().failed()) co_await rig.clients().read_everything(*session);
  if (!session->up()) rig.clients().complain("the session is down at the end");
  co_await session->close();
}

std::string run_scenario(std::uint64_t seed, const Scenario& scenario) {
  Rig rig(random_rig(seed));
  return rig.run([&] { return play(rig, scenario); });
}

std::uint32_t connections_of(std::uint64_t seed) { return 1U << (seed % 4); }

Task<void> pause(Rig& rig, std::uint64_t most_us) {
  const auto time = static_cast<std::int64_t>(rig.random().below(most_us + 1));
  co_await Executor::current().sleep_for(std::chrono::microseconds(time));
}

// --- Troubles ------------------------------------------------------------------------------------

Task<void> kill_one_connection(Rig& rig, InitiatorSession& session) {
  (void)session;
  co_await pause(rig, 20'000);
  sim::World& world = rig.world();
  if (world.stream_count() != 0) world.reset_stream(rig.random().below(world.stream_count()));
}

Task<void> kill_connections_again_and_again(Rig& rig, InitiatorSession& session) {
  for (int count = 0; count < 6; ++count) co_await kill_one_connection(rig, session);
}

Task<void> manage_tasks(Rig& rig, InitiatorSession& session) {
  for (int count = 0; count < 8; ++count) {
    co_await pause(rig, 8'000);
    using Function = scsi::TaskManagementFunction;
    const Function functions[] = {Function::kAbortTaskSet, Function::kClearTaskSet,
                                  Function::kLogicalUnitReset, Function::kTargetWarmReset};
    const scsi::TaskManagementRequest request{.function = functions[rig.random().below(4)]};
    const auto answer = co_await session.manage(request);
    if (!answer.has_value()) {
      rig.clients().complain(fmt::format("task management: {}", describe(answer.error())));
    } else if (*answer != iscsi::TaskManagementResult::kFunctionComplete) {
      rig.clients().complain(fmt::format("task management function {} answered {}",
                                         static_cast<int>(request.function),
                                         static_cast<int>(*answer)));
    }
  }
}

Task<void> reinstate_connections(Rig& rig, InitiatorSession& session) {
  for (int count = 0; count < 3; ++count) {
    co_await pause(rig, 10'000);
    const Error error =
        co_await session.reinstate_connection(rig.random().below(session.connection_count()));
    if (error != Error::kNone) {
      rig.clients().complain(fmt::format("connection reinstatement: {}", describe(error)));
    }
  }
}

Task<void> reinstate_session(Rig& rig, InitiatorSession& session) {
  for (int count = 0; count < 2; ++count) {
    co_await pause(rig, 20'000);
    const Error error = co_await session.reinstate_session();
    if (error != Error::kNone) {
      rig.clients().complain(fmt::format("session reinstatement: {}", describe(error)));
    }
  }
}

Task<void> log_one_connection_out(Rig& rig, InitiatorSession& session) {
  co_await pause(rig, 20'000);
  const Error error =
      co_await session.logout_connection(rig.random().below(session.connection_count()));
  if (error != Error::kNone) rig.clients().complain(fmt::format("logout: {}", describe(error)));
}

Task<void> drop_the_session(Rig& rig, InitiatorSession& session) {
  co_await pause(rig, 20'000);
  const Error error = co_await rig.server().drop_session(session.tsih());
  if (error != Error::kNone)
    rig.clients().complain(fmt::format("drop_session: {}", describe(error)));
}

// --- Members ------------------------------------------------------------------------------------

constexpr std::uint16_t kGroupPort = 3270;
constexpr std::uint16_t kGroupTag = 2;

struct Members {
  std::array<bool, 3> take{true, true, true};

  static std::string name(std::size_t member) { return fmt::format("m{}", member); }
};

void open_members_portals(Rig& rig, Members* members) {
  const auto listen = [](std::size_t more) {
    return Endpoint::ipv4(0x7F000001, static_cast<std::uint16_t>(kGroupPort + more));
  };
  bool opened = rig.server()
                    .add_portal({.listen = listen(0), .group_tag = kGroupTag, .balances = true})
                    .has_value();
  for (std::size_t member = 0; member < members->take.size(); ++member) {
    const auto portal = rig.server().add_portal(
        {.listen = listen(member + 1),
         .group_tag = kGroupTag,
         .member = Members::name(member),
         .takes_logins = [members, member] { return members->take[member]; }});
    opened = opened && portal.has_value();
  }
  if (!opened) rig.clients().complain("add_portal failed");
}

// Members go and come back, and perhaps a connection is cut while others move.
Task<void> members_come_and_go(Rig& rig, Members* members, bool cuts, Gate& gate) {
  const GateHold hold(gate);
  for (int count = 0; count < 8; ++count) {
    co_await pause(rig, 15'000);
    const std::size_t member = rig.random().below(members->take.size());
    members->take[member] = !members->take[member];
    sim::World& world = rig.world();
    if (cuts && rig.random().chance(0.3) && world.stream_count() != 0) {
      world.reset_stream(rig.random().below(world.stream_count()));
    }
    if (members->take[member]) continue;
    const auto moved = co_await rig.server().move_connections(Members::name(member));
    if (moved.dropped == 0 || cuts) continue;
    rig.clients().complain(fmt::format("{} connections of {} had to be dropped", moved.dropped,
                                       Members::name(member)));
  }
}

Task<void> play_with_members(Rig& rig, std::uint32_t connections, bool cuts) {
  Members members;
  open_members_portals(rig, &members);
  InitiatorOptions options = random_session(rig, connections);
  options.endpoint.set_port(kGroupPort);
  std::unique_ptr<InitiatorSession> session = co_await log_in(rig, std::move(options));
  if (session == nullptr) co_return;
  Gate gate;
  if (enter(gate)) spawn(members_come_and_go(rig, &members, cuts, gate));
  for (std::uint32_t index = 0; index < 6 && enter(gate); ++index) {
    spawn(rig.clients().client(*session, 40, false, gate));
  }
  co_await gate.close();
  if (!rig.clients().failed()) co_await rig.clients().flush_once(*session, false);
  if (!rig.clients().failed()) co_await rig.clients().read_everything(*session);
  if (!session->up()) rig.clients().complain("the session is down at the end");
  // The rig's own portal comes first, then the group's.
  const std::vector<iscsi::PortalStatus> portals = rig.server().portals();
  for (std::size_t member = 0; member < members.take.size(); ++member) {
    const bool any = std::ranges::any_of(members.take, std::identity());
    if (members.take[member] || !any || portals[member + 2].connections == 0) continue;
    rig.clients().complain(fmt::format("{} connections are left on the portal of {}, which is gone",
                                       portals[member + 2].connections, Members::name(member)));
  }
  co_await session->close();
}

std::string run_with_members(std::uint64_t seed, bool cuts) {
  Rig rig(random_rig(seed));
  return rig.run([&] { return play_with_members(rig, connections_of(seed), cuts); });
}

// --- Faults -------------------------------------------------------------------------------------

// All but those that lie about data or about the end of a command.
constexpr std::array kRules{"at=lun op=write p=0.1 do=aborted",
                            "at=lun op=write p=0.05 do=check key=3 code=0c/00",
                            "at=lun p=0.05 do=busy",
                            "at=lun depth=4.. p=0.2 do=taskfull",
                            "at=lun p=0.03 do=ua code=29/00",
                            "at=lun p=0.02 do=notready",
                            "at=lun p=0.01 do=lun.vanish for=20ms",
                            "at=lun p=0.02 do=alua.state how=standby for=10ms",
                            "at=session opcode=0x8a p=0.08 do=response.drop",
                            "at=session p=0.1 do=response.delay latency=1ms..800ms",
                            "at=session opcode=0x8a,0x88 p=0.05 do=residual",
                            "at=session p=0.4 do=tmf.slow latency=1ms..400ms",
                            "at=session p=0.3 do=tmf.reject",
                            "at=session p=0.05 do=window.close latency=1ms..50ms",
                            "at=session p=0.2 do=r2t.withhold latency=1ms..900ms",
                            "at=session p=0.3 do=r2t.small bytes=700",
                            "at=session p=0.3 do=r2t.disorder",
                            "at=session p=0.01 do=async how=logout wait=1s",
                            "at=session p=0.01 do=async how=connection wait=0s",
                            "at=session p=0.01 do=async how=session wait=0s",
                            "at=link p=0.004 do=drop",
                            "at=link p=0.004 do=pdu.truncate",
                            "at=link dir=out p=0.006 do=pdu.drop",
                            "at=link pdu=data-out p=0.02 do=pdu.drop",
                            "at=link p=0.02 do=pdu.dup",
                            "at=link p=0.05 do=pdu.delay latency=1ms..20ms",
                            "at=link p=0.01 do=digest.data",
                            "at=link p=0.004 do=digest.header",
                            "at=link p=0.05 do=fragment bytes=100",
                            "at=link do=flap up=300ms down=60ms",
                            "at=link p=0.1 do=login.reject",
                            "at=link p=0.2 do=login.slow latency=1ms..200ms",
                            "at=link p=0.3 do=nego.odd",
                            "at=link p=0.3 do=counter.near.wrap",
                            "at=link count=1 after=300 do=half-open how=out",
                            "at=link count=1 after=500 do=drop how=silence"};

Task<void> play_with_faults(Rig& rig, std::uint32_t connections, std::uint64_t* unacknowledged) {
  Random& random = rig.random();
  std::vector<std::string> rules;
  for (std::uint64_t count = random.between(2, 6); count > 0; --count) {
    rules.emplace_back(kRules[random.below(kRules.size())]);
  }
  Gate gate;
  std::unique_ptr<InitiatorSession> session =
      co_await log_in(rig, random_session(rig, connections));
  if (session == nullptr) co_return;
  rig.clients().bear_faults(std::chrono::seconds(2));
  if (!rig.faults().add_all(rules).has_value()) rig.clients().complain("a rule is refused");
  co_await rig.faults().settle();
  for (std::uint32_t index = 0; index < 8 && enter(gate); ++index) {
    spawn(rig.clients().client(*session, 60, true, gate));
  }
  co_await gate.close();
  co_await session->close();
  *unacknowledged += rig.clients().unacknowledged();
  rig.faults().clear_all();
  co_await rig.faults().settle();
  rig.clients().expect_no_faults();
  session = co_await log_in(rig, random_session(rig, connections));
  if (session == nullptr) co_return;
  if (!rig.clients().failed()) co_await rig.clients().read_everything(*session);
  co_await pause(rig, 3'000'000);  // And nothing comes late.
  if (!rig.clients().failed()) co_await rig.clients().read_everything(*session);
  co_await session->close();
  if (rig.clients().failed()) {
    rig.clients().complain(fmt::format("under {}", fmt::join(rules, "; ")));
    fmt::print("under {}\n", fmt::join(rules, "; "));
  }
}

std::string run_with_faults(std::uint64_t seed, std::uint64_t* unacknowledged) {
  RigOptions options = random_rig(seed);
  options.breakable = true;
  Rig rig(std::move(options));
  return rig.run([&] { return play_with_faults(rig, connections_of(seed), unacknowledged); });
}

}  // namespace

TEST_CASE("Faults of all kinds together: no write comes after its end", "[sim][fault]") {
  std::uint64_t unacknowledged = 0;
  REQUIRE(run_seeds("faults", 60, [&](std::uint64_t seed) {
            return run_with_faults(seed, &unacknowledged);
          }) == 0);
  fmt::print("faults: {} writes ended without acknowledgement\n", unacknowledged);
}

TEST_CASE("1, 2, 4 and 8 connections, random parameters: data are right", "[sim][mcs]") {
  REQUIRE(run_seeds("plain", 40, [](std::uint64_t seed) {
            return run_scenario(seed, {.connections = connections_of(seed)});
          }) == 0);
}

TEST_CASE("One connection killed under load: nothing lost, the session continues", "[sim][mcs]") {
  REQUIRE(run_seeds("one connection killed", 40, [](std::uint64_t seed) {
            return run_scenario(seed,
                                {.connections = 2U << (seed % 3), .trouble = kill_one_connection});
          }) == 0);
}

TEST_CASE("Connections killed again and again, the only one too: nothing lost", "[sim][mcs]") {
  REQUIRE(run_seeds("connections killed", 30, [](std::uint64_t seed) {
            return run_scenario(seed, {.connections = connections_of(seed),
                                       .trouble = kill_connections_again_and_again});
          }) == 0);
}

TEST_CASE("Task management under load: every command ends, data are right", "[sim][tmf]") {
  REQUIRE(run_seeds("task management", 30, [](std::uint64_t seed) {
            return run_scenario(
                seed,
                {.connections = connections_of(seed), .aborts = true, .trouble = manage_tasks});
          }) == 0);
}

TEST_CASE("Connections reinstated under load: nothing lost", "[sim][mcs]") {
  REQUIRE(run_seeds("connection reinstatement", 30, [](std::uint64_t seed) {
            return run_scenario(
                seed, {.connections = connections_of(seed), .trouble = reinstate_connections});
          }) == 0);
}

TEST_CASE("The session reinstated under load: late writes do no harm", "[sim][mcs]") {
  REQUIRE(run_seeds("session reinstatement", 30, [](std::uint64_t seed) {
            return run_scenario(
                seed, {.connections = connections_of(seed), .trouble = reinstate_session});
          }) == 0);
}

TEST_CASE("A connection logged out under load: its commands move", "[sim][mcs]") {
  REQUIRE(run_seeds("connection logout", 30, [](std::uint64_t seed) {
            return run_scenario(
                seed, {.connections = 2U << (seed % 3), .trouble = log_one_connection_out});
          }) == 0);
}

TEST_CASE("The target drops the session under load: it logs in again", "[sim][mcs]") {
  REQUIRE(run_seeds("session dropped", 20, [](std::uint64_t seed) {
            return run_scenario(seed,
                                {.connections = connections_of(seed), .trouble = drop_the_session});
          }) == 0);
}

TEST_CASE("Members come and go under load: connections move, nothing lost", "[sim][mcs]") {
  REQUIRE(run_seeds("members come and go", 40,
                    [](std::uint64_t seed) { return run_with_members(seed, false); }) == 0);
}

TEST_CASE("Connections are cut while they leave a member: nothing lost", "[sim][mcs]") {
  REQUIRE(run_seeds("connections cut while they move", 40,
                    [](std::uint64_t seed) { return run_with_members(seed, true); }) == 0);
}

TEST_CASE("A seed repeats its run to the last decision", "[sim]") {
  const auto hash_of = [](std::uint64_t seed) {
    Rig rig(random_rig(seed));
    const Scenario scenario{.connections = 4, .trouble = kill_one_connection};
    const std::string wrong = rig.run([&] { return play(rig, scenario); });
    CHECK(wrong.empty());
    return rig.world().trace_hash();
  };
  const std::uint64_t first = hash_of(7);
  CHECK(first == hash_of(7));
  CHECK(first != hash_of(8));
}

}  // namespace sandbay::simtest
