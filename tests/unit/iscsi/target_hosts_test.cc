// What hosts do that no RFC asks for, and what their users have suffered from other targets: one
// test an expectation, named after who has it. RFC 7143 sections 4.2, 6.3, 11.5 and 11.9.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "iscsi/text.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

// ESXi -------------------------------------------------------------------------------------------

// Stuck in the device, waiting for data, finished, behind a gap, and never sent.
Task<void> no_abort_is_rejected(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  bench.device(0).hang();
  std::vector<TaskManagementRequest> aborts;
  const auto abort_of = [](std::uint32_t tag, std::uint32_t cmd_sn, std::uint64_t lun) {
    return TaskManagementRequest{.lun = lun, .referenced_task_tag = tag, .ref_cmd_sn = cmd_sn};
  };
  std::uint32_t cmd_sn = peer.cmd_sn;
  const std::uint32_t stuck = co_await send_command(peer, reading(0, 1));
  aborts.push_back(abort_of(stuck, cmd_sn, 0));
  cmd_sn = peer.cmd_sn;
  const std::uint32_t waiting = co_await send_command(peer, writing(0, 16, {}, kSecondUnit));
  aborts.push_back(abort_of(waiting, cmd_sn, kSecondUnit));
  cmd_sn = peer.cmd_sn;
  const std::uint32_t finished = co_await send_command(peer, reading(0, 1, kSecondUnit));
  co_await peer.next_of(finished);
  aborts.push_back(abort_of(finished, cmd_sn, kSecondUnit));
  const std::uint32_t gap = peer.cmd_sn++;
  cmd_sn = peer.cmd_sn;
  const std::uint32_t behind = co_await send_command(peer, reading(0, 1, kSecondUnit));
  aborts.push_back(abort_of(behind, cmd_sn, kSecondUnit));
  aborts.push_back(abort_of(70'000, gap, 0));
  aborts.push_back(abort_of(70'001, peer.cmd_sn + 1000, 0));
  aborts.push_back(abort_of(70'002, 0, 0x0009ULL << 48U));
  for (int round = 0; round < 6; ++round) {
    for (const TaskManagementRequest& request : aborts) {
      const RawPdu answer = co_await managed(peer, request);
      CHECK(answer.is(Opcode::kTaskManagementResponse));
    }
  }
  const RawPdu goes_on = co_await answer_to(peer, reading(0, 1, kSecondUnit));
  CHECK(goes_on.status() == 0);
}

// All commands of a window are given up at once.
Task<void> aborts_at_once(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  bench.device(0).hang();
  const std::uint32_t first = peer.cmd_sn;
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < 128; ++i) {
    const std::uint32_t tag = co_await send_command(peer, writing(i, 1, pattern_of(kBlock)));
    victims.push_back(tag);
  }
  std::vector<std::uint32_t> functions;
  const TimePoint before = bench.now();
  for (std::uint32_t i = 0; i < 128; ++i) {
    const std::uint32_t tag = co_await send_management(
        peer, {.referenced_task_tag = victims[i], .ref_cmd_sn = first + i});
    functions.push_back(tag);
  }
  for (const std::uint32_t tag : functions) {
    const RawPdu answer = co_await peer.next_of(tag);
    CHECK(answer.managed() == kComplete);
  }
  CHECK(bench.now() - before <= scsi::kTaskManagementBound);
  const RawPdu goes_on = co_await answer_to(peer, reading(0, 1, kSecondUnit));
  CHECK(goes_on.status() == 0);
}

// Linux ------------------------------------------------------------------------------------------

// The error handler's steps, each with the time that it gives a target.
Task<void> escalation(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  bench.device(0).hang();
  const std::uint32_t first = peer.cmd_sn;
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < 16; ++i) {
    const std::uint32_t tag = co_await send_command(peer, writing(i, 1, pattern_of(kBlock)));
    victims.push_back(tag);
  }
  TimePoint before = bench.now();
  for (std::uint32_t i = 0; i < 4; ++i) {
    const RawPdu aborted =
        co_await managed(peer, {.referenced_task_tag = victims[i], .ref_cmd_sn = first + i});
    CHECK(aborted.managed() == kComplete);
    CHECK(bench.now() - before < std::chrono::seconds(15));
    before = bench.now();
    const std::uint32_t ping = co_await send_ping(peer);
    const RawPdu echo = co_await peer.next_of(ping, std::chrono::seconds(5));
    CHECK(echo.is(Opcode::kNopIn));
  }
  for (const auto function :
       {TaskManagementFunction::kLogicalUnitReset, TaskManagementFunction::kTargetWarmReset}) {
    before = bench.now();
    const RawPdu reset = co_await managed(peer, {.function = function});
    CHECK(reset.managed() == kComplete);
    CHECK(bench.now() - before < std::chrono::seconds(30));
    co_await send_command(peer, reading(0, 1));
    co_await bench.take_attentions(other);
    const RawPdu served = co_await answer_to(other, reading(0, 1, kSecondUnit));
    CHECK(served.status() == 0);
  }
  before = bench.now();
  RawInitiator& fresh = *co_await bench.session();
  CHECK(bench.now() - before < std::chrono::seconds(15));
  CHECK(peer.ended());
  const RawPdu served = co_await answer_to(fresh, reading(0, 1, kSecondUnit));
  CHECK(served.status() == 0);
  co_await invoke_on(bench.device(0).home(), Bench::release(bench.device(0)));
  co_await bench.sleep(std::chrono::seconds(1));
  const RawPdu written = co_await answer_to(fresh, writing(0, 1, pattern_of(kBlock, 5)));
  CHECK(written.status() == 0);
  const Bytes back = co_await read_back(fresh, reading(0, 1));
  CHECK(back == pattern_of(kBlock, 5));
}

// R2Ts are out, and nobody will answer them any more.
Task<void> reset_waiting_for_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  std::vector<ReadyToTransfer> asked;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t tag = co_await send_command(peer, writing(i * 16, 16));
    const RawPdu r2t = co_await peer.next_of(tag);
    CHECK(r2t.is(Opcode::kReadyToTransfer));
    asked.push_back(r2t.r2t());
  }
  const TimePoint before = bench.now();
  const RawPdu reset =
      co_await managed(peer, {.function = TaskManagementFunction::kLogicalUnitReset});
  CHECK(reset.managed() == kComplete);
  CHECK(bench.now() - before < std::chrono::seconds(1));
  // Who does answer, late, is not heard and not blamed.
  for (const ReadyToTransfer& r2t : asked) {
    co_await answer_r2t(peer, r2t, pattern_of(8192), 4096);
  }
  const RawPdu told = co_await answer_to(peer, {});
  CHECK(told.sense() == 0x062903U);  // BUS DEVICE RESET FUNCTION OCCURRED
  const Bytes back = co_await read_back(peer, reading(0, 64));
  CHECK(back == Bytes(64 * kBlock));
}

// Windows ----------------------------------------------------------------------------------------

// The task tag is all that there is to find the command by: nothing was asked for.
Task<void> unsolicited_with_wrong_lun(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "FirstBurstLength=8192;InitialR2T=No"});
  const Bytes whole = pattern_of(16 * kBlock);
  RawCommand write = writing(0, 16, Bytes(whole.begin(), whole.begin() + 2048), kSecondUnit);
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  for (const std::uint32_t data_sn : {0U, 1U, 2U}) {
    const auto begin = whole.begin() + 2048 * (data_sn + 1);
    co_await send_data_out(peer,
                           {.final = data_sn == 2,
                            .lun = data_sn == 1 ? 0ULL : 0x0055'0000'0000'0000ULL,
                            .initiator_task_tag = tag,
                            .data_sn = data_sn,
                            .buffer_offset = 2048 * (data_sn + 1)},
                           Bytes(begin, begin + 2048));
  }
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 16, kSecondUnit));
  CHECK(back == whole);
}

