// The cache on one device: hits, fetches, read-ahead, writes back and through, FUA, flush, unmap,
// modes, and what happens when memory is short.
#include "cache/cache.h"

#include <catch2/catch.hpp>

#include "cache_runs.h"

namespace sandbay::cache {
namespace {

using testing::Bytes;

Task<void> fill_below(Below& below, Lba first, Bytes content) {
  co_await write(*below.memory, first, std::move(content));
}

TEST_CASE("What was read once is read from the cache", "[cache]") {
  run([](Stack stack) -> Task<void> {
    const Bytes content = pattern(8192, 1);
    co_await fill_below(stack.below, 100, content);
    const Bytes first = co_await read(stack.device, {100, 16});
    REQUIRE(first == content);
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
    const Bytes second = co_await read(stack.device, {104, 4});
    REQUIRE(second == Bytes(content.begin() + 4 * 512, content.begin() + 8 * 512));
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
    REQUIRE(stack.counters().misses == 1);
    REQUIRE(stack.counters().hits == 1);
  });
}

TEST_CASE("Only what is missing is fetched, in one request", "[cache]") {
  run([](Stack stack) -> Task<void> {
    const Bytes content = pattern(300 * 512, 1);
    co_await fill_below(stack.below, 0, content);
    (void)co_await read(stack.device, {0, 100});
    (void)co_await read(stack.device, {280, 20});
    stack.below.recording.clear();
    const Bytes all = co_await read(stack.device, {0, 300});
    REQUIRE(all == content);
    REQUIRE(stack.below.recording.seen().size() == 1);
    REQUIRE(stack.below.recording.seen()[0].extent == Extent{100, 180});
    REQUIRE(stack.counters().partial_hits == 1);
  });
}

TEST_CASE("An answer stays what it was when its blocks are overwritten", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 8, pattern(4096, 1));
    const Completion held = co_await try_read(stack.device, {8, 8});
    co_await write(stack.device, 8, pattern(4096, 2));
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(testing::content_of(held.data) == pattern(4096, 1));
    const Bytes now = co_await read(stack.device, {8, 8});
    REQUIRE(now == pattern(4096, 2));
  });
}

TEST_CASE("A write is in the cache until a flush brings it below", "[cache]") {
  run([](Stack stack) -> Task<void> {
    const Bytes content = pattern(64 * 1024, 2);
    co_await write(stack.device, 1000, content);
    REQUIRE(stack.below.recording.seen().empty());
    REQUIRE(stack.cache.counters().dirty_bytes == 64 * 1024);
    const Bytes cached = co_await read(stack.device, {1000, 128});
    REQUIRE(cached == content);
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
    const Bytes stored = co_await read(*stack.below.memory, {1000, 128});
    REQUIRE(stored == content);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
    REQUIRE(stack.below.recording.seen().back().operation == Operation::kFlush);
    // Nothing has changed since: nothing is to be done.
    stack.below.recording.clear();
    const Error again = co_await flush(stack.device);
    REQUIRE(again == Error::kNone);
    REQUIRE(stack.below.recording.seen().empty());
  });
}

TEST_CASE("A flush of a range leaves the rest", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 0, pattern(4096, 1));
    co_await write(stack.device, 4000, pattern(4096, 2));
    const Error error = co_await flush(stack.device, {4000, 8});
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.cache.counters().dirty_bytes == 4096);
    const Bytes stored = co_await read(*stack.below.memory, {4000, 8});
    REQUIRE(stored == pattern(4096, 2));
    const Bytes not_yet = co_await read(*stack.below.memory, {0, 8});
    REQUIRE(not_yet == Bytes(4096));
  });
}

TEST_CASE("FUA: a write is below, a read comes from there", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 0, pattern(8192, 1));
    co_await write(stack.device, 8, pattern(4096, 2), {.force_unit_access = true});
    const auto seen = stack.below.recording.seen();
    REQUIRE(seen.back().operation == Operation::kWrite);
    REQUIRE(seen.back().force_unit_access);
    REQUIRE(seen.back().extent == Extent{8, 8});
    const Bytes stored = co_await read(*stack.below.memory, {8, 8});
    REQUIRE(stored == pattern(4096, 2));
    const Bytes cached = co_await read(stack.device, {8, 8});
    REQUIRE(cached == pattern(4096, 2));

    co_await write(stack.device, 20, pattern(4096, 3));
    stack.below.recording.clear();
    const Bytes forced = co_await read(stack.device, {20, 8}, {.force_unit_access = true});
    REQUIRE(forced == pattern(4096, 3));
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 1);
    REQUIRE(stack.below.recording.seen().back().operation == Operation::kRead);
    REQUIRE(stack.below.recording.seen().back().force_unit_access);
  });
}

