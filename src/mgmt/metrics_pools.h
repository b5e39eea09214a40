// The metrics of pools and of the sets that they stand on.
#pragma once

#include <vector>

#include "group/pool_info.h"
#include "mgmt/metrics_text.h"

namespace sandbay::mgmt {

void add_pools(Text& text, const std::vector<group::PoolInfo>& pools);

}  // namespace sandbay::mgmt
