// Runs the cases of a plan, several side by side, each on a thread of its own in a world of its
// own.
#pragma once

#include <atomic>
#include <expected>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/virtual_run.h"

namespace sandbay::lab {

struct RowResult {
  const Row* row = nullptr;
  std::vector<CaseResult> cases;  // One for each size of the sweep, or the only one.
  std::size_t best = 0;           // The case with the most bytes.
  // Why some of its figures have no value though it was run, in half a line: it was for too short a
  // time. Empty: all have one.
  std::string too_short;

  // What the figure's is: the best of the sweep; of latencies the best one's.
  double value(const Wanted& wanted) const;
};

struct PlanResult {
  std::vector<RowResult> rows;             // Those that were run to their end, in the plan's order.
  std::map<std::string, double> measured;  // By figure.
  std::uint64_t simulated_requests = 0;
  double virtual_seconds = 0;    // Of all cases, one after another.
  double processor_seconds = 0;  // That they took.
  double real_seconds = 0;
  // Over sockets: where to, without passwords, empty for a system of the lab; and the real seconds
  // in one of the models'.
  bool live = false;
  std::vector<std::string> targets;
  double time_scale = 1;
  bool complete = true;
  std::string wrong;  // Why it is not complete: one line that names the first row of those.
};

using RunCase =
    std::function<std::expected<CaseResult, std::string>(const ArrayProfile& system, Case what)>;

struct PlanHooks {
  // After each case: how many are done, of how many. Called on any thread, never at once.
  std::function<void(std::size_t done, std::size_t all)> progress;
  const std::atomic<bool>* stop = nullptr;  // Set: cases end, and what is there is the result.
  RunCase run;  // A case in another way than run_case() does; on any thread. Empty: that.
};

// The first row that was run for too short a time, why, and how many others there are. Empty if
// there is none.
std::string rows_too_short(const PlanResult& result);

// `threads` is positive. Borrows the plan as long as the result is used.
PlanResult run_plan(const Plan& plan, unsigned threads, const PlanHooks& hooks);

}  // namespace sandbay::lab