TEST_CASE("Unmapped and zeroed blocks do not come back", "[cache]") {
  run([](Stack stack) -> Task<void> {
    for (const Operation operation : {Operation::kUnmap, Operation::kWriteZeroes}) {
      co_await write(stack.device, 0, pattern(32 * 512, 1));
      const Completion completion =
          co_await testing::do_without_data(stack.device, operation, {8, 8});
      REQUIRE(completion.error == Error::kNone);
      Bytes expected = pattern(32 * 512, 1);
      std::fill_n(expected.begin() + 8 * 512, 8 * 512, std::byte{0});
      const Bytes now = co_await read(stack.device, {0, 32});
      REQUIRE(now == expected);
      const Error error = co_await flush(stack.device);
      REQUIRE(error == Error::kNone);
      const Bytes stored = co_await read(*stack.below.memory, {0, 32});
      REQUIRE(stored == expected);
    }
  });
}

TEST_CASE("What is dirty counts as mapped", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 64, pattern(8 * 512, 1));
    auto run_of = co_await stack.device.provisioning(0, 1000);
    REQUIRE(run_of.has_value());
    REQUIRE_FALSE(run_of->mapped);
    REQUIRE(run_of->block_count == 64);
    run_of = co_await stack.device.provisioning(64, 1000);
    REQUIRE(run_of->mapped);
    REQUIRE(run_of->block_count == 8);
  });
}

TEST_CASE("Each volume has its mode", "[cache]") {
  run([](Stack stack) -> Task<void> {
    stack.cache.set_mode(1, Mode::kWriteThrough);
    stack.cache.set_mode(2, Mode::kNone);
    co_await write(stack.device, 0, pattern(4096, 1), {.volume = 1});
    co_await write(stack.device, 100, pattern(4096, 2), {.volume = 2});
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
    REQUIRE(stack.below.recording.count(Operation::kWrite) == 2);
    REQUIRE(stack.counters(1).write_throughs == 1);
    (void)co_await read(stack.device, {0, 8}, {.volume = 1});
    REQUIRE(stack.counters(1).hits == 1);
    const Bytes passed = co_await read(stack.device, {100, 8}, {.volume = 2});
    REQUIRE(passed == pattern(4096, 2));
    REQUIRE(stack.counters(2).pass_throughs == 1);
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
    // What others have not brought below yet is seen all the same.
    co_await write(stack.device, 104, pattern(2048, 3));
    const Bytes mixed = co_await read(stack.device, {100, 8}, {.volume = 2});
    REQUIRE(Bytes(mixed.begin() + 2048, mixed.end()) == pattern(2048, 3));
    // A flush makes what went through durable.
    stack.below.recording.clear();
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kFlush) >= 1);
  });
}

TEST_CASE("Verification and copies read around what is clean", "[cache]") {
  run([](Stack stack) -> Task<void> {
    (void)co_await read(stack.device, {0, 16});
    co_await write(stack.device, 4, pattern(512, 1));
    co_await fill_below(stack.below, 0, pattern(16 * 512, 2));
    const Bytes verified = co_await read(stack.device, {0, 16}, {.origin = Origin::kVerify});
    Bytes expected = pattern(16 * 512, 2);
    const Bytes dirty = pattern(512, 1);
    std::copy(dirty.begin(), dirty.end(), expected.begin() + 4 * 512);
    REQUIRE(verified == expected);
  });
}

// Fetches ------------------------------------------------------------------------------------

Task<void> read_and_count(Stack stack, Extent extent, Gate* gate, Error* error) {
  const Completion completion = co_await try_read(stack.device, extent);
  *error = completion.error;
  gate->leave();
}

