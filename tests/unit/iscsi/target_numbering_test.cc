// The target and the numbers: CmdSN, ExpCmdSN and MaxCmdSN, StatSN, and what it does with PDUs that
// have no business to be there. RFC 7143 sections 4.2.2, 11.16, 11.17, 11.18.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

Task<void> out_of_order(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t first = peer.cmd_sn;
  // The read comes before the writes that it must see.
  RawCommand read = reading(5, 1);
  read.own_cmd_sn = true;
  read.cmd_sn = first + 2;
  const std::uint32_t read_tag = co_await send_command(peer, read);
  const RawPdu early = co_await peer.next(std::chrono::seconds(5));
  CHECK(early.silent);
  for (const std::uint32_t behind : {1U, 0U}) {
    RawCommand write = writing(5, 1, pattern_of(kBlock, behind));
    write.own_cmd_sn = true;
    write.cmd_sn = first + behind;
    co_await send_command(peer, std::move(write));
  }
  peer.cmd_sn = first + 3;
  const RawPdu data = co_await peer.next_of(read_tag);
  CHECK(data.status() == 0);
  CHECK(data.data == pattern_of(kBlock, 1));
  CHECK(data.numbers().exp_cmd_sn == first + 3);
}

Task<void> over_two_connections(Bench& bench) {
  RawInitiator& one = *co_await bench.session({.keys = "MaxConnections=2"});
  RawInitiator& two = *co_await bench.connect();
  const std::uint32_t first = one.cmd_sn;
  const RawPdu joined = co_await two.log_in({.tsih = one.tsih, .cid = 1, .cmd_sn = first});
  CHECK(joined.login().status == LoginStatus::kSuccess);
  two.cmd_sn = first + 1;
  two.next_tag = 1000;
  const std::uint32_t read_tag = co_await send_command(two, reading(9, 1));
  const RawPdu early = co_await two.next(std::chrono::seconds(2));
  CHECK(early.silent);
  const RawPdu written = co_await answer_to(one, writing(9, 1, pattern_of(kBlock)));
  CHECK(written.status() == 0);
  const RawPdu data = co_await two.next_of(read_tag);
  CHECK(data.status() == 0);
  CHECK(data.data == pattern_of(kBlock));
}

Task<void> duplicates_and_strangers(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t first = peer.cmd_sn;
  const RawPdu good = co_await answer_to(peer, {});
  CHECK(good.status() == 0);
  const std::uint32_t most = good.numbers().max_cmd_sn;
  for (const std::uint32_t cmd_sn : {first, first - 40, most + 1, most + 1000}) {
    co_await send_command(peer, {.cmd_sn = cmd_sn, .own_cmd_sn = true});
  }
  // A command that waits for its turn, twice: executed once.
  RawCommand waiting{.cmd_sn = first + 2, .own_cmd_sn = true, .tag = 5000};
  co_await send_command(peer, waiting);
  waiting.tag = 5001;
  co_await send_command(peer, waiting);
  const RawPdu nothing = co_await peer.next(std::chrono::seconds(5));
  CHECK(nothing.silent);
  const RawPdu filling = co_await answer_to(peer, {});
  CHECK(filling.status() == 0);
  const RawPdu waited = co_await peer.next();
  CHECK(waited.tag() == 5000);
  CHECK(waited.status() == 0);
  peer.cmd_sn = first + 3;
  const RawPdu after = co_await peer.next(std::chrono::seconds(5));
  CHECK(after.silent);
  const RawPdu next = co_await answer_to(peer, {});
  CHECK(next.status() == 0);
}

Task<void> window(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  bench.device(0).hang();
  const std::uint32_t first = peer.cmd_sn;
  for (int i = 0; i < 40; ++i) co_await send_command(peer, reading(0, 1));  // 32 are possible.
  const std::uint32_t ping = co_await send_ping(peer);
  const RawPdu answer = co_await peer.next_of(ping);
  CHECK(answer.is(Opcode::kNopIn));
  CHECK(answer.numbers().exp_cmd_sn == first + 32);
  CHECK(answer.numbers().max_cmd_sn == first + 31);
}

