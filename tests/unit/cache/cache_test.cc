// The cache on one device: hits, fetches, writes back and through, FUA, flush, unmap.
#include "cache/cache.h"

#include <catch2/catch.hpp>

#include "cache_rig.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::cache {
namespace {

using testing::Bytes;
using testing::Cut;

constexpr std::size_t kMiB = std::size_t{1} << 20;

CacheOptions quiet() {
  return {.memory_bytes = 16 * kMiB,
          .dirty_limit_bytes = 8 * kMiB,
          .age_limit = std::chrono::hours(1),
          .idle_flush = std::chrono::hours(1)};
}

// Runs `body` with a cache on one device.
using Body = Task<void> (*)(Cache& cache, CachedDevice& device, Below& below);

Task<void> with_cache(Executor& home, CacheOptions options, BelowOptions below_options, Body body) {
  Below below(home, below_options);
  Cache cache(home, options);
  CachedDevice& device = cache.add_device(uuid_of(1), below.recording);
  co_await body(cache, device, below);
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

void run(Body body, CacheOptions options = quiet(), BelowOptions below = {}) {
  testing::run_in_world(1, [&](Executor& home) { return with_cache(home, options, below, body); });
}

Task<void> write(CachedDevice& device, Lba first, Bytes content, bool fua = false) {
  Random random(3);
  const Completion completion = co_await testing::write_blocks(device, first, std::move(content),
                                                               Cut::kAnywhere, random, fua);
  REQUIRE(completion.error == Error::kNone);
}

Task<Bytes> read(BlockDevice& device, Extent extent, bool fua = false) {
  Random random(4);
  const Completion completion =
      co_await testing::read_blocks(device, extent, Cut::kAligned, random, fua);
  REQUIRE(completion.error == Error::kNone);
  co_return testing::content_of(completion.data);
}

Bytes pattern(std::size_t byte_count, std::uint64_t seed) {
  Random random(seed);
  return testing::random_bytes(byte_count, random);
}

TEST_CASE("What was read once is read from the cache", "[cache]") {
  run([](Cache& cache, CachedDevice& device, Below& below) -> Task<void> {
    const Bytes content = pattern(8192, 1);
    Random random(5);
    co_await testing::write_blocks(*below.memory, 100, content, Cut::kAligned, random);
    const Bytes first = co_await read(device, {100, 16});
    REQUIRE(first == content);
    REQUIRE(below.recording.count(Operation::kRead) == 1);
    const Bytes second = co_await read(device, {104, 4});
    REQUIRE(second == Bytes(content.begin() + 4 * 512, content.begin() + 8 * 512));
    REQUIRE(below.recording.count(Operation::kRead) == 1);
    const VolumeCounters& counters = cache.volume_state(0).counters;
    REQUIRE(counters.misses == 1);
    REQUIRE(counters.hits == 1);
  });
}

TEST_CASE("A write is in the cache until a flush brings it below", "[cache]") {
  run([](Cache& cache, CachedDevice& device, Below& below) -> Task<void> {
    const Bytes content = pattern(64 * 1024, 2);
    co_await write(device, 1000, content);
    REQUIRE(below.recording.seen().empty());
    REQUIRE(cache.counters().dirty_bytes == 64 * 1024);
    const Bytes cached = co_await read(device, {1000, 128});
    REQUIRE(cached == content);
    const Completion flushed = co_await testing::do_without_data(device, Operation::kFlush, {0, 0});
    REQUIRE(flushed.error == Error::kNone);
    REQUIRE(cache.counters().dirty_bytes == 0);
    const Bytes stored = co_await read(*below.memory, {1000, 128});
    REQUIRE(stored == content);
    REQUIRE(below.recording.count(Operation::kWrite) == 1);
    REQUIRE(below.recording.count(Operation::kFlush) >= 1);
  });
}

}  // namespace
}  // namespace sandbay::cache
