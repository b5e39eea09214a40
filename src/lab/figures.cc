// Reads figures and judges ours by them.
#include "lab/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "group/document.h"
#include "group/drive_file.h"
#include "runtime/known.h"

namespace sandbay::lab {
namespace {

using group::Value;

constexpr std::array<std::pair<Role, std::string_view>, 9> kRoles = {
    {{Role::kFit, "fit"},
     {Role::kHoldout, "holdout"},
     {Role::kPredicted, "predicted"},
     {Role::kCheck, "check"},
     {Role::kIdentity, "identity"},
     {Role::kShape, "shape"},
     {Role::kInput, "input"},
     {Role::kNotPhysical, "not-physical"},
     {Role::kInconsistent, "inconsistent"}}};

constexpr std::array<std::pair<Formula, std::string_view>, 6> kFormulas = {
    {{Formula::kSum, "sum_of"},
     {Formula::kMean, "mean_of"},
     {Formula::kRatio, "ratio_of"},
     {Formula::kPercentOf, "percent_of"},
     {Formula::kPercentBelow, "percent_below"},
     {Formula::kPercentAbove, "percent_above"}}};

bool has_verdict(Role role) {
  return role == Role::kFit || role == Role::kHoldout || role == Role::kCheck ||
         role == Role::kIdentity;
}

// Not a number that is infinite or none, as TOML has them too.
std::optional<double> number_of(const Value& value) {
  if (value.kind == Value::Kind::kInteger) return static_cast<double>(value.integer);
  if (value.kind == Value::Kind::kFloat && std::isfinite(value.number)) return value.number;
  return std::nullopt;
}

std::optional<double> number(group::TableReader& reader, std::string_view key) {
  const Value* value = reader.any(key);
  if (value == nullptr) return std::nullopt;
  auto found = number_of(*value);
  if (!found) reader.mistake(key, "is no number");
  return found;
}

// How many figures a formula takes; 0: any number from 1 on.
std::size_t terms_of(Formula formula) {
  switch (formula) {
    case Formula::kPercentOf:
      return 1;
    case Formula::kRatio:
    case Formula::kPercentBelow:
    case Formula::kPercentAbove:
      return 2;
    case Formula::kNone:
    case Formula::kSum:
    case Formula::kMean:
      break;
  }
  return 0;
}

void read_weights(group::TableReader& reader, Figure& figure) {
  const Value* weights = reader.any("weights");
  if (weights == nullptr) return;
  for (const Value& each : weights->elements) {
    if (const auto weight = number_of(each)) figure.weights.push_back(*weight);
  }
  if (weights->elements.size() != figure.weights.size() || figure.formula != Formula::kSum ||
      figure.weights.size() != figure.terms.size()) {
    reader.mistake("weights", "are numbers, one for each figure of a sum_of");
  }
}

void read_formula(group::TableReader& reader, Figure& figure) {
  for (const auto& [formula, key] : kFormulas) {
    auto terms = reader.strings(key);
    if (!terms) continue;
    if (figure.formula != Formula::kNone) {
      reader.mistake(key, "stands beside another formula; one of them is accepted");
    }
    figure.formula = formula;
    figure.terms = std::move(*terms);
    const std::size_t needed = terms_of(formula);
    if (figure.terms.empty() || (needed > 0 && figure.terms.size() != needed)) {
      reader.mistake(key, needed == 2 ? "needs two figures" : "needs a figure");
    }
  }
  read_weights(reader, figure);
  figure.base = number(reader, "base").value_or(0);
  if (figure.formula == Formula::kPercentOf && !(figure.base > 0)) {
    reader.mistake("percent_of", "needs a base above 0");
  }
  if (figure.formula != Formula::kPercentOf && reader.has("base")) {
    reader.mistake("base", "goes with percent_of alone");
  }
}

void read_shape(group::TableReader& reader, Figure& figure) {
  Shape& shape = figure.shape;
  const std::string rule = reader.string("rule").value_or("");
  shape.figures = reader.strings("figures").value_or(std::vector<std::string>{});
  shape.at_least = number(reader, "at_least");
  shape.at_most = number(reader, "at_most");
  shape.limit = number(reader, "limit");
  if (!reader.has("rule")) {
    for (const char* key : {"figures", "at_least", "at_most", "limit"}) {
      if (reader.has(key)) reader.mistake(key, "goes with a rule, and there is none");
    }
    return;
  }
  const auto parsed = parse_rule(rule);
  if (!parsed) {
    return reader.mistake(
        "rule", fmt::format("is \"{}\"; accepted are near-linear, rising and within", rule));
  }
  shape.rule = *parsed;
  const std::string wrong = shape_error(shape);
  if (!wrong.empty()) reader.mistake("rule", wrong);
  if (figure.role != Role::kShape) reader.mistake("rule", "goes with role \"shape\" alone");
  if (figure.formula != Formula::kNone) reader.mistake("rule", "stands beside a formula");
}

Figure read_figure(const Value& table, group::Mistakes& mistakes) {
  group::TableReader reader(table, "figure", mistakes);
  Figure figure;
  figure.id = reader.string("id").value_or("");
  figure.what = reader.string("what").value_or("");
  figure.unit = reader.string("unit").value_or("");
  figure.value = number(reader, "value");
  const std::string role = reader.string("role").value_or("");
  const auto tolerance = number(reader, "tolerance_percent");
  const auto points = number(reader, "tolerance_points");
  read_formula(reader, figure);
  figure.minimum = reader.boolean("minimum").value_or(false);
  figure.note = reader.string("note").value_or("");
  reader.require("id", "a name for the figure");
  reader.require("role", "a role, such as \"holdout\"");
  const auto known = std::ranges::find(kRoles, role, &std::pair<Role, std::string_view>::second);
  if (known != kRoles.end()) {
    figure.role = known->first;
  } else if (reader.has("role")) {
    std::string accepted;
    for (const auto& [each, word] : kRoles) accepted += fmt::format(" {}", word);
    reader.mistake("role", fmt::format("is \"{}\"; accepted are{}", role, accepted));
  }
  read_shape(reader, figure);
  reader.finish();
  figure.tolerance = tolerance.value_or(points.value_or(0));
  figure.tolerance_in_points = points.has_value();
  if (tolerance && points) {
    reader.mistake("tolerance_points", "stands beside tolerance_percent; one of them is accepted");
  }
  for (const char* key : {"tolerance_percent", "tolerance_points"}) {
    if (!reader.has(key)) continue;
    if (!(figure.tolerance > 0)) reader.mistake(key, "is no number above 0");
    if (figure.minimum) reader.mistake(key, "stands beside minimum, which takes none");
  }
  const bool has_tolerance = reader.has("tolerance_percent") || reader.has("tolerance_points") ||
                             figure.minimum || figure.formula != Formula::kNone;
  if (has_verdict(figure.role) && (!reader.has("value") || !has_tolerance)) {
    reader.mistake("id",
                   fmt::format("\"{}\" is scored and needs a value and a tolerance", figure.id));
  }
  return figure;
}

// A figure that is computed has the tolerance of those that it is of, if none is said.
double tolerance_of(const FigureBook& book, const Figure& figure) {
  if (figure.tolerance > 0 || figure.minimum) return figure.tolerance;
  double largest = 0;
  const auto add = [&](const std::string& id) {
    const Figure* other = book.find(id);
    if (other != nullptr) largest = std::max(largest, other->tolerance);
  };
  std::ranges::for_each(figure.terms, add);
  return largest;
}

double result_of(const Figure& figure, const std::vector<double>& terms) {
  double sum = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    sum += terms[i] * (figure.weights.empty() ? 1 : figure.weights[i]);
  }
  switch (figure.formula) {
    case Formula::kRatio:
      return terms[0] / terms[1];
    case Formula::kPercentOf:
      return 100 * terms[0] / figure.base;
    case Formula::kPercentBelow:
      return 100 * (1 - terms[0] / terms[1]);
    case Formula::kPercentAbove:
      return 100 * (terms[0] / terms[1] - 1);
    case Formula::kMean:
      return sum / static_cast<double>(terms.size());
    case Formula::kNone:
    case Formula::kSum:
      break;
  }
  return sum;
}

std::optional<double> ours_of(const Figure& figure, const std::map<std::string, double>& measured) {
  const auto find = [&](const std::string& id) -> std::optional<double> {
    const auto found = measured.find(id);
    return found == measured.end() ? std::nullopt : std::optional(found->second);
  };
  if (figure.shape.rule != Rule::kNone) return measure_shape(figure.shape, figure.id, measured);
  if (figure.formula == Formula::kNone) return find(figure.id);
  std::vector<double> terms;
  for (const std::string& id : figure.terms) {
    const auto term = find(id);
    if (!term) return std::nullopt;
    terms.push_back(*term);
  }
  return result_of(figure, terms);
}

// In what its tolerance is in.
double distance(const Figure& figure, double ours) {
  const double value = known(figure.value);
  if (figure.minimum) return ours >= value ? 0 : INFINITY;
  if (figure.tolerance_in_points) return std::abs(ours - value);
  if (figure.formula == Formula::kPercentBelow) {
    return 100 * std::abs((100 - ours) / (100 - value) - 1);
  }
  if (figure.formula == Formula::kPercentAbove) {
    return 100 * std::abs((100 + ours) / (100 + value) - 1);
  }
  return 100 * std::abs(ours / value - 1);
}

// What a figure is computed from stands in the book, and is measured.
void check_references(const FigureBook& book, group::Mistakes& mistakes,
                      const std::vector<std::uint32_t>& lines) {
  for (std::size_t i = 0; i < book.figures.size(); ++i) {
    const Figure& figure = book.figures[i];
    std::vector<std::string> names = figure.terms;
    names.insert(names.end(), figure.shape.figures.begin(), figure.shape.figures.end());
    for (const std::string& name : names) {
      const Figure* const term = book.find(name);
      if (term != nullptr && !is_computed(*term)) continue;
      mistakes.add(
          lines[i], "figure.id",
          fmt::format("\"{}\" is computed from \"{}\", which {}", figure.id, name,
                      term == nullptr ? "is not here"
                                      : "is computed itself; one that is measured is accepted"));
    }
  }
}

// By value and tolerance, or a shape with a rule.
bool scored(const Figure& figure) {
  return has_verdict(figure.role) || figure.shape.rule != Rule::kNone;
}

}  // namespace