// A session of three connections, one CmdSN for all, and whatever a policy makes of them.
struct Paths {
  std::vector<RawInitiator*> peers;
  std::uint32_t cmd_sn = 0;
  std::uint32_t writes = 0;

  // Writes on one connection, reads on another.
  Task<void> write_and_read(std::size_t writer, std::size_t reader) {
    const Bytes data = pattern_of(kBlock, ++writes);
    const std::uint32_t lba = writes;
    peers[writer]->cmd_sn = cmd_sn++;
    const RawPdu written = co_await answer_to(*peers[writer], writing(lba, 1, data));
    CHECK(written.status() == 0);
    peers[reader]->cmd_sn = cmd_sn++;
    const Bytes back = co_await read_back(*peers[reader], reading(lba, 1));
    CHECK(back == data);
  }
};

Task<Paths> three_paths(Bench& bench) {
  Paths paths;
  paths.peers.push_back(co_await bench.session({.keys = "MaxConnections=4"}));
  paths.cmd_sn = paths.peers[0]->cmd_sn;
  for (const std::uint16_t cid : {std::uint16_t{1}, std::uint16_t{2}}) {
    RawInitiator* const peer = co_await bench.connect();
    const RawPdu joined =
        co_await peer->log_in({.tsih = paths.peers[0]->tsih, .cid = cid, .cmd_sn = paths.cmd_sn});
    CHECK(joined.login().status == LoginStatus::kSuccess);
    peer->next_tag = 10'000U * cid;
    paths.peers.push_back(peer);
  }
  co_return paths;
}

