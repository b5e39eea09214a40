// Reports of a plan's results: a table for people, JSON, CSV, and a page with plots.
#pragma once

#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/figures.h"
#include "lab/plan_run.h"

namespace sandbay::lab {

struct Report {
  const Plan& plan;
  const PlanResult& result;
  std::vector<Finding> findings;
  // Why not every row has all of its figures, in one line: it was not run, or for too short a time.
  std::string partial;
};
// Borrows both.
Report make_report(const Plan& plan, const PlanResult& result);

// Leaves the figures of the plan's rows, also of those that were not run, and what is computed from
// them.
void keep_chosen(Report& report);

// The first figure that was to be judged and was not measured, in a line; empty if all were. Of a
// run to its end: no experiment has it.
std::string figures_not_measured(const Report& report);

// "Virtual time, time scale 1, seed 1"
std::string how_it_was_run(const Report& report);
// "+1.2 %", or "-3.6 pt" where the tolerance is in points.
std::string describe_difference(const Finding& finding);
// "3 %", ">= 0.9", "at least", or "-".
std::string describe_tolerance(const Finding& finding);

// Where the time of a run's requests went, in per cent of it, and what the drives' mechanisms did,
// of theirs.
struct TimeShares {
  double host = 0;
  double port = 0;
  double controller = 0;
  double storage = 0;  // Cache, RAID and drives.
  double seeking = 0;
  double rotating = 0;
  double transferring = 0;
  double idle = 0;
};
TimeShares time_shares(const CaseResult& result);
// Of a target elsewhere nobody knows that, nor its parameters.
bool knows_system(const Report& report);

inline constexpr std::size_t kLeastColumns = 60;
// What notes and sources are broken at: what COLUMNS says (null: it is not set), else the
// terminal's columns (0: there is none), but no less than kLeastColumns. 0: they are not broken.
std::size_t text_columns(const char* variable, std::size_t of_terminal);
// Notes and sources are broken at so many columns; 0: they are not.
std::string to_text(const Report& report, std::size_t columns = 0);
// An object with `figures`, a list of {figure, value, unit, document, difference_pct,
// tolerance_pct, verdict, role}; `rows`, a list of {row, runs}, where a run has its iops,
// mib_per_s, mean_ms, layers_pct and drives_pct; and seed, time_scale, virtual_seconds,
// real_seconds. If it was live, a figure has the time_scale as well. What is not complete has a
// reason.
std::string to_json(const Report& report);
std::string to_csv(const Report& report);
// A page that needs nothing else and is well-formed as XML, too.
std::string to_html(const Report& report);
// For the page of a plan of any name: of letters, digits, '-', '_' and '.', not hidden.
std::string page_file_name(const std::string& plan_name);

}  // namespace sandbay::lab
