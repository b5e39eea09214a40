// What the target sends of its own accord: asynchronous messages, the NOP-In that opens the window
// again, and the questions behind a response fence. RFC 7143
// sections 4.2.2.1, 4.2.3.3, 11.6.1, 11.9 and 11.19.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_messages_test {
namespace {

constexpr int kLogoutRequest = static_cast<int>(AsyncEventCode::kLogoutRequest);
constexpr int kConnectionDrop = static_cast<int>(AsyncEventCode::kConnectionDrop);
constexpr int kSessionDrop = static_cast<int>(AsyncEventCode::kSessionDrop);
constexpr int kComplete = static_cast<int>(TaskManagementResult::kFunctionComplete);

BenchOptions two_connections() { return {.keys = {{"MaxConnections", "2"}}}; }

// A second connection, with CID 1, of a session that has one.
Task<RawInitiator*> join(Bench& bench, RawInitiator& one) {
  RawInitiator* const two = co_await bench.connect();
  const RawPdu joined = co_await two->log_in({.tsih = one.tsih, .cid = 1, .cmd_sn = one.cmd_sn});
  CHECK(joined.login().status == LoginStatus::kSuccess);
  two->next_tag = 1000;
  co_return two;
}

// One command on a connection, whose status stays unacknowledged.
Task<void> one_command(RawInitiator& one, RawInitiator& two) {
  two.cmd_sn = one.cmd_sn++;
  const RawPdu answer = co_await answer_to(two, {});
  CHECK(answer.status() == 0);
}

Task<void> answer_ping(RawInitiator& peer, RawPdu ping) {
  const auto tag = big_endian<std::uint32_t>(ping.bhs, 20);
  CHECK(tag != kReservedTag);
  Bhs bhs;
  write_nop_out(
      {.target_transfer_tag = tag, .cmd_sn = peer.cmd_sn, .exp_stat_sn = peer.exp_stat_sn}, bhs);
  co_await peer.send(bhs);
}

Task<void> fence(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await join(bench, one);
  co_await one_command(one, two);
  for (const auto function :
       {TaskManagementFunction::kAbortTaskSet, TaskManagementFunction::kLogicalUnitReset}) {
    const std::uint32_t tag = co_await send_management(one, {.function = function});
    const RawPdu ping = co_await two.next();
    CHECK(ping.is(Opcode::kNopIn));
    const RawPdu early = co_await one.next_of(tag, std::chrono::seconds(2));
    CHECK(early.silent);
    co_await answer_ping(two, ping);
    const RawPdu answer = co_await one.next_of(tag, std::chrono::seconds(1));
    CHECK(answer.managed() == kComplete);
    two.cmd_sn = one.cmd_sn++;
    co_await answer_to(two, {});
  }
}

Task<void> fence_in_vain(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await join(bench, one);
  co_await one_command(one, two);
  const TimePoint before = bench.now();
  const std::uint32_t tag =
      co_await send_management(one, {.function = TaskManagementFunction::kClearTaskSet});
  const RawPdu answer = co_await one.next_of(tag);
  CHECK(answer.managed() == kComplete);
  CHECK(bench.now() - before < std::chrono::seconds(6));
  co_await bench.sleep(std::chrono::seconds(1));
  CHECK(two.ended());  // Its status can no longer come after the answer.
  const RawPdu told = co_await one.next();
  CHECK(told.event() == kConnectionDrop);
  CHECK(told.async().parameter1 == 1);
  const RawPdu next = co_await answer_to(one, {});
  CHECK(next.status() == 0);
}

Task<void> no_fence(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await join(bench, one);
  co_await one_command(one, two);
  const std::uint32_t ping = co_await send_ping(two);
  const RawPdu echo = co_await two.next_of(ping);
  CHECK(echo.is(Opcode::kNopIn));
  // An acknowledgement of what has come, which nothing answers.
  Bhs bhs;
  write_nop_out({.cmd_sn = two.cmd_sn, .exp_stat_sn = two.exp_stat_sn}, bhs);
  co_await two.send(bhs);
  const std::uint32_t tag =
      co_await send_management(one, {.function = TaskManagementFunction::kAbortTaskSet});
  const RawPdu answer = co_await one.next_of(tag, std::chrono::seconds(1));
  CHECK(answer.managed() == kComplete);
  const RawPdu nothing = co_await two.next(std::chrono::seconds(1));
  CHECK(nothing.silent);
}

// Another initiator's CLEAR TASK SET ends commands without a word.
Task<void> window_opens(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  bench.device(0).hang();
  const std::uint32_t first = peer.cmd_sn;
  for (int i = 0; i < 32; ++i) co_await send_command(peer, reading(0, 1));
  const RawPdu full = co_await peer.next(std::chrono::seconds(1));
  CHECK(full.silent);
  const std::uint32_t tag =
      co_await send_management(other, {.function = TaskManagementFunction::kClearTaskSet});
  const RawPdu cleared = co_await other.next_of(tag);
  CHECK(cleared.managed() == kComplete);
  const RawPdu opened = co_await peer.next(std::chrono::seconds(1));
  CHECK(opened.is(Opcode::kNopIn));
  CHECK(opened.tag() == kReservedTag);
  CHECK(big_endian<std::uint32_t>(opened.bhs, 20) == kReservedTag);
  CHECK(opened.numbers().exp_cmd_sn == first + 32);
  CHECK(serial_less(first + 31, opened.numbers().max_cmd_sn));
  RawPdu next = co_await answer_to(peer, {.lun = kSecondUnit});
  CHECK(next.status() == 0);
}

// Behind a gap in CmdSN that is not filled, commands bring data.
Task<void> early_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session(
      {.keys = "FirstBurstLength=262144;MaxBurstLength=262144;ImmediateData=Yes"});
  std::size_t before = 0;
  for (Executor* const executor : bench.world().executors()) {
    before += executor->buffers().used_bytes();
  }
  const std::uint32_t gap = peer.cmd_sn++;
  std::vector<std::uint32_t> tags;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const std::uint32_t tag =
        co_await send_command(peer, writing(i * 512, 512, pattern_of(262144)));
    tags.push_back(tag);
  }
  co_await bench.sleep(std::chrono::seconds(1));
  std::size_t held = 0;
  for (Executor* const executor : bench.world().executors()) {
    held += executor->buffers().used_bytes();
  }
  CHECK(held - before <= (std::size_t{4} << 20U) + (std::size_t{1} << 20U));
  co_await send_command(peer, {.cmd_sn = gap, .own_cmd_sn = true});
  unsigned good = 0;
  unsigned refused = 0;
  for (const std::uint32_t tag : tags) {
    const RawPdu end = co_await peer.next_of(tag);
    good += end.status() == 0 ? 1 : 0;
    refused += end.status() == 0x28 ? 1 : 0;  // TASK SET FULL
  }
  CHECK(good == 16);
  CHECK(refused == 14);
}

