// Buffers, lists of them, and the pool: its limit, its waiters, its promises, and buffers that die
// away from home. Pools here belong to simulated executors.
#include "runtime/buffer.h"

#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "runtime/executor.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "tests/unit/random_fill.h"

namespace sandbay {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLimit = 8 * BufferPool::kSlabBytes;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::unique_ptr<sim::World> make_world(std::uint64_t seed = 1, unsigned executors = 1) {
  return sim::World::create({.seed = seed, .executors = executors, .memory_limit_bytes = kLimit});
}

// Runs `body(executor)` as a coroutine on executor 0.
void run(Task<void> (*body)(Executor&), std::uint64_t seed = 1) {
  auto world = make_world(seed, 2);
  REQUIRE(world->run([&] { return body(*world->executors()[0]); }));
  world->run_for(1ms);
  for (Executor* executor : world->executors()) {
    REQUIRE(executor->buffers().used_bytes() == 0);
    REQUIRE(executor->buffers().reserved_bytes() == 0);
    REQUIRE(executor->buffers().waiter_count() == 0);
  }
}

// Slices ----------------------------------------------------------------------------------------

TEST_CASE("Blocks are aligned and large enough", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    for (std::size_t size = 1; size <= BufferPool::kLargestBlock; size = size * 3 + 1) {
      const Buffer buffer = pool.try_allocate_contiguous(size);
      CHECK(buffer.byte_count() == size);
      const std::size_t alignment = size <= 512 ? 512 : 4096;
      CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment == 0);
      std::memset(buffer.data(), 1, size);
      CHECK(pool.used_bytes() >= size);
    }
    CHECK(pool.used_bytes() == 0);
    co_return;
  });
}

TEST_CASE("A data-less pool counts its slices and has no memory behind them", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool pool(executor, kLimit, Content::kNone);
    BufferList list = pool.try_allocate(3 * kMiB);
    CHECK(list.data_less());
    CHECK(list.share(kMiB, 4096).data_less());
    CHECK(pool.used_bytes() == 3 * kMiB);
    std::vector<std::byte> bytes(4096, std::byte{7});
    // Each of these would die if it touched a byte.
    list.fill_zero();
    list.copy_from(bytes, kMiB);
    list.copy_to(bytes, kMiB);
    CHECK(bytes[0] == std::byte{7});
    CHECK(list.equals(list.share()));
    CHECK_FALSE(executor.buffers().try_allocate(512).data_less());
    list.clear();
    CHECK(pool.used_bytes() == 0);
    co_return;
  });
}

TEST_CASE("Requests of the usual sizes take no more than they need", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    for (const std::size_t byte_count : {512U, 4096U, 8192U, 16384U, 65536U, 262144U, 1048576U}) {
      const Buffer block = pool.try_allocate_contiguous(byte_count);
      CHECK(pool.used_bytes() == byte_count);
    }
    co_return;
  });
}

TEST_CASE("Slices share a block, which goes home with the last of them", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    Buffer whole = pool.try_allocate_contiguous(4096);
    CHECK(whole.unique());
    Buffer part = whole.slice(1000, 96);
    CHECK_FALSE(whole.unique());
    CHECK(part.data() == whole.data() + 1000);
    CHECK(part.byte_count() == 96);
    Buffer copy = part;
    Buffer moved = std::move(copy);
    whole = Buffer();
    CHECK(pool.used_bytes() == 4096);
    part = Buffer();
    CHECK(moved.unique());
    Buffer& alias = moved;
    moved = alias;  // Onto itself.
    moved.truncate(10);
    CHECK(moved.byte_count() == 10);
    CHECK(pool.used_bytes() == 4096);
    moved = Buffer();
    CHECK(pool.used_bytes() == 0);
    co_return;
  });
}

// Lists -----------------------------------------------------------------------------------------

BufferList pattern(BufferPool& pool, const std::vector<std::size_t>& sizes, std::uint64_t seed) {
  Random random(seed);
  BufferList list;
  for (const std::size_t size : sizes) {
    Buffer buffer = pool.try_allocate_contiguous(size);
    testing::fill_random(buffer.bytes(), random);
    list.append(std::move(buffer));
  }
  return list;
}

