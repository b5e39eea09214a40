// Reports of a plan's results: a table for people, JSON, CSV, and a page with plots.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "lab/experiment.h"
#include "lab/figures.h"
#include "lab/plan_choice.h"
#include "lab/plan_run.h"

namespace sandbay::lab {

struct Report {
  const Plan& plan;
  const PlanResult& result;
  std::vector<Finding> findings;
};
// Borrows both.
Report make_report(const Plan& plan, const PlanResult& result);

// "Virtual time, time scale 1, seed 1"
std::string how_it_was_run(const Report& report);
std::string to_text(const Report& report);
// An object with `figures`, a list of {figure, value, unit, document, difference_pct,
// tolerance_pct, verdict, role}, and seed, time_scale, virtual_seconds, real_seconds. If it was
// live, a figure has the time_scale as well.
std::string to_json(const Report& report);
std::string to_csv(const Report& report);
std::string to_html(const Report& report);

// What 20 per cent more and less of each fitted parameter do to the figures, as a table. Runs the
// file's plan twice for each; the error is one line.
std::expected<std::string, std::string> influences(const std::string& path,
                                                   const PlanChoice& choice, unsigned threads,
                                                   const PlanHooks& hooks);

}  // namespace sandbay::lab
