// The document's figures as plots, drawn again from our runs. Pure.
#pragma once

#include <string>

#include "lab/report.h"

namespace sandbay::lab {

// One <figure> after another: for each experiment a plot for each unit of its figures over what it
// varies most, with a line for each of the rest; rates by transfer size, and IOPS over time; then
// bars of what varies nothing, and latency over outstanding I/Os.
std::string to_plots(const Report& report);

}  // namespace sandbay::lab
