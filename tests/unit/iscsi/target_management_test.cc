// Task management of the target, also with devices that do not answer. RFC 7143 sections 4.2.3,
// 11.5 and 11.6.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_management_test {
namespace {

constexpr int kNoTask = static_cast<int>(TaskManagementResult::kTaskDoesNotExist);

Task<void> abort_existing(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  bench.device(0).hang();
  const std::uint32_t ref = peer.cmd_sn;
  const std::uint32_t victim = co_await send_command(peer, reading(0, 1));
  const TimePoint before = bench.now();
  const RawPdu answer = co_await managed(peer, {.referenced_task_tag = victim, .ref_cmd_sn = ref});
  CHECK(answer.managed() == kComplete);
  CHECK(bench.now() - before <= scsi::kTaskManagementBound);
  const RawPdu nothing = co_await peer.next_of(victim, std::chrono::seconds(5));
  CHECK(nothing.silent);
  const RawPdu other = co_await answer_to(peer, reading(0, 1, kSecondUnit));
  CHECK(other.status() == 0);
}

Task<void> abort_waiting_for_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  const std::uint32_t ref = peer.cmd_sn;
  const std::uint32_t victim = co_await send_command(peer, writing(0, 16));
  const RawPdu r2t = co_await peer.next_of(victim);
  const TimePoint before = bench.now();
  const RawPdu answer = co_await managed(peer, {.referenced_task_tag = victim, .ref_cmd_sn = ref});
  CHECK(answer.managed() == kComplete);
  CHECK(bench.now() - before < std::chrono::seconds(1));
  // Linux may still answer the R2T: what nobody wants is not held against it.
  co_await answer_r2t(peer, r2t.r2t(), pattern_of(8192), 4096);
  const RawPdu next = co_await answer_to(peer, {});
  CHECK(next.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 16));
  CHECK(back == Bytes(8192));
}

Task<void> abort_completed(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t ref = peer.cmd_sn;
  const std::uint32_t victim = co_await send_command(peer, reading(0, 1));
  co_await peer.next_of(victim);
  const TaskManagementRequest request{.referenced_task_tag = victim, .ref_cmd_sn = ref};
  const RawPdu crossed = co_await managed(peer, request);
  CHECK(crossed.managed() == kNoTask);
  co_await bench.sleep(std::chrono::seconds(2));
  for (int round = 0; round < 3; ++round) {
    const RawPdu answer = co_await managed(peer, request);
    CHECK(answer.managed() == kComplete);
  }
}

// A task tag is used again as soon as its task has been answered, and the abort of that task comes
// late.
Task<void> abort_before_tag_was_reused(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t first_cmd_sn = peer.cmd_sn;
  RawCommand command = reading(0, 1);
  command.tag = 900;
  const RawPdu first = co_await answer_to(peer, command);
  CHECK(first.status() == 0);
  bench.device(0).hang();
  const std::uint32_t second_cmd_sn = peer.cmd_sn;
  co_await send_command(peer, command);
  const RawPdu late =
      co_await managed(peer, {.referenced_task_tag = 900, .ref_cmd_sn = first_cmd_sn});
  CHECK(late.managed() == kNoTask);
  CHECK(bench.device(0).held() == 1);
  co_await bench.sleep(std::chrono::seconds(2));
  const RawPdu later =
      co_await managed(peer, {.referenced_task_tag = 900, .ref_cmd_sn = first_cmd_sn});
  CHECK(later.managed() == kNoTask);
  CHECK(bench.device(0).held() == 1);
  bench.device(0).obey_cancellation(true);
  const RawPdu meant =
      co_await managed(peer, {.referenced_task_tag = 900, .ref_cmd_sn = second_cmd_sn});
  CHECK(meant.managed() == kComplete);
  CHECK(bench.device(0).held() == 0);
}

