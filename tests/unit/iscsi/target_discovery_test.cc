// Discovery sessions: what they take, what they are told, which of them replace each other; and
// text exchanges. RFC 7143 sections 4.3, 7.4 and 11.10.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_discovery_test {
namespace {

Task<RawInitiator*> discover(Bench& bench, Endpoint portal, RawLogin login) {
  RawInitiator* const peer = co_await bench.connect_to(portal);
  const RawPdu answer = co_await peer->log_in(std::move(login));
  CHECK(answer.login().status == LoginStatus::kSuccess);
  co_return peer;
}

Endpoint second_portal(Bench& bench, std::uint16_t group_tag) {
  const auto portal = bench.server().add_portal(
      {.listen = Endpoint::ipv4(0x7F000001, 3261), .group_tag = group_tag});
  CHECK(portal.has_value());
  return portal.value_or(Endpoint());
}

Task<void> unnamed(Bench& bench) {
  const Endpoint other = second_portal(bench, 1);  // Of the same portal group.
  RawInitiator& first = *co_await discover(bench, bench.endpoint(), {.target = ""});
  RawInitiator& isid = *co_await discover(bench, bench.endpoint(), {.target = "", .isid = 2});
  RawInitiator& name = *co_await discover(
      bench, bench.endpoint(), {.initiator = "iqn.2026-11.org.sandbay:other", .target = ""});
  RawInitiator& address = *co_await discover(bench, other, {.target = ""});
  for (RawInitiator* const peer : {&first, &isid, &name, &address}) {
    const RawPdu answer = co_await ask_text(*peer, "SendTargets=All");
    CHECK(answer.is(Opcode::kTextResponse));
  }
  RawInitiator& again = *co_await discover(bench, bench.endpoint(), {.target = ""});
  co_await bench.sleep(std::chrono::milliseconds(100));
  CHECK(first.ended());
  for (RawInitiator* const peer : {&isid, &name, &address, &again}) CHECK_FALSE(peer->ended());
}

// One that names its target is subject to the ISID rule like every session with that target, and
// has nothing to do with one that names none.
Task<void> named(Bench& bench) {
  RawInitiator& without = *co_await discover(bench, bench.endpoint(), {.target = ""});
  const auto log_in = [](Bench& where) -> Task<RawInitiator*> {
    RawInitiator* const peer = co_await where.connect();
    LoginRequest request{.transit = true, .current_stage = 1, .next_stage = 3, .cmd_sn = 100};
    request.initiator_task_tag = 1;
    request.isid.bytes = {std::byte{0x80}, std::byte{0}, std::byte{0},
                          std::byte{0},    std::byte{0}, std::byte{1}};
    Bhs bhs;
    write_login_request(request, bhs);
    co_await peer->send(bhs, bytes_of(text_of("InitiatorName=iqn.2026-11.org.sandbay:raw;"
                                              "SessionType=Discovery;TargetName=" +
                                              std::string(kBenchTarget))));
    const RawPdu answer = co_await peer->next();
    CHECK(answer.login().status == LoginStatus::kSuccess);
    co_return peer;
  };
  RawInitiator& first = *co_await log_in(bench);
  RawInitiator& second = *co_await log_in(bench);
  co_await bench.sleep(std::chrono::milliseconds(100));
  CHECK(first.ended());
  CHECK_FALSE(second.ended());
  RawInitiator& normal = *co_await bench.session();
  co_await bench.sleep(std::chrono::milliseconds(100));
  CHECK(second.ended());
  CHECK_FALSE(normal.ended());
  CHECK_FALSE(without.ended());
}

Task<void> requests(Bench& bench) {
  RawInitiator& peer = *co_await discover(bench, bench.endpoint(), {.target = ""});
  const std::uint32_t ping = co_await send_ping(peer);
  const RawPdu pinged = co_await peer.next();
  CHECK(pinged.rejected_for() == static_cast<int>(RejectReason::kCommandNotSupported));
  CHECK(initiator_task_tag(BhsView(std::span(pinged.data).first<kBhsBytes>())) == ping);
  const RawPdu text = co_await ask_text(peer, "MaxRecvDataSegmentLength=1024");
  CHECK(text.rejected_for() == static_cast<int>(RejectReason::kProtocolError));
  co_await send_logout(peer, LogoutReason::kCloseConnection);
  const RawPdu connection = co_await peer.next();
  CHECK(connection.rejected_for() == static_cast<int>(RejectReason::kProtocolError));
  const RawPdu goes_on = co_await ask_text(peer, "SendTargets=All");
  CHECK(goes_on.is(Opcode::kTextResponse));
  co_await send_logout(peer, LogoutReason::kCloseSession);
  const RawPdu session = co_await peer.next();
  CHECK(session.logged_out() == static_cast<int>(LogoutResult::kClosed));
}

ServerLimits pinging() {
  ServerLimits limits;
  limits.nop_in_interval = std::chrono::seconds(1);
  limits.nop_in_timeout = std::chrono::seconds(60);
  return limits;
}

// Section 7.4.3: nothing but answers to text and logout, also when the session is dropped.
Task<void> no_other_pdus(Bench& bench) {
  RawInitiator& peer = *co_await discover(bench, bench.endpoint(), {.target = ""});
  const RawPdu nothing = co_await peer.next(std::chrono::seconds(10));
  CHECK(nothing.silent);
  const Error dropped = co_await bench.server().drop_session(peer.tsih);
  CHECK(dropped == Error::kNone);
  const RawPdu end = co_await peer.next();
  CHECK(end.closed);
}

Task<void> send_text(RawInitiator& peer, std::uint32_t tag, std::string_view pairs,
                     bool final = true) {
  const TextRequest request{.immediate = true,
                            .final = final,
                            .initiator_task_tag = tag,
                            .cmd_sn = peer.cmd_sn,
                            .exp_stat_sn = peer.exp_stat_sn};
  Bhs bhs;
  write_text_request(request, bhs);
  co_await peer.send(bhs, bytes_of(text_of(pairs)));
}

// Two requests at once. Whoever lists the targets lives on executor 0: with two executors the
// second request comes while the first is being answered.
Task<void> parallel_text(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  co_await send_text(peer, 71, std::string("SendTargets=") + kBenchTarget);
  co_await send_text(peer, 72, "SendTargets=iqn.2026-11.org.sandbay:absent");
  const RawPdu first = co_await peer.next_of(71);
  CHECK(first.is(Opcode::kTextResponse));
  CHECK(first.has(std::string("TargetName=") + kBenchTarget));
  if (bench.world().executors().size() == 1) co_return;
  const RawPdu second = co_await peer.next_of(kReservedTag);
  CHECK(second.rejected_for() == static_cast<int>(RejectReason::kProtocolError));
  CHECK(initiator_task_tag(BhsView(std::span(second.data).first<kBhsBytes>())) == 72);
  const RawPdu third = co_await ask_text(peer, "SendTargets=");
  CHECK(third.is(Opcode::kTextResponse));
}

}  // namespace

TEST_CASE("7.4.2.1 unnamed discovery sessions replace each other by name, ISID and address") {
  on_bench({}, unnamed);
}
TEST_CASE("7.4.2.2 a discovery session that names its target follows the ISID rule") {
  on_bench({}, named);
}
TEST_CASE("4.3 discovery takes SendTargets and the logout of the session, and nothing else") {
  on_bench({}, requests);
}
TEST_CASE("7.4.3 a discovery session gets neither pings nor asynchronous messages") {
  on_bench({.limits = pinging()}, no_other_pdus);
}
TEST_CASE("11.10 a second text request while one is being answered is rejected") {
  on_bench({}, parallel_text);
}

}  // namespace sandbay::iscsi::test::target_discovery_test
