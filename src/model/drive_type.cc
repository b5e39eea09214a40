// The one place that knows which model belongs to which kind of profile.
#include "model/drive_type.h"

#include <utility>
#include <variant>

#include "model/flash_model.h"

namespace sandbay::model {

DriveType::DriveType(DriveProfile profile) : profile_(std::move(profile)) {
  const auto* const disk = std::get_if<DiskProfile>(&profile_.timing);
  if (disk != nullptr) mechanism_ = std::make_shared<const DiskMechanism>(*disk);
}

std::unique_ptr<DriveModel> DriveType::make(DiskOptions options) const {
  if (mechanism_ != nullptr) return std::make_unique<DiskModel>(mechanism_, options);
  return std::make_unique<FlashModel>(std::get<FlashProfile>(profile_.timing));
}

}  // namespace sandbay::model
