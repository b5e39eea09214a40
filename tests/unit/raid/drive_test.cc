// A drive's timeout counts the time in which its executor ran. On a reactor, because the simulated
// executor is always in time.
#include "raid/drive.h"

#include <thread>

#include <catch2/catch.hpp>

#include "block/layer.h"
#include "raid/bounded_device.h"
#include "runtime/sync.h"
#include "test_drive.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::raidtest::drive_test {
namespace {

using namespace std::chrono_literals;

constexpr raid::DrivePolicy kPolicy{.timeout = 200ms, .slow_read = 100ms};

Request reading(Executor& home) {
  Request request;
  request.extent = {.first = 0, .block_count = 8};
  request.data = home.buffers().try_allocate(4096);
  return request;
}

Task<void> sleep_through(Executor* home) {
  TestDrive device(*home, "sleepy", 1 << 20);
  device.slow_reads(60ms);
  raid::Drive drive(device, "sleepy", kPolicy);
  for (int round = 0; round < 3; ++round) {
    raid::DriveIo read = drive.start(reading(*home));
    std::this_thread::sleep_for(500ms);  // As if the process had been stopped.
    co_await read.wait();
    CHECK(read.take().error == Error::kNone);
  }
  CHECK(drive.counters().timeouts == 0);
  CHECK(drive.counters().slow_reads == 0);
  CHECK_FALSE(drive.failing());
}

class SlowToTell final : public Layer {
 public:
  using Layer::Layer;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_await home().sleep_for(60ms);
    Result<ProvisioningRun> run = co_await below().provisioning(first, limit);
    co_return run;
  }
};

Task<void> ask(raid::BoundedDevice* device, bool* answered, Event* ended) {
  const auto run = co_await device->provisioning(0, 8);
  *answered = run.has_value();
  ended->set();
}

Task<void> look_late(Executor* home) {
  TestDrive device(*home, "sleepy", 1 << 20);
  SlowToTell slow(device);
  raid::BoundedDevice bounded(slow, "sleepy", kPolicy);
  bool answered = false;
  Event ended;
  spawn(ask(&bounded, &answered, &ended));
  std::this_thread::sleep_for(500ms);
  co_await ended.wait();
  CHECK(answered);
}

// What does not answer is late all the same.
Task<void> hang_and_sleep(Executor* home) {
  TestDrive device(*home, "sleepy", 1 << 20);
  device.slow_reads(3s);
  raid::Drive drive(device, "sleepy", kPolicy);
  raid::DriveIo read = drive.start(reading(*home));
  std::this_thread::sleep_for(300ms);
  const TimePoint awake = home->now();
  co_await read.wait();
  CHECK(read.take().error == Error::kTimedOut);
  CHECK(home->now() - awake < 2s);
  co_await drive.wait_idle_until(home->now() + 10s);
}

// A device whose own time is at work on what came at `since` or later.
class TakesTime final : public Layer {
 public:
  using Layer::Layer;
  TimePoint busy_since() const noexcept override { return since; }
  TimePoint since = kNever;
};

// Time that modelled hardware takes does not count; what comes on top of it does.
Task<void> take_modelled_time(Executor* home) {
  TestDrive device(*home, "modelled", 1 << 20);
  TakesTime modelled(device);
  raid::Drive drive(modelled, "modelled", kPolicy);
  struct Row {
    Duration whole;
    Duration of_model;
    std::uint64_t slow;
    std::uint64_t late;
  };
  for (const Row& row : {Row{900ms, 880ms, 0, 0}, Row{640ms, 500ms, 1, 0}, Row{900ms, 500ms, 2, 1},
                         Row{300ms, 0ms, 3, 2}}) {
    device.slow_reads(row.whole);
    modelled.since = row.of_model > 0ms ? home->now() : kNever;
    raid::DriveIo first = drive.start(reading(*home));
    raid::DriveIo second = drive.start(reading(*home));
    co_await home->sleep_for(row.of_model);
    modelled.since = kNever;
    co_await first.wait();
    co_await second.wait();
    CHECK(drive.counters().slow_reads == 2 * row.slow);
    CHECK(drive.counters().timeouts == 2 * row.late);
    co_await drive.wait_idle_until(home->now() + 10s);
  }
  // It works on what came later, so what came before is late.
  device.slow_reads(150ms);
  const auto slow = drive.counters().slow_reads;
  modelled.since = home->now() + 1ms;
  raid::DriveIo read = drive.start(reading(*home));
  co_await read.wait();
  CHECK(drive.counters().slow_reads == slow + 1);
}

