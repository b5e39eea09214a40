// The routes of snapshots and clones.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> snapshot_routes();

}  // namespace sandbay::mgmt
