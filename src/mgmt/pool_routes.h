// The routes of pools.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> pool_routes();

}  // namespace sandbay::mgmt
