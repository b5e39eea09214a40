// Routes of the backup of the metadata.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> export_routes();

}  // namespace sandbay::mgmt
