// Logins, reinstatement, logout and discovery of the target. RFC 7143 sections 4.3, 6.3, 7.1, 11.10
// to 11.15 and appendix C.
#include <algorithm>
#include <catch2/catch.hpp>

#include "iscsi/event_log.h"
#include "target_bench.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::iscsi::test::target_login_test {
namespace {

Task<void> let_go(testing::HungDevice& device) {
  device.release();
  co_return;
}
Task<void> let_go_soon(testing::HungDevice& device) {
  co_await device.home().sleep_for(std::chrono::seconds(2));
  device.release();
}
Task<void> let_go_later(testing::HungDevice& device) {
  spawn(let_go_soon(device));
  co_return;
}

bool was_told(Bench& bench, EventSeverity severity, std::string_view first,
              std::string_view second) {
  for (const ServerEvent& event : bench.events()) {
    if (event.severity != severity) continue;
    if (event.text.find(first) == std::string::npos) continue;
    if (event.text.find(second) != std::string::npos) return true;
  }
  return false;
}

Task<void> refusals(Bench& bench) {
  for (TargetOptions options :
       {TargetOptions{.name = "iqn.2026-11.org.sandbay:private",
                      .access = {AccessRecord{.initiator = "iqn.2026-11.org.sandbay:friend"}}},
        TargetOptions{.name = "iqn.2026-11.org.sandbay:moved",
                      .access = {AccessRecord{}},
                      .redirect = Redirect{.address = "192.0.2.8:3260"}},
        TargetOptions{.name = "iqn.2026-11.org.sandbay:gone",
                      .access = {AccessRecord{}},
                      .redirect = Redirect{.address = "192.0.2.9:3260", .permanent = true}}}) {
    options.device = &bench.router();
    const Error added = co_await bench.server().add_target(std::move(options), nullptr);
    CHECK(added == Error::kNone);
  }
  const std::vector<std::pair<std::string, LoginStatus>> rows = {
      {"nowhere", LoginStatus::kAuthorizationFailure},  // As "private", which it may not see.
      {"private", LoginStatus::kAuthorizationFailure},
      {"moved", LoginStatus::kMovedTemporarily},
      {"gone", LoginStatus::kMovedPermanently}};
  for (const auto& [name, status] : rows) {
    RawInitiator& peer = *co_await bench.connect();
    const RawPdu answer = co_await peer.log_in({.target = "iqn.2026-11.org.sandbay:" + name});
    CHECK(answer.login().status == status);
    if (name == "moved") CHECK(answer.has("TargetAddress=192.0.2.8:3260"));
    if (name == "gone") CHECK(answer.has("TargetAddress=192.0.2.9:3260"));
    const RawPdu end = co_await peer.next();
    CHECK(end.closed);
  }
  CHECK(was_told(bench, EventSeverity::kWarning, "Authorization failure: there is no such target",
                 "iqn.2026-11.org.sandbay:nowhere"));
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu stranger = co_await peer.log_in({.tsih = 4711});
  CHECK(stranger.login().status == LoginStatus::kSessionDoesNotExist);
}

// A login that takes its time: what the target asks for changes between its two requests.
Task<LoginStatus> log_in_around(Bench& bench, TargetOptions changed) {
  RawInitiator& peer = *co_await bench.connect();
  LoginRequest request{.current_stage = 1, .initiator_task_tag = 9, .cmd_sn = 100};
  request.isid.bytes = {std::byte{0x80}, std::byte{0}, std::byte{0},
                        std::byte{0},    std::byte{0}, std::byte{7}};
  Bhs bhs;
  write_login_request(request, bhs);
  const std::string names = "InitiatorName=iqn.2026-11.org.sandbay:raw;SessionType=Normal;";
  co_await peer.send(bhs, bytes_of(text_of(names + "TargetName=" + kBenchTarget)));
  const RawPdu first = co_await peer.next();
  CHECK(first.login().status == LoginStatus::kSuccess);
  CHECK_FALSE(first.login().transit);
  changed.name = kBenchTarget;
  const Error updated = co_await bench.server().update_target(std::move(changed), nullptr);
  CHECK(updated == Error::kNone);
  request.transit = true;
  request.next_stage = 3;
  request.exp_stat_sn = first.numbers().stat_sn + 1;
  write_login_request(request, bhs);
  co_await peer.send(bhs, bytes_of(text_of("MaxRecvDataSegmentLength=8192")));
  const RawPdu last = co_await peer.next();
  co_return last.login().status;
}

Task<void> rules_change_during_login(Bench& bench) {
  const AccessRecord proof{.chap = ChapCredential{.user = "raw", .secret = "a secret of the host"}};
  const LoginStatus unproved = co_await log_in_around(bench, {.access = {proof}});
  CHECK(unproved == LoginStatus::kAuthenticationFailure);
  TargetOptions open{.name = kBenchTarget, .access = {AccessRecord{}}};
  Error updated = co_await bench.server().update_target(open, nullptr);
  CHECK(updated == Error::kNone);
  const LoginStatus shut_out = co_await log_in_around(
      bench, {.access = {AccessRecord{.initiator = "iqn.2026-11.org:other"}}});
  CHECK(shut_out == LoginStatus::kAuthorizationFailure);
  updated = co_await bench.server().update_target(open, nullptr);
  CHECK(updated == Error::kNone);
  const LoginStatus same = co_await log_in_around(bench, open);
  CHECK(same == LoginStatus::kSuccess);
}

std::size_t count_warnings(Bench& bench) {
  std::size_t count = 0;
  for (const ServerEvent& event : bench.events()) {
    count += event.severity == EventSeverity::kWarning ? 1 : 0;
  }
  return count;
}

Task<void> events(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  CHECK(was_told(bench, EventSeverity::kInfo, "iqn.2026-11.org.sandbay:raw", "begins"));
  co_await peer.close();
  co_await bench.sleep(std::chrono::seconds(2));
  CHECK(was_told(bench, EventSeverity::kInfo, "iqn.2026-11.org.sandbay:raw", "has ended"));
  CHECK(count_warnings(bench) == 0);
  for (int count = 0; count < 25; ++count) {
    RawInitiator& stranger = *co_await bench.connect();
    const RawPdu answer = co_await stranger.log_in({.target = "iqn.2026-11.org.sandbay:nowhere"});
    CHECK(answer.login().status == LoginStatus::kTargetNotFound);
  }
  CHECK(was_told(bench, EventSeverity::kWarning, "refused", "iqn.2026-11.org.sandbay:nowhere"));
  CHECK(count_warnings(bench) == 10);
  co_await bench.sleep(std::chrono::seconds(2));
  CHECK(count_warnings(bench) == 11);
  CHECK(was_told(bench, EventSeverity::kWarning, "15 more", "events"));
}

// A flood of one network, and of more than have a budget, beside a peer that has proven itself.
void flood(Executor& home) {
  std::vector<ServerEvent> lines;
  EventLog events(home, [&](const ServerEvent& event) { lines.push_back(event); });
  const auto count = [&](std::string_view text) {
    return std::ranges::count_if(lines,
                                 [&](const ServerEvent& line) { return line.text.contains(text); });
  };
  for (int i = 0; i < 100; ++i) events.warn(Endpoint::ipv4(1, 1), "stranger");
  events.warn(Endpoint::ipv4(2, 1), "neighbour");
  CHECK(count("stranger") == 10);
  CHECK(count("neighbour") == 1);
  for (std::uint32_t i = 0; i < 1000; ++i) events.info(Endpoint::ipv4(10 + i, 1), "everybody");
  CHECK(count("everybody") == 24);  // 14 with a budget of their own, and 10 of all others.
  for (int i = 0; i < 50; ++i) events.info_of_proven("proven");
  CHECK(count("proven") == 50);
}

Task<void> strange_name(Bench& bench) {
  RawInitiator& stranger = *co_await bench.connect();
  const RawPdu answer = co_await stranger.log_in({.initiator = "iqn.x:\xc2\x9b"
                                                               "2J",
                                                  .target = "iqn.2026-11.org.sandbay:nowhere"});
  CHECK(answer.login().status != LoginStatus::kSuccess);
  CHECK(was_told(bench, EventSeverity::kWarning, "\\x9b2J", "refused"));
}

Task<void> session_full(Bench& bench) {
  RawInitiator& one = *co_await bench.session();
  RawInitiator& two = *co_await bench.connect();
  const RawPdu answer = co_await two.log_in({.tsih = one.tsih, .cid = 1});
  CHECK(answer.login().status == LoginStatus::kTooManyConnections);
  const RawPdu goes_on = co_await answer_to(one, {});
  CHECK(goes_on.status() == 0);
}

// The old session's write is over, or fenced off, before the new session's first command runs.
Task<void> session_reinstatement(Bench& bench) {
  RawInitiator& old = *co_await bench.session();
  bench.device(0).hang();
  co_await send_command(old, writing(0, 1, pattern_of(kBlock, 1)));
  RawCommand read = reading(0, 1, kSecondUnit);
  const RawPdu served = co_await answer_to(old, read);
  CHECK(served.status() == 0);
  const TimePoint before = bench.now();
  RawInitiator& fresh = *co_await bench.session();
  CHECK(bench.now() - before <= scsi::kTaskManagementBound + std::chrono::seconds(1));
  CHECK(old.ended());
  CHECK(fresh.tsih != old.tsih);
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.size() == 1);
  const RawPdu busy = co_await answer_to(fresh, writing(0, 1, pattern_of(kBlock, 2)));
  CHECK(busy.status() == 8);
  co_await invoke_on(bench.device(0).home(), let_go(bench.device(0)));
  co_await bench.sleep(std::chrono::seconds(1));
  const RawPdu written = co_await answer_to(fresh, writing(0, 1, pattern_of(kBlock, 2)));
  CHECK(written.status() == 0);
  const Bytes back = co_await read_back(fresh, reading(0, 1));
  CHECK(back == pattern_of(kBlock, 2));
}