Task<void> abort_not_yet_arrived(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawCommand victim = writing(0, 1, pattern_of(kBlock));
  victim.tag = 900;
  victim.own_cmd_sn = true;
  victim.cmd_sn = peer.cmd_sn++;
  const RawPdu answer =
      co_await managed(peer, {.referenced_task_tag = 900, .ref_cmd_sn = victim.cmd_sn});
  CHECK(answer.managed() == kComplete);
  co_await send_command(peer, victim);
  const RawPdu nothing = co_await peer.next_of(900, std::chrono::seconds(5));
  CHECK(nothing.silent);
  const Bytes back = co_await read_back(peer, reading(0, 1));  // The CmdSN counts as received.
  CHECK(back == Bytes(kBlock));
  const RawPdu unknown =
      co_await managed(peer, {.referenced_task_tag = 901, .ref_cmd_sn = peer.cmd_sn + 500});
  CHECK(unknown.managed() == kNoTask);
}

Task<void> abort_waiting_its_turn(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const std::uint32_t first = peer.cmd_sn;
  RawCommand victim = writing(0, 1, pattern_of(kBlock));
  victim.tag = 900;
  victim.own_cmd_sn = true;
  victim.cmd_sn = first + 1;
  co_await send_command(peer, victim);
  const RawPdu answer = co_await managed(
      peer, {.referenced_task_tag = 900, .cmd_sn = first + 2, .ref_cmd_sn = first + 1});
  CHECK(answer.managed() == kComplete);
  const RawPdu filling = co_await answer_to(peer, {});
  CHECK(filling.status() == 0);
  peer.cmd_sn = first + 2;
  const Bytes back = co_await read_back(peer, reading(0, 1));
  CHECK(back == Bytes(kBlock));
}

// A function takes the commands with it that were sent before and come after.
Task<void> fence(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  // More often than there are places for fences: each goes when it has been passed.
  for (int round = 0; round < 70; ++round) {
    RawCommand late = writing(0, 1, pattern_of(kBlock));
    late.own_cmd_sn = true;
    late.cmd_sn = peer.cmd_sn++;
    const RawPdu answer =
        co_await managed(peer, {.function = TaskManagementFunction::kAbortTaskSet});
    CHECK(answer.managed() == kComplete);
    const std::uint32_t tag = co_await send_command(peer, std::move(late));
    const RawPdu nothing = co_await peer.next_of(tag, std::chrono::milliseconds(100));
    CHECK(nothing.silent);
  }
  const Bytes back = co_await read_back(peer, reading(0, 1));
  CHECK(back == Bytes(kBlock));
}

// A tag names a task of its unit alone: with another LUN the task lives, and nobody is told that it
// does not.
Task<void> abort_with_another_lun(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes;ImmediateData=No"});
  const Bytes data = pattern_of(8192);
  const std::uint32_t ref = peer.cmd_sn;
  const std::uint32_t victim = co_await send_command(peer, writing(0, 16));
  const RawPdu r2t = co_await peer.next_of(victim);
  const RawPdu other = co_await managed(
      peer, {.lun = kSecondUnit, .referenced_task_tag = victim, .ref_cmd_sn = ref});
  CHECK(other.managed() == kNoTask);
  co_await answer_r2t(peer, r2t.r2t(), data, 4096);
  const RawPdu written = co_await finish_write(peer, victim, data);
  CHECK(written.status() == 0);
  // Neither does one that waits for its turn, nor one that has failed and waits for its data.
  RawCommand early = writing(16, 1, pattern_of(kBlock));
  early.tag = 901;
  early.own_cmd_sn = true;
  early.cmd_sn = peer.cmd_sn + 1;
  co_await send_command(peer, early);
  const RawPdu waiting = co_await managed(peer, {.lun = kSecondUnit,
                                                 .referenced_task_tag = 901,
                                                 .cmd_sn = peer.cmd_sn + 2,
                                                 .ref_cmd_sn = early.cmd_sn});
  CHECK(waiting.managed() == kNoTask);
  const RawPdu filling = co_await answer_to(peer, {});
  CHECK(filling.status() == 0);
  ++peer.cmd_sn;
  const RawPdu lives = co_await peer.next_of(901);
  CHECK(lives.status() >= 0);
}

