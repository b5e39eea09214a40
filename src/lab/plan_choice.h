// What of a plan is run, and for how long: chosen on the command line. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/experiment.h"

namespace sandbay::lab {

struct PlanChoice {
  // Experiments ("r5x4, read"), rows ("r5x4, read, volumes 2") and cases of a sweep ("r5x4, read,
  // volumes 2/64KiB"); `*`, `?` and `[…]` are those of a shell. Empty: everything.
  std::vector<std::string> only;
  // In place of the file's.
  std::optional<Duration> ramp_up;
  std::optional<Duration> run_time;
  // Runs end when they are steady to a quarter of what their figures may differ, not before half of
  // their time. Rows with a figure that has no tolerance in per cent run to their end, as do those
  // of which a figure is about the whole time.
  bool until_steady = false;
};

// The names of a row's cases, as in PlanChoice: the row's own if it is no sweep.
std::vector<std::string> case_names(const Row& row);

// Takes what is not chosen out of the plan. The error is one line: a choice that chooses nothing.
std::string choose(Plan& plan, const PlanChoice& choice);

}  // namespace sandbay::lab
