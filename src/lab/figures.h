// Figures: what a document says that a system did, and how close an experiment came. Files of them
// are conf/lab/figures/*.toml.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/shape.h"

namespace sandbay::lab {

enum class Role : std::uint8_t {
  kFit,           // May fix a parameter.
  kHoldout,       // Judges the parameters.
  kPredicted,     // The document's value is not known here: printed without a verdict.
  kCheck,         // Follows from other figures.
  kIdentity,      // The exact sum of other figures.
  kShape,         // A quality, or a curve of which the document has a picture alone.
  kInput,         // A condition of the experiment.
  kNotPhysical,   // No such drive can do it.
  kInconsistent,  // The document contradicts itself.
};
std::string_view describe(Role role);  // "fit", "holdout", …, as in the files.

// How a figure follows from others of ours.
enum class Formula : std::uint8_t {
  kNone,  // It does not.
  kSum,   // Each times its weight.
  kMean,
  kRatio,         // The first to the second.
  kPercentOf,     // The one of a base.
  kPercentBelow,  // By how much the first is less than the second,
  kPercentAbove,  // or more. Both are judged by the ratio, if not in points.
};

struct Figure {
  std::string id;
  std::string what;
  std::string unit;
  std::optional<double> value;  // The document's.
  Role role = Role::kShape;
  // Per cent of the value; 0 with a figure that is computed: the largest of those that it is of.
  double tolerance = 0;
  bool tolerance_in_points = false;  // In the unit itself.
  Formula formula = Formula::kNone;
  std::vector<std::string> terms;  // Of the formula: figures that are measured.
  std::vector<double> weights;     // Of the terms; empty: 1 each.
  double base = 0;                 // Of kPercentOf.
  bool minimum = false;            // It passes from its value on, however far; no tolerance.
  Shape shape;                     // With role kShape.
  std::string note;                // Why it is not scored, or how.
};

struct FigureBook {
  std::string document;
  std::vector<Figure> figures;

  const Figure* find(std::string_view id) const;
};

// From others, by a formula or the rule of a shape: it is not measured.
bool is_computed(const Figure& figure);

std::expected<FigureBook, std::string> read_figures(const std::string& path);

enum class Verdict : std::uint8_t { kNone, kPass, kFail, kNotRun, kTooShort };
// "", "pass", "FAIL", "not run", "too short"
std::string_view describe(Verdict verdict);

struct Finding {
  const Figure* figure = nullptr;
  std::optional<double> ours;
  std::optional<double> difference_percent;
  double allowed = 0;                // The tolerance, also where it is that of others.
  Verdict verdict = Verdict::kNone;  // kTooShort is for who knows what was run.
};

// Every figure of the book, in its order. `measured` has ours by id.
std::vector<Finding> judge(const FigureBook& book, const std::map<std::string, double>& measured);

}  // namespace sandbay::lab
