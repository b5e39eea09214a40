// The layer: a drive's timing on a device in memory, in worlds and on a reactor.
#include "model/modelled_drive.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "block/memory_device.h"
#include "model/disk_model.h"
#include "runtime/reactor.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "tests/unit/model/closed_loop.h"
#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {
namespace {

using model::DiskMechanism;
using model::DiskModel;
using model::DiskOptions;
using model::DriveCommand;
using model::ModelClock;
using model::ModelledDrive;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kDeviceBytes = std::uint64_t{1} << 28U;
constexpr std::uint32_t kBlock = 512;

const std::shared_ptr<const DiskMechanism>& cheetah() {
  static const auto kMechanism =
      std::make_shared<const DiskMechanism>(disk_profile("seagate-cheetah-15k5-146"));
  return kMechanism;
}

using Start = std::function<Task<void>(Executor& home)>;

void run_in_world(const Start& start) {
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return start(home); });
  REQUIRE(ended);
}

// Takes real time for everything.
class SlowDevice final : public Layer {
 public:
  SlowDevice(BlockDevice& below, Duration each) : Layer(below), each_(each) {}
  Task<Completion> submit(Request request) override {
    co_await home().sleep_for(each_);
    co_return co_await below().submit(std::move(request));
  }

 private:
  Duration each_;
};

// A drive over memory.
struct Rig {
  Rig(Executor& executor, double time_scale = 1, Duration real_each = {},
      std::uint64_t first_sector = 0)
      : home(executor), clock(time_scale, executor.now()) {
    auto created = MemoryDevice::create(home, {.byte_count = kDeviceBytes});
    REQUIRE(created.has_value());
    memory = std::move(*created);
    slow.emplace(*memory, real_each);
    drive.emplace(*slow, clock, std::make_unique<DiskModel>(cheetah(), model::DiskOptions{}),
                  model::ModelledDriveOptions{.name = "a Cheetah", .first_sector = first_sector});
    drive->begin_time();
  }
  Request request(const DriveCommand& command) const {
    Request made{.operation = command.operation, .extent = {command.sector, command.sector_count}};
    const bool data =
        command.operation == Operation::kRead || command.operation == Operation::kWrite;
    if (data) made.data = home.buffers().try_allocate(command.sector_count * kBlock);
    return made;
  }

  Executor& home;
  ModelClock clock;
  std::unique_ptr<MemoryDevice> memory;
  std::optional<SlowDevice> slow;
  std::optional<ModelledDrive> drive;
};

RandomPlaces places(std::uint64_t seed = 1) {
  return {seed, Operation::kWrite, 8192, kDeviceBytes / kBlock};
}

// One of several loops: the next command when the one before has ended.
struct Loop {
  Rig& rig;
  RandomPlaces next = places();
  std::uint64_t issued = 0;
  std::uint64_t count = 0;
  std::vector<TimePoint> ends;  // In modelled time.
  std::size_t wrong = 0;
};

Task<void> work(Loop& loop, BlockDevice& device, Gate& gate) {
  const GateHold hold(gate);
  while (loop.issued < loop.count) {
    const std::uint64_t number = loop.issued++;
    const DriveCommand command = loop.next(number);
    const Completion done = co_await device.submit(loop.rig.request(command));
    if (done.error != Error::kNone || done.data.byte_count() != 8192) ++loop.wrong;
    loop.ends[number] = loop.rig.clock.modelled(loop.rig.home.now());
  }
}

Task<void> run_loops(Loop& loop, BlockDevice& device, std::uint64_t depth, std::uint64_t count) {
  Gate gate;
  loop.count = count;
  loop.ends.resize(count);
  for (std::uint64_t i = 0; i < depth; ++i) {
    REQUIRE(gate.enter());
    spawn(work(loop, device, gate));
  }
  co_await gate.close();
}

std::vector<TimePoint> ends_of_model(std::uint64_t depth, std::uint64_t count, TimePoint start) {
  DiskModel alone(cheetah(), {});
  std::vector<TimePoint> ends = run_loop(alone, depth, count, places(), {}, start).ends;
  std::ranges::sort(ends);
  return ends;
}

TimePoint end_of_one(const DriveCommand& command, TimePoint start) {
  DiskModel alone(cheetah(), {});
  return run_loop(alone, 1, 1, [&](std::uint64_t) { return command; }, {}, start).ends.front();
}

// ------------------------------------------------------------------------------------------------

Task<void> follows_the_model(Executor& home) {
  Rig rig(home);
  const TimePoint start = home.now();
  // Alone and with a queue; what is drawn first may be another loop's, so the sorted ends count.
  Loop loop{.rig = rig};
  co_await run_loops(loop, *rig.drive, 1, 300);
  CHECK(loop.wrong == 0);
  CHECK(loop.ends == ends_of_model(1, 300, start));

  Rig busy(home);
  Loop several{.rig = busy};
  const TimePoint later = home.now();
  co_await run_loops(several, *busy.drive, 8, 600);
  std::ranges::sort(several.ends);
  CHECK(several.ends == ends_of_model(8, 600, later));
}