TEST_CASE("Readers of the same blocks wait for one fetch", "[cache]") {
  run([](Stack stack) -> Task<void> {
    stack.below.hung.hang();
    std::array<Error, 5> errors{};
    Gate gate;
    for (Error& error : errors) {
      const bool entered = gate.enter();
      REQUIRE(entered);
      spawn(read_and_count(stack, {0, 64}, &gate, &error));
    }
    co_await stack.home.sleep_for(std::chrono::milliseconds(10));
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
    stack.below.hung.release();
    co_await gate.close();
    for (const Error error : errors) REQUIRE(error == Error::kNone);
    REQUIRE(stack.counters().misses == 5);
  });
}

Task<void> unmap(Stack stack, Extent extent, bool* done, Gate* gate) {
  const Completion completion =
      co_await testing::do_without_data(stack.device, Operation::kUnmap, extent);
  REQUIRE(completion.error == Error::kNone);
  *done = true;
  gate->leave();
}

TEST_CASE("Reads of the device and changes of it take turns", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await fill_below(stack.below, 0, pattern(64 * 512, 1));
    stack.below.late.hold();
    std::array<Error, 2> errors{};
    bool unmapped = false;
    Gate gate;
    for (int i = 0; i < 3; ++i) {
      const bool entered = gate.enter();
      REQUIRE(entered);
    }
    spawn(read_and_count(stack, {0, 32}, &gate, &errors[0]));
    // It has been read, and is on its way: it must not be put into the cache afterwards.
    spawn(unmap(stack, {0, 64}, &unmapped, &gate));
    spawn(read_and_count(stack, {32, 32}, &gate, &errors[1]));
    co_await stack.home.sleep_for(std::chrono::milliseconds(10));
    REQUIRE_FALSE(unmapped);
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
    stack.below.late.release();
    co_await gate.close();
    REQUIRE(unmapped);
    for (const Error error : errors) REQUIRE(error == Error::kNone);
    const Bytes now = co_await read(stack.device, {0, 64});
    REQUIRE(now == Bytes(64 * 512));
  });
}

TEST_CASE("An error of a fetch is only theirs who need its blocks", "[cache]") {
  run([](Stack stack) -> Task<void> {
    stack.below.faulty.fail(
        {.operation = Operation::kRead, .extent = {40, 1}, .error = Error::kMediumError});
    stack.below.hung.hang();
    std::array<Error, 2> errors{};
    Gate gate;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const bool entered = gate.enter();
      REQUIRE(entered);
      spawn(read_and_count(stack, i == 0 ? Extent{0, 64} : Extent{0, 32}, &gate, &errors[i]));
    }
    stack.below.hung.release();
    co_await gate.close();
    REQUIRE(errors[0] == Error::kMediumError);
    REQUIRE(errors[1] == Error::kNone);
    const Completion bad = co_await try_read(stack.device, {30, 20});
    REQUIRE(bad.error == Error::kMediumError);
    REQUIRE(bad.first_bad_lba == 40);
    // A write mends it, in the cache at once.
    co_await write(stack.device, 40, pattern(512, 1));
    const Completion good = co_await try_read(stack.device, {30, 20});
    REQUIRE(good.error == Error::kNone);
  });
}

TEST_CASE("Advice is fetched ahead, and counted as used or wasted", "[cache]") {
  run([](Stack stack) -> Task<void> {
    const Bytes content = pattern(kMiB, 1);
    co_await fill_below(stack.below, 0, content);
    stack.below.hung.hang();
    Completion advised =
        co_await testing::do_without_data(stack.device, Operation::kAdvise, {0, 2048});
    REQUIRE(advised.error == Error::kNone);
    // Not there yet: who asks for a part waits for it.
    Gate gate;
    Error error = Error::kHardware;
    const bool entered = gate.enter();
    REQUIRE(entered);
    spawn(read_and_count(stack, {0, 128}, &gate, &error));
    stack.below.hung.release();
    co_await gate.close();
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.counters().late_hits == 1);
    const Bytes rest = co_await read(stack.device, {128, 896});
    REQUIRE(rest == Bytes(content.begin() + 65536, content.begin() + 1024 * 512));
    REQUIRE(stack.counters().hits == 1);
    for (const testing::SeenRequest& request : stack.below.recording.seen()) {
      REQUIRE(request.operation == Operation::kRead);
      REQUIRE(request.origin == Origin::kReadAhead);
    }
    REQUIRE(stack.counters().read_ahead_bytes == kMiB);
    REQUIRE(stack.counters().read_ahead_used_bytes == kMiB / 2);
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes == kMiB / 2);
    const Completion unmapped =
        co_await testing::do_without_data(stack.device, Operation::kUnmap, {0, 2048});
    REQUIRE(unmapped.error == Error::kNone);
    REQUIRE(stack.counters().read_ahead_wasted_bytes == kMiB / 2);
    REQUIRE(stack.cache.counters().read_ahead_unread_bytes == 0);
  });
}