// Functions that were sent before a command and come after it leave it alone.
Task<void> spares_later_commands(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes;ImmediateData=No"});
  const Bytes data = pattern_of(8192);
  for (const TaskManagementFunction function :
       {TaskManagementFunction::kAbortTaskSet, TaskManagementFunction::kClearTaskSet}) {
    const std::uint32_t doomed = co_await send_command(peer, writing(32, 16));
    const RawPdu asked = co_await peer.next_of(doomed);
    CHECK(asked.is(Opcode::kReadyToTransfer));
    const std::uint32_t cmd_sn = peer.cmd_sn;
    const std::uint32_t later = co_await send_command(peer, writing(0, 16));
    const RawPdu r2t = co_await peer.next_of(later);
    const RawPdu answer = co_await managed(peer, {.function = function, .cmd_sn = cmd_sn});
    CHECK(answer.managed() == kComplete);
    co_await answer_r2t(peer, r2t.r2t(), data, 4096);
    const RawPdu written = co_await finish_write(peer, later, data);
    CHECK(written.status() == 0);
    const RawPdu nothing = co_await peer.next_of(doomed, std::chrono::milliseconds(100));
    CHECK(nothing.silent);
  }
}

// Functions come again and again, with a growing gap before each: no command in it is forgotten.
Task<void> many_fences(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  constexpr std::uint32_t kCount = 70;
  const std::uint32_t first = peer.cmd_sn;
  for (std::uint32_t i = 1; i <= kCount; ++i) {
    const RawPdu answer = co_await managed(
        peer, {.function = TaskManagementFunction::kAbortTaskSet, .cmd_sn = first + i});
    CHECK(answer.managed() == kComplete);
  }
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::uint32_t tag = co_await send_command(peer, writing(i, 1, pattern_of(kBlock)));
    const RawPdu nothing = co_await peer.next_of(tag, std::chrono::milliseconds(10));
    CHECK(nothing.silent);
  }
  const Bytes back = co_await read_back(peer, reading(0, kCount));
  CHECK(back == Bytes(kCount * kBlock));
}

// The same unit in flat space addressing.
Task<void> fence_in_another_addressing(Bench& bench) {
  constexpr std::uint64_t kFlatSecondUnit = kSecondUnit | 0x4000'0000'0000'0000;
  RawInitiator& peer = *co_await bench.session();
  RawCommand late = writing(0, 1, pattern_of(kBlock), kSecondUnit);
  late.own_cmd_sn = true;
  late.cmd_sn = peer.cmd_sn++;
  const RawPdu answer = co_await managed(
      peer, {.function = TaskManagementFunction::kAbortTaskSet, .lun = kFlatSecondUnit});
  CHECK(answer.managed() == kComplete);
  const std::uint32_t tag = co_await send_command(peer, std::move(late));
  const RawPdu nothing = co_await peer.next_of(tag, std::chrono::milliseconds(100));
  CHECK(nothing.silent);
}

Task<void> with_hung_unit(Bench& bench, TaskManagementFunction function) {
  RawInitiator& peer = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  bench.device(0).hang();
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t tag = co_await send_command(peer, writing(i, 1, pattern_of(kBlock)));
    victims.push_back(tag);
  }
  const TimePoint before = bench.now();
  const std::uint32_t management = co_await send_management(peer, {.function = function});
  const RawPdu going_on = co_await answer_to(other, reading(0, 1, kSecondUnit));
  const bool whole_target = function == TaskManagementFunction::kTargetWarmReset ||
                            function == TaskManagementFunction::kTargetColdReset;
  if (!whole_target) CHECK(going_on.status() == 0);
  CHECK(bench.now() - before < std::chrono::seconds(1));
  const RawPdu answer = co_await peer.next_of(management);
  CHECK(answer.managed() == kComplete);
  CHECK(bench.now() - before <= scsi::kTaskManagementBound);
  for (const std::uint32_t tag : victims) {
    const RawPdu nothing = co_await peer.next_of(tag, std::chrono::milliseconds(10));
    CHECK(nothing.none());
  }
  if (function != TaskManagementFunction::kTargetColdReset) {
    const std::uint32_t ping = co_await send_ping(peer);
    const RawPdu echo = co_await peer.next_of(ping);
    CHECK(echo.is(Opcode::kNopIn));
    co_return;
  }
  co_await bench.sleep(std::chrono::seconds(5));
  CHECK(peer.ended());  // Section 11.5.1: a cold reset ends the sessions.
  CHECK(other.ended());
  RawInitiator& again = *co_await bench.session();
  const RawPdu served = co_await answer_to(again, reading(0, 1, kSecondUnit));
  CHECK(served.status() == 0);
}

