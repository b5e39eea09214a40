// The systems that come with Sandbay, in runs of a few seconds: figures that need no long ramp-up.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "lab/experiment.h"
#include "lab/virtual_run.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

// By how many per cent the figure is missed after so long.
double missed_by(const std::string& file, const std::string& figure, Duration ramp_up,
                 Duration run_time) {
  const auto plan = read_experiments(std::string(LAB_FOLDER "/") + file);
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  for (const Row& row : plan->rows) {
    const auto wanted = std::ranges::find(row.wanted, figure, &Wanted::figure);
    if (wanted == row.wanted.end()) continue;
    const auto result = run_case(
        plan->system,
        {.groups = row.groups, .ramp_up = ramp_up, .run_time = run_time, .seed = plan->seed});
    INFO((result ? std::string() : result.error()));
    REQUIRE(result.has_value());
    const double value = plan->figures.find(figure)->value.value_or(0);
    return 100 * (result->value(*wanted) / value - 1);
  }
  FAIL(figure << " is no figure of an experiment of " << file);
  return 0;
}

}  // namespace

TEST_CASE("A host is the limit in front of three EqualLogic members", "[lab][shipped]") {
  CHECK(std::abs(missed_by("equallogic-ps3800xv.toml", "eql-t1-iops", 1s, 1s)) < 3);
}

TEST_CASE("A server alone reads from all drives of the Compellent", "[lab][shipped]") {
  CHECK(std::abs(missed_by("compellent-san.toml", "cml-dedicated-randread-iops", 1s, 4s)) < 5);
}

TEST_CASE("At night a server's share of the Compellent shrinks, most of all for writes",
          "[lab][shipped]") {
  CHECK(std::abs(missed_by("compellent-san.toml", "cml-loaded-randread-iops", 1s, 4s)) < 5);
  CHECK(std::abs(missed_by("compellent-san.toml", "cml-loaded-streamwrite-iops", 1s, 12s)) < 5);
}

TEST_CASE("Parity updates are the limit of five EqualLogic members", "[lab][shipped]") {
  CHECK(std::abs(missed_by("equallogic-ps3800xv.toml", "eql-t4-5m", 5s, 2s)) < 5);
}

}  // namespace sandbay::lab
