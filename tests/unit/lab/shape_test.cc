// Predicates over several figures.
#include "lab/shape.h"

#include <catch2/catch.hpp>

#include "lab/figures.h"

namespace sandbay::lab {
namespace {

Shape near_linear() {
  return {.rule = Rule::kNearLinear,
          .figures = {"one", "two", "three"},
          .at_least = 0.9,
          .at_most = 1.25,
          .limit = {}};
}

std::map<std::string, double> measured(double one, double two, double three) {
  return {{"one", one}, {"two", two}, {"three", three}};
}

}  // namespace

TEST_CASE("Near-linear is N times one within bounds, of which the worst counts", "[lab][shape]") {
  const Shape shape = near_linear();
  CHECK(measure_shape(shape, "it", measured(100, 200, 300)) == 1.0);
  CHECK(holds(shape, 1.0));
  const auto low = measure_shape(shape, "it", measured(100, 200, 255));
  REQUIRE(low.has_value());
  CHECK(*low == Approx(0.85));
  CHECK_FALSE(holds(shape, *low));
  const auto high = measure_shape(shape, "it", measured(100, 260, 290));
  REQUIRE(high.has_value());
  CHECK(*high == Approx(1.3));
  CHECK_FALSE(holds(shape, *high));
  CHECK(measure_shape(shape, "it", measured(100, 190, 291)) == Approx(0.95));
  CHECK_FALSE(measure_shape(shape, "it", {{"one", 1.0}, {"two", 2.0}}).has_value());
}

TEST_CASE("Nothing is asked for beyond a limit", "[lab][shape]") {
  Shape shape = near_linear();
  shape.limit = 210;
  CHECK(measure_shape(shape, "it", measured(100, 200, 210)) == 1.0);
  // The last point may fail, too, also where growth ended before it for reasons of our own.
  const auto early = measure_shape(shape, "it", measured(100, 180, 180));
  REQUIRE(early.has_value());
  CHECK(*early == Approx(180.0 / 210));
  CHECK_FALSE(holds(shape, *early));
  shape.limit = 0;
  CHECK(shape_error(shape) == "has a limit that is no number above 0");
}

TEST_CASE("Rising compares each with the one before, within the figure alone", "[lab][shape]") {
  const Shape rising{
      .rule = Rule::kRising, .figures = {"one", "two", "three"}, .at_least = 1.01, .limit = {}};
  CHECK(holds(rising, measure_shape(rising, "it", measured(100, 150, 160)).value_or(0)));
  const auto flat = measure_shape(rising, "it", measured(100, 150, 150));
  CHECK(flat == 1.0);
  CHECK_FALSE(holds(rising, flat.value_or(9)));
  const Shape within{.rule = Rule::kWithin, .at_most = 2, .limit = {}};
  CHECK(measure_shape(within, "it", {{"it", 1.5}}) == 1.5);
  CHECK(holds(within, 1.5));
  CHECK_FALSE(holds(within, 2.5));
}

TEST_CASE("A shape with a rule is scored, and one without is not", "[lab][shape]") {
  FigureBook book{.document = "a paper",
                  .figures = {{.id = "growth", .shape = near_linear()}, {.id = "picture"}}};
  const auto good = judge(book, measured(100, 200, 300));
  CHECK(good[0].verdict == Verdict::kPass);
  CHECK(good[1].verdict == Verdict::kNone);
  CHECK(judge(book, measured(100, 200, 200))[0].verdict == Verdict::kFail);
  CHECK(judge(book, {})[0].verdict == Verdict::kNotRun);
}

}  // namespace sandbay::lab
