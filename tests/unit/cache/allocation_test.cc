// In the steady state no operation of the cache allocates from the heap, destaging included:
// operator new is counted.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "cache_runs.h"

#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)

static std::size_t allocations = 0;

void* operator new(std::size_t byte_count) {
  ++allocations;
  void* const memory = std::malloc(byte_count);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace sandbay::cache {
namespace {

constexpr std::uint64_t kBlocks = 16;  // 8 KiB.

Task<void> one(CachedDevice& device, Operation operation, Lba lba) {
  Request request{.operation = operation,
                  .extent = {lba, kBlocks},
                  .data = device.home().buffers().try_allocate(kBlocks * 512)};
  const Completion completion = co_await device.submit(std::move(request));
  assert(completion.error == Error::kNone);
}

// Of `count` operations at random places within `places`, in the second of two runs.
Task<std::size_t> measure(CachedDevice& device, Operation operation, std::uint64_t places,
                          int count) {
  Random random(1);
  std::size_t before = 0;
  for (int i = 0; i < 2 * count; ++i) {
    if (i == count) before = allocations;
    co_await one(device, operation, random.below(places) * kBlocks);
  }
  co_return allocations - before;
}

Task<std::size_t> measure_in_order(CachedDevice& device, Lba count) {
  std::size_t before = 0;
  const Lba places = device.geometry().block_count / kBlocks;
  for (Lba i = 0; i < 2 * count; ++i) {
    if (i == count) before = allocations;
    co_await one(device, Operation::kWrite, i % places * kBlocks);
  }
  co_return allocations - before;
}

TEST_CASE("Hits, absorbed writes and misses allocate nothing in the steady state", "[cache]") {
  run([](Stack stack) -> Task<void> {
    const std::size_t hits = co_await measure(stack.device, Operation::kRead, 200, 4000);
    REQUIRE(hits == 0);
    REQUIRE(stack.counters().hits > 4000);
    const std::size_t absorbed = co_await measure(stack.device, Operation::kWrite, 200, 4000);
    REQUIRE(absorbed == 0);
    REQUIRE(stack.counters().absorbed_bytes > 4000 * kBlocks * 512);
  });
  // Beyond the memory: each read evicts.
  run([](Stack stack) -> Task<void> {
    stack.below.recording.be_quiet();
    const std::size_t misses = co_await measure(stack.device, Operation::kRead, 4000, 20000);
    CAPTURE(stack.cache.counters().evictions, misses);
    REQUIRE(stack.cache.counters().evictions > 1000);
    REQUIRE(misses <= 20);
  });
  // Each write is destaged soon.
  run([](Stack stack) -> Task<void> {
    stack.below.recording.be_quiet();
    const std::size_t writes = co_await measure(stack.device, Operation::kWrite, 4000, 20000);
    CAPTURE(stack.device.counters().destages, writes);
    REQUIRE(stack.device.counters().destages > 1000);
    REQUIRE(writes <= 20);
  });
  // Full stripes out of small writes.
  run([](Stack stack) -> Task<void> {
    stack.below.recording.be_quiet();
    const std::size_t writes = co_await measure_in_order(stack.device, 20000);
    CAPTURE(stack.device.counters().full_stripes, writes);
    REQUIRE(stack.device.counters().full_stripes > 1000);
    REQUIRE(writes <= 20);
  });
}

}  // namespace
}  // namespace sandbay::cache

#endif
