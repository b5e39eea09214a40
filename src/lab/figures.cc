// Reads figures and judges ours by them.
#include "lab/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "group/document.h"
#include "lab/drive_file.h"
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

constexpr std::array<std::pair<Formula, std::string_view>, 4> kFormulas = {
    {{Formula::kSum, "sum_of"},
     {Formula::kMean, "mean_of"},
     {Formula::kRatio, "ratio_of"},
     {Formula::kPercentBelow, "percent_below"}}};

bool scored(Role role) {
  return role == Role::kFit || role == Role::kHoldout || role == Role::kCheck ||
         role == Role::kIdentity;
}

std::optional<double> number(group::TableReader& reader, std::string_view key) {
  const Value* value = reader.any(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::kInteger) return static_cast<double>(value->integer);
  if (value->kind == Value::Kind::kFloat) return value->number;
  reader.mistake(key, "is no number");
  return std::nullopt;
}

void read_formula(group::TableReader& reader, Figure& figure) {
  for (const auto& [formula, key] : kFormulas) {
    auto terms = reader.strings(key);
    if (!terms) continue;
    if (figure.formula != Formula::kNone || !figure.of.empty()) {
      reader.mistake(key, "stands beside another formula; one of them is accepted");
    }
    figure.formula = formula;
    figure.terms = std::move(*terms);
    const bool of_two = formula == Formula::kRatio || formula == Formula::kPercentBelow;
    if (figure.terms.empty() || (of_two && figure.terms.size() != 2)) {
      reader.mistake(key, of_two ? "needs two figures" : "needs a figure");
    }
  }
  const Value* weights = reader.any("weights");
  if (weights == nullptr) return;
  for (const Value& each : weights->elements) {
    figure.weights.push_back(each.kind == Value::Kind::kInteger ? static_cast<double>(each.integer)
                                                                : each.number);
  }
  if (figure.formula != Formula::kSum || figure.weights.size() != figure.terms.size()) {
    reader.mistake("weights", "are numbers, one for each figure of a sum_of");
  }
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
  figure.of = reader.string("percent_of").value_or("");
  figure.base = number(reader, "base").value_or(0);
  read_formula(reader, figure);
  figure.minimum = reader.boolean("minimum").value_or(false);
  figure.note = reader.string("note").value_or("");
  reader.require("id", "a figure needs a name");
  reader.require("role", "a figure needs a role");
  reader.finish();
  const auto known = std::ranges::find(kRoles, role, &std::pair<Role, std::string_view>::second);
  if (known != kRoles.end()) {
    figure.role = known->first;
  } else if (reader.has("role")) {
    std::string accepted;
    for (const auto& [each, word] : kRoles) accepted += fmt::format(" {}", word);
    reader.mistake("role", fmt::format("is \"{}\"; accepted are{}", role, accepted));
  }
  figure.tolerance = tolerance.value_or(points.value_or(0));
  figure.tolerance_in_points = points.has_value();
  if (tolerance && points) {
    reader.mistake("tolerance_points", "stands beside tolerance_percent; one of them is accepted");
  }
  const bool has_tolerance = figure.tolerance > 0 || !figure.of.empty() || figure.minimum ||
                             figure.formula != Formula::kNone;
  if (scored(figure.role) && (!figure.value || !has_tolerance)) {
    reader.mistake("id",
                   fmt::format("\"{}\" is scored and needs a value and a tolerance", figure.id));
  }
  if (!figure.of.empty() && !(figure.base > 0)) {
    reader.mistake("percent_of", "needs a base above 0");
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
  if (!figure.of.empty()) add(figure.of);
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
    case Formula::kPercentBelow:
      return 100 * (1 - terms[0] / terms[1]);
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
  if (!figure.of.empty()) {
    const auto other = find(figure.of);
    return other ? std::optional(100 * *other / figure.base) : std::nullopt;
  }
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
  return 100 * std::abs(ours / value - 1);
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
  }
  return "";
}

const Figure* FigureBook::find(std::string_view id) const {
  const auto found = std::ranges::find(figures, id, &Figure::id);
  return found == figures.end() ? nullptr : &*found;
}

std::expected<FigureBook, std::string> read_figures(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text) return std::unexpected(text.error());
  const auto root = group::read_toml(*text, path);
  if (!root) return std::unexpected(root.error());
  group::Mistakes mistakes(path);
  group::TableReader reader(*root, "", mistakes);
  FigureBook book;
  book.document = reader.string("document").value_or("");
  reader.require("document", "the name of the document is needed");
  std::set<std::string> ids;
  for (const Value* table : reader.tables("figure")) {
    book.figures.push_back(read_figure(*table, mistakes));
    if (!ids.insert(book.figures.back().id).second) {
      mistakes.add(table->line, "figure.id",
                   fmt::format("\"{}\" is there already", book.figures.back().id));
    }
  }
  reader.finish();
  for (const Figure& figure : book.figures) {
    for (const std::string& id : figure.terms) {
      if (book.find(id) != nullptr) continue;
      mistakes.add(1, "figure",
                   fmt::format("\"{}\" is computed from \"{}\", which is not here", figure.id, id));
    }
  }
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
    if (scored(figure.role) && !finding.ours) {
      finding.verdict = Verdict::kNotRun;
    } else if (scored(figure.role)) {
      // What is exactly at the border passes.
      const bool good = distance(figure, known(finding.ours)) <= finding.allowed * (1 + 1e-9);
      finding.verdict = good ? Verdict::kPass : Verdict::kFail;
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace sandbay::lab