Task<void> round_robin(Bench& bench) {
  Paths paths = co_await three_paths(bench);
  for (std::size_t i = 0; i < 30; ++i) co_await paths.write_and_read(i % 3, (i + 1) % 3);
}

// One connection is used; when it is lost, the next. Nothing was in flight on those in waiting.
Task<void> fail_over_only(Bench& bench) {
  Paths paths = co_await three_paths(bench);
  for (const std::size_t active : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    for (int i = 0; i < 10; ++i) co_await paths.write_and_read(active, active);
    if (active == 2) break;
    paths.peers[active]->reset();
    co_await bench.sleep(std::chrono::seconds(1));
  }
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0].connections.size() == 1);
}

// Two are used in turn, one waits; it takes the place of one that is lost.
Task<void> round_robin_with_subset(Bench& bench) {
  Paths paths = co_await three_paths(bench);
  for (std::size_t i = 0; i < 10; ++i) co_await paths.write_and_read(i % 2, (i + 1) % 2);
  paths.peers[0]->reset();
  co_await bench.sleep(std::chrono::seconds(1));
  for (std::size_t i = 0; i < 10; ++i) co_await paths.write_and_read(1 + i % 2, 2 - i % 2);
}

// One connection has all it can take and the others get the rest: commands arrive in bursts on
// connections that are unlike, and their order is that of their numbers.
Task<void> least_queue_depth(Bench& bench) {
  Paths paths = co_await three_paths(bench);
  for (std::uint32_t round = 0; round < 10; ++round) {
    std::vector<std::pair<RawInitiator*, std::uint32_t>> sent;
    for (const std::size_t path : {0U, 0U, 0U, 1U, 0U, 2U, 1U, 0U}) {
      RawInitiator* const peer = paths.peers[path];
      peer->cmd_sn = paths.cmd_sn++;
      const Bytes data = pattern_of(kBlock, static_cast<unsigned>(sent.size()));
      const std::uint32_t tag = co_await send_command(*peer, writing(500 + round, 1, data));
      sent.emplace_back(peer, tag);
      const RawPdu written = co_await peer->next_of(tag);
      CHECK(written.status() == 0);
    }
    paths.peers[2]->cmd_sn = paths.cmd_sn++;
    const Bytes back = co_await read_back(*paths.peers[2], reading(500 + round, 1));
    CHECK(back == pattern_of(kBlock, 7));
  }
}

