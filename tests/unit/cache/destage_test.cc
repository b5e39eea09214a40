// Destaging: full stripes from any size of writes, order, when it begins and ends, failures,
// discarding, and how writers are slowed down.
#include <catch2/catch.hpp>

#include "cache_runs.h"

namespace sandbay::cache {
namespace {

using testing::Bytes;

constexpr std::uint64_t kStripe = 192 * 1024;  // Of a RAID 5 of four drives.
constexpr std::uint64_t kStrip = 64 * 1024;

struct Sequential {
  std::uint64_t next = 0;
  std::uint64_t bytes = 0;
  std::uint64_t size = 0;
};

Task<void> write_sequentially(Stack stack, Sequential* state, Gate* gate) {
  while (state->next < state->bytes) {
    const std::uint64_t at = state->next;
    const std::uint64_t size = std::min(state->size, state->bytes - at);
    state->next += size;
    Random random(at);
    BufferList data = testing::make_room(stack.home, size, testing::Cut::kAligned, random);
    Request request{
        .operation = Operation::kWrite, .extent = {at / 512, size / 512}, .data = std::move(data)};
    const Completion completion = co_await stack.device.submit(std::move(request));
    REQUIRE(completion.error == Error::kNone);
  }
  gate->leave();
}

// What a RAID 5 writes to its drives for these writes: data, and parity of each stripe touched.
std::uint64_t drive_bytes(const std::vector<testing::SeenRequest>& seen) {
  std::uint64_t bytes = 0;
  for (const testing::SeenRequest& request : seen) {
    if (request.operation != Operation::kWrite) continue;
    const std::uint64_t first = request.extent.first * 512;
    const std::uint64_t end = request.extent.end() * 512;
    bytes += end - first;
    for (std::uint64_t stripe = first / kStripe; stripe * kStripe < end; ++stripe) {
      const std::uint64_t part =
          std::min(end, (stripe + 1) * kStripe) - std::max(first, stripe * kStripe);
      bytes += std::min(part, kStrip);
    }
  }
  return bytes;
}

Task<void> sequential_writes(Stack stack, std::uint64_t size) {
  Sequential state{.next = 0, .bytes = 96 * kStripe, .size = size};
  Gate gate;
  for (int i = 0; i < 8; ++i) {
    const bool entered = gate.enter();
    REQUIRE(entered);
    spawn(write_sequentially(stack, &state, &gate));
  }
  co_await gate.close();
  const Error error = co_await flush(stack.device);
  REQUIRE(error == Error::kNone);
  const std::uint64_t theory = state.bytes / 3 * 4;
  CAPTURE(size, stack.device.counters().full_stripes, stack.device.counters().partial_stripes);
  REQUIRE(drive_bytes(stack.below.recording.seen()) * 100 <= theory * 105);
  REQUIRE(stack.below.recording.count(Operation::kRead) == 0);
  REQUIRE(stack.device.counters().full_stripes >= 96);
}

TEST_CASE("Sequential writes of any size reach the device as full stripes", "[cache][destage]") {
  static constexpr BelowOptions kSlow{.least = std::chrono::milliseconds(1),
                                      .most = std::chrono::milliseconds(8)};
  run([](Stack stack) { return sequential_writes(stack, 512); }, quiet(), kSlow);
  run([](Stack stack) { return sequential_writes(stack, 4096); }, quiet(), kSlow);
  run([](Stack stack) { return sequential_writes(stack, 7 * 512); }, quiet(), kSlow);
  run([](Stack stack) { return sequential_writes(stack, 65536); }, quiet(), kSlow);
  run([](Stack stack) { return sequential_writes(stack, 100 * 1024); }, quiet(), kSlow);
  run([](Stack stack) { return sequential_writes(stack, kMiB); }, quiet(), kSlow);
}

TEST_CASE("As many stripes as a device takes at once are destaged together", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    CachedDevice& device = stack.cache.add_device(uuid_of(2), stack.below.recording, 8);
    REQUIRE(device.geometry().optimal_io_blocks == kStripe / 512);
    REQUIRE(device.geometry().unit_blocks == 8 * kStripe / 512);
    co_await write(device, 0, pattern(8 * kStripe + kStrip, 1));
    const Error error = co_await flush(device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 2);
    REQUIRE(stack.below.recording.seen()[0].extent == Extent{0, 8 * kStripe / 512});
    REQUIRE(stack.below.recording.seen()[1].extent == Extent{8 * kStripe / 512, kStrip / 512});
    REQUIRE(device.counters().full_stripes == 1);
  });
}

