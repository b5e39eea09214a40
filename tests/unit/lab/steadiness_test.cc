// When a run is long enough.
#include "lab/steadiness.h"

#include <array>
#include <catch2/catch.hpp>

namespace sandbay::lab {
namespace {

TEST_CASE("Equal samples are steady as soon as there are enough of them", "[steadiness]") {
  Steadiness steadiness(1, 1);
  for (std::size_t i = 1; i < Steadiness::kLeastSlices; ++i) {
    steadiness.add(std::array{7.0});
    REQUIRE_FALSE(steadiness.reached());
  }
  steadiness.add(std::array{7.0});
  REQUIRE(steadiness.reached());
}

// Of 99 and 101 in turn, ten of them, the deviation is 1.0541, the error of the mean a third of it,
// and half of the interval 2.262 times that: 0.754.
TEST_CASE("The interval is that of Student's distribution", "[steadiness]") {
  for (const double percent : {0.75, 0.76}) {
    Steadiness steadiness(1, percent);
    for (int i = 0; i < 10; ++i) steadiness.add(std::array{i % 2 == 0 ? 99.0 : 101.0});
    REQUIRE(steadiness.reached() == (percent > 0.754));
  }
}

TEST_CASE("One value that is not steady is enough to go on", "[steadiness]") {
  Steadiness steadiness(2, 1);
  for (int i = 0; i < 10; ++i) steadiness.add(std::array{50.0, i % 2 == 0 ? 50.0 : 150.0});
  REQUIRE_FALSE(steadiness.reached());
}

TEST_CASE("Where nothing happened nothing is in doubt", "[steadiness]") {
  Steadiness steadiness(1, 1);
  for (int i = 0; i < 10; ++i) steadiness.add(std::array{0.0});
  REQUIRE(steadiness.reached());
}

}  // namespace
}  // namespace sandbay::lab
