// The routes of drives, RAID sets, faults and events.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> hardware_routes();

}  // namespace sandbay::mgmt
