// BoundedDevice: a drive as the controller looks at it outside of any set: nothing asked of it
// takes longer than the drive's timeout, whatever the device does. See Drive for what that means
// for memory; destroyed when it is idle().
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "raid/drive.h"

namespace sandbay::raid {

class BoundedDevice final : public BlockDevice {
 public:
  BoundedDevice(BlockDevice& device, std::string name, DrivePolicy policy)
      : drive_(device, std::move(name), policy), timeout_(policy.timeout) {}

  Executor& home() const noexcept override { return drive_.device().home(); }
  const Geometry& geometry() const noexcept override { return drive_.geometry(); }
  Health health() const noexcept override { return drive_.device().health(); }
  std::string description() const override { return drive_.device().description(); }
  Task<Completion> submit(Request request) override {
    return drive_.submit_metadata(std::move(request));
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  bool idle() const noexcept { return drive_.idle() && queries_ == 0; }

 private:
  struct Query;
  static constexpr int kSteps = 8;
  static Task<void> ask(BoundedDevice* self, std::shared_ptr<Query> query, Lba first, Lba limit);

  Drive drive_;
  Duration timeout_;
  std::size_t queries_ = 0;  // In the device.
};

}  // namespace sandbay::raid
