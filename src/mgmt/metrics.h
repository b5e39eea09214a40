// Metrics in Prometheus' text format 0.0.4: one HELP and TYPE for each name, then its samples.
#pragma once

#include <string>

#include "group/service.h"

namespace sandbay::mgmt {

std::string metrics_text(const group::Measurements& measurements);

}  // namespace sandbay::mgmt
