// No peer and no unit holds more than its share: peers that ask for much and neither send nor read,
// units that hang, and how long others wait beside them.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

constexpr std::uint32_t kMebibyteBlocks = (1U << 20) / kBlock;
constexpr Duration kSecond = std::chrono::seconds(1);

BenchOptions many_commands(std::size_t memory_limit_bytes) {
  return {
      .queue_depth = 128, .memory_limit_bytes = memory_limit_bytes, .link = {.fragment = false}};
}

// Answers every R2T of a write, at most so long; its status, -1 without one.
Task<int> write_through(RawInitiator& peer, RawCommand command, Duration patience) {
  const Bytes data = pattern_of(std::size_t{command.blocks} * kBlock);
  const std::uint64_t lun = command.lun;
  const TimePoint deadline = Executor::current().now() + patience;
  const std::uint32_t tag = co_await send_command(peer, std::move(command));
  for (;;) {
    const TimePoint now = Executor::current().now();
    if (now >= deadline) co_return -1;
    const RawPdu pdu = co_await peer.next_of(tag, deadline - now);
    if (!pdu.is(Opcode::kReadyToTransfer)) co_return pdu.status();
    co_await answer_r2t(peer, pdu.r2t(), data, 65536, lun);
  }
}

Task<int> read_through(RawInitiator& peer, RawCommand command, Duration patience) {
  const TimePoint deadline = Executor::current().now() + patience;
  const std::uint32_t tag = co_await send_command(peer, std::move(command));
  for (;;) {
    const TimePoint now = Executor::current().now();
    if (now >= deadline) co_return -1;
    const RawPdu pdu = co_await peer.next_of(tag, deadline - now);
    if (pdu.none() || pdu.status() != -1) co_return pdu.status();
  }
}

// Sends one Data-Out of 64 KiB for the first R2T that is not answered yet.
Task<void> drip(RawInitiator& peer, std::uint32_t& data_sn, ReadyToTransfer& r2t) {
  const bool done = data_sn * 65536 >= r2t.desired_data_transfer_length;
  if (done) {
    RawPdu pdu = co_await peer.next(kSecond);
    while (!pdu.none() && !pdu.is(Opcode::kReadyToTransfer)) pdu = co_await peer.next(kSecond);
    if (pdu.none()) co_return;
    r2t = pdu.r2t();
    data_sn = 0;
  }
  const std::uint32_t offset = data_sn * 65536;
  co_await send_data_out(peer,
                         {.final = offset + 65536 >= r2t.desired_data_transfer_length,
                          .initiator_task_tag = r2t.initiator_task_tag,
                          .target_transfer_tag = r2t.target_transfer_tag,
                          .data_sn = data_sn,
                          .buffer_offset = r2t.buffer_offset + offset},
                         Bytes(65536));
  ++data_sn;
}

// One host asks to write a gigabyte and sends 64 KiB every seven seconds.
Task<void> dripping_host(Bench& bench) {
  RawInitiator& honest = *co_await bench.session({.isid = 2});
  RawInitiator& slow = *co_await bench.session({.keys = "MaxBurstLength=1048576"});
  for (int i = 0; i < 120; ++i) co_await send_command(slow, writing(0, 8 * kMebibyteBlocks));
  std::uint32_t data_sn = 0;
  ReadyToTransfer r2t;
  for (int i = 0; i < 20; ++i) {
    co_await bench.sleep(std::chrono::seconds(7));
    co_await drip(slow, data_sn, r2t);
    const int status = co_await write_through(honest, writing(0, kMebibyteBlocks), kSecond);
    CHECK(status == 0);
  }
}

// Eight hosts lose power in the middle of their writes.
Task<void> silent_hosts(Bench& bench) {
  RawInitiator& honest = *co_await bench.session({.isid = 100});
  for (std::uint8_t isid = 1; isid <= 8; ++isid) {
    RawInitiator& silent = *co_await bench.session({.isid = isid});
    for (int i = 0; i < 120; ++i) co_await send_command(silent, writing(0, 8 * kMebibyteBlocks));
  }
  for (int i = 0; i < 20; ++i) {
    const int status = co_await write_through(honest, writing(0, kMebibyteBlocks), kSecond);
    CHECK(status == 0);
    co_await bench.sleep(std::chrono::seconds(1));
  }
}