Task<void> other_isid(Bench& bench) {
  RawInitiator& one = *co_await bench.session();
  RawInitiator& two = *co_await bench.session({.isid = 9});
  const RawPdu first = co_await answer_to(one, {});
  const RawPdu second = co_await answer_to(two, {});
  CHECK(first.status() == 0);
  CHECK(second.status() == 0);
}

Task<void> connection_reinstatement(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  bench.device(0).hang();
  const std::uint32_t first = one.cmd_sn;
  for (std::uint32_t i = 0; i < 30; ++i) co_await send_command(one, reading(i, 1));
  co_await bench.sleep(std::chrono::seconds(1));
  RawInitiator& two = *co_await bench.connect();
  const TimePoint before = bench.now();
  const RawPdu joined = co_await two.log_in({.tsih = one.tsih, .cid = 0, .cmd_sn = first + 30});
  CHECK(joined.login().status == LoginStatus::kSuccess);
  CHECK(joined.login().tsih == one.tsih);
  CHECK(bench.now() - before <= scsi::kTaskManagementBound + std::chrono::seconds(1));
  CHECK(one.ended());
  two.next_tag = 1000;
  const RawPdu served = co_await answer_to(two, reading(0, 1, kSecondUnit));
  CHECK(served.status() == 0);
}

