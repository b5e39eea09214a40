// Where volumes find a place on a set, against a model that looks at every block.
#include "group/set_space.h"

#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>

namespace sandbay::group {
namespace {

bool overlaps_any(const std::vector<Extent>& taken, const Extent& extent) {
  return std::ranges::any_of(taken, [&](const Extent& other) { return other.overlaps(extent); });
}

}  // namespace

TEST_CASE("The first place is the lowest that is aligned and free", "[set_space]") {
  CHECK(first_fit({}, 100, 100, 8) == Extent{0, 100});
  CHECK(!first_fit({}, 100, 101, 8));
  CHECK(first_fit({{0, 10}}, 100, 20, 8) == Extent{16, 20});
  CHECK(first_fit({{50, 10}, {0, 10}}, 100, 34, 8) == Extent{16, 34});
  CHECK(first_fit({{50, 10}, {0, 10}}, 100, 35, 8) == Extent{64, 35});
  CHECK(!first_fit({{50, 10}, {0, 10}}, 100, 37, 8));
  const bool always = rc::check("as a model finds it", [] {
    const std::uint64_t set_blocks = *rc::gen::inRange<std::uint64_t>(1, 120);
    const std::uint64_t alignment = *rc::gen::inRange<std::uint64_t>(1, 9);
    std::vector<Extent> taken;
    for (int i = 0; i < 6; ++i) {
      const auto wanted = *rc::gen::inRange<std::uint64_t>(1, 40);
      const auto found = first_fit(taken, set_blocks, wanted, alignment);
      std::optional<Extent> expected;
      for (std::uint64_t at = 0; at + wanted <= set_blocks && !expected; at += alignment) {
        if (!overlaps_any(taken, {at, wanted})) expected = Extent{at, wanted};
      }
      RC_ASSERT(found == expected);
      if (found && *rc::gen::inRange(0, 4) != 0) taken.push_back(*found);
      if (!taken.empty() && *rc::gen::inRange(0, 4) == 0) taken.erase(taken.begin());
    }
  });
  REQUIRE(always);
}

TEST_CASE("A volume may grow up to the next one, or the end", "[set_space]") {
  const std::vector<Extent> taken = {{0, 10}, {40, 5}, {20, 10}};
  CHECK(most_blocks(taken, 100, taken[0]) == 20);
  CHECK(most_blocks(taken, 100, taken[2]) == 20);
  CHECK(most_blocks(taken, 100, taken[1]) == 60);
  CHECK(free_blocks(taken, 100) == 75);
}

}  // namespace sandbay::group