TEST_CASE("A hole in a stripe is filled with what was read", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    (void)co_await read(stack.device, {0, kStripe / 512});
    stack.below.recording.clear();
    co_await write(stack.device, 8, pattern(4096, 1));
    co_await write(stack.device, 200, pattern(4096, 2));
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
    REQUIRE(stack.below.recording.seen()[0].extent == Extent{0, kStripe / 512});
    REQUIRE(stack.below.recording.seen()[0].origin == Origin::kDestage);
  });
}

TEST_CASE("Without the rest of the stripe, only what is dirty is destaged", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 8, pattern(4096, 1));
    co_await write(stack.device, 16, pattern(4096, 3));
    co_await write(stack.device, 200, pattern(4096, 2));
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 2);
    REQUIRE(stack.below.recording.seen()[0].extent == Extent{8, 16});
    REQUIRE(stack.below.recording.seen()[1].extent == Extent{200, 8});
  });
}

TEST_CASE("Overwrites are absorbed", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    for (std::uint64_t i = 0; i < 100; ++i) co_await write(stack.device, 40, pattern(8192, i));
    REQUIRE(stack.cache.counters().dirty_bytes == 8192);
    REQUIRE(stack.counters().absorbed_bytes == 99 * 8192);
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
    const Bytes stored = co_await read(*stack.below.memory, {40, 16});
    REQUIRE(stored == pattern(8192, 99));
  });
}

TEST_CASE("Dirty data is destaged when the device is idle", "[cache][destage]") {
  CacheOptions options = quiet();
  options.idle_flush = std::chrono::seconds(2);
  run(
      [](Stack stack) -> Task<void> {
        for (int i = 0; i < 5; ++i) {
          co_await write(stack.device, 8, pattern(4096, 1));
          co_await stack.home.sleep_for(std::chrono::seconds(1));
          REQUIRE(stack.below.recording.count(Operation::kWrite) == 0);
        }
        co_await stack.home.sleep_for(std::chrono::seconds(2));
        REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
        REQUIRE(stack.cache.counters().dirty_bytes == 0);
      },
      options);
}

TEST_CASE("Dirty data is destaged when it is old, and no other", "[cache][destage]") {
  CacheOptions options = quiet();
  options.age_limit = std::chrono::seconds(5);
  run(
      [](Stack stack) -> Task<void> {
        co_await write(stack.device, 8, pattern(4096, 1));
        for (std::uint64_t i = 0; i < 5; ++i) {
          co_await stack.home.sleep_for(std::chrono::seconds(1));
          co_await write(stack.device, 4000 + i * 1000, pattern(4096, i));
        }
        co_await stack.home.sleep_for(std::chrono::milliseconds(500));
        REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
        REQUIRE(stack.below.recording.seen()[0].extent == Extent{8, 8});
        REQUIRE(stack.cache.counters().dirty_bytes == 5 * 4096);
      },
      options);
}

TEST_CASE("Destaging begins at the low watermark and ends there", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    const std::uint64_t limit = stack.cache.counters().dirty_limit_bytes;
    for (std::uint64_t at = 0; at < limit / 10 * 7; at += kStripe) {
      co_await write(stack.device, at / 512, pattern(kStripe, at));
    }
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    const std::uint64_t dirty = stack.cache.counters().dirty_bytes;
    REQUIRE(dirty <= limit / 2);
    REQUIRE(dirty > limit / 2 - 2 * kMiB);
    REQUIRE(stack.device.counters().partial_stripes == 0);
  });
}

