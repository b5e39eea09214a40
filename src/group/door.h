// Door: the block device below volumes whose set or pool may start later. It exists as long as the
// group knows the device behind it; until that starts, every request ends with kNotReady. A door
// keeps the recorded geometry, because a set that never ran does not know the abilities of its
// drives; it only follows changes of caches and their unit. A door that follows takes the whole
// geometry from the device behind it.
//
// Where the power can be cut, no host hears anything from the moment on when it is: neither what
// the cut does to requests, nor that anything was written afterwards.
#pragma once

#include <string>

#include "block/block_device.h"
#include "group/power.h"

namespace sandbay::cache {
class Cache;
struct StreamBudget;
}  // namespace sandbay::cache

namespace sandbay::group {

class Door final : public BlockDevice {
 public:
  // `geometry` is the known one. `power` may be null: it is never cut.
  Door(Executor& home, std::string name, Geometry geometry, Power* power, bool follows = false)
      : home_(home),
        name_(std::move(name)),
        geometry_(geometry),
        power_(power),
        follows_(follows) {}

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override {
    if (behind_ == nullptr) return geometry_;
    const Geometry& now = behind_->geometry();
    if (follows_) return now;
    geometry_.volatile_cache = now.volatile_cache;
    geometry_.non_volatile_cache = now.non_volatile_cache;
    geometry_.unit_blocks = now.unit_blocks;
    return geometry_;
  }
  Health health() const noexcept override {
    return behind_ != nullptr ? behind_->health() : Health::kMissing;
  }
  bool serves() const noexcept override { return behind_ != nullptr && behind_->serves(); }
  std::string description() const override { return name_; }
  Task<Completion> submit(Request request) override {
    if (behind_ != nullptr && power_ != nullptr) return power_->pass(behind_, std::move(request));
    if (behind_ != nullptr) return behind_->submit(std::move(request));
    return not_ready(std::move(request));
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    if (behind_ != nullptr) return behind_->provisioning(first, limit);
    return unknown();
  }
  BufferList write_buffers(std::size_t byte_count) override {
    return behind_ != nullptr ? behind_->write_buffers(byte_count) : BufferList();
  }

  // Borrows the device, which is on the same home and outlives every request.
  void lead_to(BlockDevice& device) noexcept { behind_ = &device; }
  bool leads() const noexcept { return behind_ != nullptr; }

  // What the volumes here share, on the same home; both may be null.
  void share(cache::Cache* cache, cache::StreamBudget* streams) noexcept {
    cache_ = cache;
    streams_ = streams;
  }
  cache::Cache* cache() const noexcept { return cache_; }
  cache::StreamBudget* streams() const noexcept { return streams_; }

 private:
  static Task<Completion> not_ready(Request request) {
    co_return Completion{.error = Error::kNotReady, .data = std::move(request.data)};
  }
  static Task<Result<ProvisioningRun>> unknown() { co_return std::unexpected(Error::kNotReady); }

  Executor& home_;
  std::string name_;
  mutable Geometry geometry_;
  Power* power_;
  bool follows_;
  BlockDevice* behind_ = nullptr;
  cache::Cache* cache_ = nullptr;
  cache::StreamBudget* streams_ = nullptr;
};

}  // namespace sandbay::group
