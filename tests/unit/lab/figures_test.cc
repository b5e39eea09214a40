// How ours are judged by a document's figures.
#include "lab/figures.h"

#include <catch2/catch.hpp>

namespace sandbay::lab {
namespace {

FigureBook book() {
  return {.document = "a paper",
          .figures = {{.id = "fit", .value = 100, .role = Role::kFit, .tolerance = 5},
                      {.id = "unknown", .role = Role::kPredicted, .tolerance = 5},
                      {.id = "share",
                       .value = 95,
                       .role = Role::kCheck,
                       .tolerance = 2,
                       .tolerance_in_points = true,
                       .formula = Formula::kPercentOf,
                       .terms = {"fit"},
                       .base = 110},
                      {.id = "contradiction", .value = 16, .role = Role::kInconsistent}}};
}

}  // namespace

TEST_CASE("A figure passes up to its tolerance, and no further", "[lab][figures]") {
  CHECK(judge(book(), {{"fit", 105.0}})[0].verdict == Verdict::kPass);
  CHECK(judge(book(), {{"fit", 95.1}})[0].verdict == Verdict::kPass);
  const auto findings = judge(book(), {{"fit", 105.2}});
  CHECK(findings[0].verdict == Verdict::kFail);
  CHECK(findings[0].difference_percent == Approx(5.2));
}

TEST_CASE("A check is computed from the figure that it is of, in points", "[lab][figures]") {
  const auto good = judge(book(), {{"fit", 104.0}});
  CHECK(good[2].ours == Approx(94.545).epsilon(0.001));
  CHECK(good[2].verdict == Verdict::kPass);
  CHECK(judge(book(), {{"fit", 107.0}})[2].verdict == Verdict::kFail);
}

TEST_CASE("Formulas compute figures from others, with the largest tolerance of those",
          "[lab][figures]") {
  const auto check = [](Formula formula, double value, std::vector<double> weights = {}) {
    const FigureBook book{.document = "a paper",
                          .figures = {{.id = "w", .value = 81, .role = Role::kFit, .tolerance = 5},
                                      {.id = "r", .role = Role::kPredicted, .tolerance = 4},
                                      {.id = "f",
                                       .value = value,
                                       .role = Role::kCheck,
                                       .formula = formula,
                                       .terms = {"w", "r"},
                                       .weights = std::move(weights)}}};
    return judge(book, {{"w", 80.0}, {"r", 100.0}})[2];
  };
  CHECK(check(Formula::kSum, 180).ours == 180.0);
  CHECK(check(Formula::kSum, 260, {2, 1}).ours == 260.0);
  CHECK(check(Formula::kMean, 90).ours == 90.0);
  CHECK(check(Formula::kRatio, 0.8).ours == Approx(0.8));
  CHECK(check(Formula::kMean, 90).allowed == 5);
  CHECK(check(Formula::kMean, 85.8).verdict == Verdict::kPass);
  CHECK(check(Formula::kMean, 85.6).verdict == Verdict::kFail);
  // 20 per cent below: of 16 to 23.8 a ratio of 0.84 to 0.762.
  CHECK(check(Formula::kPercentBelow, 16.1).ours == Approx(20.0));
  CHECK(check(Formula::kPercentBelow, 16.1).verdict == Verdict::kPass);
  CHECK(check(Formula::kPercentBelow, 15.7).verdict == Verdict::kFail);
  CHECK(check(Formula::kPercentAbove, -16.1).ours == Approx(-20.0));
  CHECK(check(Formula::kPercentAbove, -16.1).verdict == Verdict::kPass);
  CHECK(check(Formula::kPercentAbove, -15.7).verdict == Verdict::kFail);
}

TEST_CASE("A formula waits for all of its terms, and a minimum is passed from its value on",
          "[lab][figures]") {
  const FigureBook book{
      .document = "a paper",
      .figures = {{.id = "least", .value = 300, .role = Role::kHoldout, .minimum = true},
                  {.id = "ratio",
                   .value = 2,
                   .role = Role::kHoldout,
                   .tolerance = 4,
                   .formula = Formula::kRatio,
                   .terms = {"two", "one"}}}};
  const auto findings = judge(book, {{"least", 900.0}, {"two", 2.0}});
  CHECK(findings[0].verdict == Verdict::kPass);
  CHECK(findings[1].verdict == Verdict::kNotRun);
  CHECK(judge(book, {{"least", 299.9}})[0].verdict == Verdict::kFail);
}

TEST_CASE("A gain is computed from two figures, and not run without either", "[lab][figures]") {
  const FigureBook gain{.document = "a paper",
                        .figures = {{.id = "gain",
                                     .value = 8,
                                     .role = Role::kCheck,
                                     .tolerance = 5,
                                     .tolerance_in_points = true,
                                     .formula = Formula::kPercentAbove,
                                     .terms = {"alone", "loaded"}}}};
  const auto findings = judge(gain, {{"alone", 110.0}, {"loaded", 100.0}});
  CHECK(findings[0].ours == Approx(10));
  CHECK(findings[0].verdict == Verdict::kPass);
  CHECK(judge(gain, {{"alone", 120.0}, {"loaded", 100.0}})[0].verdict == Verdict::kFail);
  CHECK(judge(gain, {{"alone", 120.0}})[0].verdict == Verdict::kNotRun);
}

TEST_CASE("What is not scored has no verdict, and what was not run says so", "[lab][figures]") {
  const auto findings = judge(book(), {{"unknown", 7.0}, {"contradiction", 99.0}});
  CHECK(findings[0].verdict == Verdict::kNotRun);
  CHECK(findings[1].verdict == Verdict::kNone);
  CHECK(findings[1].ours == 7.0);
  CHECK_FALSE(findings[1].difference_percent.has_value());
  CHECK(findings[3].verdict == Verdict::kNone);
}

}  // namespace sandbay::lab
