// SetDoor: the block device that volumes on a RAID set stand on. It is there for as long as the
// group knows the set, also while no drive of it is: then every request ends with kNotReady, until
// the set has come.
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

class SetDoor final : public BlockDevice {
 public:
  // `power` may be null: it is never cut.
  SetDoor(Executor& home, std::string name, Geometry geometry, Power* power)
      : home_(home), name_(std::move(name)), geometry_(geometry), power_(power) {}

  Executor& home() const noexcept override { return home_; }
  // What was known when it was made; but caches, and their unit, are as they are now.
  const Geometry& geometry() const noexcept override {
    if (set_ != nullptr) {
      const Geometry& now = set_->geometry();
      geometry_.volatile_cache = now.volatile_cache;
      geometry_.non_volatile_cache = now.non_volatile_cache;
      geometry_.unit_blocks = now.unit_blocks;
    }
    return geometry_;
  }
  Health health() const noexcept override {
    return set_ != nullptr ? set_->health() : Health::kMissing;
  }
  bool serves() const noexcept override { return set_ != nullptr && set_->serves(); }
  std::string description() const override { return "RAID set " + name_; }
  Task<Completion> submit(Request request) override {
    if (set_ != nullptr && power_ != nullptr) return power_->pass(set_, std::move(request));
    if (set_ != nullptr) return set_->submit(std::move(request));
    return not_ready(std::move(request));
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    if (set_ != nullptr) return set_->provisioning(first, limit);
    return unknown();
  }
  BufferList write_buffers(std::size_t byte_count) override {
    return set_ != nullptr ? set_->write_buffers(byte_count) : BufferList();
  }

  // Borrows the set, or what stands above it, which has this geometry and outlives every request.
  void lead_to(BlockDevice& set) noexcept { set_ = &set; }
  bool leads() const noexcept { return set_ != nullptr; }

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
  BlockDevice* set_ = nullptr;
  cache::Cache* cache_ = nullptr;
  cache::StreamBudget* streams_ = nullptr;
};

}  // namespace sandbay::group
