// PoolDoor: what a volume stands on whose pool could not be opened. Every request ends with
// kNotReady, until the volume is there.
#pragma once

#include <string>
#include <utility>

#include "block/block_device.h"

namespace sandbay::group {

class PoolDoor final : public BlockDevice {
 public:
  PoolDoor(Executor& home, Geometry geometry) : home_(home), geometry_(geometry) {}

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override {
    return volume_ != nullptr ? volume_->geometry() : geometry_;
  }
  Health health() const noexcept override {
    return volume_ != nullptr ? volume_->health() : Health::kMissing;
  }
  bool serves() const noexcept override { return volume_ != nullptr && volume_->serves(); }
  std::string description() const override {
    return volume_ != nullptr ? volume_->description() : "what is not there";
  }
  Task<Completion> submit(Request request) override {
    return volume_ != nullptr ? volume_->submit(std::move(request)) : refuse(std::move(request));
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return volume_ != nullptr ? volume_->provisioning(first, limit) : unknown();
  }

  // Borrows it, on the same home.
  void lead_to(BlockDevice& volume) noexcept { volume_ = &volume; }

 private:
  static Task<Completion> refuse(Request request) {
    co_return Completion{.error = Error::kNotReady, .data = std::move(request.data)};
  }
  static Task<Result<ProvisioningRun>> unknown() { co_return std::unexpected(Error::kNotReady); }

  Executor& home_;
  Geometry geometry_;
  BlockDevice* volume_ = nullptr;
};

}  // namespace sandbay::group