Task<void> scales(Executor& home) {
  Rig rig(home, 3.7);
  const TimePoint start = home.now();
  Loop loop{.rig = rig};
  co_await run_loops(loop, *rig.drive, 1, 100);
  CHECK(loop.ends == ends_of_model(1, 100, start));
  const auto real = static_cast<double>((home.now() - start).count());
  const auto modelled = static_cast<double>((loop.ends.back() - start).count());
  CHECK(real == Approx(modelled * 3.7));
}

Task<void> takes_the_longer_time(Executor& home) {
  // 100 ms of real time for each are longer than any access, 10 us are shorter.
  for (const Duration each : {Duration(milliseconds(100)), Duration(microseconds(10))}) {
    Rig rig(home, 1, each);
    const DriveCommand command{.operation = Operation::kRead, .sector = 77, .sector_count = 16};
    const TimePoint start = home.now();
    const Completion done = co_await rig.drive->submit(rig.request(command));
    CHECK(done.error == Error::kNone);
    const TimePoint modelled = end_of_one(command, start);
    CHECK(modelled < start + milliseconds(15));
    CHECK(home.now() == std::max(modelled, start + each));
  }
}

Task<void> ends_later(Task<Completion> task, Completion& result, TimePoint& when, Gate& gate) {
  const GateHold hold(gate);
  result = co_await std::move(task);
  when = Executor::current().now();
}

Task<void> cancels(Executor& home) {
  Rig rig(home);
  Gate gate;
  std::vector<Cancellation> cancellations(6);
  std::vector<Completion> results(6);
  std::vector<TimePoint> ends(6);
  const TimePoint start = home.now();
  RandomPlaces draw = places();
  for (std::size_t i = 0; i < 6; ++i) {
    Request request = rig.request(draw(i));
    request.cancellation = &cancellations[i];
    if (i == 5) cancellations[i].cancel();
    REQUIRE(gate.enter());
    spawn(ends_later(rig.drive->submit(std::move(request)), results[i], ends[i], gate));
  }
  co_await home.sleep_for(milliseconds(1));
  for (const std::size_t i : {0U, 1U, 3U}) cancellations[i].cancel();
  co_await gate.close();
  for (const std::size_t i : {0U, 1U, 3U}) {
    CHECK(results[i].error == Error::kCancelled);
    CHECK(ends[i] == start + milliseconds(1));
    CHECK(results[i].data.byte_count() == 8192);
  }
  CHECK(results[5].error == Error::kCancelled);
  CHECK(ends[5] == start);
  for (const std::size_t i : {2U, 4U}) {
    CHECK(results[i].error == Error::kNone);
    CHECK(ends[i] > start + milliseconds(1));
  }
}

// The arrival of the oldest command; never, if it has none.
Task<void> tells_since_when(Executor& home) {
  Rig rig(home);
  Gate gate;
  std::vector<Cancellation> cancellations(3);
  std::vector<Completion> results(3);
  std::vector<TimePoint> ends(3);
  std::vector<TimePoint> came;
  RandomPlaces draw = places();
  CHECK(rig.drive->busy_since() == kNever);
  for (std::size_t i = 0; i < 3; ++i) {
    Request request = rig.request(draw(i));
    request.cancellation = &cancellations[i];
    came.push_back(home.now());
    REQUIRE(gate.enter());
    spawn(ends_later(rig.drive->submit(std::move(request)), results[i], ends[i], gate));
    CHECK(rig.drive->busy_since() == came[0]);
    co_await home.sleep_for(microseconds(10));
  }
  cancellations[1].cancel();
  CHECK(rig.drive->busy_since() == came[0]);
  cancellations[0].cancel();
  CHECK(rig.drive->busy_since() == came[2]);
  co_await gate.close();
  CHECK(ends[2] > came[2]);
  CHECK(rig.drive->busy_since() == kNever);
}

Task<void> shows_itself(Executor& home) {
  // At the inner edge everything is slower than at the outer one.
  const std::uint64_t inner = cheetah()->layout.sector_count() - kDeviceBytes / kBlock;
  std::vector<Duration> took;
  for (const std::uint64_t first : {std::uint64_t{0}, inner}) {
    Rig rig(home, 1, {}, first);
    CHECK(rig.drive->geometry().rotational);
    CHECK(rig.drive->geometry().block_count == kDeviceBytes / kBlock);
    CHECK(rig.drive->description() == rig.memory->description() + " timed as a Cheetah");
    const TimePoint start = home.now();
    for (std::uint64_t i = 0; i < 40; ++i) {
      const Completion done = co_await rig.drive->submit(
          rig.request({.operation = Operation::kRead, .sector = i * 1024, .sector_count = 1024}));
      CHECK(done.error == Error::kNone);
    }
    took.push_back(home.now() - start);
    for (const Operation operation : {Operation::kFlush, Operation::kAdvise, Operation::kUnmap}) {
      const TimePoint before = home.now();
      const Completion done = co_await rig.drive->submit(
          rig.request({.operation = operation, .sector = 8, .sector_count = 8}));
      CHECK(done.error == Error::kNone);
      CHECK(home.now() > before);
    }
    CHECK(ModelledDrive::fits_on(rig.memory->geometry(), inner, 286'749'488));
    CHECK_FALSE(ModelledDrive::fits_on(rig.memory->geometry(), inner + 1, 286'749'488));
    CHECK_FALSE(ModelledDrive::fits_on(rig.memory->geometry(), 286'749'489, 286'749'488));
  }
  const double ratio = static_cast<double>(took[1].count()) / static_cast<double>(took[0].count());
  CHECK(ratio == Approx(125.0 / 73).epsilon(0.05));
}

