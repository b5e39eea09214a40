// What is chosen of a plan, and what is refused.
#include "lab/plan_choice.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "lab/plan_run.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

Plan a_plan() {
  Plan plan;
  plan.rows = {{.experiment = "reads", .variation = {{"volumes", 1}}, .sweep = {65536, 1 << 20}},
               {.experiment = "reads", .variation = {{"volumes", 2}}, .sweep = {65536, 1 << 20}},
               {.experiment = "writes", .ramp_up = 5s, .run_time = 10s}};
  return plan;
}

// The names of what is left.
std::vector<std::string> chosen(const std::vector<std::string>& only) {
  Plan plan = a_plan();
  REQUIRE(choose(plan, {.only = only}) == "");
  std::vector<std::string> names;
  for (const Row& row : plan.rows) {
    for (const std::string& name : case_names(row)) names.push_back(name);
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Experiments, rows and cases are chosen by their names", "[lab][choice]") {
  const Names all = {"reads, volumes 1/64KiB", "reads, volumes 1/1MiB", "reads, volumes 2/64KiB",
                     "reads, volumes 2/1MiB", "writes"};
  CHECK(chosen({}) == all);
  CHECK(chosen({"reads"}) == Names(all.begin(), all.begin() + 4));
  CHECK(chosen({"reads, volumes 2"}) == Names{all[2], all[3]});
  CHECK(chosen({"reads, volumes 2/1MiB"}) == Names{all[3]});
  CHECK(chosen({"*/64KiB", "writes"}) == Names{all[0], all[2], all[4]});
  CHECK(chosen({"reads, volumes 1/1MiB", "reads, volumes 1/64KiB"}) == Names{all[0], all[1]});
  CHECK(chosen({"reads, volumes 1/1MiB", "reads*1"}) == Names{all[0], all[1]});
}

TEST_CASE("What chooses nothing is refused, with a name that would", "[lab][choice]") {
  Plan plan = a_plan();
  CHECK_THAT(choose(plan, {.only = {"reads", "deletes"}}),
             Catch::Contains("--only \"deletes\"") && Catch::Contains("reads, volumes 1/64KiB"));
  Plan other = a_plan();
  CHECK_THAT(choose(other, {.only = {"writes/64KiB"}}), Catch::Contains("writes/64KiB"));
  CHECK(other.rows.size() == 3);
}

TEST_CASE("Times on the command line stand in for the file's", "[lab][choice]") {
  Plan plan = a_plan();
  REQUIRE(choose(plan, {.ramp_up = 1s, .run_time = 2s}) == "");
  CHECK(plan.rows[2].ramp_up == 1s);
  CHECK(plan.rows[2].run_time == 2s);
  plan = a_plan();
  REQUIRE(choose(plan, {.run_time = 2s}) == "");
  CHECK(plan.rows[2].ramp_up == 5s);
}

TEST_CASE("Runs are steady to a quarter of what their figures may differ", "[lab][choice]") {
  Plan plan = a_plan();
  plan.figures.figures = {{.id = "a", .tolerance = 8},
                          {.id = "b", .tolerance = 4},
                          {.id = "points", .tolerance = 4, .tolerance_in_points = true}};
  plan.rows[0].wanted = {{.figure = "a", .metric = Metric::kIops},
                         {.figure = "b", .metric = Metric::kMilliseconds}};
  plan.rows[1].wanted = {{.figure = "b"}, {.figure = "points"}};
  plan.rows[2].wanted = {{.figure = "b", .metric = Metric::kTrend}};
  REQUIRE(choose(plan, {.until_steady = true}) == "");
  CHECK(plan.rows[0].steady_percent == 1);
  CHECK(plan.rows[1].steady_percent == 0);
  CHECK(plan.rows[2].steady_percent == 0);
  Plan other = a_plan();
  other.figures = plan.figures;
  other.rows[0].wanted = plan.rows[0].wanted;
  REQUIRE(choose(other, {}) == "");
  CHECK(other.rows[0].steady_percent == 0);
}

TEST_CASE("What nothing was measured of has no value", "[lab][choice]") {
  Plan plan = a_plan();
  plan.rows = {{.experiment = "reads",
                .wanted = {{.figure = "rate", .metric = Metric::kIops},
                           {.figure = "other", .metric = Metric::kIops, .group = 1},
                           {.figure = "trend", .metric = Metric::kTrend}}}};
  const auto measured = [&plan](std::uint64_t requests, std::size_t seconds) {
    PlanHooks hooks;
    hooks.run = [=](const ArrayProfile&, const Case&) -> std::expected<CaseResult, std::string> {
      CaseResult result{.seconds = static_cast<double>(seconds)};
      result.volumes = {
          {.requests = requests, .requests_by_second = std::vector<std::uint64_t>(seconds + 1, 1)}};
      return result;
    };
    std::string names;
    for (const auto& [figure, value] : run_plan(plan, 1, hooks).measured) names += figure + " ";
    return names;
  };
  CHECK(measured(0, 60) == "");
  CHECK(measured(9, 59) == "rate ");
  CHECK(measured(60, 60) == "rate trend ");
}

}  // namespace sandbay::lab
