// The document's figures as plots, drawn again from our runs. Pure.
#pragma once

#include <string>

#include "lab/report.h"

namespace sandbay::lab {

// Sections of <figure>s. Of the document's figures bars of what varies nothing; for each experiment
// a plot for each unit over what it varies most, with a line for each of the rest; and rates by
// transfer size. Then latency over outstanding I/Os, and IOPS over time. What was not run is left
// out, and said.
std::string to_plots(const Report& report);

}  // namespace sandbay::lab