TEST_CASE("Destaging goes up the addresses and wraps", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    Random random(7);
    for (int i = 0; i < 200; ++i) {
      co_await write(stack.device, random.below(60000), pattern(4096, 1));
    }
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    Lba last = 0;
    for (const testing::SeenRequest& request : stack.below.recording.seen()) {
      if (request.operation != Operation::kWrite) continue;
      REQUIRE(request.extent.first >= last);
      last = request.extent.first;
    }
  });
}

// Failures -----------------------------------------------------------------------------------

TEST_CASE("What cannot be destaged stays, is read, and is tried again", "[cache][destage]") {
  CacheOptions options = quiet();
  options.idle_flush = std::chrono::milliseconds(100);
  run(
      [](Stack stack) -> Task<void> {
        stack.below.faulty.fail({.operation = Operation::kWrite, .error = Error::kNotReady});
        co_await write(stack.device, 8, pattern(4096, 1));
        co_await stack.home.sleep_for(std::chrono::seconds(1));
        REQUIRE(stack.device.destage_failure() == Error::kNotReady);
        REQUIRE(stack.device.health() == Health::kDegraded);
        REQUIRE(stack.cache.counters().stuck_bytes == 4096);
        const Bytes cached = co_await read(stack.device, {8, 8});
        REQUIRE(cached == pattern(4096, 1));
        // New writes end as the device ends them; so does a flush.
        const Error refused = co_await try_write(stack.device, 100, pattern(4096, 2));
        REQUIRE(refused == Error::kNotReady);
        const Error unflushed = co_await flush(stack.device);
        REQUIRE(unflushed == Error::kNotReady);
        stack.below.faulty.clear();
        co_await stack.home.sleep_for(std::chrono::minutes(1));
        REQUIRE(stack.device.destage_failure() == Error::kNone);
        REQUIRE(stack.device.health() == Health::kGood);
        REQUIRE(stack.cache.counters().stuck_bytes == 0);
        const Bytes stored = co_await read(*stack.below.memory, {8, 8});
        REQUIRE(stored == pattern(4096, 1));
        co_await write(stack.device, 100, pattern(4096, 2));
        REQUIRE(stack.cache.counters().dirty_bytes == 4096);
      },
      options);
}

TEST_CASE("A failed flush below leaves everything dirty", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 8, pattern(4096, 1));
    stack.below.faulty.fail(
        {.operation = Operation::kFlush, .error = Error::kHardware, .times = 1});
    const Error first = co_await flush(stack.device);
    REQUIRE(first == Error::kHardware);
    REQUIRE(stack.cache.counters().dirty_bytes == 4096);
    const Error second = co_await flush(stack.device);
    REQUIRE(second == Error::kNone);
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 2);
  });
}

TEST_CASE("Discarding drops what is dirty and says what it was", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    stack.below.faulty.fail({.operation = Operation::kWrite, .error = Error::kHardware});
    co_await write(stack.device, 120, pattern(16 * 512, 1));
    co_await write(stack.device, 9000, pattern(4096, 1));
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kHardware);
    const std::vector<VolumeExtent> discarded = co_await stack.device.discard();
    REQUIRE(discarded == std::vector<VolumeExtent>{{0, {120, 16}}, {0, {9000, 8}}});
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
    REQUIRE(stack.cache.counters().stuck_bytes == 0);
    REQUIRE(stack.device.destage_failure() == Error::kNone);
    REQUIRE(stack.device.counters().discarded_bytes == 24 * 512);
    const Bytes zeros = co_await read(stack.device, {120, 16});
    REQUIRE(zeros == Bytes(16 * 512));
  });
}