std::vector<std::byte> content(const BufferList& list) {
  std::vector<std::byte> bytes(list.byte_count());
  list.copy_to(bytes);
  return bytes;
}

TEST_CASE("Lists behave as one string of bytes", "[buffer][property]") {
  auto world = make_world();
  BufferPool& pool = world->executors()[0]->buffers();
  const bool held = rc::check([&](std::uint64_t seed) {
    Random random(seed);
    std::vector<std::size_t> sizes(random.between(1, 12));
    for (std::size_t& size : sizes) size = random.between(1, 700);
    BufferList list = pattern(pool, sizes, seed);
    const std::vector<std::byte> bytes = content(list);
    RC_ASSERT(list.slice_count() == sizes.size());

    const std::size_t offset = random.below(bytes.size());
    const std::size_t count = random.below(bytes.size() - offset + 1);
    const BufferList part = list.share(offset, count);
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    const std::vector<std::byte> expected(begin, begin + static_cast<std::ptrdiff_t>(count));
    RC_ASSERT(content(part) == expected);
    std::vector<std::byte> read(count);
    list.copy_to(read, offset);
    RC_ASSERT(read == expected);

    BufferList other = pattern(pool, {bytes.size()}, seed + 1);
    other.copy_from(bytes);
    RC_ASSERT(list.equals(other));
    RC_ASSERT(other.equals(list));
    const std::size_t changed = random.below(bytes.size());
    const std::byte different[] = {bytes[changed] ^ std::byte{1}};
    other.copy_from(different, changed);
    RC_ASSERT_FALSE(list.equals(other));

    const std::size_t cut = random.below(bytes.size() + 1);
    BufferList front = list.take_front(cut);
    RC_ASSERT(front.byte_count() == cut);
    RC_ASSERT(list.byte_count() == bytes.size() - cut);
    front.append(std::move(list));
    RC_ASSERT(list.empty());  // NOLINT(bugprone-use-after-move): it promises to be empty.
    RC_ASSERT(content(front) == bytes);
    world->run_for(1ms);  // What was given back from outside is free only then.
  });
  world->run_for(1ms);
  REQUIRE(held);
  REQUIRE(pool.used_bytes() == 0);
}

TEST_CASE("Moving a list leaves an empty one", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    for (const std::size_t slices : {1U, 4U, 5U, 9U}) {
      BufferList list = pattern(pool, std::vector<std::size_t>(slices, 100), 1);
      const std::vector<std::byte> bytes = content(list);
      BufferList moved = std::move(list);
      CHECK(list.empty());  // NOLINT(bugprone-use-after-move): it promises to be empty.
      CHECK(list.slice_count() == 0);
      CHECK(moved.unique());
      const BufferList shared = moved.share();
      CHECK_FALSE(moved.unique());
      list = std::move(moved);
      CHECK(content(list) == bytes);
      list.fill_zero();
      CHECK(content(shared) == std::vector<std::byte>(bytes.size()));
      list.append(pattern(pool, {10}, 2));
      CHECK(list.byte_count() == bytes.size() + 10);
      list.append(Buffer());  // Nothing.
      CHECK(list.slice_count() == slices + 1);
      list.clear();
      CHECK(list.empty());
    }
    co_return;
  });
}

// The limit -------------------------------------------------------------------------------------

// Large blocks leave an eighth of the pool to small ones.
constexpr std::size_t limit_for(std::size_t size) {
  return size <= BufferPool::kSmallBytes ? kLimit : kLimit / 8 * 7;
}

