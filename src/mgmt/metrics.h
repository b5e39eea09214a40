// Metrics in Prometheus' text format 0.0.4: one HELP and TYPE for each name, then its samples.
#pragma once

#include <string>

#include "group/service.h"
#include "mgmt/backend.h"

namespace sandbay::mgmt {

std::string metrics_text(const group::Measurements& measurements, const TurnedAway& turned_away);

}  // namespace sandbay::mgmt
