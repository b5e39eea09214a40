// A cache over memory devices in a world: what its tests have in common.
//
// Each device stands on a layer that gives it the geometry of a RAID set, one that answers late,
// one that hangs, one that fails what it is told to, one that delays, and one that records what
// reached it.
#pragma once

#include <memory>
#include <vector>

#include "block/memory_device.h"
#include "cache/cache.h"
#include "cache/cached_device.h"
#include "tests/unit/block/payload.h"
#include "tests/unit/block/test_devices.h"

namespace sandbay::cache {

// With the optimal transfer of a RAID set.
class StripedDevice final : public Layer {
 public:
  StripedDevice(BlockDevice& below, std::uint32_t optimal_io_blocks)
      : Layer(below), geometry_(below.geometry()) {
    geometry_.optimal_io_blocks = optimal_io_blocks;
  }
  const Geometry& geometry() const noexcept override { return geometry_; }

 private:
  Geometry geometry_;
};

// Answers late: what has been done is told up to `most` later, and reads not while they are held.
class LateDevice final : public Layer {
 public:
  LateDevice(BlockDevice& below, Duration most) : Layer(below), most_(most) {}

  void hold() { held_ = true; }
  void release() {
    held_ = false;
    released_.notify_all();
  }

  Task<Completion> submit(Request request) override {
    const bool holds = request.operation == Operation::kRead;
    Completion completion = co_await Layer::submit(std::move(request));
    while (held_ && holds) co_await released_.wait();
    if (most_ > Duration::zero()) {
      const auto range = static_cast<std::uint64_t>(most_.count());
      co_await home().sleep_for(Duration(static_cast<std::int64_t>(home().random().below(range))));
    }
    co_return completion;
  }

 private:
  Duration most_;
  bool held_ = false;
  Condition released_;
};

struct BelowOptions {
  std::uint64_t byte_count = std::uint64_t{32} << 20;
  std::uint32_t block_bytes = 512;
  std::uint64_t stripe_bytes = 192 * 1024;  // 0: no preference.
  Duration least = Duration::zero();
  Duration most = Duration::zero();
};

// What stands below a cached device.
struct Below {
  Below(Executor& home, BelowOptions options)
      : memory(*MemoryDevice::create(
            home, {.byte_count = options.byte_count, .block_bytes = options.block_bytes})),
        striped(*memory, static_cast<std::uint32_t>(options.stripe_bytes / options.block_bytes)),
        late(striped, options.most),
        hung(late),
        faulty(hung),
        delayed(faulty, options.least, options.most),
        recording(options.most > Duration::zero() ? static_cast<BlockDevice&>(delayed) : faulty) {}

  std::unique_ptr<MemoryDevice> memory;
  StripedDevice striped;
  LateDevice late;
  testing::HungDevice hung;
  testing::FaultyDevice faulty;
  testing::DelayDevice delayed;
  testing::RecordingDevice recording;
};

inline Uuid uuid_of(std::uint8_t number) {
  Uuid uuid{};
  uuid[0] = number;
  return uuid;
}

}  // namespace sandbay::cache