// Beyond what stands in a list, and beyond what the frame pool serves.
TEST_CASE("Lists of many slices grow, move and go without losing one", "[buffer]") {
  run([](Executor& home) -> Task<void> {
    const Buffer block = home.buffers().try_allocate_contiguous(4096);
    for (const std::size_t count : {1U, 2U, 3U, 6U, 7U, 66U, 130U, 700U}) {
      BufferList list;
      for (std::size_t i = 0; i < count; ++i) list.append(block.slice(i, 1));
      BufferList moved = std::move(list);
      list = moved.share();
      list.append(moved.share(count / 2, count - count / 2));
      moved = std::move(list);
      CAPTURE(count);
      REQUIRE(moved.slice_count() == count + count - count / 2);
      for (std::size_t i = 0; i < moved.slice_count(); ++i) {
        const std::size_t place = i < count ? i : i - count + count / 2;
        REQUIRE(moved[i].data() == block.data() + place);
      }
      const BufferList front = moved.take_front(count);
      REQUIRE(front.slice_count() == count);
      REQUIRE(moved.slice_count() == count - count / 2);
    }
    REQUIRE(block.unique());
    co_return;
  });
}

TEST_CASE("A pool never holds more than its limit", "[buffer]") {
  for (const std::size_t size : {std::size_t{512}, std::size_t{4096}, std::size_t{65536}, kMiB}) {
    auto world = make_world();
    BufferPool& pool = world->executors()[0]->buffers();
    REQUIRE(pool.limit_bytes() == kLimit);
    std::vector<Buffer> taken;
    for (;;) {
      Buffer buffer = pool.try_allocate_contiguous(size);
      if (buffer.empty()) break;
      taken.push_back(std::move(buffer));
      REQUIRE(pool.used_bytes() <= kLimit);
    }
    REQUIRE(taken.size() == limit_for(size) / size);
    REQUIRE(pool.under_pressure());
    REQUIRE(pool.try_allocate_contiguous(1).empty() == (limit_for(size) == kLimit));
    REQUIRE(pool.try_allocate(100'000).empty());
    taken.clear();
    world->run_for(1ms);
    REQUIRE(pool.used_bytes() == 0);
    REQUIRE_FALSE(pool.under_pressure());
  }
}

TEST_CASE("Free slabs of one size serve another", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t size :
           {std::size_t{512}, kMiB, std::size_t{4096}, std::size_t{262144}}) {
        std::vector<Buffer> taken;
        for (std::size_t i = 0; i < limit_for(size) / size; ++i) {
          taken.push_back(pool.try_allocate_contiguous(size));
          CHECK_FALSE(taken.back().empty());
        }
      }
    }
    co_return;
  });
}

TEST_CASE("One block in use keeps its slab from serving another size", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    const Buffer small = pool.try_allocate_contiguous(512);
    std::vector<Buffer> large;
    for (;;) {
      Buffer buffer = pool.try_allocate_contiguous(kMiB);
      if (buffer.empty()) break;
      large.push_back(std::move(buffer));
    }
    CHECK(large.size() == (limit_for(kMiB) - BufferPool::kSlabBytes) / kMiB);
    co_return;
  });
}

TEST_CASE("A small limit is raised to eight slabs", "[buffer]") {
  auto world = sim::World::create({.seed = 1, .memory_limit_bytes = 1});
  REQUIRE(world->executors()[0]->buffers().limit_bytes() == 8 * BufferPool::kSlabBytes);
}

TEST_CASE("Lists are made of pieces of at most 256 KiB", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    const BufferList list = executor.buffers().try_allocate(kMiB + 5000);
    CHECK(list.byte_count() == kMiB + 5000);
    CHECK(list.slice_count() == 5);
    for (std::size_t i = 0; i < list.slice_count(); ++i) CHECK(list[i].byte_count() <= kMiB / 4);
    co_return;
  });
}

// Waiting ---------------------------------------------------------------------------------------

Task<void> allocate_and_log(BufferPool& pool, std::size_t count, int number,
                            std::vector<int>& order, std::vector<BufferList>& held) {
  BufferList list = co_await pool.allocate(count);
  CHECK(list.byte_count() == count);
  order.push_back(number);
  held.push_back(std::move(list));
}

// Given memory ----------------------------------------------------------------------------------

constexpr std::size_t kPiece = BufferPool::kSmallBytes;

struct alignas(4096) GivenMemory {
  std::byte bytes[16 * kPiece];
};

