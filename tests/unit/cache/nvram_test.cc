// The cache over NVRAM: what is acknowledged there, what the battery changes, and restarts.
#include <catch2/catch.hpp>

#include "nvram_controller.h"

namespace sandbay::cache {
namespace {

using nvram::BatteryState;
using testing::Bytes;

Task<void> acknowledges(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  REQUIRE(device.geometry().non_volatile_cache);
  REQUIRE_FALSE(device.geometry().volatile_cache);
  co_await write(device, 0, pattern(8192, 1), {.force_unit_access = true});
  const Error flushed = co_await flush(device);
  REQUIRE(flushed == Error::kNone);
  REQUIRE(below.recording.seen().empty());
  REQUIRE(controller.memory->live_writes() == 1);
  // A FUA read still comes from the medium.
  const Bytes forced = co_await read(device, {0, 16}, {.force_unit_access = true});
  REQUIRE(forced == pattern(8192, 1));
  REQUIRE(below.recording.count(Operation::kWrite) == 1);
  REQUIRE(controller.memory->live_writes() == 0);
  co_await close(controller);
}

TEST_CASE("NVRAM is the medium for writes and flushes", "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return acknowledges(home); });
}

Task<void> takes_as_it_is(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  const Bytes content = pattern(8192, 1);
  BufferList data = controller.memory->buffers().try_allocate(8192);
  data.copy_from(content);
  const std::byte* const place = data[0].data();
  Completion written = co_await device.submit(
      {.operation = Operation::kWrite, .extent = {40, 16}, .data = std::move(data)});
  REQUIRE(written.error == Error::kNone);
  written.data.clear();
  {
    const Completion got = co_await try_read(device, {40, 16});
    REQUIRE(got.data[0].data() == place);
    REQUIRE(testing::content_of(got.data) == content);
  }
  // Clean data stays there until somebody needs the room.
  const Bytes forced = co_await read(device, {40, 16}, {.force_unit_access = true});
  REQUIRE(forced == content);
  {
    const Completion got = co_await try_read(device, {40, 16});
    REQUIRE(got.data[0].data() == place);
  }
  for (Lba lba = 1024; lba < 20 * 2048; lba += 256) {
    co_await write(device, lba, pattern(128 * 1024, lba));
  }
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs == 0);
  const Bytes again = co_await read(device, {40, 16});
  REQUIRE(again == content);
  co_await close(controller);
}

TEST_CASE("A payload that lies in the NVRAM is not copied", "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return takes_as_it_is(home); });
}

// Payloads that have yet to come get half of the memory at most, and clean data make way for them.
Task<void> receives_payloads(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  const BufferPool& pool = controller.memory->buffers();
  constexpr std::size_t kPayload = 128 * 1024;
  // More than the memory has, through it and to the drives: afterwards clean data fill it.
  for (Lba lba = 0; lba < 24 * 2048; lba += kPayload / 512) {
    BufferList data = device.write_buffers(kPayload);
    REQUIRE(data.byte_count() == kPayload);
    REQUIRE(controller.memory->holds(data));
    data.copy_from(pattern(kPayload, lba));
    const std::byte* const place = data[0].data();
    Completion written = co_await device.submit(
        {.operation = Operation::kWrite, .extent = {lba, kPayload / 512}, .data = std::move(data)});
    REQUIRE(written.error == Error::kNone);
    written.data.clear();
    const Completion got = co_await try_read(device, {lba, 16});
    REQUIRE(got.data[0].data() == place);
    const Error destaged = co_await device.destage_all();
    REQUIRE(destaged == Error::kNone);
  }
  REQUIRE(pool.used_bytes() > pool.limit_bytes() / 4 * 3);
  std::vector<BufferList> held;
  for (;;) {
    BufferList data = device.write_buffers(kPayload);
    if (data.empty()) break;
    held.push_back(std::move(data));
  }
  REQUIRE(held.size() == pool.limit_bytes() / 2 / kPayload);
  // A write that did not ask still has room.
  co_await write(device, 0, pattern(1 * kMiB, 5));
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs == 0);
  held.clear();
  // What is no whole number of blocks would be copied anyway; nor does anything stay in a memory
  // without a battery.
  REQUIRE(device.write_buffers(1000).empty());
  controller.memory->battery().set_state(BatteryState::kDead);
  REQUIRE(device.write_buffers(kPayload).empty());
  controller.memory->battery().set_state(BatteryState::kGood);
  co_await close(controller);
}

TEST_CASE("Payloads get memory of the NVRAM before they come, half of it at most",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return receives_payloads(home); });
}