TEST_CASE("Advice beyond what may be in flight is dropped, and its errors are nobody's",
          "[cache]") {
  CacheOptions options = quiet();
  options.read_ahead_limit_bytes = kMiB;
  run(
      [](Stack stack) -> Task<void> {
        stack.below.hung.hang();
        for (Lba lba = 0; lba < 8 * 2048; lba += 1024) {
          (void)co_await testing::do_without_data(stack.device, Operation::kAdvise, {lba, 1024});
        }
        REQUIRE(stack.cache.counters().read_ahead_in_flight_bytes <= kMiB);
        REQUIRE(stack.counters().advice_dropped_bytes >= 6 * kMiB);
        stack.below.hung.release();
        co_await stack.home.sleep_for(std::chrono::seconds(1));
        REQUIRE(stack.cache.counters().read_ahead_in_flight_bytes == 0);
        stack.below.faulty.fail({.operation = Operation::kRead, .times = 1});
        const Completion advised =
            co_await testing::do_without_data(stack.device, Operation::kAdvise, {50000, 100});
        REQUIRE(advised.error == Error::kNone);
        REQUIRE(stack.counters().read_ahead_errors == 1);
        (void)co_await read(stack.device, {50000, 100});
      },
      options);
}

// Memory -------------------------------------------------------------------------------------

TEST_CASE("The memory of the cache has a limit that holds", "[cache]") {
  run([](Stack stack) -> Task<void> {
    for (Lba lba = 0; lba < 64 * 1024; lba += 512) (void)co_await read(stack.device, {lba, 512});
    const CacheCounters counters = stack.cache.counters();
    REQUIRE(counters.memory_bytes <= 16 * kMiB);
    REQUIRE(counters.memory_bytes > 12 * kMiB);
    REQUIRE(counters.evictions > 0);
    REQUIRE(stack.counters().pass_throughs == 0);
    // Small ones after large ones.
    for (Lba lba = 0; lba < 64 * 1024; lba += 64) (void)co_await read(stack.device, {lba, 8});
    REQUIRE(stack.counters().pass_throughs == 0);
    REQUIRE(stack.cache.counters().memory_bytes <= 16 * kMiB);
  });
}

TEST_CASE("When others hold all memory, reads and writes pass the cache by", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await fill_below(stack.below, 60000, pattern(4096, 7));
    std::vector<Completion> held;
    for (Lba lba = 0; lba < 20 * 2048; lba += 512) {
      held.push_back(co_await try_read(stack.device, {lba, 512}));
      REQUIRE(held.back().error == Error::kNone);
    }
    REQUIRE(stack.counters().pass_throughs > 0);
    const Bytes passed = co_await read(stack.device, {60000, 8});
    REQUIRE(passed == pattern(4096, 7));
    co_await write(stack.device, 60000, pattern(4096, 8));
    REQUIRE(stack.counters().write_throughs == 1);
    const Bytes again = co_await read(stack.device, {60000, 8});
    REQUIRE(again == pattern(4096, 8));
    held.clear();
    co_await write(stack.device, 60000, pattern(4096, 9));
    REQUIRE(stack.counters().write_throughs == 1);
  });
}

TEST_CASE("A read with DPO goes first", "[cache]") {
  run([](Stack stack) -> Task<void> {
    (void)co_await read(stack.device, {0, 128});
    for (Lba lba = 1024; lba < 60 * 1024; lba += 128) {
      (void)co_await read(stack.device, {lba, 128}, {.disable_page_out = true});
    }
    stack.below.recording.clear();
    (void)co_await read(stack.device, {0, 128});
    REQUIRE(stack.below.recording.seen().empty());
  });
}

}  // namespace
}  // namespace sandbay::cache
