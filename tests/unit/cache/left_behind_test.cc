// What streams and volumes that have ended leave behind takes nothing from others.
#include <catch2/catch.hpp>

#include "cache_runs.h"

namespace sandbay::cache {
namespace {

Task<void> advise(Stack stack, Lba first, std::uint64_t bytes, std::uint64_t volume) {
  Request advice{.operation = Operation::kAdvise, .extent = {first, bytes / 512}, .volume = volume};
  const Completion advised = co_await stack.device.submit(std::move(advice));
  REQUIRE(advised.error == Error::kNone);
  co_await stack.home.sleep_for(std::chrono::milliseconds(100));
}

Task<void> read_late(Stack stack, Gate* gate) {
  (void)co_await read(stack.device, {40000, 64}, {.volume = 5});
  gate->leave();
}

TEST_CASE("What was read ahead for a stream that has ended keeps its share for a while only",
          "[cache]") {
  run([](Stack stack) -> Task<void> {
    for (std::uint64_t at = 0; at < 8 * kMiB; at += kMiB) {
      co_await advise(stack, at / 512, kMiB, 1);
    }
    const std::uint64_t share = stack.cache.counters().read_ahead_unread_bytes;
    REQUIRE(share == 4 * kMiB);  // A quarter of the memory.
    co_await advise(stack, 16 * kMiB / 512, kMiB, 2);
    REQUIRE(stack.counters(2).read_ahead_bytes == 0);
    co_await stack.home.sleep_for(std::chrono::seconds(11));
    co_await advise(stack, 16 * kMiB / 512, kMiB, 2);
    REQUIRE(stack.counters(2).read_ahead_bytes == kMiB);
    REQUIRE(stack.counters(1).read_ahead_wasted_bytes >= kMiB);
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes <= share);
    // It is there all the same.
    stack.below.recording.clear();
    (void)co_await read(stack.device, {0, 2048});
    REQUIRE(stack.below.recording.seen().empty());
  });
}

TEST_CASE("A volume that is gone leaves nothing in the cache but what others may want", "[cache]") {
  run([](Stack stack) -> Task<void> {
    stack.cache.set_mode(7, Mode::kWriteThrough);
    co_await advise(stack, 0, kMiB, 7);
    co_await write(stack.device, 8192, pattern(4096, 1), {.volume = 7});
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes == kMiB);
    stack.cache.forget_volume(7);
    REQUIRE_FALSE(stack.cache.volumes().contains(7));
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes == 0);
    (void)co_await read(stack.device, {0, 64}, {.volume = 8});
    REQUIRE(stack.counters(8).hits == 1);
    stack.cache.forget_volume(9);
    // One that has a request to wait for goes after it.
    stack.below.hung.hang();
    Gate gate;
    const bool entered = gate.enter();
    REQUIRE(entered);
    spawn(read_late(stack, &gate));
    stack.cache.forget_volume(5);
    REQUIRE(stack.cache.volumes().contains(5));
    stack.below.hung.release();
    co_await gate.close();
    REQUIRE_FALSE(stack.cache.volumes().contains(5));
    // Reading ahead for it, which nobody waits for, does not bring it back.
    stack.below.hung.hang();
    co_await advise(stack, 60000, kMiB, 6);
    stack.cache.forget_volume(6);
    stack.below.hung.release();
    co_await stack.home.sleep_for(std::chrono::milliseconds(100));
    REQUIRE_FALSE(stack.cache.volumes().contains(6));
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes == 0);
    // Its number is as good as new.
    REQUIRE(stack.cache.volume_state(7).mode == Mode::kWriteBack);
    REQUIRE(stack.counters(7).writes == 0);
  });
}

}  // namespace
}  // namespace sandbay::cache