Task<void> follows_battery(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  for (const BatteryState state : {BatteryState::kLow, BatteryState::kDead}) {
    co_await write(device, 0, pattern(8192, 1));
    REQUIRE(controller.memory->live_writes() == 1);
    controller.memory->battery().set_state(state);
    co_await home.sleep_for(std::chrono::milliseconds(100));
    REQUIRE(controller.memory->live_writes() == 0);
    REQUIRE_FALSE(device.geometry().non_volatile_cache);
    REQUIRE(device.geometry().volatile_cache);
    below.recording.clear();
    co_await write(device, 4, pattern(512, 2));
    REQUIRE(below.recording.seen().size() == 1);
    REQUIRE(below.recording.seen()[0].force_unit_access);
    REQUIRE(controller.memory->live_writes() == 0);
    controller.memory->battery().set_state(BatteryState::kGood);
    REQUIRE(device.geometry().non_volatile_cache);
  }
  co_await close(controller);
}

TEST_CASE("With a battery that is not good, writes go through and all is flushed",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return follows_battery(home); });
}

Task<void> restarts(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below first(home, {});
  Below second(home, {});
  Controller controller = co_await start(home, board);
  {
    CachedDevice& device = controller.cache->add_device(uuid_of(1), first.recording);
    CachedDevice& other = controller.cache->add_device(uuid_of(2), second.recording);
    co_await write(device, 0, pattern(8192, 1));
    co_await write(device, 8, pattern(8192, 2));
    co_await write(other, 100, pattern(4096, 3));
    co_await write(other, 4000, pattern(4096, 4));
    // Gone for good, though a part of the record is dirty.
    const Completion zeroed =
        co_await testing::do_without_data(other, Operation::kWriteZeroes, {100, 4});
    REQUIRE(zeroed.error == Error::kNone);
  }
  co_await stop(controller);

  controller = co_await start(home, board);
  {
    CachedDevice& device = controller.cache->add_device(uuid_of(1), first.recording);
    Bytes expected = pattern(8192, 1);
    expected.resize(4096);
    const Bytes newer = pattern(8192, 2);
    expected.insert(expected.end(), newer.begin(), newer.end());
    const Bytes now = co_await read(device, {0, 24});
    REQUIRE(now == expected);
    // The other set is not there yet: what is its own waits.
    REQUIRE(controller.cache->waiting_writes().size() == 1);
    const Throttle& throttle = controller.cache->throttle();
    const std::uint64_t used = throttle.used_bytes();
    REQUIRE(throttle.stuck_bytes() > 0);  // Nobody is admitted to where it lies.
    REQUIRE(used > static_cast<std::uint64_t>(throttle.stuck_bytes()));
    CachedDevice& other = controller.cache->add_device(uuid_of(2), second.recording);
    REQUIRE(controller.cache->waiting_writes().empty());
    REQUIRE(throttle.stuck_bytes() == 0);
    REQUIRE(throttle.used_bytes() == used);
    const Bytes late = co_await read(other, {4000, 8});
    REQUIRE(late == pattern(4096, 4));
    const Bytes zeroed = co_await read(other, {100, 4});
    REQUIRE(zeroed == Bytes(2048));
  }
  co_await stop(controller);

  controller = co_await start(home, board);
  (void)controller.cache->add_device(uuid_of(1), first.recording);
  const std::vector<VolumeExtent> discarded = controller.cache->discard_waiting(uuid_of(2));
  REQUIRE(discarded == std::vector<VolumeExtent>{{0, {4000, 8}}});
  REQUIRE(controller.cache->throttle().stuck_bytes() == 0);
  const Error destaged = co_await controller.cache->devices()[0]->destage_all();
  REQUIRE(destaged == Error::kNone);
  REQUIRE(controller.cache->throttle().used_bytes() == 0);
  co_await close(controller);
  const Bytes stored = co_await read(*first.memory, {8, 16});
  REQUIRE(stored == pattern(8192, 2));
}

TEST_CASE("Restarts find in the NVRAM what was dirty, for devices that come early or late",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return restarts(home); });
}

Task<void> stays_pinned(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  below.faulty.fail({.operation = Operation::kWrite, .error = Error::kNotReady});
  {
    CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
    co_await write(device, 0, pattern(4096, 1));
    const Error error = co_await controller.cache->close();
    REQUIRE(error == Error::kNotReady);
  }
  controller.cache.reset();
  co_await controller.memory->stop();
  controller.memory.reset();
  controller.nvram.reset();

  controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  REQUIRE(device.dirty_bytes() == 4096);
  const std::vector<VolumeExtent> discarded = co_await device.discard();
  REQUIRE(discarded == std::vector<VolumeExtent>{{0, {0, 8}}});
  REQUIRE(controller.memory->live_writes() == 0);
  co_await close(controller);
}

TEST_CASE("What a failed device does not take stays in the NVRAM until it is discarded",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return stays_pinned(home); });
}

Task<void> write_any_size(CachedDevice& device, std::uint64_t seed, Gate* gate) {
  Random random(seed);
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t blocks = std::uint64_t{1} << random.below(9);
    co_await write(device, random.below(60000), Bytes(blocks * 512));
  }
  gate->leave();
}

