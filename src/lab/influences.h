// What fitted parameters do to the figures: each is made a fifth less and more, and the plan run
// again.
#pragma once

#include <expected>
#include <string>
#include <utility>
#include <vector>

#include "lab/plan_choice.h"
#include "lab/plan_run.h"

namespace sandbay::lab {

struct Influence {
  std::string parameter;
  double factor = 1;
  bool possible = true;  // There can be such a system.
  // Figures that change by more than 1 per cent, and by how many per cent.
  std::vector<std::pair<std::string, double>> moved;
};

struct InfluenceTable {
  std::string name;  // Of the plan.
  std::vector<Influence> influences;
  bool complete = true;
  std::string wrong;  // Why it is not complete; what was done is there.
};

// Runs the file's plan twice for each fitted parameter. The error is one line about the file or the
// choice.
std::expected<InfluenceTable, std::string> find_influences(const std::string& path,
                                                           const PlanChoice& choice,
                                                           unsigned threads,
                                                           const PlanHooks& hooks);

std::string to_text(const InfluenceTable& table);
// An object with `influences`, a list of {parameter, factor, possible, figures}, where a figure is
// {figure, change_pct}; and whether it is complete, or a reason.
std::string to_json(const InfluenceTable& table);

}  // namespace sandbay::lab