// All goes to the connection of the lowest weight that is there; one that was lost comes back.
Task<void> weighted_paths(Bench& bench) {
  Paths paths = co_await three_paths(bench);
  for (int i = 0; i < 5; ++i) co_await paths.write_and_read(2, 2);
  paths.peers[2]->reset();
  co_await bench.sleep(std::chrono::seconds(1));
  for (int i = 0; i < 5; ++i) co_await paths.write_and_read(0, 0);
  RawInitiator* const again = co_await bench.connect();
  const RawPdu joined =
      co_await again->log_in({.tsih = paths.peers[0]->tsih, .cid = 2, .cmd_sn = paths.cmd_sn});
  CHECK(joined.login().status == LoginStatus::kSuccess);
  again->next_tag = 50'000;
  paths.peers[2] = again;
  for (int i = 0; i < 5; ++i) co_await paths.write_and_read(2, 2);
}

// Every five seconds, with writes that are stuck each time: each login is quick, and in the end
// there is one session and nothing is held.
Task<void> reconnects_for_ever(Bench& bench) {
  bench.device(0).hang();
  for (std::uint32_t round = 0; round < 30; ++round) {
    const TimePoint before = bench.now();
    RawInitiator& peer = *co_await bench.session();
    CHECK(bench.now() - before <= scsi::kTaskManagementBound + std::chrono::seconds(1));
    co_await send_command(peer, writing(round, 1, pattern_of(kBlock)));
    const RawPdu served = co_await answer_to(peer, reading(0, 1, kSecondUnit));
    CHECK(served.status() == 0);
    if (round % 2 == 0) peer.reset();
    co_await bench.sleep(std::chrono::seconds(5));
  }
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.size() == 1);
  co_await invoke_on(bench.device(0).home(), Bench::release(bench.device(0)));
  RawInitiator& last = *co_await bench.session();
  co_await bench.sleep(std::chrono::seconds(1));
  const RawPdu written = co_await answer_to(last, writing(0, 30, pattern_of(30 * kBlock, 7)));
  CHECK(written.status() == 0);
  const Bytes back = co_await read_back(last, reading(0, 30));
  CHECK(back == pattern_of(30 * kBlock, 7));
}

// Sessions ---------------------------------------------------------------------------------------

Task<RawInitiator*> log_in_at(Bench& bench, Endpoint portal, RawLogin login) {
  RawInitiator* const peer = co_await bench.connect_to(portal);
  const RawPdu answer = co_await peer->log_in(std::move(login));
  CHECK(answer.login().status == LoginStatus::kSuccess);
  co_return peer;
}

Task<void> what_makes_a_session(Bench& bench) {
  const auto add_portal = [](Bench& where, std::uint16_t port, std::uint16_t group_tag) {
    const auto portal = where.server().add_portal(
        {.listen = Endpoint::ipv4(0x7F000001, port), .group_tag = group_tag});
    CHECK(portal.has_value());
    return portal.value_or(Endpoint());
  };
  const Endpoint same_group = add_portal(bench, 3261, 1);
  const Endpoint other_group = add_portal(bench, 3262, 2);
  RawInitiator& first = *co_await log_in_at(bench, bench.endpoint(), {});
  RawInitiator& isid = *co_await log_in_at(bench, bench.endpoint(), {.isid = 2});
  RawInitiator& name =
      *co_await log_in_at(bench, bench.endpoint(), {.initiator = "iqn.2026-11.org.sandbay:other"});
  RawInitiator& group = *co_await log_in_at(bench, other_group, {});
  for (RawInitiator* const peer : {&first, &isid, &name, &group}) {
    co_await bench.take_attentions(*peer);
    const RawPdu served = co_await answer_to(*peer, reading(0, 1));
    CHECK(served.status() == 0);
  }
  // Names are one whatever their case; the address within a portal group does not matter.
  RawInitiator& again =
      *co_await log_in_at(bench, same_group, {.initiator = "iqn.2026-11.org.sandbay:RAW"});
  co_await bench.sleep(std::chrono::seconds(1));  // The end of a connection is on its way.
  CHECK(first.ended());
  for (RawInitiator* const peer : {&isid, &name, &group, &again}) CHECK_FALSE(peer->ended());
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.size() == 4);
}

