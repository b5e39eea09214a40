// Task management, task ordering and nexus loss (SAM-5 clauses 7, 8 and 6.3.4), above all with
// devices that never complete.
#include "fake_transport.h"

namespace sandbay::testing::task_management_test {
namespace {

using scsi::Additional;
using scsi::Status;
using scsi::TaskAttribute;
using scsi::TaskManagementFunction;
using scsi::TaskManagementResponse;

std::unique_ptr<FakeCommand> start(Bench& bench, scsi::Nexus& nexus, std::array<std::byte, 16> cdb,
                                   Sending how = {}) {
  auto command = make_command(nexus, cdb, std::move(how));
  bench.router.execute(*command);
  return command;
}

std::unique_ptr<FakeCommand> start(Bench& bench, std::array<std::byte, 16> cdb, Sending how = {}) {
  return start(bench, *bench.nexus, cdb, std::move(how));
}

Task<void> abort_running(Bench& bench) {
  bench.hung.obey_cancellation(true);
  bench.hung.hang();
  const auto command = start(bench, cdb_10(0x28, 0, 1), {.tag = 7});
  const TaskManagementResponse other = co_await bench.manage(TaskManagementFunction::kAbortTask, 8);
  CHECK(other == TaskManagementResponse::kTaskDoesNotExist);
  CHECK(!command->answered);
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 7);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(command->released);
  CHECK(command->reply.silent);
  const TaskManagementResponse again = co_await bench.manage(TaskManagementFunction::kAbortTask, 7);
  CHECK(again == TaskManagementResponse::kTaskDoesNotExist);
}

// The device keeps the write. The abort ends in bounded time all the same, the blocks are fenced
// until the device lets go, and everything else works on.
Task<void> abort_stuck_write(Bench& bench) {
  Executor& home = bench.unit.home();
  bench.hung.hang_only(Operation::kWrite);
  const auto command = start(bench, cdb_10(0x2A, 100, 8), {.out = filled(8 * 512, 'x'), .tag = 7});
  const TimePoint before = home.now();
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 7);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(home.now() - before <= scsi::kTaskManagementBound);
  CHECK(command->answered);
  CHECK(command->reply.silent);
  CHECK(!command->released);
  CHECK(bench.unit.counters().held == 1);

  for (const auto& cdb : {cdb_10(0x28, 107, 1), cdb_10(0x2F, 90, 11), cdb_10(0x28, 0, 4096)}) {
    const Reply fenced = co_await bench.send_to_unit(cdb);
    CHECK(fenced.status == Status::kBusy);
  }
  const Reply write = co_await bench.send_to_unit(cdb_10(0x2A, 99, 2), {.out = filled(1024, 'y')});
  CHECK(write.status == Status::kBusy);
  Bytes list = filled(24, 0);
  list[3] = std::byte{16};
  list[15] = std::byte{100};
  list[19] = std::byte{1};
  const Reply unmap =
      co_await bench.send_to_unit(cdb_of({0x42, 0, 0, 0, 0, 0, 0, 0, 24}), {.out = list});
  CHECK(unmap.status == Status::kBusy);
  const Reply same = co_await bench.send_to_unit(cdb_16(0x93, 50, 60), {.out = filled(512, 0)});
  CHECK(same.status == Status::kBusy);
  const Reply before_it = co_await bench.send_to_unit(cdb_10(0x28, 92, 8));
  CHECK(before_it.good());
  const Reply behind_it = co_await bench.send_to_unit(cdb_10(0x28, 108, 8));
  CHECK(behind_it.good());

  bench.hung.release();
  co_await command->gone();
  CHECK(bench.unit.counters().held == 0);
  const Reply after = co_await bench.send_to_unit(cdb_10(0x28, 100, 8));
  CHECK(after.good());
}

