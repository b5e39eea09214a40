// Names and patterns.
#include "lab/plan_choice.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "group/units.h"

namespace sandbay::lab {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return pattern == name || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::string case_name(const Row& row, std::uint64_t transfer) {
  return fmt::format("{}/{}", row.name(), group::format_size(transfer));
}

bool is_chosen(const Row& row, const std::string& pattern) {
  return matches(pattern, row.experiment) || matches(pattern, row.name());
}

// Whether the pattern has chosen some of it; `sizes` then are among those that are.
bool choose_from(const Row& row, const std::string& pattern, std::vector<std::uint64_t>& sizes) {
  if (is_chosen(row, pattern)) {
    sizes = row.sweep;
    return true;
  }
  bool some = false;
  for (const std::uint64_t transfer : row.sweep) {
    if (!matches(pattern, case_name(row, transfer))) continue;
    some = true;
    if (std::ranges::find(sizes, transfer) == sizes.end()) sizes.push_back(transfer);
  }
  return some;
}

// A quarter of the least that the row's figures may differ; 0 if it cannot be said.
double steady_percent_of(const Row& row, const FigureBook& figures) {
  double least = 0;
  for (const Wanted& wanted : row.wanted) {
    const Figure* const figure = figures.find(wanted.figure);
    const bool of_time = wanted.metric == Metric::kVariation || wanted.metric == Metric::kTrend;
    if (figure == nullptr || of_time || wanted.least) return 0;
    if (figure->tolerance_in_points || figure->tolerance <= 0) return 0;
    least = least == 0 ? figure->tolerance : std::min(least, figure->tolerance);
  }
  return least / 4;
}

}  // namespace

std::vector<std::string> case_names(const Row& row) {
  std::vector<std::string> names;
  for (const std::uint64_t transfer : row.sweep) names.push_back(case_name(row, transfer));
  if (names.empty()) names.push_back(row.name());
  return names;
}

std::string choose(Plan& plan, const PlanChoice& choice) {
  std::vector<bool> used(choice.only.size());
  std::vector<Row> rows;
  for (Row& row : plan.rows) {
    bool chosen = choice.only.empty();
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i < choice.only.size(); ++i) {
      if (!choose_from(row, choice.only[i], sizes)) continue;
      chosen = used[i] = true;
    }
    if (!chosen) continue;
    if (!choice.only.empty()) {
      std::erase_if(row.sweep, [&sizes](std::uint64_t transfer) {
        return std::ranges::find(sizes, transfer) == sizes.end();
      });
    }
    row.ramp_up = choice.ramp_up.value_or(row.ramp_up);
    row.run_time = choice.run_time.value_or(row.run_time);
    if (choice.until_steady) row.steady_percent = steady_percent_of(row, plan.figures);
    rows.push_back(std::move(row));
  }
  const auto idle = std::ranges::find(used, false);
  if (idle != used.end()) {
    const auto first = case_names(rows.empty() ? plan.rows.front() : rows.front()).front();
    return fmt::format(
        "--only \"{}\" is no experiment, row or case; one of them is \"{}\", and "
        "`sandbay lab list FILE` has them all",
        choice.only[static_cast<std::size_t>(idle - used.begin())], first);
  }
  plan.rows = std::move(rows);
  return {};
}

}  // namespace sandbay::lab