Task<void> flush_and_note(CachedDevice* device, bool* ended) {
  const Error error = co_await flush(*device);
  REQUIRE(error == Error::kNone);
  *ended = true;
}

TEST_CASE("A flush does not end before the round that brings its writes to the medium",
          "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    stack.cache.set_mode(0, Mode::kWriteThrough);
    co_await write(stack.device, 8, pattern(4096, 1));
    stack.below.hung.hang_only(Operation::kFlush);
    std::array<bool, 2> ended{};
    spawn(flush_and_note(&stack.device, &ended[0]));
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(stack.below.hung.held() == 1);
    spawn(flush_and_note(&stack.device, &ended[1]));
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(!ended[0]);
    REQUIRE(!ended[1]);
    stack.below.hung.release();
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(ended[0]);
    REQUIRE(ended[1]);
    REQUIRE(stack.below.recording.count(Operation::kFlush) == 1);
  });
}

TEST_CASE("A stripe that cannot be destaged is the concern of its own blocks only",
          "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    stack.below.faulty.fail(
        {.operation = Operation::kWrite, .extent = {8, 8}, .error = Error::kHardware});
    co_await write(stack.device, 8, pattern(4096, 1));
    const Error own = co_await flush(stack.device, {8, 8});
    REQUIRE(own == Error::kHardware);
    REQUIRE(stack.device.destage_failure() == Error::kHardware);
    // Others pass, and do not hide it.
    co_await write(stack.device, 9000, pattern(4096, 2));
    const Error other = co_await flush(stack.device, {9000, 8});
    REQUIRE(other == Error::kNone);
    const Bytes stored = co_await read(*stack.below.memory, {9000, 8});
    REQUIRE(stored == pattern(4096, 2));
    REQUIRE(stack.device.destage_failure() == Error::kHardware);
    const Error all = co_await flush(stack.device);
    REQUIRE(all == Error::kHardware);
    stack.below.faulty.clear();
    const Error mended = co_await flush(stack.device);
    REQUIRE(mended == Error::kNone);
    REQUIRE(stack.device.destage_failure() == Error::kNone);
  });
}

TEST_CASE("The failure of one stripe does not end the flush of others", "[cache][destage]") {
  run(
      [](Stack stack) -> Task<void> {
        stack.below.faulty.fail(
            {.operation = Operation::kWrite, .extent = {8, 8}, .error = Error::kHardware});
        co_await write(stack.device, 8, pattern(4096, 1));
        for (Lba lba = 8000; lba < 60000; lba += 400) {
          co_await write(stack.device, lba, pattern(4096, lba));
        }
        const auto flush_it = [](CachedDevice* device, Extent extent, Error* error) -> Task<void> {
          *error = co_await flush(*device, extent);
        };
        std::array<Error, 2> errors{};
        spawn(flush_it(&stack.device, {8000, 52000}, &errors[0]));
        spawn(flush_it(&stack.device, {0, 400}, &errors[1]));
        co_await stack.home.sleep_for(std::chrono::seconds(10));
        REQUIRE(errors[0] == Error::kNone);
        REQUIRE(errors[1] == Error::kHardware);
        REQUIRE(stack.cache.counters().dirty_bytes == 4096);
      },
      quiet(), {.least = std::chrono::milliseconds(1), .most = std::chrono::milliseconds(5)});
}

Task<void> read_and_note(CachedDevice* device, Extent extent, bool* ended) {
  (void)co_await read(*device, extent);
  *ended = true;
}

