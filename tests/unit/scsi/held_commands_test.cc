// Commands that were aborted and that a device has not let go: how many, how much memory, and what
// it costs to abort many.
#include <ctime>

#include "fake_transport.h"

namespace sandbay::testing {
namespace {

using scsi::Status;
using scsi::TaskManagementFunction;
using scsi::TaskManagementResponse;

std::unique_ptr<FakeCommand> start(Bench& bench, std::array<std::byte, 16> cdb, std::uint64_t tag) {
  auto command = make_command(*bench.nexus, cdb, {.tag = tag});
  bench.router.execute(*command);
  return command;
}

// An initiator that retries on a dead device for as long as it likes.
Task<void> count_is_bounded(Bench& bench) {
  constexpr std::uint32_t kDepth = 16;
  bench.hung.hang_only(Operation::kRead);
  std::vector<std::unique_ptr<FakeCommand>> commands;
  std::uint32_t refused = 0;
  for (unsigned round = 0; round < 50; ++round) {
    for (unsigned i = 0; i < 100; ++i) {
      commands.push_back(start(bench, cdb_10(0x28, i, 1), commands.size()));
      const bool full = commands.back()->answered;
      if (full) CHECK(commands.back()->reply.status != Status::kGood);
      if (full) ++refused;
    }
    const TaskManagementResponse done =
        co_await bench.manage(TaskManagementFunction::kLogicalUnitReset);
    CHECK(done == TaskManagementResponse::kComplete);
    CHECK(bench.unit.counters().held <= kDepth);
    CHECK(bench.unit.counters().in_flight == 0);
  }
  CHECK(refused > 4000);
  CHECK(bench.unit.counters().held == kDepth);
  // Nothing is in the task set, so that it cannot be full.
  const Reply busy = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(busy.status == Status::kBusy);
  bench.hung.release();
  for (const auto& command : commands) co_await command->gone();
  CHECK(bench.unit.counters().held == 0);
  const Reply attention = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(attention.attention(scsi::Additional::kBusDeviceReset));
  const Reply good = co_await bench.send_to_unit(cdb_10(0x28, 0, 1));
  CHECK(good.good());
}

Task<void> memory_is_bounded(Bench& bench) {
  constexpr unsigned kBlocks = 2048;  // A mebibyte.
  const std::size_t share = bench.unit.home().buffers().limit_bytes() / 16;
  bench.hung.hang_only(Operation::kRead);
  std::vector<std::unique_ptr<FakeCommand>> commands;
  std::size_t held_bytes = 0;
  while (held_bytes < share) {
    commands.push_back(start(bench, cdb_10(0x28, 0, kBlocks), commands.size()));
    CHECK_FALSE(commands.back()->answered);
    const TaskManagementResponse done =
        co_await bench.manage(TaskManagementFunction::kAbortTask, commands.size() - 1);
    CHECK(done == TaskManagementResponse::kComplete);
    held_bytes += std::size_t{kBlocks} * 512;
  }
  for (const auto& cdb : {cdb_10(0x28, 0, kBlocks), cdb_10(0x28, 0, 1), cdb_10(0x2F, 0, 1)}) {
    const Reply busy = co_await bench.send_to_unit(cdb);
    CHECK(busy.status == Status::kBusy);
  }
  const Reply ready = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(ready.good());
  bench.hung.release();
  for (const auto& command : commands) co_await command->gone();
  const Reply good = co_await bench.send_to_unit(cdb_10(0x28, 0, kBlocks));
  CHECK(good.good());
}

// Ends its requests one by one, a hundred microseconds apart, even if they were cancelled.
class OneByOne final : public Layer {
 public:
  using Layer::Layer;

 protected:
  Task<Completion> read(Request request) override {
    const Duration pause = std::chrono::microseconds(100) * ++arrived_;
    co_await home().sleep_for(pause);
    request.cancellation = nullptr;
    Completion completion = co_await below().submit(std::move(request));
    co_return completion;
  }

 private:
  int arrived_ = 0;
};

Task<void> abort_one(scsi::TaskRouter& router, scsi::Nexus& nexus,
                     scsi::TaskManagementRequest request, Gate& gate) {
  const GateHold hold(gate);
  const TaskManagementResponse done = co_await router.manage(nexus, request);
  CHECK(done == TaskManagementResponse::kComplete);
}

// A lost connection's commands are aborted beside those of many hosts.
Task<void> abort_many(Bench& bench) {
  constexpr std::uint64_t kRunning = 4096;
  constexpr std::uint64_t kAborted = 128;
  constexpr std::uint64_t kSlow = std::uint64_t{1} << 48U;  // LUN 1.
  OneByOne slow(bench.device);
  scsi::LogicalUnit unit(slow, {});
  const Error added = co_await bench.router.add(1, &unit);
  CHECK(added == Error::kNone);
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (std::uint64_t tag = 0; tag < kRunning; ++tag) {
    commands.push_back(make_command(*bench.nexus, cdb_10(0x28, 0, 1), {.lun = kSlow, .tag = tag}));
  }
  Reply ready;
  do {
    ready = co_await bench.send_to_unit(kTestUnitReady, {.lun = kSlow});
  } while (!ready.good());
  for (const auto& command : commands) bench.router.execute(*command);
  const std::clock_t before = std::clock();
  Gate aborts;
  for (std::uint64_t index = 0; index < kAborted; ++index) {
    const bool entered = aborts.enter();
    CHECK(entered);
    const scsi::TaskManagementRequest request{
        .function = TaskManagementFunction::kAbortTask, .lun = kSlow, .tag = kRunning - 1 - index};
    spawn(abort_one(bench.router, *bench.nexus, request, aborts));
  }
  co_await aborts.close();
  for (const auto& command : commands) co_await command->gone();
  // Each abort passes over the commands once, and each end concerns one abort; it took a hundred
  // times as long when each end had every abort count its victims anew.
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 2.0);
  co_await bench.router.remove(1);
  const bool closed = co_await unit.close(unit.home().now() + std::chrono::seconds(10));
  CHECK(closed);
}

}  // namespace

TEST_CASE("Held commands count against the queue depth", "[scsi][tmf][I-4]") {
  on_bench(count_is_bounded, {.queue_depth = 16});
}
TEST_CASE("Held commands keep a sixteenth of the memory at most", "[scsi][tmf][I-4]") {
  on_bench(memory_is_bounded);
}
TEST_CASE("Aborts beside thousands of commands cost a pass each", "[scsi][tmf][I-6]") {
  on_bench(abort_many);
}

}  // namespace sandbay::testing