Task<void> abort_task_set(Bench& bench) {
  co_await with_hung_unit(bench, TaskManagementFunction::kAbortTaskSet);
}
Task<void> clear_task_set(Bench& bench) {
  co_await with_hung_unit(bench, TaskManagementFunction::kClearTaskSet);
}
Task<void> unit_reset(Bench& bench) {
  co_await with_hung_unit(bench, TaskManagementFunction::kLogicalUnitReset);
}
Task<void> warm_reset(Bench& bench) {
  co_await with_hung_unit(bench, TaskManagementFunction::kTargetWarmReset);
}
Task<void> cold_reset(Bench& bench) {
  co_await with_hung_unit(bench, TaskManagementFunction::kTargetColdReset);
}

Task<void> what_there_is_not(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const RawPdu lun = co_await managed(
      peer, {.function = TaskManagementFunction::kLogicalUnitReset, .lun = 0x0009ULL << 48U});
  CHECK(lun.managed() == static_cast<int>(TaskManagementResult::kLunDoesNotExist));
  const RawPdu reassign =
      co_await managed(peer, {.function = TaskManagementFunction::kTaskReassign});
  CHECK(reassign.managed() == static_cast<int>(TaskManagementResult::kReassignmentNotSupported));
  const RawPdu query = co_await managed(peer, {.function = TaskManagementFunction::kQueryTask});
  CHECK(query.managed() == static_cast<int>(TaskManagementResult::kFunctionNotSupported));
}

}  // namespace

TEST_CASE("11.5.1 ABORT TASK of a command that is stuck") { on_bench({}, abort_existing); }
TEST_CASE("Linux FastAbort: ABORT TASK does not wait for Data-Out") {
  on_bench({}, abort_waiting_for_data);
}
TEST_CASE("ESXi: ABORT TASK of a completed command is complete, when it has not crossed its end") {
  on_bench({}, abort_completed);
}
TEST_CASE("ABORT TASK spares a command that has its task tag and a later CmdSN than RefCmdSN",
          "[rfc7143-11.5.5][I-11g]") {
  on_bench({}, abort_before_tag_was_reused);
}
TEST_CASE("11.5.1 ABORT TASK of a command that has not arrived yet") {
  on_bench({}, abort_not_yet_arrived);
}
TEST_CASE("11.5.1 ABORT TASK of a command that waits for its turn") {
  on_bench({}, abort_waiting_its_turn);
}
TEST_CASE("4.2.3.3 a function concerns commands that come after it with a lower CmdSN") {
  on_bench({}, fence);
}
TEST_CASE("11.5.1 ABORT TASK with another LUN does not say that the task is gone") {
  on_bench({}, abort_with_another_lun);
}
TEST_CASE("11.5.1 ABORT TASK SET and CLEAR TASK SET spare commands with a CmdSN not below theirs") {
  on_bench({}, spares_later_commands);
}
TEST_CASE("4.2.3.4 any number of functions fences off what is missing before them") {
  on_bench({}, many_fences);
}
TEST_CASE("4.2.3.4 a fence stands before its unit, however that is addressed") {
  on_bench({}, fence_in_another_addressing);
}
TEST_CASE("11.5 ABORT TASK SET with a hung unit") { on_bench({}, abort_task_set); }
TEST_CASE("11.5 CLEAR TASK SET with a hung unit") { on_bench({}, clear_task_set); }
TEST_CASE("11.5 LOGICAL UNIT RESET with a hung unit") { on_bench({}, unit_reset); }
TEST_CASE("11.5 TARGET WARM RESET with a hung unit") { on_bench({}, warm_reset); }
TEST_CASE("11.5 TARGET COLD RESET with a hung unit") { on_bench({}, cold_reset); }
TEST_CASE("11.6 functions and units that are not there") { on_bench({}, what_there_is_not); }

}  // namespace sandbay::iscsi::test::target_management_test