BenchOptions pinging(Duration interval) {
  BenchOptions options;
  options.limits.nop_in_interval = interval;
  options.limits.nop_in_timeout = interval;
  return options;
}

Task<void> silence_before_login(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu nothing = co_await peer.next(std::chrono::seconds(10));
  CHECK(nothing.silent);
}

Task<void> peer_has_vanished(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  co_await send_command(peer, writing(0, 16));  // Whose data never come.
  bench.device(0).hang();
  co_await send_command(peer, reading(0, 1));  // Which never ends.
  co_await bench.sleep(std::chrono::seconds(4));
  std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.size() == 1);
  co_await bench.sleep(std::chrono::seconds(16));
  sessions = co_await bench.server().sessions();
  CHECK(sessions.empty());
  CHECK(peer.ended());
}

// Only who is to go and is willing is asked: the drop and the end of the server are announced.
Task<void> no_unasked_logout_request(Bench& bench) {
  constexpr int kSessionDrop = static_cast<int>(AsyncEventCode::kSessionDrop);
  RawInitiator& peer = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  const Error dropped = co_await bench.server().drop_session(peer.tsih);
  CHECK(dropped == Error::kNone);
  RawPdu told = co_await peer.next();
  CHECK(told.event() == kSessionDrop);
  told = co_await peer.next();
  CHECK(told.closed);
  co_await bench.end_server();
  told = co_await other.next();
  CHECK(told.event() == kSessionDrop);
  told = co_await other.next();
  CHECK(told.closed);
}

Task<void> odd_key_names(Bench& bench) {
  for (const char* key : {"initialR2T", "Initial R2T", "Initial,R2T", "1InitialR2T", ""}) {
    CAPTURE(key);
    RawInitiator& peer = *co_await bench.connect();
    const RawPdu answer = co_await peer.log_in({.keys = std::string(key) + "=No"});
    CHECK(answer.login().status == LoginStatus::kInitiatorError);
    const RawPdu end = co_await peer.next();
    CHECK(end.closed);
  }
}

// Some boot firmware answers no key that it has not offered itself.
Task<void> nothing_is_offered(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer = co_await peer.log_in();
  CHECK(answer.login().status == LoginStatus::kSuccess);
  CHECK(answer.login().transit);
  const auto pairs = parse_text(answer.text());
  REQUIRE(pairs.has_value());
  const std::set<std::string> declared{"TargetPortalGroupTag", "TargetAlias",
                                       "MaxRecvDataSegmentLength"};
  for (const KeyValue& pair : *pairs) {
    CAPTURE(pair.key);
    CHECK(declared.contains(pair.key));
  }
}

// LIO --------------------------------------------------------------------------------------------

Task<void> logins_beside_stuck_commands(Bench& bench) {
  RawInitiator& stuck = *co_await bench.session();
  bench.device(0).hang();
  bench.device(1).hang();
  for (int i = 0; i < 32; ++i) {
    co_await send_command(stuck, reading(0, 1, i % 2 ? kSecondUnit : 0));
  }
  for (std::uint8_t isid = 2; isid < 10; ++isid) {
    const TimePoint before = bench.now();
    RawInitiator& peer = *co_await bench.session({.isid = isid});
    const std::uint32_t ping = co_await send_ping(peer);
    const RawPdu echo = co_await peer.next_of(ping);
    CHECK(echo.is(Opcode::kNopIn));
    CHECK(bench.now() - before < std::chrono::seconds(1));
  }
  const TimePoint before = bench.now();
  RawInitiator& finder = *co_await bench.connect();
  co_await finder.log_in({.target = ""});
  const RawPdu found = co_await ask_text(finder, "SendTargets=All");
  CHECK(found.is(Opcode::kTextResponse));
  CHECK(bench.now() - before < std::chrono::seconds(1));
}

