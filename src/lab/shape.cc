// Ratios of figures and their bounds.
#include "lab/shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/known.h"

namespace sandbay::lab {
namespace {

constexpr std::array<std::pair<Rule, std::string_view>, 3> kRules = {
    {{Rule::kNearLinear, "near-linear"}, {Rule::kRising, "rising"}, {Rule::kWithin, "within"}}};

// How far out: 0 or less within the bounds.
double excess(const Shape& shape, double ratio) {
  const double below = shape.at_least ? *shape.at_least - ratio : -1;
  const double above = shape.at_most ? ratio - *shape.at_most : -1;
  return std::max(below, above);
}

}  // namespace

std::optional<Rule> parse_rule(std::string_view word) {
  const auto found = std::ranges::find(kRules, word, &std::pair<Rule, std::string_view>::second);
  if (found == kRules.end()) return std::nullopt;
  return found->first;
}

std::string shape_error(const Shape& shape) {
  if (shape.rule == Rule::kNone) return {};
  if (!shape.at_least && !shape.at_most) return "needs at_least or at_most";
  if (shape.at_least && shape.at_most && *shape.at_least > *shape.at_most) {
    return "has an at_least above its at_most";
  }
  // What is measured may fall below 0, as a trend does; what it has grown by cannot.
  const auto never = [](const std::optional<double>& bound) { return bound && !(*bound > 0); };
  if (shape.rule != Rule::kWithin && (never(shape.at_least) || never(shape.at_most))) {
    return "has ratios for its bounds, which are above 0";
  }
  if (shape.rule == Rule::kWithin && !shape.figures.empty()) {
    return "is about the figure itself and takes no figures";
  }
  if (shape.rule != Rule::kWithin && shape.figures.size() < 2) {
    return "needs two figures or more";
  }
  if (shape.rule != Rule::kNearLinear && shape.limit) return "takes no limit";
  if (shape.limit && !(*shape.limit > 0)) return "has a limit that is no number above 0";
  return {};
}

std::string describe_bounds(const Shape& shape) {
  if (!shape.at_most) return fmt::format(">= {:g}", known(shape.at_least));
  if (!shape.at_least) return fmt::format("<= {:g}", known(shape.at_most));
  return fmt::format("{:g} to {:g}", known(shape.at_least), known(shape.at_most));
}

std::optional<double> measure_shape(const Shape& shape, const std::string& id,
                                    const std::map<std::string, double>& measured) {
  const auto ours = [&](const std::string& name) -> std::optional<double> {
    const auto found = measured.find(name);
    if (found == measured.end()) return std::nullopt;
    return found->second;
  };
  if (shape.rule == Rule::kWithin) return ours(id);
  std::vector<double> values;
  for (const std::string& name : shape.figures) {
    const auto value = ours(name);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  std::optional<double> worst;
  for (std::size_t i = 1; i < values.size(); ++i) {
    double expected = values[i - 1];
    if (shape.rule == Rule::kNearLinear) {
      expected = values.front() * static_cast<double>(i + 1);
      if (shape.limit) expected = std::min(expected, *shape.limit);
    }
    if (!(expected > 0)) return std::nullopt;
    const double ratio = values[i] / expected;
    const double out = excess(shape, ratio);
    const double before = worst ? excess(shape, *worst) : 0;
    const bool farther = out > 0 ? out > before : before <= 0 && ratio < worst.value_or(ratio + 1);
    if (!worst || farther) worst = ratio;
  }
  return worst;
}

bool holds(const Shape& shape, double ratio) { return excess(shape, ratio) <= 0; }

}  // namespace sandbay::lab
