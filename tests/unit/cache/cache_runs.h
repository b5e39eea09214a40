// Running one test with a cache on one device, and plain requests to it. Every coroutine here is
// awaited by its caller at once.
#pragma once

#include <catch2/catch.hpp>

#include "cache_rig.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::cache {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Nothing is destaged unless a test asks for it or fills the room for dirty data.
inline CacheOptions quiet() {
  return {.memory_bytes = 16 * kMiB,
          .dirty_limit_bytes = 8 * kMiB,
          .age_limit = std::chrono::hours(1),
          .idle_flush = std::chrono::hours(1)};
}

struct Stack {
  Executor& home;
  Cache& cache;
  CachedDevice& device;
  Below& below;
  const VolumeCounters& counters(std::uint64_t volume = 0) const {
    return cache.volume_state(volume).counters;
  }
};

using Body = Task<void> (*)(Stack stack);

inline Task<void> with_stack(Executor& home, Body body, CacheOptions options,
                             BelowOptions below_options) {
  Below below(home, below_options);
  Cache cache(home, options);
  CachedDevice& device = cache.add_device(uuid_of(1), below.recording);
  co_await body({home, cache, device, below});
  below.faulty.clear();
  below.hung.release();
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

inline void run(Body body, CacheOptions options = quiet(), BelowOptions below = {}) {
  testing::run_in_world(1, [&](Executor& home) { return with_stack(home, body, options, below); });
}

inline testing::Bytes pattern(std::size_t byte_count, std::uint64_t seed) {
  Random random(seed);
  return testing::random_bytes(byte_count, random);
}

inline Task<Error> try_write(BlockDevice& device, Lba first, testing::Bytes content,
                             Request flags = {}) {
  Random random(first + 1);
  flags.operation = Operation::kWrite;
  flags.extent = {first, content.size() / device.geometry().block_bytes};
  flags.data = testing::make_payload(device.home(), content, testing::Cut::kAnywhere, random);
  const Completion completion = co_await device.submit(std::move(flags));
  co_return completion.error;
}

inline Task<void> write(BlockDevice& device, Lba first, testing::Bytes content,
                        Request flags = {}) {
  const Error error = co_await try_write(device, first, std::move(content), std::move(flags));
  REQUIRE(error == Error::kNone);
}

inline Task<Completion> try_read(BlockDevice& device, Extent extent, Request flags = {}) {
  Random random(extent.first);
  flags.operation = Operation::kRead;
  flags.extent = extent;
  flags.data = testing::make_room(device.home(), extent.byte_count(device.geometry().block_bytes),
                                  testing::Cut::kAligned, random);
  co_return co_await device.submit(std::move(flags));
}

inline Task<testing::Bytes> read(BlockDevice& device, Extent extent, Request flags = {}) {
  const Completion completion = co_await try_read(device, extent, std::move(flags));
  REQUIRE(completion.error == Error::kNone);
  co_return testing::content_of(completion.data);
}

inline Task<Error> flush(BlockDevice& device, Extent extent = {}) {
  const Completion completion =
      co_await testing::do_without_data(device, Operation::kFlush, extent);
  co_return completion.error;
}

}  // namespace sandbay::cache