Task<void> drop_after_request(Bench* bench, SessionDrop drop, std::uint16_t tsih, Event* done) {
  const Error error = co_await bench->server().drop_session(tsih, drop);
  CHECK(error == Error::kNone);
  done->set();
}

Task<void> logout_requested(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  Event done;
  const TimePoint before = bench.now();
  spawn(drop_after_request(&bench, {.logout_time = std::chrono::seconds(20)}, peer.tsih, &done));
  const RawPdu asked = co_await peer.next();
  CHECK(asked.event() == kLogoutRequest);
  CHECK(asked.async().parameter3 == 20);
  const RawPdu served = co_await answer_to(peer, reading(0, 1));  // What is under way goes on.
  CHECK(served.status() == 0);
  const std::uint32_t tag = co_await send_logout(peer, LogoutReason::kCloseSession);
  const RawPdu answer = co_await peer.next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  co_await done.wait();
  CHECK(bench.now() - before < std::chrono::seconds(5));
}

Task<void> logout_refused(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  Event done;
  const TimePoint before = bench.now();
  spawn(drop_after_request(&bench, {.logout_time = std::chrono::seconds(3)}, peer.tsih, &done));
  const RawPdu asked = co_await peer.next();
  CHECK(asked.event() == kLogoutRequest);
  const RawPdu told = co_await peer.next();
  CHECK(told.event() == kSessionDrop);
  CHECK(bench.now() - before >= std::chrono::seconds(3));
  // There is a little time for a logout even now.
  const std::uint32_t tag = co_await send_logout(peer, LogoutReason::kCloseSession);
  const RawPdu answer = co_await peer.next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  co_await done.wait();
  CHECK(bench.now() - before < std::chrono::seconds(5));
}

