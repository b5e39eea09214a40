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
  const bool has_tolerance = figure.tolerance > 0 || !figure.of.empty();
  if (scored(figure.role) && (!figure.value || !has_tolerance)) {
    reader.mistake("id",
                   fmt::format("\"{}\" is scored and needs a value and a tolerance", figure.id));
  }
  if (!figure.of.empty() && !(figure.base > 0)) {
    reader.mistake("percent_of", "needs a base above 0");
  }
  return figure;
}

// A figure that is computed from another one has no tolerance of its own, if none is said.
double tolerance_of(const FigureBook& book, const Figure& figure) {
  if (figure.tolerance > 0 || figure.of.empty()) return figure.tolerance;
  const Figure* other = book.find(figure.of);
  return other != nullptr ? other->tolerance : 0;
}

std::optional<double> ours_of(const Figure& figure, const std::map<std::string, double>& measured) {
  const auto found = measured.find(figure.of.empty() ? figure.id : figure.of);
  if (found == measured.end()) return std::nullopt;
  return figure.of.empty() ? found->second : 100 * found->second / figure.base;
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
    if (scored(figure.role) && !finding.ours) {
      finding.verdict = Verdict::kNotRun;
    } else if (scored(figure.role)) {
      const double allowed = tolerance_of(book, figure);
      const double off = figure.tolerance_in_points
                             ? std::abs(known(finding.ours) - known(figure.value))
                             : std::abs(finding.difference_percent.value_or(0));
      // What is exactly at the border passes.
      finding.verdict = off <= allowed * (1 + 1e-9) ? Verdict::kPass : Verdict::kFail;
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace sandbay::lab
