// The volatile cache against a naive model: what a flush or FUA covered is there after every cut,
// a block is always one that was written, and without a cut nothing is different from the device
// below. The device takes its time, so that cuts come in the middle of everything.
#include "fault/volatile_cache.h"

#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "../block/test_devices.h"
#include "../block/thin_device.h"
#include "bench.h"

namespace sandbay::fault {
namespace {

using sandbay::testing::DelayDevice;
using sandbay::testing::RecordingDevice;

constexpr Lba kRange = 48;

// What each block may be after a cut: the last that is durable, and all written since.
struct Model {
  std::vector<std::set<int>> possible = std::vector<std::set<int>>(kRange, std::set<int>{0});
  std::vector<int> seen = std::vector<int>(kRange, 0);       // Newest, while the power is on.
  std::vector<int> uncertain = std::vector<int>(kRange, 0);  // Writes in flight or failed.
};

Task<void> check_content(VolatileCache& cache, Model& model, bool after_cut) {
  for (Lba lba = 0; lba < kRange; ++lba) {
    const int value = co_await read_value(cache, lba);
    INFO("block " << lba << " is " << value);
    if (after_cut) {
      REQUIRE(model.possible[lba].contains(value));
      model.seen[lba] = value;
      model.possible[lba] = {value};
    } else {
      REQUIRE(model.seen[lba] == value);
    }
  }
}

// One operation at a time, then a cut, over and over.
Task<void> sequential(Executor& home, std::uint64_t seed) {
  Random random(seed);
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  DelayDevice slow(**memory, Duration(0), std::chrono::microseconds(100));
  VolatileCache cache(slow);
  Model model;
  int next = 1;
  for (int step = 0; step < 150; ++step) {
    const Lba first = random.below(kRange);
    const std::uint64_t count = random.between(1, std::min<Lba>(8, kRange - first));
    const std::uint64_t what = random.below(16);
    if (what < 9) {
      const bool fua = random.below(5) == 0;
      const int value = next++ % 251 + 1;
      const Error error =
          co_await write_value(cache, first, static_cast<unsigned>(value), count, fua);
      REQUIRE(error == Error::kNone);
      for (Lba lba = first; lba < first + count; ++lba) {
        model.seen[lba] = value;
        if (fua) model.possible[lba].clear();
        model.possible[lba].insert(value);
      }
    } else if (what < 11) {
      const Operation operation = what == 9 ? Operation::kUnmap : Operation::kWriteZeroes;
      const Error error = co_await do_plainly(cache, operation, {first, count});
      REQUIRE(error == Error::kNone);
      for (Lba lba = first; lba < first + count; ++lba) {
        model.seen[lba] = 0;
        model.possible[lba].insert(0);
      }
    } else if (what < 13) {
      const Error error = co_await do_plainly(cache, Operation::kFlush);
      REQUIRE(error == Error::kNone);
      for (Lba lba = 0; lba < kRange; ++lba) model.possible[lba] = {model.seen[lba]};
      CHECK(cache.volatile_bytes() == 0);
    } else if (what < 15) {
      co_await check_content(cache, model, false);
    } else {
      const auto loss = static_cast<PowerLoss>(random.below(4));
      cache.cut_power(loss, random.next());
      if (random.below(3) == 0) cache.cut_power(PowerLoss::kEverything, random.next());
      CHECK(cache.volatile_writes() == 0);
      const std::vector<int> seen = model.seen;
      co_await check_content(cache, model, true);
      if (loss == PowerLoss::kNothing) CHECK(model.seen == seen);
    }
  }
  co_await cache.settled();
}

struct Load {
  VolatileCache& cache;
  Executor& home;
  Random random;
  Model model;
  Gate gate;
  int next = 1;
  bool stop = false;
};

// A writer of its own blocks: what it knows to be durable must never be lost.
Task<void> write_own_blocks(Load& load, Lba lba) {
  const GateHold hold(load.gate);
  while (!load.stop) {
    co_await load.home.sleep_for(Duration(static_cast<int>(load.random.below(50'000))));
    const int value = load.next++ % 251 + 1;
    const bool fua = load.random.below(3) == 0;
    load.model.possible[lba].insert(value);
    const Error error = co_await write_value(load.cache, lba, static_cast<unsigned>(value), 1, fua);
    if (error != Error::kNone) {
      REQUIRE(error == Error::kNotReady);
      continue;
    }
    if (fua) load.model.possible[lba] = {value};
    if (load.random.below(3) != 0) continue;
    const Error flushed = co_await do_plainly(load.cache, Operation::kFlush);
    if (flushed == Error::kNone) load.model.possible[lba] = {value};
    const int seen = co_await read_value(load.cache, lba);
    if (seen >= 0) REQUIRE(load.model.possible[lba].contains(seen));
  }
}

Task<void> concurrent(Executor& home, std::uint64_t seed) {
  Random random(seed);
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  DelayDevice slow(**memory, Duration(0), std::chrono::microseconds(100));
  VolatileCache cache(slow);
  Load load{.cache = cache, .home = home, .random = random.fork()};
  for (Lba lba = 0; lba < 8; ++lba) {
    REQUIRE(load.gate.enter());
    spawn(write_own_blocks(load, lba));
  }
  for (int cut = 0; cut < 20; ++cut) {
    co_await home.sleep_for(Duration(static_cast<int>(random.below(2'000'000))));
    cache.cut_power(static_cast<PowerLoss>(random.below(4)), random.next());
  }
  load.stop = true;
  co_await load.gate.drain();
  cache.cut_power(PowerLoss::kEverything, 1);
  co_await cache.settled();
  for (Lba lba = 0; lba < 8; ++lba) {
    const int value = co_await read_value(cache, lba);
    INFO("block " << lba << " is " << value);
    REQUIRE(load.model.possible[lba].contains(value));
  }
}

// Overlapping writers: a flush must cover what a newer, unflushed write hides.
Task<void> write_and_end(VolatileCache& cache, unsigned value, Gate& gate) {
  const GateHold hold(gate);
  const Error error = co_await write_value(cache, 0, value);
  CHECK(error == Error::kNone);
}

Task<void> flush_and_end(VolatileCache& cache, Gate& gate, bool& ended) {
  const GateHold hold(gate);
  const Error error = co_await do_plainly(cache, Operation::kFlush);
  CHECK(error == Error::kNone);
  ended = true;
}

Task<void> hidden_by_newer(Executor& home, std::uint64_t seed) {
  Random random(seed);
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  DelayDevice slow(**memory, std::chrono::microseconds(50), std::chrono::microseconds(100));
  VolatileCache cache(slow);
  Gate gate;
  bool flushed = false;
  const Error error = co_await write_value(cache, 0, 1);
  CHECK(error == Error::kNone);
  REQUIRE(gate.enter());
  bool other = false;
  spawn(flush_and_end(cache, gate, other));  // Holds the device for a while.
  REQUIRE(gate.enter());
  spawn(flush_and_end(cache, gate, flushed));
  co_await home.sleep_for(Duration(static_cast<int>(random.below(200'000))));
  REQUIRE(gate.enter());
  spawn(write_and_end(cache, 2, gate));
  co_await gate.drain();
  CHECK(flushed);
  cache.cut_power(PowerLoss::kEverything, 1);
  const int value = co_await read_value(cache, 0);
  CHECK((value == 1 || value == 2));
  co_await cache.settled();
}

Task<void> bounded(Executor& home) {
  auto memory = MemoryDevice::create(home, {.byte_count = 8 << 20});
  REQUIRE(memory.has_value());
  RecordingDevice recording(**memory);
  VolatileCache cache(recording, {.limit_bytes = 1 << 20});
  CHECK(cache.geometry().volatile_cache);
  CHECK_FALSE(recording.geometry().volatile_cache);
  Error error = Error::kNone;
  for (Lba lba = 0; lba < 8192; lba += 64) {
    error = co_await write_value(cache, lba, 1 + static_cast<unsigned>(lba / 64), 64);
    CHECK(error == Error::kNone);
    CHECK(cache.volatile_bytes() <= 1 << 20);
  }
  CHECK(recording.count(Operation::kWrite) > 64);
  CHECK(recording.count(Operation::kFlush) == 0);
  for (Lba lba = 0; lba < 8192; lba += 64) {
    const int value = co_await read_value(cache, lba);
    CHECK(value == 1 + static_cast<int>(lba / 64));
  }
  // The oldest are on the medium, the newest are lost.
  cache.cut_power(PowerLoss::kEverything, 1);
  const int oldest = co_await read_value(cache, 0);
  CHECK(oldest == 1);
  const int newest = co_await read_value(cache, 8191);
  CHECK(newest == 0);
  CHECK(cache.cuts() == 1);
  co_await cache.settled();
}

// A write that finds no room is refused at once. A flush never fails, also when others take the
// room away meanwhile: a failed flush would fail the drive.
Task<void> full_device(Executor& home, std::uint64_t seed) {
  Random random(seed);
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  testing::ThinDevice thin(**memory, 8 + random.below(kRange));
  VolatileCache cache(thin);
  std::vector<int> seen(kRange, 0);
  unsigned refused = 0;
  for (int step = 0; step < 300; ++step) {
    const Lba first = random.below(kRange);
    const std::uint64_t count = random.between(1, std::min<Lba>(8, kRange - first));
    const std::uint64_t what = random.below(12);
    const int value = what < 6 ? step % 251 + 1 : 0;
    Error error = Error::kNone;
    if (what < 6) {
      error = co_await write_value(cache, first, static_cast<unsigned>(value), count, what == 0);
    } else if (what < 8) {
      error = co_await do_plainly(cache, Operation::kUnmap, {first, count});
      REQUIRE(error == Error::kNone);
    } else if (what == 8) {
      error = co_await do_plainly(cache, Operation::kWriteZeroes, {first, count});
    }
    if (what < 9 && error == Error::kNone) {
      std::fill_n(seen.begin() + static_cast<std::ptrdiff_t>(first), count, value);
    }
    refused += error == Error::kNoSpace ? 1 : 0;
    REQUIRE((error == Error::kNone || error == Error::kNoSpace));
    if (what == 9) thin.set_room(random.chance(0.5) ? thin.taken() : kRange);
    if (what > 9) {
      error = co_await do_plainly(cache, Operation::kFlush);
      REQUIRE(error == Error::kNone);
      if (random.chance(0.5)) cache.cut_power(PowerLoss::kEverything, random.next());
    }
    for (Lba lba = 0; lba < kRange; ++lba) {
      const int now = co_await read_value(cache, lba);
      REQUIRE(now == seen[lba]);
    }
  }
  CHECK(refused > 0);
  co_await cache.settled();
}

Task<void> refusing_device(Executor& home) {
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  testing::FaultyDevice faulty(**memory);
  VolatileCache cache(faulty);
  Error error = co_await write_value(cache, 0, 1);
  faulty.fail({.operation = Operation::kWrite, .times = 1});
  error = co_await do_plainly(cache, Operation::kFlush);
  CHECK(error == Error::kHardware);
  CHECK(cache.volatile_writes() == 1);  // Kept: a later flush can still save it.
  error = co_await do_plainly(cache, Operation::kFlush);
  CHECK(error == Error::kNone);
  error = co_await write_value(cache, 0, 2);
  faulty.fail({.operation = Operation::kWrite, .times = 1});
  cache.cut_power(PowerLoss::kNothing, 1);
  co_await cache.settled();
  CHECK(cache.health() == Health::kFailed);
  error = co_await read_error(cache, {0, 1});
  CHECK(error == Error::kHardware);
}

}  // namespace

TEST_CASE("A cut leaves what a flush covered, and only what was written", "[fault][power]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    run_bench(seed, [seed](Executor& home) { return sequential(home, seed); });
  }
}

TEST_CASE("Cuts in the middle of writes, flushes and other cuts", "[fault][power]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    run_bench(seed, [seed](Executor& home) { return concurrent(home, seed); });
  }
}

TEST_CASE("A flush covers what a newer write hides", "[fault][power]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    run_bench(seed, [seed](Executor& home) { return hidden_by_newer(home, seed); });
  }
}

TEST_CASE("The volatile cache is bounded", "[fault][power]") {
  run_bench(1, [](Executor& home) { return bounded(home); });
}

TEST_CASE("A full device refuses writes, and no flush", "[fault][power][R-B2]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    run_bench(seed, [seed](Executor& home) { return full_device(home, seed); });
  }
}

TEST_CASE("A device that refuses a write-back keeps it in the cache", "[fault][power]") {
  run_bench(1, [](Executor& home) { return refusing_device(home); });
}

}  // namespace sandbay::fault
