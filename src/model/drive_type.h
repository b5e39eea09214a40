// DriveType: a profile made ready, from which any number of drives are made. What they share, the
// layout and the seek curves of disks, is computed once.
#pragma once

#include <memory>
#include <string>

#include "model/disk_model.h"
#include "model/drive_model.h"
#include "model/drive_profile.h"

namespace sandbay::model {

class DriveType {
 public:
  explicit DriveType(DriveProfile profile);  // profile_error() found nothing.

  // Options that a solid-state drive has no use for (it has no background load) do nothing there.
  std::unique_ptr<DriveModel> make(DiskOptions options) const;

  const DriveProfile& profile() const noexcept { return profile_; }

 private:
  DriveProfile profile_;
  std::shared_ptr<const DiskMechanism> mechanism_;  // Of disks only.
};

}  // namespace sandbay::model
