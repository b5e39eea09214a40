// Goal: an image that does not get synced (its disk hangs) holds no write for ever: writes go
// through to the drives within a second, but for blocks of which an older write could come back.
// Method: a board with durability host whose syncs take two minutes, and a crash of the host in it.
#include <catch2/catch.hpp>

#include "nvram_controller.h"
#include "runtime/cancellation.h"

namespace sandbay::cache::stalled_nvram_test {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::run_in_world;

constexpr std::uint64_t kBoardBytes = 8 * kMiB;
constexpr std::uint64_t kBlocks = 8;

Task<Error> write(CachedDevice* device, Lba lba, std::uint8_t content,
                  Cancellation* cancellation = nullptr) {
  Request request{.operation = Operation::kWrite, .extent = {lba, kBlocks}};
  request.cancellation = cancellation;
  request.data = co_await device->home().buffers().allocate(kBlocks * 512);
  request.data.copy_from(std::vector<std::byte>(kBlocks * 512, std::byte{content}));
  const Completion completion = co_await device->submit(std::move(request));
  co_return completion.error;
}

Task<int> content(BlockDevice* device, Lba lba) {
  Request request{.extent = {lba, kBlocks}};
  request.data = co_await device->home().buffers().allocate(kBlocks * 512);
  const Completion completion = co_await device->submit(std::move(request));
  REQUIRE(completion.error == Error::kNone);
  co_return std::to_integer<int>(completion.data[0].bytes()[0]);
}

// What a host finds after a crash at this moment.
Task<void> crash_here(Executor& home, Below* below, const nvram::SimulatedBoard* board,
                      std::uint64_t seed) {
  nvram::SimulatedBoard left = *board;
  left.sync_time = std::chrono::microseconds(100);
  Random random(seed);
  left.crash_host(random);
  ControllerOptions options{.durability = nvram::Durability::kHost};
  options.boot_id = "two";
  Controller controller = co_await start(home, left, options);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below->recording);
  const int kept = co_await content(&device, 0);
  CHECK(kept == 1);
  const int through = co_await content(&device, 100);
  CHECK(through == 2);
  co_await stop(controller);
}

Task<void> hangs(Executor& home) {
  Below below(home, {});
  nvram::SimulatedBoard board(kBoardBytes);
  Controller controller =
      co_await start(home, board, ControllerOptions{.durability = nvram::Durability::kHost});
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  std::vector<bool> told;
  controller.memory->on_stalled = [&told](bool stalled) { told.push_back(stalled); };
  const Error kept = co_await write(&device, 0, 1);
  REQUIRE(kept == Error::kNone);
  CHECK(controller.memory->live_writes() == 1);

  const Duration usual = board.sync_time;
  board.sync_time = std::chrono::minutes(2);
  TimePoint began = home.now();
  const Error caught = co_await write(&device, 100, 2);
  REQUIRE(caught == Error::kNone);
  CHECK(home.now() - began < seconds(2));
  CHECK(told == std::vector<bool>{true});
  CHECK_FALSE(controller.memory->takes_writes());
  const int there = co_await content(&below.recording, 100);
  CHECK(there == 2);
  // What comes next does not wait at all.
  began = home.now();
  for (Lba lba = 200; lba < 300; lba += kBlocks) {
    const Error next = co_await write(&device, lba, 3);
    REQUIRE(next == Error::kNone);
  }
  CHECK(home.now() - began < seconds(1));
  // Older content of these could come back over them.
  for (const Lba lba : {Lba{0}, Lba{100}}) {
    began = home.now();
    const Error in_doubt = co_await write(&device, lba, 4);
    CHECK(in_doubt == Error::kTimedOut);
    CHECK(home.now() - began < seconds(3));
  }
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    co_await crash_here(home, &below, &board, seed);
  }

  board.sync_time = usual;
  co_await home.sleep_for(std::chrono::minutes(6));
  CHECK(told == std::vector<bool>{true, false});
  for (const Lba lba : {Lba{0}, Lba{100}}) {
    const Error again = co_await write(&device, lba, 5);
    REQUIRE(again == Error::kNone);
  }
  CHECK(controller.memory->live_writes() == 2);
  co_await close(controller);
  const int last = co_await content(&below.recording, 100);
  CHECK(last == 5);
}

