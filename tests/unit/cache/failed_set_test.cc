// A device that has failed with much of the NVRAM in its name, and writes to another one: they take
// no time for it, whatever pieces of the NVRAM are free, and go back to normal when it is over.
#include <catch2/catch.hpp>

#include "nvram_controller.h"

namespace sandbay::cache {
namespace {

constexpr Duration kSoon = std::chrono::milliseconds(20);

// Nothing is destaged before the memory is nearly full.
CacheOptions lazy() {
  CacheOptions options = quiet();
  options.low_watermark = 0.95;
  options.high_watermark = 0.95;
  return options;
}

// Writes to the device so that three quarters of the NVRAM are its own, in pieces of `size`, and in
// every part of the NVRAM some; none of it can be destaged.
Task<void> fill(CachedDevice& device, Below& below, std::size_t size, WriteMemory& memory) {
  below.faulty.fail({.operation = Operation::kWrite});
  std::vector<Buffer> pieces;
  for (Buffer piece = memory.buffers().try_allocate_contiguous(size); !piece.empty();
       piece = memory.buffers().try_allocate_contiguous(size)) {
    pieces.push_back(std::move(piece));
  }
  Lba lba = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    BufferList data(std::move(pieces[i]));
    if (i % 4 == 3) continue;
    Request request{.operation = Operation::kWrite, .extent = {lba, size / 512}};
    request.data = std::move(data);
    const Completion written = co_await device.submit(std::move(request));
    REQUIRE(written.error == Error::kNone);
    lba += size / 512;
  }
  const Error error = co_await device.destage_all();
  REQUIRE(error != Error::kNone);
  REQUIRE(device.dirty_bytes() == lba * 512);
}

Task<void> writes_beside(Executor& home, ControllerOptions options, std::size_t stuck_size,
                         std::size_t size) {
  nvram::SimulatedBoard board(8 * kMiB);
  Below failed(home, {});
  Below healthy(home,
                {.least = std::chrono::microseconds(100), .most = std::chrono::microseconds(500)});
  Controller controller = co_await start(home, board, options);
  Cache& cache = *controller.cache;
  CachedDevice& one = cache.add_device(uuid_of(1), failed.recording);
  CachedDevice& other = cache.add_device(uuid_of(2), healthy.recording);
  const Throttle::Limits before = cache.throttle().limits();
  co_await fill(one, failed, stuck_size, *controller.memory);
  const std::uint64_t stuck = one.dirty_bytes();
  for (Lba i = 0; i < 200; ++i) {
    const TimePoint start = home.now();
    co_await write(other, i * (size / 512), testing::Bytes(size), {.volume = 2});
    CAPTURE(i);
    REQUIRE(home.now() - start < kSoon);
  }
  REQUIRE(one.dirty_bytes() == stuck);
  failed.faulty.clear();
  const Error error = co_await one.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(cache.throttle().stuck_bytes() == 0);
  REQUIRE(cache.throttle().limits().low_bytes == before.low_bytes);
  REQUIRE(cache.throttle().limits().high_bytes == before.high_bytes);
  co_await close(controller);
}

}  // namespace

TEST_CASE("A failed device with much of the NVRAM slows no write to others down",
          "[cache][nvram]") {
  for (const auto durability : {nvram::Durability::kProcess, nvram::Durability::kHost}) {
    for (const std::size_t stuck_size : {std::size_t{4096}, std::size_t{65536}}) {
      for (const std::size_t size : {std::size_t{512}, std::size_t{4096}, std::size_t{131072}}) {
        CAPTURE(stuck_size, size);
        testing::run_in_world(1, [=](Executor& home) {
          return writes_beside(home, {.durability = durability, .cache = lazy()}, stuck_size, size);
        });
      }
    }
  }
}

}  // namespace sandbay::cache
