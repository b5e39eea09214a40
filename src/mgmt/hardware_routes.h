// The routes of drives, RAID sets, faults and events.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> hardware_routes();
std::vector<Route> fault_routes();  // fault_routes.cc

}  // namespace sandbay::mgmt