Task<void> log_session_out(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await bench.connect();
  co_await two.log_in({.tsih = one.tsih, .cid = 1, .cmd_sn = one.cmd_sn});
  const std::uint32_t tag = co_await send_logout(one, LogoutReason::kCloseSession);
  const RawPdu answer = co_await one.next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  co_await bench.sleep(std::chrono::seconds(5));
  CHECK(one.ended());
  CHECK(two.ended());
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.empty());
}

// A reservation goes with its session, and is gone when the logout is answered, whatever hangs.
Task<void> log_out_with_reservation(Bench& bench) {
  RawInitiator& one = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 7});
  const RawPdu ready = co_await answer_to(other, {});
  static_cast<void>(ready);  // Its unit attention.
  const RawCommand reserve{.operation = 0x16};
  const RawPdu first = co_await answer_to(one, reserve);
  static_cast<void>(first);
  const RawPdu reserved = co_await answer_to(one, reserve);
  CHECK(reserved.status() == 0);
  const RawPdu conflict = co_await answer_to(other, {});
  CHECK(conflict.status() == 0x18);
  bench.device(0).hang();
  co_await send_command(one, writing(0, 1, pattern_of(kBlock, 1)));
  const std::uint32_t tag = co_await send_logout(one, LogoutReason::kCloseSession);
  const RawPdu answer = co_await one.next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  const RawPdu free = co_await answer_to(other, {});
  CHECK(free.status() == 0);
  co_await invoke_on(bench.device(0).home(), let_go_later(bench.device(0)));
  co_await bench.sleep(std::chrono::seconds(5));
}

