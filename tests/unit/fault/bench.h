// A bench for faults: an engine and drives in memory, with what a test asks of them. Everything
// runs in a simulated world; tests await these coroutines at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "../block/on_executor.h"
#include "../block/payload.h"
#include "block/memory_device.h"
#include "fault/engine.h"
#include "fault/fault_layer.h"
#include "fault/volatile_cache.h"

namespace sandbay::fault {

using sandbay::testing::content_of;
using sandbay::testing::Cut;
using sandbay::testing::do_without_data;
using sandbay::testing::read_blocks;
using sandbay::testing::run_in_world;
using sandbay::testing::write_blocks;

constexpr std::uint64_t kBlocks = 2048;

struct Drive {
  std::unique_ptr<MemoryDevice> memory;
  std::unique_ptr<VolatileCache> cache;
  std::unique_ptr<FaultLayer> layer;
};

class Bench {
 public:
  explicit Bench(Executor& executor, FaultEngineOptions options = {}, std::size_t count = 3)
      : home(executor), engine(executor, take(std::move(options))) {
    for (std::size_t i = 0; i < count; ++i) {
      Drive drive;
      auto memory = MemoryDevice::create(home, {.byte_count = kBlocks * 512});
      REQUIRE(memory.has_value());
      drive.memory = std::move(*memory);
      drive.cache = std::make_unique<VolatileCache>(*drive.memory);
      drive.layer =
          std::make_unique<FaultLayer>(*drive.cache, engine,
                                       FaultLayerOptions{.name = "d" + std::to_string(i),
                                                         .enclosure = i < 2 ? "front" : "rear",
                                                         .serial = "S" + std::to_string(i),
                                                         .power = drive.cache.get()});
      drives.push_back(std::move(drive));
    }
  }

  FaultLayer& layer(std::size_t index = 0) { return *drives[index].layer; }
  MemoryDevice& memory(std::size_t index = 0) { return *drives[index].memory; }

  std::string add(const std::string& text) {
    const auto id = engine.add(text);
    INFO(text);
    if (!id.has_value()) FAIL(id.error());
    return *id;
  }
  Counters counters(const std::string& id) {
    const auto found = engine.view(id);
    REQUIRE(found.has_value());
    return found->counters;
  }

  Executor& home;
  std::vector<std::string> log;      // Of firings.
  std::vector<std::string> healths;  // "d0 2".
  FaultEngine engine;
  std::vector<Drive> drives;
  Random random{1};

 private:
  FaultEngineOptions take(FaultEngineOptions options) {
    if (!options.on_firing) {
      options.on_firing = [this](const Firing& firing) { log.push_back(describe(firing)); };
    }
    if (!options.on_health) {
      options.on_health = [this](const std::string& drive, Health health) {
        healths.push_back(drive + " " + std::to_string(static_cast<int>(health)));
      };
    }
    return options;
  }
};

inline Bytes blocks_of(unsigned value, std::size_t count) {
  return Bytes(count * 512, static_cast<std::byte>(value));
}

inline Task<Error> write_value(BlockDevice& device, Lba first, unsigned value,
                               std::size_t count = 1, bool fua = false) {
  Random random(1);
  const Completion done =
      co_await write_blocks(device, first, blocks_of(value, count), Cut::kAligned, random, fua);
  co_return done.error;
}

// The first byte of a block, or -1 if it cannot be read.
inline Task<int> read_value(BlockDevice& device, Lba lba) {
  Random random(1);
  const Completion done = co_await read_blocks(device, {lba, 1}, Cut::kAligned, random);
  if (done.error != Error::kNone) co_return -1;
  co_return static_cast<int>(content_of(done.data)[0]);
}

inline Task<Error> read_error(BlockDevice& device, Extent extent) {
  Random random(1);
  const Completion done = co_await read_blocks(device, extent, Cut::kAligned, random);
  co_return done.error;
}

inline Task<Error> do_plainly(BlockDevice& device, Operation operation, Extent extent = {}) {
  const Completion done = co_await do_without_data(device, operation, extent);
  co_return done.error;
}

inline void run_bench(std::uint64_t seed, const testing::Start& start) {
  run_in_world(seed, start);
}

}  // namespace sandbay::fault
