// Routes of reservations; see reservation_routes.cc.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> reservation_routes();

}  // namespace sandbay::mgmt