TEST_CASE("A pool over given memory takes every block from there, and all of it", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    const auto memory = std::make_unique<GivenMemory>();
    BufferPool pool(executor, memory->bytes, kPiece);
    CHECK(pool.limit_bytes() == sizeof memory->bytes);
    CHECK(pool.largest_block() == kPiece);
    for (const std::size_t size : {std::size_t{512}, std::size_t{4096}, 2 * kPiece}) {
      std::vector<BufferList> lists;
      for (;;) {
        BufferList list = pool.try_allocate(size);
        if (list.empty()) break;
        for (std::size_t i = 0; i < list.slice_count(); ++i) {
          CHECK(pool.owns(list[i]));
          CHECK(list[i].data() >= memory->bytes);
          CHECK(list[i].data() + list[i].byte_count() <= memory->bytes + sizeof memory->bytes);
        }
        list.fill_zero();
        lists.push_back(std::move(list));
      }
      // Large ones leave an eighth to small ones.
      CHECK(lists.size() * size >= sizeof memory->bytes / 8 * (size > kPiece ? 7 : 8));
    }
    CHECK(pool.used_bytes() == 0);
    for (const std::size_t size : {std::size_t{512}, std::size_t{8192}, 5 * kPiece - 512}) {
      const BufferList list = pool.try_allocate(size);
      CHECK(list.byte_count() == size);
      CHECK(pool.used_bytes() == size);  // No block is filled in part.
    }
    CHECK_FALSE(pool.owns(executor.buffers().try_allocate_contiguous(1)));
    co_return;
  });
}

TEST_CASE("Adopted content stays until its last slice has gone", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    const auto memory = std::make_unique<GivenMemory>();
    std::memset(memory->bytes, 0, sizeof memory->bytes);
    std::memset(memory->bytes + kPiece + 512, 7, 1024);
    BufferPool pool(executor, memory->bytes, kPiece);
    Buffer first = pool.adopt(kPiece + 512, 512);
    Buffer second = pool.adopt(kPiece + 1024, 512);
    CHECK(pool.used_bytes() == kPiece);
    for (int round = 0; round < 3; ++round) {
      std::size_t taken = 0;
      std::vector<Buffer> others;
      for (;;) {
        Buffer other = pool.try_allocate_contiguous(4096);
        if (other.empty()) break;
        std::memset(other.data(), 1, other.byte_count());
        taken += other.byte_count();
        others.push_back(std::move(other));
      }
      CHECK(taken == (round < 2 ? 15 : 16) * kPiece);
      if (round < 2) {
        CHECK(std::ranges::all_of(second.bytes(), [](std::byte b) { return b == std::byte{7}; }));
      }
      if (round == 0) first = Buffer();
      if (round == 1) second = Buffer();
    }
    CHECK(pool.used_bytes() == 0);
    co_return;
  });
}

TEST_CASE("Who waits for memory is served in order, and nobody overtakes", "[buffer]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    run(
        [](Executor& executor) -> Task<void> {
          BufferPool& pool = executor.buffers();
          std::vector<BufferList> held;
          std::vector<int> order;
          for (std::size_t i = 0; i < limit_for(kMiB) / kMiB; ++i) {
            held.push_back(pool.try_allocate(kMiB));
          }
          spawn(allocate_and_log(pool, 2 * kMiB, 0, order, held));
          spawn(allocate_and_log(pool, kMiB, 1, order, held));  // Would fit first.
          spawn(allocate_and_log(pool, kMiB, 2, order, held));
          CHECK(pool.waiter_count() == 3);
          held.pop_back();
          co_await executor.sleep_for(1ms);
          CHECK(order.empty());
          held.erase(held.begin(), held.begin() + 8);
          co_await executor.sleep_for(1ms);
          CHECK(order.size() == 3);
          CHECK(pool.waiter_count() == 0);
        },
        seed);
  }
}