TEST_CASE("What a slow read brings does not stand for what was discarded", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    // It has read the zeros below before the first write came there, and answers late.
    stack.below.late.hold();
    bool ended = false;
    spawn(read_and_note(&stack.device, {0, 16}, &ended));
    co_await stack.home.yield();
    co_await write(stack.device, 0, pattern(4096, 1));
    const Error flushed = co_await flush(stack.device);
    REQUIRE(flushed == Error::kNone);
    stack.below.faulty.fail({.operation = Operation::kWrite, .error = Error::kHardware});
    co_await write(stack.device, 0, pattern(4096, 2));
    const std::vector<VolumeExtent> discarded = co_await stack.device.discard();
    REQUIRE(discarded == std::vector<VolumeExtent>{{0, {0, 8}}});
    stack.below.late.release();
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(ended);
    const Bytes seen = co_await read(stack.device, {0, 8});
    REQUIRE(seen == pattern(4096, 1));
  });
}

TEST_CASE("Nothing is begun while dirty data is discarded", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    for (Lba lba = 0; lba < 3000; lba += 1000) co_await write(stack.device, lba, pattern(4096, 1));
    stack.below.hung.hang_only(Operation::kWrite);
    bool ended = false;
    spawn(flush_and_note(&stack.device, &ended));
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    co_await write(stack.device, 0, pattern(4096, 2));
    co_await write(stack.device, 5000, pattern(4096, 2));
    const auto discard = [](CachedDevice* device,
                            std::vector<VolumeExtent>* extents) -> Task<void> {
      *extents = co_await device->discard();
    };
    std::vector<VolumeExtent> discarded;
    spawn(discard(&stack.device, &discarded));
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    stack.below.recording.clear();
    stack.below.hung.release();
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(discarded == std::vector<VolumeExtent>{{0, {0, 8}}, {0, {5000, 8}}});
    REQUIRE(ended);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 0);
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
  });
}

TEST_CASE("A device that is closed refuses what comes late", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 8, pattern(4096, 1));
    const Error closed = co_await stack.device.close();
    REQUIRE(closed == Error::kNone);
    const Error late = co_await try_write(stack.device, 8, pattern(4096, 2));
    REQUIRE(late == Error::kClosed);
    const Error flushed = co_await flush(stack.device);
    REQUIRE(flushed == Error::kClosed);
    const Completion completion = co_await try_read(stack.device, {8, 8});
    REQUIRE(completion.error == Error::kClosed);
  });
}

TEST_CASE("Writes that wait for room while the device closes go below", "[cache][destage]") {
  run([](Stack stack) -> Task<void> {
    stack.below.hung.hang_only(Operation::kWrite);
    std::array<bool, 12> ended{};
    const auto one = [](CachedDevice* device, Lba lba, bool* done) -> Task<void> {
      co_await write(*device, lba, pattern(kMiB, lba));
      *done = true;
    };
    for (std::size_t i = 0; i < ended.size(); ++i) {
      spawn(one(&stack.device, i * 2048, &ended[i]));
    }
    co_await stack.home.sleep_for(std::chrono::seconds(1));
    REQUIRE(!ended[11]);
    const auto close = [](CachedDevice* device, bool* done) -> Task<void> {
      const Error error = co_await device->close();
      REQUIRE(error == Error::kNone);
      *done = true;
    };
    bool closed = false;
    spawn(close(&stack.device, &closed));
    stack.below.hung.release();
    co_await stack.home.sleep_for(std::chrono::seconds(20));
    REQUIRE(closed);
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
    for (std::size_t i = 0; i < ended.size(); ++i) {
      REQUIRE(ended[i]);
      const Bytes stored = co_await read(*stack.below.memory, {i * 2048, 2048});
      REQUIRE(stored == pattern(kMiB, i * 2048));
    }
  });
}