Task<void> large_blocks(Executor& home) {
  const auto memory = MemoryDevice::create(home, {.byte_count = kDeviceBytes, .block_bytes = 4096});
  REQUIRE(memory.has_value());
  const ModelClock clock;
  ModelledDrive drive(**memory, clock, std::make_unique<DiskModel>(cheetah(), DiskOptions{}));
  // Before its time begins a command ends at once.
  const TimePoint before = home.now();
  Request early{.operation = Operation::kWrite, .extent = {4321, 2}};
  early.data = home.buffers().try_allocate(8192);
  const Completion at_once = co_await drive.submit(std::move(early));
  CHECK(at_once.error == Error::kNone);
  CHECK(home.now() == before);
  drive.begin_time();
  CHECK(drive.description() == (*memory)->description());
  const TimePoint start = home.now();
  Request request{.operation = Operation::kWrite, .extent = {4321, 2}};
  request.data = home.buffers().try_allocate(8192);
  const Completion done = co_await drive.submit(std::move(request));
  CHECK(done.error == Error::kNone);
  const DriveCommand same{.operation = Operation::kWrite, .sector = 4321 * 8, .sector_count = 16};
  CHECK(home.now() == end_of_one(same, start));
}

// Timers are late here, so each command comes when the one before has ended, and a bit.
Task<void> never_early(Executor& home) {
  Rig rig(home);
  DiskModel alone(cheetah(), {});
  RandomPlaces draw = places();
  for (std::uint64_t i = 0; i < 20; ++i) {
    DriveCommand command = draw(i);
    const TimePoint start = home.now();
    const Completion done = co_await rig.drive->submit(rig.request(command));
    CHECK(done.error == Error::kNone);
    // Its arrival at the drive is not before `start`.
    command.arrival = start;
    alone.arrive(command);
    while (alone.outstanding() > 0) {
      const TimePoint next = alone.next_event();
      alone.advance(next);
      (void)alone.take_ended(next);
    }
    CHECK(home.now() >= command.end);
  }
}

}  // namespace

TEST_CASE("a modelled drive ends when its model does", "[model][layer]") {
  run_in_world([](Executor& home) { return follows_the_model(home); });
}

TEST_CASE("a slower clock slows the drive, not its schedule", "[model][layer]") {
  run_in_world([](Executor& home) { return scales(home); });
}

TEST_CASE("a request takes the longer of real and modelled time", "[model][layer]") {
  run_in_world([](Executor& home) { return takes_the_longer_time(home); });
}

TEST_CASE("a cancelled request ends at once, the others in their time", "[model][layer]") {
  run_in_world([](Executor& home) { return cancels(home); });
}

TEST_CASE("a modelled drive tells since when it is busy", "[model][layer]") {
  run_in_world([](Executor& home) { return tells_since_when(home); });
}

TEST_CASE("the place of a device on its drive matters", "[model][layer]") {
  run_in_world([](Executor& home) { return shows_itself(home); });
}

TEST_CASE("blocks of 4096 bytes are eight sectors each", "[model][layer]") {
  run_in_world([](Executor& home) { return large_blocks(home); });
}

TEST_CASE("on a reactor nothing ends before its modelled time", "[model][layer]") {
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  if (!group.has_value()) FAIL(group.error().text);
  Executor& home = *(*group)->executors()[0];
  (*group)->run([&] { return never_early(home); });
}

TEST_CASE("a clock converts without loss", "[model][clock]") {
  const auto world = sim::World::create({.seed = 1});
  const Executor& home = *world->executors()[0];
  const TimePoint now = home.now();
  const ModelClock slow(8.3, now);
  CHECK(slow.real(kNever) == kNever);
  CHECK(slow.real(milliseconds(10)) == milliseconds(83));
  for (std::int64_t i = 0; i < 20'000; ++i) {
    const TimePoint modelled = now + Duration(i * i * 977);
    if (slow.modelled(slow.real(modelled)) < modelled) FAIL("a timer would fire too early");
  }
}

}  // namespace sandbay::testing