// A read is in the device when a question finds out that another disk answers.
Task<void> question_meets_another_disk(Executor* home) {
  TestDrive device(*home, "other", 1 << 20);
  device.slow_reads(60ms);
  device.become_another();
  raid::Drive drive(device, "other", {});
  raid::DriveIo read = drive.start(reading(*home));
  const auto run = co_await drive.provisioning(0, 8);
  CHECK((!run && run.error() == Error::kNotReady));
  co_await read.wait();
  CHECK(read.take().error == Error::kNotReady);
}

// Its owner has not heard yet what the read found out.
Task<void> write_to_another_disk(Executor* home) {
  TestDrive device(*home, "other", 1 << 20);
  device.become_another();
  raid::Drive drive(device, "other", {});
  raid::DriveIo read = drive.start(reading(*home));
  co_await read.wait();
  Request request = reading(*home);
  request.operation = Operation::kWrite;
  const Completion written = co_await drive.submit(std::move(request));
  CHECK(written.error == Error::kNotReady);
  CHECK(device.counts.writes == 0);
  CHECK(read.take().error == Error::kNotReady);
}

Task<void> note_end(raid::Drive* drive, unsigned* late) {
  const auto run = co_await drive->provisioning(0, 8);
  *late += !run && run.error() == Error::kTimedOut ? 1 : 0;
}

Task<void> ask_while_it_hangs(Executor* home) {
  TestDrive device(*home, "hung", 1 << 20);
  raid::Drive drive(device, "hung", {.timeout = 2s});
  device.hang();
  unsigned late = 0;
  for (int i = 0; i < 16; ++i) spawn(note_end(&drive, &late));
  co_await home->sleep_for(1900ms);
  CHECK(late == 0);
  co_await home->sleep_for(200ms);
  CHECK(late == 16);
  co_await note_end(&drive, &late);  // At once: it has too many already.
  CHECK(late == 17);
  CHECK_FALSE(drive.idle());
  device.release();
  co_await home->sleep_for(1ms);
  CHECK(drive.idle());
  const auto run = co_await drive.provisioning(0, 8);
  CHECK(run.has_value());
}

}  // namespace

TEST_CASE("A question to a drive finds out that another disk answers", "[raid][N8]") {
  testing::run_in_world(1, [](Executor& home) { return question_meets_another_disk(&home); });
}
TEST_CASE("A drive is not late for time that modelled hardware takes", "[raid]") {
  testing::run_in_world(1, [](Executor& home) { return take_modelled_time(&home); });
}
TEST_CASE("A drive that was not ready is sent nothing until its owner knows", "[raid][N7]") {
  testing::run_in_world(1, [](Executor& home) { return write_to_another_disk(&home); });
}
TEST_CASE("A drive that hangs has as long for a question as for an operation", "[raid][N7]") {
  testing::run_in_world(1, [](Executor& home) { return ask_while_it_hangs(&home); });
}
TEST_CASE("A drive is not late for time in which its executor did not run", "[raid]") {
  testing::run_on_reactor([](Executor& home) { return sleep_through(&home); });
}
TEST_CASE("A drive that is asked while its executor does not run is heard", "[raid]") {
  testing::run_on_reactor([](Executor& home) { return look_late(&home); });
}
TEST_CASE("A drive that does not answer is late although its executor slept", "[raid]") {
  testing::run_on_reactor([](Executor& home) { return hang_and_sleep(&home); });
}

}  // namespace sandbay::raidtest::drive_test
