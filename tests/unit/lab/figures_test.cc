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
                       .of = "fit",
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

TEST_CASE("What is not scored has no verdict, and what was not run says so", "[lab][figures]") {
  const auto findings = judge(book(), {{"unknown", 7.0}, {"contradiction", 99.0}});
  CHECK(findings[0].verdict == Verdict::kNotRun);
  CHECK(findings[1].verdict == Verdict::kNone);
  CHECK(findings[1].ours == 7.0);
  CHECK_FALSE(findings[1].difference_percent.has_value());
  CHECK(findings[3].verdict == Verdict::kNone);
}

}  // namespace sandbay::lab
