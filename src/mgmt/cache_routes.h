// The routes of the controller's cache.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> cache_routes();

}  // namespace sandbay::mgmt