// A fence stands as well before writes that began earlier and wait for their data.
Task<void> fence_before_begun_writes(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  const auto stuck =
      start(bench, cdb_10(0x2A, 100, 8), {.out = filled(std::size_t{8} * 512, 'x'), .tag = 7});
  CHECK(bench.hung.held() == 1);
  // One in pieces, whose second one lies over the blocks; one of a single piece; one that fills.
  std::vector<std::unique_ptr<FakeCommand>> begun;
  begun.push_back(make_command(*bench.nexus, cdb_16(0x8A, 90, 4096),
                               {.out = filled(std::size_t{4096} * 512, 'y'), .tag = 8}));
  begun.push_back(
      make_command(*bench.nexus, cdb_10(0x2A, 104, 1), {.out = filled(512, 'y'), .tag = 9}));
  begun.push_back(
      make_command(*bench.nexus, cdb_16(0x93, 90, 32), {.out = filled(512, 'y'), .tag = 10}));
  for (const auto& command : begun) {
    command->delay_data_out = true;
    bench.router.execute(*command);
  }
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 7);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(bench.unit.counters().held == 1);
  for (const auto& command : begun) {
    command->let_go();
    const Reply reply = co_await command->answer();
    CHECK(reply.status == Status::kBusy);
  }
  CHECK(bench.hung.held() == 1);
  bench.hung.release();
  co_await stuck->gone();
  for (const auto& command : begun) co_await command->gone();
}

// A read that is stuck fences nothing.
Task<void> abort_stuck_read(Bench& bench) {
  bench.hung.hang_only(Operation::kRead);
  const auto command = start(bench, cdb_10(0x28, 100, 8), {.tag = 7});
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 7);
  CHECK(done == TaskManagementResponse::kComplete);
  const Reply write =
      co_await bench.send_to_unit(cdb_10(0x2A, 100, 8), {.out = filled(8 * 512, 'z')});
  CHECK(write.good());
  bench.hung.release();
  co_await command->gone();
  CHECK(command->reply.data.empty());
}

Task<void> recovery_ladder(Bench& bench) {
  Executor& home = bench.unit.home();
  bench.hung.hang();
  std::vector<std::unique_ptr<FakeCommand>> stuck;
  for (unsigned i = 0; i < 8; ++i) {
    stuck.push_back(start(bench, cdb_10(0x2A, i, 1), {.out = filled(512, i), .tag = i}));
  }
  for (const TaskManagementFunction function :
       {TaskManagementFunction::kAbortTask, TaskManagementFunction::kAbortTaskSet,
        TaskManagementFunction::kClearTaskSet, TaskManagementFunction::kLogicalUnitReset,
        TaskManagementFunction::kTargetWarmReset, TaskManagementFunction::kTargetColdReset}) {
    const TimePoint before = home.now();
    const TaskManagementResponse done = co_await bench.manage(function, 3);
    CHECK(done == TaskManagementResponse::kComplete);
    CHECK(home.now() - before <= scsi::kTaskManagementBound);
    stuck.push_back(start(bench, cdb_10(0x28, 1000, 1), {.tag = 100}));
  }
  const TimePoint before = home.now();
  co_await bench.router.detach(*bench.nexus);
  CHECK(home.now() - before <= scsi::kTaskManagementBound);
  for (const auto& command : stuck) CHECK(command->answered);
  bench.nexus = co_await bench.login("iqn.2026-11.org.example:one,i,0x2");
  const Reply inquiry_works = co_await bench.send_to_unit(inquiry(96));
  CHECK(inquiry_works.good());
  bench.hung.release();
  for (const auto& command : stuck) co_await command->gone();
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 8));
  CHECK(read.good());
}

// The peer neither sends the rest of its data nor takes what it asked for. Whether or not the
// transport heeds the cancellation, the abort ends and nothing reaches the device.
Task<void> abort_in_transfer(Bench& bench) {
  Executor& home = bench.unit.home();
  for (const bool obeys : {true, false}) {
    auto writing = make_command(*bench.nexus, cdb_10(0x2A, 0, 1), {.out_length = 512, .tag = 1});
    writing->stall_data_out = true;
    auto reading = make_command(*bench.nexus, cdb_10(0x28, 0, 1), {.tag = 2});
    reading->stall_data_in = true;
    for (FakeCommand* command : {writing.get(), reading.get()}) {
      command->obey_cancellation = obeys;
      bench.router.execute(*command);
      const TimePoint before = home.now();
      const TaskManagementResponse done =
          co_await bench.manage(TaskManagementFunction::kAbortTask, command->tag);
      CHECK(done == TaskManagementResponse::kComplete);
      CHECK(home.now() - before <= scsi::kTaskManagementBound);
      CHECK(command->answered);
      CHECK(command->released == obeys);
      // No write was with the device, so nothing is fenced.
      const Reply other = co_await bench.send_to_unit(cdb_10(0x28, 0, 1));
      CHECK(other.good());
      command->let_go();
      co_await command->gone();
    }
  }
  CHECK(bench.device.count(Operation::kWrite) == 0);
}