// What was in flight is over when the logout is answered: another session's write comes last.
Task<void> logout_with_stuck_write(Bench& bench) {
  RawInitiator& one = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 7});
  bench.device(0).hang();
  co_await send_command(one, writing(0, 1, pattern_of(kBlock, 1)));
  const std::uint32_t tag = co_await send_logout(one, LogoutReason::kCloseSession);
  const RawPdu answer = co_await one.next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  co_await invoke_on(bench.device(0).home(), let_go_later(bench.device(0)));
  const RawPdu written = co_await answer_to(other, writing(0, 1, pattern_of(kBlock, 2)));
  CHECK(written.status() == 8);  // Held off until the device has let go of the old write.
  co_await bench.sleep(std::chrono::seconds(5));
  const RawPdu again = co_await answer_to(other, writing(0, 1, pattern_of(kBlock, 2)));
  CHECK(again.status() == 0);
}

Task<void> log_connections_out(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await bench.connect();
  co_await two.log_in({.tsih = one.tsih, .cid = 1, .cmd_sn = one.cmd_sn});
  const std::uint32_t unknown = co_await send_logout(one, LogoutReason::kCloseConnection, 99);
  const RawPdu none = co_await one.next_of(unknown);
  CHECK(none.logged_out() == static_cast<int>(LogoutResult::kCidNotFound));
  const std::uint32_t recovery = co_await send_logout(one, LogoutReason::kRemoveForRecovery, 1);
  const RawPdu refused = co_await one.next_of(recovery);
  CHECK(refused.logged_out() == static_cast<int>(LogoutResult::kRecoveryNotSupported));
  CHECK_FALSE(two.ended());
  const std::uint32_t other = co_await send_logout(one, LogoutReason::kCloseConnection, 1);
  const RawPdu closed = co_await one.next_of(other);
  CHECK(closed.logged_out() == static_cast<int>(LogoutResult::kClosed));
  co_await bench.sleep(std::chrono::seconds(1));
  CHECK(two.ended());
  const RawPdu goes_on = co_await answer_to(one, {});
  CHECK(goes_on.status() == 0);
  const std::uint32_t own = co_await send_logout(one, LogoutReason::kCloseConnection, 0);
  const RawPdu last = co_await one.next_of(own);
  CHECK(last.logged_out() == static_cast<int>(LogoutResult::kClosed));
  const RawPdu end = co_await one.next();
  CHECK(end.closed);
}

Task<void> discovery(Bench& bench) {
  const Error added = co_await bench.server().add_target(
      {.name = "iqn.2026-11.org.sandbay:private",
       .device = &bench.router(),
       .access = {AccessRecord{.initiator = "iqn.2026-11.org.sandbay:friend"}}},
      nullptr);
  CHECK(added == Error::kNone);
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer = co_await peer.log_in({.target = ""});
  CHECK(answer.login().status == LoginStatus::kSuccess);
  const RawPdu all = co_await ask_text(peer, "SendTargets=All");
  CHECK(all.text() ==
        text_of(std::string("TargetName=") + kBenchTarget + ";TargetAddress=127.0.0.1:3260,1"));
  const RawPdu one = co_await ask_text(peer, std::string("SendTargets=") + kBenchTarget);
  CHECK(one.text() == all.text());
  const RawPdu hidden = co_await ask_text(peer, "SendTargets=iqn.2026-11.org.sandbay:private");
  CHECK(hidden.text().empty());
  RawInitiator& friendly = *co_await bench.connect();
  co_await friendly.log_in({.initiator = "iqn.2026-11.org.sandbay:friend", .target = ""});
  const RawPdu both = co_await ask_text(friendly, "SendTargets=All");
  CHECK(both.has("TargetName=iqn.2026-11.org.sandbay:private"));
  // A session with a target asks about it alone, and not about all.
  RawInitiator& normal = *co_await bench.session({.isid = 5});
  const RawPdu own = co_await ask_text(normal, "SendTargets=");
  CHECK(own.text() == all.text());
  // SCSI has no place in discovery.
  co_await send_command(peer, {});
  RawPdu end = co_await peer.next();
  if (!end.closed) end = co_await peer.next();
  CHECK(end.closed);
}