Task<void> take_turns(Executor& executor, Gate& gate, std::size_t& served) {
  const GateHold hold(gate);
  for (int i = 0; i < 20; ++i) {
    const std::size_t count = executor.random().between(1, kLimit / 4);
    const BufferList list = co_await executor.buffers().allocate(count);
    CHECK(list.byte_count() == count);
    CHECK(executor.buffers().used_bytes() <= kLimit);
    co_await executor.sleep_for(Duration(executor.random().below(1'000'000)));
    ++served;
  }
}

TEST_CASE("Many who want much memory all get it in the end", "[buffer]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    run(
        [](Executor& executor) -> Task<void> {
          Gate gate;
          std::size_t served = 0;
          for (int i = 0; i < 30; ++i) {
            CHECK(gate.enter());
            spawn(take_turns(executor, gate, served));
          }
          co_await gate.close();
          CHECK(served == 600);
        },
        seed);
  }
}

TEST_CASE("Room in pieces of the wrong size keeps a waiter waiting, no more", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    // One small block in each slab but one; then most of the memory is free, but in slabs that
    // serve small blocks only.
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < kLimit / 512; ++i) all.push_back(pool.try_allocate_contiguous(512));
    std::vector<Buffer> pins;
    const std::size_t slab_blocks = BufferPool::kSlabBytes / 512;
    for (std::size_t i = 0; i + slab_blocks < all.size(); i += slab_blocks) pins.push_back(all[i]);
    std::vector<int> order;
    std::vector<BufferList> held;
    spawn(allocate_and_log(pool, 4 * kMiB, 0, order, held));
    all.clear();
    co_await executor.sleep_for(1ms);
    CHECK(order.empty());
    CHECK(pool.used_bytes() == pins.size() * 512);
    pins.clear();
    co_await executor.sleep_for(1ms);
    CHECK(order.size() == 1);
  });
}

// Promises --------------------------------------------------------------------------------------

Task<void> reserve_and_log(BufferPool& pool, std::size_t count, int number,
                           std::vector<int>& order) {
  BufferPool::Wait wait;
  const bool reserved = co_await pool.reserve(count, wait);
  CHECK(reserved);
  order.push_back(number);
}

TEST_CASE("Promises count against the limit and are given up", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    std::size_t promised = 0;
    while (pool.try_reserve(kMiB)) promised += kMiB;
    CHECK(promised > 0);
    CHECK(promised < kLimit);
    CHECK(pool.reserved_bytes() == promised);
    std::vector<int> order;
    spawn(reserve_and_log(pool, 2 * kMiB, 0, order));
    spawn(reserve_and_log(pool, kMiB, 1, order));
    CHECK(pool.waiter_count() == 2);
    CHECK_FALSE(pool.try_reserve(1));  // Others wait.
    pool.unreserve(kMiB);
    co_await executor.sleep_for(1ms);
    CHECK(order.empty());
    pool.unreserve(kMiB);
    co_await executor.sleep_for(1ms);
    CHECK(order == std::vector<int>{0});
    pool.unreserve(kMiB);
    co_await executor.sleep_for(1ms);
    CHECK(order == std::vector<int>{0, 1});
    pool.unreserve(promised);
    CHECK(pool.reserved_bytes() == 0);
  });
}

TEST_CASE("Large allocations that wait do not hold small ones up", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    std::vector<BufferList> held;
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) spawn(allocate_and_log(pool, kMiB, i, order, held));
    CHECK(pool.waiter_count() > 0);
    spawn(allocate_and_log(pool, BufferPool::kSmallBytes, 100, order, held));
    CHECK(order.back() == 100);
    while (order.size() < 21) {
      held.erase(held.begin());
      co_await executor.sleep_for(1ms);
    }
    CHECK(pool.waiter_count() == 0);
  });
}

TEST_CASE("What waits for memory leaves room for what was promised", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    CHECK(pool.try_reserve(2 * kMiB));
    std::vector<BufferList> held;
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) spawn(allocate_and_log(pool, kMiB, i, order, held));
    co_await executor.sleep_for(1ms);
    CHECK(order.size() == limit_for(kMiB) / kMiB - 2);
    // Redeemed: the promise ends as the memory is taken.
    pool.unreserve(2 * kMiB);
    co_await executor.sleep_for(1ms);
    CHECK(order.size() == limit_for(kMiB) / kMiB);
    while (order.size() < 20) {
      held.erase(held.begin());
      co_await executor.sleep_for(1ms);
    }
  });
}