// 1 MiB and more, some of it at the device, the rest still to come.
Task<void> large_io_then_reset(Bench& bench) {
  bench.hung.hang();
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (unsigned i = 0; i < 4; ++i) {
    commands.push_back(start(bench, cdb_10(0x2A, i * 100, 4096),
                             {.out = filled(std::size_t{4096} * 512, i), .tag = i}));
    commands.push_back(start(bench, cdb_10(0x28, i * 100, 4096), {.tag = 10 + i}));
  }
  const TaskManagementResponse aborted =
      co_await bench.manage(TaskManagementFunction::kAbortTask, 2);
  CHECK(aborted == TaskManagementResponse::kComplete);
  const TaskManagementResponse reset_done =
      co_await bench.manage(TaskManagementFunction::kLogicalUnitReset);
  CHECK(reset_done == TaskManagementResponse::kComplete);
  bench.hung.release();
  for (const auto& command : commands) {
    co_await command->gone();
    CHECK(command->reply.silent);
  }
  // After the abort nobody sent the second half down.
  CHECK(bench.device.count(Operation::kWrite) == 4);
  CHECK(bench.device.count(Operation::kRead) == 4);
  const Reply told = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(told.attention(Additional::kBusDeviceReset));
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 4096));
  CHECK(read.good());
}

// Aborts race with commands that end by themselves, in shuffled order: every command ends exactly
// once and nothing stays behind.
Task<void> aborts_under_load(Bench& bench, std::uint64_t seed) {
  co_await bench.start();
  DelayDevice slow(bench.device, std::chrono::microseconds(1), std::chrono::milliseconds(1500));
  scsi::LogicalUnit unit(slow, {});
  co_await bench.router.add(1, &unit);
  const std::uint64_t lun = scsi::encode_lun(1);
  const auto other = bench.router.attach({.initiator_port = "iqn.2026-11.org.example:two,i,0x1"});
  Random random(seed);
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (unsigned i = 0; i < 200; ++i) {
    scsi::Nexus& nexus = random.chance(0.5) ? *other : *bench.nexus;
    const auto lba = static_cast<std::uint32_t>(random.below(64));
    const bool writes = random.chance(0.5);
    const auto cdb = cdb_10(writes ? 0x2A : 0x28, lba, 4);
    commands.push_back(start(bench, nexus, cdb,
                             {.out = writes ? filled(2048, i) : Bytes{},
                              .lun = lun,
                              .tag = i,
                              .attribute = static_cast<TaskAttribute>(random.below(3))}));
    if (random.chance(0.3)) {
      co_await bench.unit.home().sleep_for(std::chrono::milliseconds(random.below(50)));
    }
    if (random.chance(0.1)) {
      const auto function =
          static_cast<TaskManagementFunction>(std::array{1, 2, 4, 5, 6}[random.below(5)]);
      const TimePoint before = unit.home().now();
      co_await bench.router.manage(nexus,
                                   {.function = function, .lun = lun, .tag = random.below(i + 1)});
      CHECK(unit.home().now() - before <= scsi::kTaskManagementBound);
    }
  }
  for (const auto& command : commands) {
    co_await command->gone();
    CHECK(command->released);
  }
  CHECK(unit.counters().in_flight == 0);
  CHECK(unit.counters().held == 0);
  co_await bench.router.detach(*other);
  co_await bench.router.remove(1);
  const bool closed = co_await unit.close(unit.home().now() + std::chrono::seconds(5));
  CHECK(closed);
  co_await bench.stop();
}

Task<void> abort_task_set_is_own(Bench& bench) {
  bench.hung.obey_cancellation(true);
  bench.hung.hang();
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  const auto mine = start(bench, cdb_10(0x28, 0, 1), {.tag = 1});
  const auto theirs = start(bench, *other, cdb_10(0x28, 0, 1), {.tag = 1});
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTaskSet);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(mine->released);
  CHECK(!theirs->answered);
  bench.hung.release();
  co_await theirs->gone();
  CHECK(theirs->reply.good());
  co_await bench.router.detach(*other);
}

