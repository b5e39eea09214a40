// The systems that come with Sandbay, run as `sandbay lab run --only … --ramp … --seconds …` does,
// for a few seconds: figures that need no long ramp-up.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "lab/experiment.h"
#include "lab/plan_choice.h"
#include "lab/plan_run.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

// By how many per cent each figure of what is chosen is missed after so long, at worst.
double missed_by(const std::string& file, const std::string& only, Duration ramp_up,
                 Duration run_time) {
  auto plan = read_experiments("conf/lab/" + file);
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  REQUIRE(choose(*plan, {.only = {only}, .ramp_up = ramp_up, .run_time = run_time}) == "");
  const PlanResult result = run_plan(*plan, 1, {});
  INFO(result.wrong);
  REQUIRE(result.complete);
  double worst = 0;
  bool judged = false;
  for (const auto& [id, ours] : result.measured) {
    const auto value = plan->figures.find(id)->value;
    if (!value) continue;
    judged = true;
    worst = std::max(worst, std::abs(100 * (ours / *value - 1)));
  }
  REQUIRE(judged);
  return worst;
}

}  // namespace

TEST_CASE("A host is the limit in front of three EqualLogic members", "[lab][shipped]") {
  CHECK(missed_by("equallogic-ps3800xv.toml", "one volume", 1s, 1s) < 3);
}

TEST_CASE("Parity updates are the limit of five EqualLogic members", "[lab][shipped]") {
  CHECK(missed_by("equallogic-ps3800xv.toml", "RAID 50, four volumes, members 5", 5s, 2s) < 5);
}

TEST_CASE("A server alone reads from all drives of the Compellent", "[lab][shipped]") {
  CHECK(missed_by("compellent-san.toml", "dedicated, random read", 1s, 4s) < 5);
}

TEST_CASE("At night a server's share of the Compellent shrinks, most of all for writes",
          "[lab][shipped]") {
  CHECK(missed_by("compellent-san.toml", "loaded, random read", 1s, 4s) < 5);
  CHECK(missed_by("compellent-san.toml", "loaded, streaming write", 1s, 12s) < 5);
}

TEST_CASE("A drive of the GigaStor reads at its own rate, and a host is the limit of four",
          "[lab][shipped]") {
  CHECK(missed_by("istor-gigastor.toml", "one drive, read/64KiB", 1s, 4s) < 3);
  CHECK(missed_by("istor-gigastor.toml", "r0x4, read, volumes 1/64KiB", 1s, 1s) < 3);
}

TEST_CASE("Controllers are the limit of the DS3500's drives", "[lab][shipped]") {
  CHECK(missed_by("ibm-ds3500.toml", "peak", 1s, 1s) < 5);
}

TEST_CASE("A head is the limit of its half of the drives of the USP V", "[lab][shipped]") {
  CHECK(missed_by("hds-usp-v.toml", "read, nodes 1, record 32", 2s, 1s) < 5);
}

}  // namespace sandbay::lab