Task<void> reserve_or_give_up(BufferPool& pool, BufferPool::Wait& wait, std::vector<bool>& ends) {
  const bool reserved = co_await pool.reserve(2 * kMiB, wait);
  ends.push_back(reserved);
}

TEST_CASE("Who waits for a promise may give up, and those behind go on", "[buffer]") {
  run([](Executor& executor) -> Task<void> {
    BufferPool& pool = executor.buffers();
    std::size_t promised = 0;
    while (pool.try_reserve(kMiB)) promised += kMiB;
    pool.unreserve(kMiB);
    promised -= kMiB;
    BufferPool::Wait wait;
    std::vector<bool> ends;
    spawn(reserve_or_give_up(pool, wait, ends));
    std::vector<int> order;
    spawn(reserve_and_log(pool, kMiB, 7, order));
    co_await executor.sleep_for(1ms);
    CHECK(ends.empty());
    CHECK(order.empty());
    pool.cancel(wait);
    co_await executor.sleep_for(1ms);
    CHECK(ends == std::vector<bool>{false});
    CHECK(order == std::vector<int>{7});
    CHECK(pool.reserved_bytes() == promised + kMiB);
    pool.cancel(wait);  // Too late, and harmless.
    pool.unreserve(promised + kMiB);
    spawn(reserve_or_give_up(pool, wait, ends));
    pool.cancel(wait);
    co_await executor.sleep_for(1ms);
    CHECK(ends == std::vector<bool>{false, true});
    pool.unreserve(2 * kMiB);
  });
}

Task<void> fill_with_small_ones(Executor& executor) {
  BufferPool& pool = executor.buffers();
  std::vector<BufferList> held;
  std::vector<int> order;
  const int count = static_cast<int>(pool.limit_bytes() / 4096) + 100;
  for (int i = 0; i < count; ++i) spawn(allocate_and_log(pool, 4096, i, order, held));
  CHECK(pool.waiter_count() > 0);
  std::vector<Buffer> logins;
  for (int i = 0; i < 16; ++i) {
    logins.push_back(pool.try_allocate_contiguous(16384));
    CHECK_FALSE(logins.back().empty());
  }
  logins.clear();
  while (order.size() < static_cast<std::size_t>(count)) {
    held.clear();
    co_await executor.sleep_for(1ms);
  }
}

TEST_CASE("Small allocations that wait leave some memory to those who cannot", "[buffer]") {
  auto world = sim::World::create({.memory_limit_bytes = 4 * kLimit});
  REQUIRE(world->run([&] { return fill_with_small_ones(*world->executors()[0]); }));
}

// Away from home --------------------------------------------------------------------------------

Task<void> free_elsewhere(Executor& home, Executor& away) {
  BufferPool& pool = home.buffers();
  std::vector<BufferList> held;
  for (std::size_t i = 0; i < kLimit / kMiB; ++i) held.push_back(pool.try_allocate(kMiB));
  std::vector<int> order;
  std::vector<BufferList> granted;
  spawn(allocate_and_log(pool, 4 * kMiB, 0, order, granted));
  co_await SwitchTo(away);
  held.clear();
  co_await SwitchTo(home);
  co_await home.sleep_for(1ms);
  CHECK(order.size() == 1);
  CHECK(pool.used_bytes() == 4 * kMiB);
}

TEST_CASE("Buffers freed on another executor come home and serve waiters", "[buffer]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world = make_world(seed, 2);
    REQUIRE(
        world->run([&] { return free_elsewhere(*world->executors()[0], *world->executors()[1]); }));
    world->run_for(1ms);
    REQUIRE(world->executors()[0]->buffers().used_bytes() == 0);
  }
}

}  // namespace
}  // namespace sandbay