Task<void> set_tas(Bench& bench) {
  Bytes list = filled(16, 0);
  const Bytes page = bytes_of({0x0A, 0x0A, 0x02, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0});
  std::ranges::copy(page, list.begin() + 4);
  const Reply reply = co_await bench.send_to_unit(cdb_of({0x15, 0x10, 0, 0, 16}), {.out = list});
  CHECK(reply.good());
}

Task<void> clear_task_set(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  bench.hung.obey_cancellation(true);
  for (const bool task_aborted_status : {false, true}) {
    if (task_aborted_status) {
      co_await set_tas(bench);
      const Reply changed = co_await send(bench.router, *other, kTestUnitReady);
      CHECK(changed.attention(Additional::kModeParametersChanged));
    }
    bench.hung.hang();
    const auto mine = start(bench, cdb_10(0x28, 0, 1), {.tag = 1});
    const auto theirs = start(bench, *other, cdb_10(0x28, 0, 1), {.tag = 1});
    const TaskManagementResponse done =
        co_await bench.manage(TaskManagementFunction::kClearTaskSet);
    CHECK(done == TaskManagementResponse::kComplete);
    CHECK(mine->reply.silent);
    CHECK(theirs->reply.silent == !task_aborted_status);
    if (task_aborted_status) CHECK(theirs->reply.status == Status::kTaskAborted);
    bench.hung.release();
    const Reply next = co_await send(bench.router, *other, kTestUnitReady);
    CHECK(next.attention(Additional::kCommandsClearedByAnotherInitiator) == !task_aborted_status);
    const Reply own = co_await bench.send_to_unit(kTestUnitReady);
    CHECK(own.good());
  }
  co_await bench.router.detach(*other);
}

// A cluster node resets the unit that others use.
Task<void> tas_by_default(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  bench.hung.obey_cancellation(true);
  bench.hung.hang();
  const auto mine = start(bench, cdb_10(0x28, 0, 1), {.tag = 1});
  const auto theirs = start(bench, *other, cdb_10(0x28, 0, 1), {.tag = 1});
  const TaskManagementResponse done =
      co_await bench.manage(TaskManagementFunction::kLogicalUnitReset);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(mine->reply.silent);
  CHECK(theirs->reply.status == Status::kTaskAborted);
  CHECK(bench.unit.mode_parameters().task_aborted_status);
  const Reply attention = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(attention.attention(Additional::kBusDeviceReset));
  const auto last = start(bench, *other, cdb_10(0x28, 0, 1), {.tag = 2});
  co_await bench.router.detach(*other);
  CHECK(last->reply.silent);
}

Task<void> reset(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  struct Case {
    TaskManagementFunction function;
    Additional attention;
  };
  for (const Case& each :
       {Case{TaskManagementFunction::kLogicalUnitReset, Additional::kBusDeviceReset},
        Case{TaskManagementFunction::kTargetWarmReset, Additional::kBusResetOccurred},
        Case{TaskManagementFunction::kTargetColdReset,
             Additional::kPowerOnResetOrBusDeviceReset}}) {
    co_await set_tas(bench);
    const Reply reserved = co_await bench.send_to_unit(cdb_of({0x16}));
    CHECK(reserved.good());
    const Reply stopped = co_await bench.send_to_unit(cdb_of({0x1B}));
    CHECK(stopped.good());
    const TaskManagementResponse done = co_await bench.manage(each.function);
    CHECK(done == TaskManagementResponse::kComplete);
    CHECK(bench.unit.reserved_by().empty());
    CHECK(!bench.unit.mode_parameters().task_aborted_status);
    for (scsi::Nexus* nexus : {bench.nexus.get(), other.get()}) {
      const Reply first = co_await send(bench.router, *nexus, kTestUnitReady);
      CHECK(first.attention(each.attention));
      const Reply second = co_await send(bench.router, *nexus, kTestUnitReady);
      CHECK(second.good());
    }
  }
  co_await bench.router.detach(*other);
}