Task<void> fills_up(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {.least = std::chrono::milliseconds(1), .most = std::chrono::milliseconds(5)});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  Gate gate;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const bool entered = gate.enter();
    REQUIRE(entered);
    spawn(write_any_size(device, i, &gate));
  }
  co_await gate.close();
  const VolumeCounters& counters = controller.cache->volume_state(0).counters;
  CAPTURE(counters.writes, counters.write_throughs, counters.throttled_nanoseconds);
  REQUIRE(counters.throttled_nanoseconds > 0);
  REQUIRE(counters.write_throughs == 0);
  co_await close(controller);
}

TEST_CASE("Writes of all sizes share the NVRAM: they wait for room and do not go through",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return fills_up(home); });
}

Task<void> many_small_holes(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  // All of it in pieces of 4 KiB, of which every other comes free: no larger piece is left.
  std::vector<Buffer> pieces;
  for (;;) {
    Buffer piece = controller.memory->buffers().try_allocate_contiguous(4096);
    if (piece.empty()) break;
    pieces.push_back(std::move(piece));
  }
  REQUIRE(pieces.size() > 512);
  for (std::size_t i = 0; i < pieces.size(); i += 2) pieces[i] = Buffer();
  co_await write(device, 0, pattern(kMiB, 1));
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs == 1);
  const Bytes stored = co_await read(*below.memory, {0, 2048});
  REQUIRE(stored == pattern(kMiB, 1));
  co_await write(device, 0, pattern(65536, 2));
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs == 1);
  pieces.clear();
  co_await close(controller);
}

Task<void> nvram_fails(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(device, 0, pattern(8192, 1));
  co_await write(device, 4000, pattern(8192, 2));
  controller.nvram->cut_power();
  // What was in it goes to the drives, but may come back from it: only other blocks change.
  co_await write(device, 100, pattern(8192, 3));
  const Error destaged = co_await device.destage_all();
  REQUIRE(destaged == Error::kNone);
  REQUIRE(controller.memory->live_writes() == 0);
  const Error over = co_await try_write(device, 8, pattern(8192, 4));
  REQUIRE(over == Error::kHardware);
  co_await write(device, 16, pattern(8192, 5));
  const Completion zeroed =
      co_await testing::do_without_data(device, Operation::kWriteZeroes, {3990, 11});
  REQUIRE(zeroed.error == Error::kHardware);
  const Bytes kept = co_await read(*below.memory, {4000, 16});
  REQUIRE(kept == pattern(8192, 2));
  const Bytes stored = co_await read(*below.memory, {100, 16});
  REQUIRE(stored == pattern(8192, 3));
  (void)co_await controller.cache->close();
  co_await stop(controller);
}

TEST_CASE("When the NVRAM fails, writes go through where nothing can come back from it",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return nvram_fails(home); });
}

// Readers that do not take what they were answered hold the memory that it lies in.
Task<void> slow_readers(Executor& home) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  std::vector<BufferList> held;
  const BufferPool& pool = controller.memory->buffers();
  bool copied = false;
  for (Lba lba = 0; lba < 40 * 2048 && !copied; lba += 128) {
    co_await write(device, lba % 60000, pattern(65536, lba));
    Completion got = co_await try_read(device, {lba % 60000, 128});
    REQUIRE(testing::content_of(got.data) == pattern(65536, lba));
    copied = !pool.owns(got.data[0]);
    held.push_back(std::move(got.data));
    const Error destaged = co_await device.destage_all();
    REQUIRE(destaged == Error::kNone);
  }
  REQUIRE(copied);
  // Nothing comes free any more: a write goes through at once.
  std::vector<Buffer> rest;
  for (;;) {
    Buffer piece = controller.memory->buffers().try_allocate_contiguous(4096);
    if (piece.empty()) break;
    rest.push_back(std::move(piece));
  }
  const TimePoint before = home.now();
  for (Lba lba = 0; lba < 50 * 2048; lba += 2048) {
    co_await write(device, lba % 60000, pattern(kMiB / 2, lba));
  }
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs > 0);
  REQUIRE(home.now() - before < std::chrono::seconds(1));
  held.clear();
  rest.clear();
  const std::uint64_t through = controller.cache->volume_state(0).counters.write_throughs;
  co_await write(device, 0, pattern(kMiB / 2, 1));
  REQUIRE(controller.cache->volume_state(0).counters.write_throughs == through);
  co_await close(controller);
}

TEST_CASE("Slow readers hold a part of the NVRAM at most, and no write waits for them",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return slow_readers(home); });
}

TEST_CASE("A write for which there are only more pieces than a record names goes through",
          "[cache][nvram]") {
  testing::run_in_world(1, [](Executor& home) { return many_small_holes(home); });
}

}  // namespace
}  // namespace sandbay::cache