Task<void> long_answer(Bench& bench) {
  for (int i = 0; i < 100; ++i) {
    const Error added = co_await bench.server().add_target(
        {.name = "iqn.2026-11.org.sandbay:many-" + std::to_string(i),
         .device = &bench.router(),
         .access = {AccessRecord{}}},
        nullptr);
    CHECK(added == Error::kNone);
  }
  RawInitiator& peer = *co_await bench.connect();
  co_await peer.log_in({.target = "", .keys = "MaxRecvDataSegmentLength=512"});
  RawPdu pdu = co_await ask_text(peer, "SendTargets=All");
  std::string whole;
  int pieces = 0;
  for (; pdu.is(Opcode::kTextResponse) && pieces < 100; ++pieces) {
    const TextResponse response = parse_text_response(pdu.bhs).value_or(TextResponse{});
    CHECK(pdu.data.size() <= 512);
    whole += pdu.text();
    CHECK(response.final == !response.continues);
    if (response.final) break;
    CHECK(response.target_transfer_tag != kReservedTag);
    Bhs bhs;
    write_text_request({.immediate = true,
                        .lun = response.lun,
                        .initiator_task_tag = response.initiator_task_tag,
                        .target_transfer_tag = response.target_transfer_tag,
                        .cmd_sn = peer.cmd_sn,
                        .exp_stat_sn = peer.exp_stat_sn},
                       bhs);
    co_await peer.send(bhs);
    pdu = co_await peer.next();
  }
  CHECK(pieces > 5);
  std::size_t targets = 0;
  for (std::size_t at = 0; (at = whole.find("TargetName=", at)) != std::string::npos; ++at) {
    ++targets;
  }
  CHECK(targets == 101);
}

Task<void> text_in_full_feature_phase(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const RawPdu before = co_await answer_to(peer, reading(0, 8));
  CHECK(before.data.size() == 4096);
  const RawPdu answer = co_await ask_text(peer, "MaxRecvDataSegmentLength=1024");
  CHECK(answer.is(Opcode::kTextResponse));
  const RawPdu after = co_await answer_to(peer, reading(0, 8));
  CHECK(after.data.size() == 1024);
  for (int i = 0; i < 3; ++i) co_await peer.next();  // The rest of it.
  const RawPdu refused = co_await ask_text(peer, "HeaderDigest=CRC32C");
  CHECK_FALSE(refused.has("HeaderDigest=CRC32C"));
  CHECK(refused.rejected_for() == static_cast<int>(RejectReason::kProtocolError));
}

}  // namespace

TEST_CASE("A login is judged by the rules at its end, not only at its first request", "[I-7]") {
  on_bench({}, rules_change_during_login);
}
TEST_CASE("11.13.5 refused and redirected logins") { on_bench({}, refusals); }
TEST_CASE("Logins and sessions are told to the log, and only so many a second") {
  on_bench({}, events);
}

TEST_CASE("A flood hides no line of another network or of a proven peer", "[X7]") {
  sandbay::testing::run_in_world(1, [](Executor& home) -> Task<void> {
    flood(home);
    co_return;
  });
}

TEST_CASE("An event shows no control character of a peer's name", "[X9]") {
  on_bench({}, strange_name);
}
TEST_CASE("11.13.5 0206 a session has as many connections as were agreed") {
  on_bench({}, session_full);
}
TEST_CASE("6.3.5 reinstatement: the old session's commands are over before the new one's") {
  on_bench({}, session_reinstatement);
}
TEST_CASE("6.3.5 another ISID is another session") { on_bench({}, other_isid); }
TEST_CASE("6.3.4 connection reinstatement is bounded with a hung unit") {
  on_bench({.keys = {{"MaxConnections", "2"}}}, connection_reinstatement);
}
TEST_CASE("11.14 logout of the session ends all its connections") {
  on_bench({.keys = {{"MaxConnections", "2"}}}, log_session_out);
}
TEST_CASE("11.14 a reservation is gone when the logout of its session is answered") {
  on_bench({}, log_out_with_reservation);
}
TEST_CASE("11.14 commands are over when the logout of their session is answered") {
  on_bench({}, logout_with_stuck_write);
}
TEST_CASE("11.14 logout of connections: this one, another, none, and for recovery") {
  on_bench({.keys = {{"MaxConnections", "2"}}}, log_connections_out);
}
TEST_CASE("4.3 C discovery lists what the initiator may use") { on_bench({}, discovery); }
TEST_CASE("11.11 a long answer comes in pieces with the C bit") { on_bench({}, long_answer); }
TEST_CASE("11.10 MaxRecvDataSegmentLength is declared again in the full feature phase") {
  on_bench({}, text_in_full_feature_phase);
}

}  // namespace sandbay::iscsi::test::target_login_test