Task<void> connection_dropped(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await join(bench, one);
  const Error absent = co_await bench.server().drop_session(one.tsih, {.cid = 9});
  CHECK(absent == Error::kNotFound);
  const Error error = co_await bench.server().drop_session(one.tsih, {.cid = 1});
  CHECK(error == Error::kNone);
  const RawPdu told = co_await one.next();
  CHECK(told.event() == kConnectionDrop);
  CHECK(told.async().parameter1 == 1);
  const RawPdu end = co_await two.next();
  CHECK(end.closed);
  const RawPdu next = co_await answer_to(one, {});
  CHECK(next.status() == 0);
  CHECK(next.numbers().stat_sn == told.numbers().stat_sn + 1);
  // The last one is told itself.
  const Error last = co_await bench.server().drop_session(one.tsih, {.cid = 0});
  CHECK(last == Error::kNone);
  const RawPdu own = co_await one.next();
  CHECK(own.event() == kConnectionDrop);
  const RawPdu closed = co_await one.next();
  CHECK(closed.closed);
}

// A connection that is lost by its own fault: the others are told.
Task<void> connection_lost(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await bench.connect();
  const RawPdu joined = co_await two.log_in(
      {.keys = "HeaderDigest=CRC32C", .tsih = one.tsih, .cid = 1, .cmd_sn = one.cmd_sn});
  CHECK(joined.has("HeaderDigest=CRC32C"));
  two.header_digest_on = true;
  two.spoil_header_digest = true;
  co_await send_ping(two);
  const RawPdu told = co_await one.next();
  CHECK(told.event() == kConnectionDrop);
  CHECK(told.async().parameter1 == 1);
}

Task<void> negotiation(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const Error error =
      co_await bench.server().request_negotiation(peer.tsih, std::chrono::seconds(7));
  CHECK(error == Error::kNone);
  const RawPdu asked = co_await peer.next();
  CHECK(asked.event() == static_cast<int>(AsyncEventCode::kNegotiationRequest));
  CHECK(asked.async().parameter3 == 7);
  const RawPdu answer = co_await ask_text(peer, "");
  CHECK(answer.is(Opcode::kTextResponse));
}

}  // namespace

TEST_CASE("4.2.3.3 11.6.1 statuses on other connections arrive before a function's answer") {
  on_bench(two_connections(), fence);
}
TEST_CASE("4.2.3.3 a connection that acknowledges nothing delays a function a bounded time") {
  on_bench(two_connections(), fence_in_vain);
}
TEST_CASE("4.2.3.3 what is acknowledged delays nothing") { on_bench(two_connections(), no_fence); }
TEST_CASE("11.19 a window that opens without an answer is told by a NOP-In") {
  on_bench({}, window_opens);
}
TEST_CASE("4.2.2.1 data of commands behind a gap in CmdSN take a bounded amount of memory") {
  on_bench({.link = {.fragment = false}}, early_data);
}
TEST_CASE("11.9.1 a session that is dropped is first asked to log out") {
  on_bench({}, logout_requested);
}
TEST_CASE("11.9.1 who does not log out is told that its session is dropped") {
  on_bench({}, logout_refused);
}
TEST_CASE("11.9.1 a connection that is dropped is told on those that stay") {
  on_bench(two_connections(), connection_dropped);
}
TEST_CASE("11.9.1 a connection lost to a digest error is told on those that stay") {
  on_bench(two_connections(), connection_lost);
}
TEST_CASE("11.9.1 a negotiation is asked for") { on_bench({}, negotiation); }

}  // namespace sandbay::iscsi::test::target_messages_test
