// The metrics of the controller's cache: as a whole, by volume and by RAID set.
#pragma once

#include "group/cache_info.h"
#include "mgmt/metrics_text.h"

namespace sandbay::mgmt {

void add_cache(Text& text, const group::CacheInfo& cache);

}  // namespace sandbay::mgmt
