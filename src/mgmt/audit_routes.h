// Routes of the audit of changes.
#pragma once

#include <vector>

#include "mgmt/route.h"

namespace sandbay::mgmt {

std::vector<Route> audit_routes();

}  // namespace sandbay::mgmt