Task<void> unsupported(Bench& bench) {
  const TaskManagementResponse aca = co_await bench.manage(TaskManagementFunction::kClearAca);
  CHECK(aca == TaskManagementResponse::kNotSupported);
  for (const TaskManagementFunction function :
       {TaskManagementFunction::kAbortTask, TaskManagementFunction::kLogicalUnitReset}) {
    const TaskManagementResponse nowhere = co_await bench.router.manage(
        *bench.nexus, {.function = function, .lun = scsi::encode_lun(5)});
    CHECK(nowhere == TaskManagementResponse::kLunDoesNotExist);
  }
}

Task<void> ordering(Bench& bench) {
  bench.hung.hang();
  const auto a = start(bench, cdb_10(0x28, 0, 1));
  const auto b = start(bench, cdb_10(0x28, 1, 1));
  const auto ordered = start(bench, cdb_10(0x28, 2, 1), {.attribute = TaskAttribute::kOrdered});
  const auto later = start(bench, cdb_10(0x28, 3, 1));
  const auto head = start(bench, cdb_10(0x28, 4, 1), {.attribute = TaskAttribute::kHeadOfQueue});
  const auto untagged_later = start(bench, kTestUnitReady);
  CHECK(bench.device.seen().size() == 3);  // a, b and head
  bench.hung.release_held();
  co_await a->gone();
  co_await b->gone();
  co_await head->gone();
  co_await bench.unit.home().yield();
  CHECK(!ordered->answered);
  CHECK(!later->answered);
  CHECK(!untagged_later->answered);
  CHECK(bench.device.seen().size() == 4);
  CHECK(bench.device.seen().back().extent.first == 2);
  bench.hung.release_held();
  co_await ordered->gone();
  co_await untagged_later->gone();
  CHECK(bench.device.seen().back().extent.first == 3);
  bench.hung.release();
  co_await later->gone();
}

Task<void> abort_waiting(Bench& bench) {
  bench.hung.hang();
  const auto running = start(bench, cdb_10(0x28, 0, 1), {.tag = 1});
  const auto ordered =
      start(bench, cdb_10(0x28, 2, 1), {.tag = 2, .attribute = TaskAttribute::kOrdered});
  const auto behind = start(bench, kTestUnitReady, {.tag = 3});
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 2);
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(ordered->reply.silent);
  co_await behind->gone();
  CHECK(behind->reply.good());
  CHECK(!running->answered);
  bench.hung.release();
  co_await running->gone();
}

Task<void> full(Bench& bench) {
  bench.hung.hang();
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (unsigned i = 0; i < 4; ++i) commands.push_back(start(bench, cdb_10(0x28, i, 1)));
  const Reply refused = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(refused.status == Status::kTaskSetFull);
  bench.hung.release();
  for (const auto& command : commands) co_await command->gone();
  const Reply taken = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(taken.good());
  CHECK(bench.unit.counters().task_set_full == 1);
  CHECK(bench.unit.counters().in_flight_most == 4);
}

Task<void> aca(Bench& bench) {
  const Reply reply =
      co_await bench.send_to_unit(kTestUnitReady, {.attribute = TaskAttribute::kAca});
  CHECK(reply.illegal(Additional::kInvalidMessageError));
  const Reply naca = co_await bench.send_to_unit(cdb_of({0, 0, 0, 0, 0, 0x04}));
  CHECK(naca.illegal(Additional::kInvalidFieldInCdb));
  CHECK(naca.field_byte() == 5);
}

// Cleared by the device server, a command of any nexus ends with a status that says so: one that
// waits for its turn, one that waits for Data-Out, and one that the device does not let go.
Task<void> clear_by_device_server(Bench& bench) {
  auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  bench.hung.hang_only(Operation::kWrite);
  const auto stuck = start(bench, cdb_10(0x2A, 100, 8), {.out = filled(8 * 512, 'x'), .tag = 1});
  auto incoming = make_command(*other, cdb_10(0x2A, 0, 1), {.out_length = 512, .tag = 2});
  incoming->stall_data_out = true;
  bench.router.execute(*incoming);
  const auto waiting =
      start(bench, *other, cdb_10(0x2A, 8, 1),
            {.out = filled(512, 'y'), .tag = 3, .attribute = TaskAttribute::kOrdered});
  const TimePoint before = bench.unit.home().now();
  co_await bench.unit.clear();
  CHECK(bench.unit.home().now() - before <= scsi::kTaskManagementBound);
  for (const FakeCommand* command : {stuck.get(), incoming.get(), waiting.get()}) {
    REQUIRE(command->answered);
    CHECK(command->reply.failed_with(scsi::SenseKey::kAbortedCommand,
                                     Additional::kCommandsClearedByDeviceServer));
  }
  CHECK(bench.unit.counters().held == 1);
  bench.hung.release();
  co_await stuck->gone();
  incoming->let_go();
  co_await incoming->gone();
  co_await waiting->gone();
  CHECK(bench.device.count(Operation::kWrite) == 1);
  co_await bench.router.detach(*other);
}

