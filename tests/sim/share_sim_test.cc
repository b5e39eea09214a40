// Goal: whatever peers do that ask for much and give nothing, and whatever a unit does that never
// answers, honest hosts beside them go on: each of their requests ends within seconds, with the
// right data. Method: our initiator on a unit whose content is checked, beside hand-written peers
// on two other units, one of which hangs. The seed chooses the peers, their number, their
// parameters and the schedule.
#include <catch2/catch.hpp>

#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "../unit/iscsi/raw_initiator.h"
#include "rig.h"
#include "seeds.h"

namespace sandbay::simtest {
namespace {

using iscsi::Bhs;
using iscsi::Opcode;
using iscsi::test::Bytes;
using iscsi::test::RawInitiator;
using iscsi::test::RawPdu;

constexpr std::uint64_t kScratchUnit = std::uint64_t{1} << 48U;
constexpr std::uint64_t kHungUnit = std::uint64_t{2} << 48U;
constexpr std::uint32_t kBlockBytes = 512;
constexpr std::uint32_t kQueueDepth = 64;
constexpr Duration kPatience = std::chrono::seconds(5);

// The fault of a bad peer, repeated until the honest hosts are done.
enum class Vice : std::uint8_t { kSilent, kDrips, kDeaf, kHangs };

struct Peer {
  std::unique_ptr<RawInitiator> raw;
  Vice vice = Vice::kSilent;
  std::uint8_t isid = 1;
  // Where a dripping peer is in the transfer that it answers.
  iscsi::ReadyToTransfer r2t;
  std::uint32_t done = 0;
  std::uint32_t data_sn = 0;
};

Task<void> connect(Rig& rig, Peer& peer) {
  auto stream = co_await Executor::current().connect(rig.endpoint());
  if (!stream.has_value()) co_return rig.clients().complain("a bad peer cannot connect");
  peer.raw = std::make_unique<RawInitiator>(std::move(*stream));
  const RawPdu in = co_await peer.raw->log_in(
      {.target = kTargetName, .keys = "MaxBurstLength=1048576", .isid = peer.isid});
  if (!in.is(Opcode::kLoginResponse) || in.login().status != iscsi::LoginStatus::kSuccess) {
    rig.clients().complain("a bad peer cannot log in");
  }
}

Task<void> send_command(RawInitiator& raw, bool writes, std::uint64_t lun, std::uint32_t blocks) {
  iscsi::ScsiCommand pdu{.read = !writes,
                         .write = writes,
                         .lun = lun,
                         .initiator_task_tag = raw.next_tag++,
                         .expected_data_transfer_length = blocks * kBlockBytes,
                         .cmd_sn = raw.cmd_sn++,
                         .exp_stat_sn = raw.exp_stat_sn};
  pdu.cdb[0] = std::byte{writes ? std::uint8_t{0x2A} : std::uint8_t{0x28}};
  put_big_endian<std::uint16_t>(pdu.cdb, 7, static_cast<std::uint16_t>(blocks));
  Bhs bhs;
  write_scsi_command(pdu, bhs);
  co_await raw.send(bhs);
}

// One piece of one transfer; the next one when it is whole.
Task<void> drip(Rig& rig, Peer& peer) {
  RawInitiator& raw = *peer.raw;
  if (peer.done == peer.r2t.desired_data_transfer_length) {
    RawPdu pdu = co_await raw.next(std::chrono::milliseconds(1));
    while (!pdu.none() && !pdu.is(Opcode::kReadyToTransfer)) {
      pdu = co_await raw.next(std::chrono::milliseconds(1));
    }
    if (pdu.none()) co_return;
    peer.r2t = pdu.r2t();
    peer.done = peer.data_sn = 0;
  }
  const std::uint32_t left = peer.r2t.desired_data_transfer_length - peer.done;
  const auto piece = static_cast<std::uint32_t>(rig.random().between(1, 65536));
  const std::uint32_t byte_count = std::min(piece, left);
  iscsi::DataOut pdu{.final = byte_count == left,
                     .initiator_task_tag = peer.r2t.initiator_task_tag,
                     .target_transfer_tag = peer.r2t.target_transfer_tag,
                     .exp_stat_sn = raw.exp_stat_sn,
                     .data_sn = peer.data_sn++,
                     .buffer_offset = peer.r2t.buffer_offset + peer.done};
  peer.done += byte_count;
  Bhs bhs;
  write_data_out(pdu, bhs);
  co_await raw.send(bhs, Bytes(byte_count));
}

Task<void> answer_r2ts(RawInitiator& raw) {
  for (;;) {
    const RawPdu pdu = co_await raw.next(std::chrono::milliseconds(50));
    if (pdu.none()) co_return;
    if (!pdu.is(Opcode::kReadyToTransfer)) continue;
    const iscsi::ReadyToTransfer r2t = pdu.r2t();
    for (std::uint32_t done = 0; done < r2t.desired_data_transfer_length; done += 65536) {
      const std::uint32_t byte_count = std::min(65536U, r2t.desired_data_transfer_length - done);
      Bhs bhs;
      iscsi::write_data_out({.final = done + byte_count == r2t.desired_data_transfer_length,
                             .initiator_task_tag = r2t.initiator_task_tag,
                             .target_transfer_tag = r2t.target_transfer_tag,
                             .exp_stat_sn = raw.exp_stat_sn,
                             .data_sn = done / 65536,
                             .buffer_offset = r2t.buffer_offset + done},
                            bhs);
      co_await raw.send(bhs, Bytes(byte_count));
    }
  }
}

// A host on the unit that hangs: it sends what is asked for, resets the unit, and tries again.
Task<void> retry_on_hung_unit(Rig& rig, Peer& peer) {
  RawInitiator& raw = *peer.raw;
  const bool writes = rig.random().chance(0.5);
  for (std::uint32_t index = 0; index < kQueueDepth; ++index) {
    co_await send_command(raw, writes, kHungUnit, 2048);
  }
  co_await answer_r2ts(raw);
  Bhs bhs;
  iscsi::write_task_management_request(
      {.immediate = true,
       .function = iscsi::TaskManagementFunction::kLogicalUnitReset,
       .lun = kHungUnit,
       .initiator_task_tag = raw.next_tag++,
       .cmd_sn = raw.cmd_sn,
       .exp_stat_sn = raw.exp_stat_sn},
      bhs);
  co_await raw.send(bhs);
  co_await answer_r2ts(raw);
}

Task<void> misbehave(Rig& rig, Peer& peer, const bool& over, Gate& gate) {
  const GateHold hold(gate);
  Random& random = rig.random();
  while (!over && !rig.clients().failed()) {
    if (peer.raw == nullptr || peer.raw->ended()) {
      if (peer.raw != nullptr) co_await peer.raw->close();
      peer.done = peer.r2t.desired_data_transfer_length = 0;
      co_await connect(rig, peer);
      if (rig.clients().failed()) break;
      // Unit attentions come first; these commands collect them.
      for (int count = 0; count < 3; ++count) co_await send_command(*peer.raw, false, 0, 1);
      for (int count = 0; count < 3; ++count)
        co_await send_command(*peer.raw, false, kScratchUnit, 1);
      co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
      if (peer.vice == Vice::kDeaf) peer.raw->pause_reading();
      const bool floods = peer.vice != Vice::kHangs;
      const auto blocks = static_cast<std::uint32_t>(random.between(256, 16384));
      for (std::uint32_t index = 6; floods && index < kQueueDepth; ++index) {
        co_await send_command(*peer.raw, peer.vice != Vice::kDeaf, kScratchUnit, blocks);
      }
    }
    if (peer.vice == Vice::kHangs) co_await retry_on_hung_unit(rig, peer);
    if (peer.vice == Vice::kDrips) co_await drip(rig, peer);
    const auto pause = static_cast<std::int64_t>(random.below(3000));
    co_await Executor::current().sleep_for(std::chrono::milliseconds(pause));
  }
  if (peer.raw != nullptr) co_await peer.raw->close();
}

// One request after the other, each in time.
Task<void> use_honestly(Rig& rig, iscsi::InitiatorSession& session, Gate& gate) {
  const GateHold hold(gate);
  for (int count = 0; count < 40 && !rig.clients().failed(); ++count) {
    const TimePoint before = Executor::current().now();
    const bool writes = rig.random().chance(0.5);
    if (writes) {
      co_await rig.clients().write_once(session, false);
    } else {
      co_await rig.clients().read_once(session, false);
    }
    const Duration took = Executor::current().now() - before;
    if (took > kPatience) {
      rig.clients().complain(
          fmt::format("an honest {} took {} ms", writes ? "write" : "read",
                      std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
    }
    const auto pause = static_cast<std::int64_t>(rig.random().below(2000));
    co_await Executor::current().sleep_for(std::chrono::milliseconds(pause));
  }
}

Task<void> play_beside_bad_peers(Rig& rig) {
  auto session = co_await iscsi::InitiatorSession::login(
      {.endpoint = rig.endpoint(), .target_name = kTargetName, .connections = 2});
  if (!session.has_value()) co_return rig.clients().complain("login: " + session.error().message);
  std::vector<std::unique_ptr<Peer>> peers;
  const std::uint64_t count = rig.random().between(1, 4);
  bool over = false;
  Gate bad;
  for (std::uint64_t index = 0; index < count && bad.enter(); ++index) {
    peers.push_back(std::make_unique<Peer>());
    peers.back()->isid = static_cast<std::uint8_t>(index + 1);
    peers.back()->vice = static_cast<Vice>(rig.random().below(4));
    spawn(misbehave(rig, *peers.back(), over, bad));
  }
  co_await Executor::current().sleep_for(std::chrono::seconds(2));
  Gate honest;
  for (int index = 0; index < 3 && honest.enter(); ++index) {
    spawn(use_honestly(rig, **session, honest));
  }
  co_await honest.close();
  if (!rig.clients().failed()) co_await rig.clients().read_everything(**session);
  over = true;
  co_await bad.close();
  co_await (*session)->close();
}

std::string run_beside_bad_peers(std::uint64_t seed) {
  Random random(seed);
  Rig rig({.seed = seed,
           .executors = static_cast<unsigned>(random.between(1, 2)),
           .block_bytes = 4096,
           .device_delay = std::chrono::milliseconds(1),
           .target_queue_depth = kQueueDepth,
           .memory_limit_bytes = std::size_t{64} << 20,
           .more_units = true});
  return rig.run([&] { return play_beside_bad_peers(rig); });
}

}  // namespace

TEST_CASE("Honest hosts go on beside peers and units that take and do not give",
          "[sim][share][I-2][I-3][I-4]") {
  REQUIRE(run_seeds("bad peers", 30, run_beside_bad_peers) == 0);
}

}  // namespace sandbay::simtest
