// One run after another, and what has changed.
#include "lab/influences.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/experiment.h"

namespace sandbay::lab {
namespace {

constexpr std::array kScalings = {0.8, 1.2};
constexpr double kLeastChange = 1;  // Per cent.

std::vector<std::pair<std::string, double>> moved_figures(const PlanResult& before,
                                                          const PlanResult& after) {
  std::vector<std::pair<std::string, double>> moved;
  for (const auto& [figure, value] : after.measured) {
    const auto found = before.measured.find(figure);
    if (found == before.measured.end()) continue;
    const double change = 100 * (value / found->second - 1);
    if (std::abs(change) > kLeastChange) moved.emplace_back(figure, change);
  }
  return moved;
}

}  // namespace

std::expected<InfluenceTable, std::string> find_influences(const std::string& path,
                                                           const PlanChoice& choice,
                                                           unsigned threads,
                                                           const PlanHooks& hooks) {
  auto plan = read_experiments(path);
  if (!plan) return std::unexpected(plan.error());
  std::string wrong = choose(*plan, choice);
  if (!wrong.empty()) return std::unexpected(std::move(wrong));
  InfluenceTable table{.name = plan->name};
  const PlanResult base = run_plan(*plan, threads, hooks);
  const auto end_with = [&table](const PlanResult& result) {
    table.complete = false;
    table.wrong = result.wrong;
    return table;
  };
  // What has no value before or after cannot be told to have changed. The rest is to be seen.
  const auto note_short = [&table](const PlanResult& result) {
    const std::string rows = rows_too_short(result);
    if (rows.empty() || !table.complete) return;
    table.complete = false;
    table.wrong = rows;
  };
  if (!base.complete) return end_with(base);
  note_short(base);
  for (const Parameter& parameter : plan->system.parameters) {
    if (parameter.origin != "fitted") continue;
    for (const double factor : kScalings) {
      Influence influence{.parameter = parameter.name, .factor = factor};
      auto changed = read_experiments(path, {{parameter.name, factor}});
      influence.possible = changed && choose(*changed, choice).empty();
      if (influence.possible) {
        const PlanResult result = run_plan(*changed, threads, hooks);
        if (!result.complete) return end_with(result);
        note_short(result);
        influence.moved = moved_figures(base, result);
      }
      table.influences.push_back(std::move(influence));
    }
  }
  return table;
}

std::string to_text(const InfluenceTable& table) {
  std::string text = fmt::format("{:<38} {:>6}  figures that change by more than {:g} per cent\n",
                                 "fitted parameter", "factor", kLeastChange);
  for (const Influence& influence : table.influences) {
    std::string moved;
    for (const auto& [figure, change] : influence.moved) {
      moved += fmt::format(" {} {:+.1f}", figure, change);
    }
    if (moved.empty()) moved = influence.possible ? " none" : " cannot be so";
    text += fmt::format("{:<38} {:>6.1f} {}\n", influence.parameter, influence.factor, moved);
  }
  if (!table.complete) text += fmt::format("Not complete: {}.\n", table.wrong);
  return text;
}

std::string to_json(const InfluenceTable& table) {
  using nlohmann::json;
  json influences = json::array();
  for (const Influence& influence : table.influences) {
    json figures = json::array();
    for (const auto& [figure, change] : influence.moved) {
      figures.push_back({{"figure", figure}, {"change_pct", change}});
    }
    influences.push_back({{"parameter", influence.parameter},
                          {"factor", influence.factor},
                          {"possible", influence.possible},
                          {"figures", std::move(figures)}});
  }
  json whole = {
      {"name", table.name}, {"influences", std::move(influences)}, {"complete", table.complete}};
  if (!table.complete) whole["reason"] = table.wrong;
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace sandbay::lab