std::string_view describe(Role role) {
  return std::ranges::find(kRoles, role, &std::pair<Role, std::string_view>::first)->second;
}

std::string_view describe(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNone:
      return "";
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kNotRun:
      return "not run";
    case Verdict::kTooShort:
      return "too short";
  }
  return "";
}

bool is_computed(const Figure& figure) {
  return figure.formula != Formula::kNone ||
         (figure.shape.rule != Rule::kNone && figure.shape.rule != Rule::kWithin);
}

const Figure* FigureBook::find(std::string_view id) const {
  const auto found = std::ranges::find(figures, id, &Figure::id);
  return found == figures.end() ? nullptr : &*found;
}

std::expected<FigureBook, std::string> read_figures(const std::string& path) {
  const auto text = group::read_text_file(path);
  if (!text) return std::unexpected(text.error());
  const auto root = group::read_toml(*text, path);
  if (!root) return std::unexpected(root.error());
  group::Mistakes mistakes(path);
  group::TableReader reader(*root, "", mistakes);
  FigureBook book;
  book.document = reader.string("document").value_or("");
  reader.require("document", "the name of the document");
  std::set<std::string> ids;
  std::vector<std::uint32_t> lines;
  for (const Value* table : reader.tables("figure")) {
    book.figures.push_back(read_figure(*table, mistakes));
    lines.push_back(table->line);
    if (!ids.insert(book.figures.back().id).second) {
      mistakes.add(table->line, "figure.id",
                   fmt::format("\"{}\" is there already", book.figures.back().id));
    }
  }
  reader.finish();
  if (mistakes.empty()) check_references(book, mistakes, lines);
  if (!mistakes.empty()) return std::unexpected(mistakes.sorted().front());
  return book;
}

std::vector<Finding> judge(const FigureBook& book, const std::map<std::string, double>& measured) {
  std::vector<Finding> findings;
  for (const Figure& figure : book.figures) {
    Finding finding{.figure = &figure, .ours = ours_of(figure, measured)};
    if (finding.ours && figure.value && *figure.value != 0) {
      finding.difference_percent = 100 * (*finding.ours / *figure.value - 1);
    }
    finding.allowed = tolerance_of(book, figure);
    if (scored(figure) && !finding.ours) {
      finding.verdict = Verdict::kNotRun;
    } else if (figure.shape.rule != Rule::kNone) {
      const bool good = holds(figure.shape, known(finding.ours));
      finding.verdict = good ? Verdict::kPass : Verdict::kFail;
    } else if (scored(figure)) {
      // What is exactly at the border passes.
      const bool good = distance(figure, known(finding.ours)) <= finding.allowed * (1 + 1e-9);
      finding.verdict = good ? Verdict::kPass : Verdict::kFail;
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace sandbay::lab