Task<void> immediate_command_overtakes(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawCommand later{.cmd_sn = peer.cmd_sn + 1, .own_cmd_sn = true};
  co_await send_command(peer, later);
  const RawPdu now = co_await answer_to(peer, {.immediate = true});
  CHECK(now.status() == 0);
  CHECK(now.numbers().exp_cmd_sn == peer.cmd_sn);
}

Task<void> stat_sn_counts(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  std::uint32_t expected = peer.exp_stat_sn;
  for (int i = 0; i < 3; ++i) {
    const RawPdu pdu = co_await answer_to(peer, {});
    CHECK(pdu.numbers().stat_sn == expected++);
    const std::uint32_t ping = co_await send_ping(peer);
    const RawPdu echo = co_await peer.next_of(ping);
    CHECK(echo.numbers().stat_sn == expected++);
  }
}

Task<void> snack_and_unknown(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  Bhs bhs;
  write_nop_out({.immediate = false, .initiator_task_tag = 77}, bhs);
  bhs[0] = static_cast<std::byte>(Opcode::kSnackRequest);
  co_await peer.send(bhs);
  const RawPdu snack = co_await peer.next();
  CHECK(snack.rejected_for() == static_cast<int>(RejectReason::kSnackReject));
  CHECK(snack.data == Bytes(bhs.begin(), bhs.end()));
  bhs = {};
  bhs[0] = std::byte{0x1c};
  co_await peer.send(bhs);
  const RawPdu unknown = co_await peer.next();
  CHECK(unknown.rejected_for() == static_cast<int>(RejectReason::kCommandNotSupported));
  CHECK(unknown.tag() == kReservedTag);
  const RawPdu goes_on = co_await answer_to(peer, {});
  CHECK(goes_on.status() == 0);
}

Task<void> login_again(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const RawPdu answer = co_await peer.log_in();
  CHECK_FALSE(answer.is(Opcode::kLoginResponse));
  const RawPdu end = co_await peer.next();
  CHECK(end.closed);
}

Task<void> expect_gap(RawInitiator& peer, std::uint32_t gap);

Task<void> tag_in_use(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawCommand write = writing(0, 16);
  write.tag = 4242;
  co_await send_command(peer, write);
  const RawPdu r2t = co_await peer.next();
  CHECK(r2t.is(Opcode::kReadyToTransfer));
  RawCommand again{.tag = 4242};
  const std::uint32_t gap = peer.cmd_sn;
  co_await send_command(peer, again);
  const RawPdu refused = co_await peer.next();
  CHECK(refused.rejected_for() == static_cast<int>(RejectReason::kTaskInProgress));
  CHECK(refused.numbers().exp_cmd_sn == gap);
  co_await expect_gap(peer, gap);
}

// What has the next CmdSN waits until something has come that has the missing one.
Task<void> expect_gap(RawInitiator& peer, std::uint32_t gap) {
  const std::uint32_t waiting = co_await send_command(peer, {});
  const RawPdu nothing = co_await peer.next_of(waiting, std::chrono::seconds(2));
  CHECK(nothing.silent);
  const RawPdu filling = co_await answer_to(peer, {.cmd_sn = gap, .own_cmd_sn = true});
  CHECK(filling.status() == 0);
  const RawPdu next = co_await peer.next_of(waiting);
  CHECK(next.status() == 0);
}

