// BoundedDevice: a drive as the controller looks at it outside of any set: nothing asked of it
// takes longer than the drive's timeout, whatever the device does. See Drive for what that means
// for memory; destroyed when it is idle().
#pragma once

#include <string>
#include <utility>

#include "raid/drive.h"

namespace sandbay::raid {

class BoundedDevice final : public BlockDevice {
 public:
  BoundedDevice(BlockDevice& device, std::string name, DrivePolicy policy)
      : drive_(device, std::move(name), policy) {}

  Executor& home() const noexcept override { return drive_.device().home(); }
  const Geometry& geometry() const noexcept override { return drive_.geometry(); }
  Health health() const noexcept override { return drive_.device().health(); }
  std::string description() const override { return drive_.device().description(); }
  Task<Completion> submit(Request request) override {
    return drive_.submit_metadata(std::move(request));
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return drive_.provisioning(first, limit);
  }

  bool idle() const noexcept { return drive_.idle(); }

 private:
  Drive drive_;
};

}  // namespace sandbay::raid