Task<void> cancel_soon(Executor& home, Cancellation* cancellation) {
  co_await home.sleep_for(std::chrono::milliseconds(10));
  cancellation->cancel();
}

Task<void> crash_with_one_write(Executor& home, Below* below, const nvram::SimulatedBoard* board,
                                int seen, std::uint64_t seed) {
  nvram::SimulatedBoard left = *board;
  left.sync_time = std::chrono::microseconds(100);
  Random random(seed);
  left.crash_host(random);
  ControllerOptions options{.durability = nvram::Durability::kHost};
  options.boot_id = "two";
  Controller controller = co_await start(home, left, options);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below->recording);
  const int now = co_await content(&device, 0);
  CHECK(now == seen);
  co_await stop(controller);
}

Task<void> is_aborted(Executor& home, Duration sync_time) {
  Below below(home, {});
  nvram::SimulatedBoard board(kBoardBytes);
  Controller controller =
      co_await start(home, board, ControllerOptions{.durability = nvram::Durability::kHost});
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  // Behind one that stays the log forgets no other by itself.
  const Error older = co_await write(&device, 1000, 3);
  REQUIRE(older == Error::kNone);
  board.sync_time = sync_time;
  Cancellation cancellation;
  spawn(cancel_soon(home, &cancellation));
  const TimePoint began = home.now();
  (void)co_await write(&device, 0, 1, &cancellation);
  CHECK(home.now() - began < seconds(2));
  CHECK(controller.memory->stalled() == (sync_time > seconds(1)));
  // Whatever became of it: it does not change any more.
  const int there = co_await content(&device, 0);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    co_await crash_with_one_write(home, &below, &board, there, seed);
    co_await home.sleep_for(sync_time / 2);
  }
  // Another one there is the newer one.
  board.sync_time = std::chrono::microseconds(100);
  co_await home.sleep_for(std::chrono::minutes(10));
  const Error next = co_await write(&device, 0, 2);
  REQUIRE(next == Error::kNone);
  CHECK(controller.memory->live_writes() == 2);
  co_await close(controller);
  const int last = co_await content(&below.recording, 0);
  CHECK(last == 2);
}

// An image of which every sync takes its time, but ends: nothing fails for that.
Task<void> is_slow(Executor& home) {
  Below below(home, {});
  nvram::SimulatedBoard board(kBoardBytes);
  nvram::SimulatedBoard mirror(kBoardBytes);
  Controller controller = co_await start(
      home, board, ControllerOptions{.mirror = &mirror, .durability = nvram::Durability::kHost});
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  board.sync_time = mirror.sync_time = std::chrono::milliseconds(300);
  const Error kept = co_await write(&device, 0, 1);
  REQUIRE(kept == Error::kNone);
  CHECK(controller.memory->live_writes() == 1);
  CHECK_FALSE(controller.memory->stalled());
  Request zeroes{.operation = Operation::kWriteZeroes, .extent = {0, kBlocks}};
  const Completion zeroed = co_await device.submit(std::move(zeroes));
  CHECK(zeroed.error == Error::kNone);
  CHECK(controller.memory->mirrored());
  const int there = co_await content(&below.recording, 0);
  CHECK(there == 0);
  board.sync_time = mirror.sync_time = std::chrono::microseconds(100);
  co_await close(controller);
}

TEST_CASE("An NVRAM whose image does not get synced holds no write for ever", "[cache][nvram]") {
  run_in_world(1, hangs);
}

TEST_CASE("What is read after an aborted write stays, also in a crash", "[cache][nvram]") {
  const Duration sync_time =
      GENERATE(Duration(std::chrono::milliseconds(500)), Duration(minutes(2)));
  run_in_world(1, [sync_time](Executor& home) { return is_aborted(home, sync_time); });
}

TEST_CASE("Where the image is slow, changes of what was just written wait and do not fail",
          "[cache][nvram]") {
  run_in_world(1, is_slow);
}

}  // namespace
}  // namespace sandbay::cache::stalled_nvram_test