Task<void> malformed(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  std::uint32_t gap = peer.cmd_sn;
  co_await send_command(peer, {.expected = 512});  // Bytes in neither direction.
  const RawPdu command = co_await peer.next();
  CHECK(command.rejected_for() == static_cast<int>(RejectReason::kInvalidPduField));
  CHECK(command.numbers().exp_cmd_sn == gap);
  co_await expect_gap(peer, gap);
  // The same for other requests: on arrival …
  gap = peer.cmd_sn++;
  Bhs bhs;
  const LogoutRequest logout{.immediate = false,
                             .initiator_task_tag = kReservedTag,
                             .cmd_sn = gap,
                             .exp_stat_sn = peer.exp_stat_sn};
  write_logout_request(logout, bhs);
  co_await peer.send(bhs);
  const RawPdu request = co_await peer.next();
  CHECK(request.rejected_for() == static_cast<int>(RejectReason::kInvalidPduField));
  CHECK(request.numbers().exp_cmd_sn == gap);
  co_await expect_gap(peer, gap);
  // … and when their turn comes later.
  const std::uint32_t first = peer.cmd_sn;
  put_big_endian<std::uint32_t>(bhs, 24, first + 1);
  co_await peer.send(bhs);
  const RawPdu good = co_await answer_to(peer, {});
  CHECK(good.status() == 0);
  const RawPdu later = co_await peer.next_of(kReservedTag);
  CHECK(later.rejected_for() == static_cast<int>(RejectReason::kInvalidPduField));
  CHECK(later.numbers().exp_cmd_sn == first + 1);
  peer.cmd_sn = first + 2;
  co_await expect_gap(peer, first + 1);
}

Task<void> ping_with_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t tag = co_await send_ping(peer, pattern_of(1023));
  const RawPdu echo = co_await peer.next_of(tag);
  CHECK(echo.is(Opcode::kNopIn));
  CHECK(echo.data == pattern_of(1023));
  const std::uint32_t ordered = co_await send_ping(peer, pattern_of(4), false);
  const RawPdu second = co_await peer.next_of(ordered);
  CHECK(second.data == pattern_of(4));
  CHECK(second.numbers().exp_cmd_sn == peer.cmd_sn);
}

Task<void> ping_while_stuck(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  bench.device(0).hang();
  bench.device(1).hang();
  for (int i = 0; i < 32; ++i) co_await send_command(peer, reading(0, 1, i % 2 ? kSecondUnit : 0));
  const TimePoint before = bench.now();
  const std::uint32_t tag = co_await send_ping(peer);
  const RawPdu echo = co_await peer.next_of(tag);
  CHECK(echo.is(Opcode::kNopIn));
  CHECK(bench.now() - before < std::chrono::seconds(1));
}

}  // namespace

TEST_CASE("4.2.2.1 commands that come out of order run in the order of CmdSN") {
  on_bench({}, out_of_order);
}
TEST_CASE("4.2.2.1 CmdSN orders commands over two connections") {
  on_bench({.keys = {{"MaxConnections", "2"}}}, over_two_connections);
}
TEST_CASE("4.2.2.1 duplicates and commands outside of the window are ignored") {
  on_bench({}, duplicates_and_strangers);
}
TEST_CASE("4.2.2.1 the window closes while as many commands run as may") { on_bench({}, window); }
TEST_CASE("4.2.2.1 an immediate command overtakes and takes no CmdSN") {
  on_bench({}, immediate_command_overtakes);
}
TEST_CASE("4.2.2.2 every answer takes one StatSN") { on_bench({}, stat_sn_counts); }
TEST_CASE("11.16 11.17 SNACK and unknown opcodes are rejected and the session goes on") {
  on_bench({}, snack_and_unknown);
}
TEST_CASE("11.12 a Login Request in the full feature phase ends the connection") {
  on_bench({}, login_again);
}
TEST_CASE("7.3 a task tag in use is rejected, and its CmdSN counts as not received") {
  on_bench({}, tag_in_use);
}
TEST_CASE("7.3 the CmdSN of a malformed request counts as not received") {
  on_bench({}, malformed);
}
TEST_CASE("11.18 ping data comes back") { on_bench({}, ping_with_data); }
TEST_CASE("Linux: a ping is answered while every command is stuck") {
  on_bench({}, ping_while_stuck);
}

}  // namespace sandbay::iscsi::test
