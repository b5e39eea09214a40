// The metrics of drives, RAID sets and faults.
#pragma once

#include "group/service.h"
#include "mgmt/metrics_text.h"

namespace sandbay::mgmt {

void add_hardware(Text& text, const group::Measurements& measurements);

}  // namespace sandbay::mgmt
