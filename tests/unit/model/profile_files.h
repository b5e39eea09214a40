// The profiles that come with Sandbay, read from conf/drives.
#pragma once

#include <string>
#include <vector>

#include "model/drive_profile.h"

namespace sandbay::testing {

struct ProfileFile {
  model::DriveProfile profile;
  std::vector<std::string> mistakes;  // What is missing, unknown or of the wrong form.
};

// `name` without its ending, as in "seagate-cheetah-15k5-146".
ProfileFile read_profile_file(const std::string& name);
std::vector<std::string> profile_file_names();

// One that must be in order.
model::DiskProfile disk_profile(const std::string& name);
model::FlashProfile flash_profile(const std::string& name);

}  // namespace sandbay::testing