// The cable of one connection is out; the session's other one goes on.
Task<void> sibling_unread(Bench& bench) {
  const std::string keys = "MaxConnections=2";
  RawInitiator& stuck = *co_await bench.session({.keys = keys});
  RawInitiator& good = *co_await bench.connect();
  const RawPdu in = co_await good.log_in({.tsih = stuck.tsih, .cid = 1, .cmd_sn = stuck.cmd_sn});
  CHECK(in.login().status == LoginStatus::kSuccess);
  stuck.pause_reading();
  for (int i = 0; i < 60; ++i) co_await send_command(stuck, reading(0, kMebibyteBlocks));
  co_await bench.sleep(std::chrono::milliseconds(100));
  good.cmd_sn = stuck.cmd_sn;
  good.next_tag = 1000;
  for (int i = 0; i < 10; ++i) {
    const TimePoint before = bench.now();
    const int status = co_await read_through(good, reading(0, kMebibyteBlocks), 10 * kSecond);
    CHECK(status == 0);
    CHECK(bench.now() - before < kSecond);
  }
  stuck.resume_reading();
}

// An ORDERED write in many pieces, and writes behind it that have no right to hold it up.
Task<void> ordered_before_others(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  constexpr int kWrites = 20;
  RawCommand first = writing(0, 8 * kMebibyteBlocks);
  first.attribute = AttributeCode::kOrdered;
  co_await send_command(peer, std::move(first));
  for (int i = 1; i < kWrites; ++i) co_await send_command(peer, writing(0, 8 * kMebibyteBlocks));
  const Bytes data = pattern_of(std::size_t{8} << 20);
  int good = 0;
  while (good < kWrites) {
    const RawPdu pdu = co_await peer.next();
    if (pdu.is(Opcode::kReadyToTransfer)) {
      co_await answer_r2t(peer, pdu.r2t(), data, 65536);
      continue;
    }
    CHECK(pdu.status() == 0);
    if (pdu.status() != 0) break;
    ++good;
  }
}

// Takes the R2Ts and statuses that have come, and sends what is asked for.
Task<void> answer_all(RawInitiator& peer, const Bytes& data, std::uint32_t& busy) {
  for (;;) {
    const RawPdu pdu = co_await peer.next(std::chrono::milliseconds(100));
    if (pdu.none()) co_return;
    if (pdu.is(Opcode::kReadyToTransfer)) co_await answer_r2t(peer, pdu.r2t(), data, 65536);
    if (pdu.status() == 0x08 || pdu.status() == 0x28) ++busy;
  }
}

// A unit that never lets go; its host aborts and tries again, and again.
Task<void> hung_unit(Bench& bench, bool writes) {
  RawInitiator& host = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  bench.device(0).hang();
  const Bytes data = pattern_of(std::size_t{1} << 20);
  std::uint32_t busy = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 100; ++i) {
      co_await send_command(host,
                            writes ? writing(0, kMebibyteBlocks) : reading(0, kMebibyteBlocks));
    }
    co_await answer_all(host, data, busy);
    const std::uint32_t tag =
        co_await send_management(host, {.function = TaskManagementFunction::kLogicalUnitReset});
    const RawPdu reset = co_await host.next_of(tag);
    CHECK(reset.managed() == 0);
    co_await bench.sleep(kSecond);
    co_await answer_all(host, data, busy);
  }
  CHECK(busy > 1000);
  // A sixteenth of the memory, and what the session had in flight when that was reached.
  CHECK(bench.device(0).held() > 0);
  CHECK(bench.device(0).held() <= 24);
  for (int i = 0; i < 5; ++i) {
    const int written =
        co_await write_through(other, writing(0, kMebibyteBlocks, {}, kSecondUnit), kSecond);
    CHECK(written == 0);
    const int read =
        co_await read_through(other, reading(0, kMebibyteBlocks, kSecondUnit), kSecond);
    CHECK(read == 0);
  }
}
Task<void> hung_reads(Bench& bench) { co_await hung_unit(bench, false); }
Task<void> hung_writes(Bench& bench) { co_await hung_unit(bench, true); }

}  // namespace

TEST_CASE("A host that drips the data of its writes does not slow down another one's",
          "[share][I-2]") {
  on_bench(many_commands(std::size_t{512} << 20), dripping_host);
}
TEST_CASE("Hosts that fall silent in their writes do not slow down another one's", "[share][I-2]") {
  on_bench(many_commands(std::size_t{128} << 20), silent_hosts);
}
TEST_CASE("A connection that is not read does not slow down its siblings", "[share][I-3]") {
  on_bench(many_commands(std::size_t{128} << 20), sibling_unread);
}
TEST_CASE("An ORDERED write ends while many wait behind it for memory", "[share][I-2]") {
  on_bench(many_commands(std::size_t{64} << 20), ordered_before_others);
}
TEST_CASE("A unit that hangs keeps its share of the memory and no more", "[share][I-4]") {
  SECTION("reads") { on_bench(many_commands(std::size_t{128} << 20), hung_reads); }
  SECTION("writes") { on_bench(many_commands(std::size_t{128} << 20), hung_writes); }
}

}  // namespace sandbay::iscsi::test