Task<void> removal_with_stuck_commands(Bench& bench) {
  std::vector<RawInitiator*> peers;
  for (std::uint8_t isid = 1; isid <= 5; ++isid) {
    RawInitiator* const peer = co_await bench.session({.isid = isid});
    peers.push_back(peer);
  }
  bench.device(0).hang();
  for (RawInitiator* const peer : peers) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      co_await send_command(*peer, writing(i, 1, pattern_of(kBlock)));
    }
  }
  const TimePoint before = bench.now();
  const Error removed = co_await bench.server().remove_target(kBenchTarget);
  CHECK(removed == Error::kNone);
  CHECK(bench.now() - before <= 5 * (scsi::kTaskManagementBound + std::chrono::seconds(2)));
  for (RawInitiator* const peer : peers) CHECK(peer->ended());
  RawInitiator& late = *co_await bench.connect();
  const RawPdu answer = co_await late.log_in();
  CHECK(answer.login().status == LoginStatus::kTargetNotFound);
}

BenchOptions multiple_connections() { return {.keys = {{"MaxConnections", "4"}}}; }

}  // namespace

TEST_CASE("ESXi: no ABORT TASK is rejected, whatever has become of the command") {
  on_bench({}, no_abort_is_rejected);
}
TEST_CASE("ESXi: ABORT TASK for every command of a window at once") {
  on_bench({.queue_depth = 128}, aborts_at_once);
}
TEST_CASE("Linux: abort, LU reset, target reset and a new session with a unit that is stuck") {
  on_bench({}, escalation);
}
TEST_CASE("Linux FastAbort: LOGICAL UNIT RESET does not wait for Data-Out") {
  on_bench({}, reset_waiting_for_data);
}
TEST_CASE("Windows: unsolicited Data-Out with a wrong LUN is found by its task tag") {
  on_bench({.keys = {{"InitialR2T", "No"}}}, unsolicited_with_wrong_lun);
}
TEST_CASE("Windows MCS: round robin") { on_bench(multiple_connections(), round_robin); }
TEST_CASE("Windows MCS: fail-over only") { on_bench(multiple_connections(), fail_over_only); }
TEST_CASE("Windows MCS: round robin with subset") {
  on_bench(multiple_connections(), round_robin_with_subset);
}
TEST_CASE("Windows MCS: least queue depth") { on_bench(multiple_connections(), least_queue_depth); }
TEST_CASE("Windows MCS: weighted paths") { on_bench(multiple_connections(), weighted_paths); }
TEST_CASE("Windows: reconnects every five seconds for ever") { on_bench({}, reconnects_for_ever); }
TEST_CASE("Session rules: name, ISID and portal group make a session") {
  on_bench({}, what_makes_a_session);
}
TEST_CASE("Session rules: no NOP-In before the full feature phase") {
  on_bench(pinging(std::chrono::seconds(1)), silence_before_login);
}
TEST_CASE("Longhorn: the session of a peer that has vanished ends") {
  on_bench(pinging(std::chrono::seconds(5)), peer_has_vanished);
}
TEST_CASE("Session rules: nobody is asked to log out without need") {
  on_bench({}, no_unasked_logout_request);
}
TEST_CASE("Session rules: key names are standard labels") { on_bench({}, odd_key_names); }
TEST_CASE("LIO login keys: nothing is offered that would have to be answered") {
  on_bench({}, nothing_is_offered);
}
TEST_CASE("LIO: logins and discovery do not wait for stuck commands") {
  on_bench({}, logins_beside_stuck_commands);
}
TEST_CASE("LIO: a target with stuck commands is removed in bounded time") {
  on_bench({}, removal_with_stuck_commands);
}

}  // namespace sandbay::iscsi::test