Task<void> loss(Bench& bench) {
  auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  const Reply reserved = co_await send(bench.router, *other, cdb_of({0x16}));
  CHECK(reserved.good());
  const Reply conflict = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(conflict.status == Status::kReservationConflict);
  bench.hung.obey_cancellation(true);
  bench.hung.hang();
  const auto in_flight = start(bench, *other, cdb_10(0x28, 0, 1));
  co_await bench.router.detach(*other);
  CHECK(in_flight->released);
  CHECK(in_flight->reply.silent);
  bench.hung.release();
  const Reply free = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(free.good());
  CHECK(bench.unit.counters().nexuses == 1);
}

}  // namespace

TEST_CASE("ABORT TASK: a running command ends silently", "[scsi][tmf]") { on_bench(abort_running); }
TEST_CASE("ABORT TASK: bounded when a write never completes, and its blocks are fenced",
          "[scsi][tmf]") {
  on_bench(abort_stuck_write);
}
TEST_CASE("ABORT TASK: a fence also stands before writes that have begun", "[scsi][tmf]") {
  on_bench(fence_before_begun_writes);
}
TEST_CASE("ABORT TASK: a stuck read fences nothing", "[scsi][tmf]") { on_bench(abort_stuck_read); }
TEST_CASE("Recovery: abort, LUN reset, target reset and session loss with a dead device",
          "[scsi][tmf]") {
  on_bench(recovery_ladder);
}
TEST_CASE("Linux FastAbort: an abort does not wait for Data-Out", "[scsi][tmf]") {
  on_bench(abort_in_transfer);
}
TEST_CASE("1 MiB I/O, then ABORT and LUN RESET", "[scsi][tmf]") { on_bench(large_io_then_reset); }
TEST_CASE("Aborts under load: every command ends exactly once", "[scsi][tmf][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 65));
  CAPTURE(seed);
  const auto world = sim::World::create({.seed = seed});
  Bench bench(*world->executors()[0]);
  const bool ended = world->run([&] { return aborts_under_load(bench, seed); });
  REQUIRE(ended);
}
TEST_CASE("ABORT TASK SET: concerns its own nexus alone", "[scsi][tmf]") {
  on_bench(abort_task_set_is_own);
}
TEST_CASE("CLEAR TASK SET: others get a unit attention, or TASK ABORTED with TAS", "[scsi][tmf]") {
  on_bench(clear_task_set);
}
TEST_CASE("Resets end others' commands with TASK ABORTED where that is the unit's default",
          "[scsi][tmf][I-11d]") {
  on_bench(tas_by_default, {.task_aborted_status = true});
}
TEST_CASE("Resets: unit attentions, reservation and mode pages", "[scsi][tmf]") { on_bench(reset); }
TEST_CASE("Task management: what is not supported or not there", "[scsi][tmf]") {
  on_bench(unsupported);
}
TEST_CASE("Task set: SIMPLE, ORDERED and HEAD OF QUEUE", "[scsi]") { on_bench(ordering); }
TEST_CASE("ABORT TASK: a waiting command frees those behind it", "[scsi][tmf]") {
  on_bench(abort_waiting);
}
TEST_CASE("Task set: beyond the queue depth TASK SET FULL", "[scsi]") {
  on_bench(full, {.queue_depth = 4});
}
TEST_CASE("Task set: ACA and NACA are refused", "[scsi]") { on_bench(aca); }
TEST_CASE("A unit that is cleared ends every command with ABORTED COMMAND", "[scsi][G-S5]") {
  on_bench(clear_by_device_server);
}
TEST_CASE("Nexus loss: frees reservation and commands", "[scsi][tmf]") { on_bench(loss); }

}  // namespace sandbay::testing::task_management_test