// A device that is gone must not take the room from the others.
Task<void> one_of_two_fails(Executor& home) {
  Below failing(home, {});
  Below good(home, {});
  Cache cache(home, quiet());
  CachedDevice& first = cache.add_device(uuid_of(1), failing.recording);
  CachedDevice& second = cache.add_device(uuid_of(2), good.recording);
  failing.faulty.fail({.operation = Operation::kWrite, .error = Error::kNotReady});
  Lba at = 0;
  for (Error error = Error::kNone; error == Error::kNone; at += 2048) {
    error = co_await try_write(first, at, pattern(kMiB, 1));
  }
  REQUIRE(cache.counters().stuck_bytes > cache.counters().dirty_limit_bytes / 2);
  for (Lba lba = 0; lba < 40 * 2048; lba += 2048) {
    co_await write(second, lba % 60000, pattern(kMiB, 2));
  }
  REQUIRE(cache.counters().stuck_bytes > cache.counters().dirty_limit_bytes / 2);
  failing.faulty.clear();
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

TEST_CASE("A device that fails does not stop writes to others", "[cache][destage]") {
  testing::run_in_world(1, [](Executor& home) { return one_of_two_fails(home); });
}

// Slowing down -------------------------------------------------------------------------------

struct Load {
  bool stop = false;
  std::vector<std::uint64_t> bytes_by_window;  // Of 100 ms.
};

Task<void> write_randomly(Stack stack, Load* load, std::uint64_t volume, std::uint64_t seed,
                          Gate* gate) {
  Random random(seed);
  const TimePoint start = stack.home.now();
  while (!load->stop) {
    Request flags{.volume = volume};
    const std::uint64_t size = random.chance(0.1) ? 128 * 1024 : 8192;
    co_await write(stack.device, random.below(500000), Bytes(size), std::move(flags));
    const auto window =
        static_cast<std::size_t>((stack.home.now() - start) / std::chrono::milliseconds(100));
    if (load->bytes_by_window.size() <= window) load->bytes_by_window.resize(window + 1);
    load->bytes_by_window[window] += size;
  }
  gate->leave();
}

TEST_CASE("A full cache slows writers down smoothly and serves volumes in turn",
          "[cache][destage]") {
  CacheOptions options = quiet();
  options.memory_bytes = 64 * kMiB;
  options.dirty_limit_bytes = 32 * kMiB;
  run(
      [](Stack stack) -> Task<void> {
        std::array<Load, 3> loads;
        Gate gate;
        // The first volume has ten times as many writers.
        for (std::uint64_t i = 0; i < 30; ++i) {
          const bool entered = gate.enter();
          REQUIRE(entered);
          const std::uint64_t volume = i < 28 ? 0 : i - 27;
          spawn(write_randomly(stack, &loads[volume], volume, i, &gate));
        }
        co_await stack.home.sleep_for(std::chrono::seconds(4));
        const std::uint64_t before = stack.device.counters().destage_bytes;
        co_await stack.home.sleep_for(std::chrono::seconds(10));
        const std::uint64_t destaged = stack.device.counters().destage_bytes - before;
        for (Load& load : loads) load.stop = true;
        co_await gate.close();
        const std::uint64_t mean = destaged / 100;  // In 100 ms.
        std::array<std::uint64_t, 3> totals{};
        for (std::size_t window = 40; window < 140; ++window) {
          std::uint64_t all = 0;
          for (std::size_t volume = 0; volume < loads.size(); ++volume) {
            const auto& windows = loads[volume].bytes_by_window;
            const std::uint64_t bytes = window < windows.size() ? windows[window] : 0;
            totals[volume] += bytes;
            all += bytes;
          }
          CAPTURE(window, all, mean);
          REQUIRE(all * 2 >= mean);
        }
        // Each of the small ones gets about what the large one gets: within a factor of two.
        REQUIRE(totals[1] * 2 > totals[0]);
        REQUIRE(totals[2] * 2 > totals[0]);
        REQUIRE(stack.counters().throttled_nanoseconds > 0);
        REQUIRE(stack.cache.counters().dirty_bytes <= stack.cache.counters().dirty_limit_bytes);
      },
      options,
      {.byte_count = 256 * kMiB,
       .least = std::chrono::milliseconds(2),
       .most = std::chrono::milliseconds(12)});
}

}  // namespace
}  // namespace sandbay::cache
