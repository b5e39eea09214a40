// The routes of members.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> member_routes();

}  // namespace sandbay::mgmt
