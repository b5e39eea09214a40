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

namespace sandbay::group {

class SetDoor final : public BlockDevice {
 public:
  // `power` may be null: it is never cut.
  SetDoor(Executor& home, std::string name, Geometry geometry, Power* power)
      : home_(home), name_(std::move(name)), geometry_(geometry), power_(power) {}

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override {
    return set_ != nullptr ? set_->health() : Health::kMissing;
  }
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

  // Borrows the set, which has this geometry and outlives every request.
  void lead_to(BlockDevice& set) noexcept { set_ = &set; }
  bool leads() const noexcept { return set_ != nullptr; }

 private:
  static Task<Completion> not_ready(Request request) {
    co_return Completion{.error = Error::kNotReady, .data = std::move(request.data)};
  }
  static Task<Result<ProvisioningRun>> unknown() { co_return std::unexpected(Error::kNotReady); }

  Executor& home_;
  std::string name_;
  Geometry geometry_;
  Power* power_;
  BlockDevice* set_ = nullptr;
};

}  // namespace sandbay::group
