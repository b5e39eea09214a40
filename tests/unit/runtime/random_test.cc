// The generator: its published sequence, its bounds, and that streams repeat and do not overlap.
#include "runtime/random.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

namespace sandbay {
namespace {

// splitmix64 and xoshiro256** written down once more, from the authors' description.
struct Reference {
  std::uint64_t s[4];
  explicit Reference(std::uint64_t seed) {
    for (std::uint64_t& word : s) {
      seed += 0x9E3779B97F4A7C15U;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
      z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
      word = z ^ (z >> 31U);
    }
  }
  static std::uint64_t rotate(std::uint64_t x, unsigned k) { return (x << k) | (x >> (64U - k)); }
  std::uint64_t next() {
    const std::uint64_t result = rotate(s[1] * 5, 7) * 9;
    const std::uint64_t t = s[1] << 17U;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
  }
};

TEST_CASE("Random is xoshiro256** seeded by splitmix64", "[random]") {
  for (const std::uint64_t seed : {0ULL, 1ULL, 42ULL, ~0ULL}) {
    Random random(seed);
    Reference reference(seed);
    for (int i = 0; i < 1000; ++i) REQUIRE(random.next() == reference.next());
  }
}

TEST_CASE("Random repeats from a seed and differs between seeds", "[random]") {
  Random one(7);
  Random same(7);
  Random other(8);
  int equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = one();
    REQUIRE(value == same());
    if (value == other()) ++equal;
  }
  REQUIRE(equal == 0);
}

TEST_CASE("below() stays below and reaches every value alike", "[random]") {
  Random random(3);
  for (const std::uint64_t bound : {1ULL, 2ULL, 3ULL, 10ULL, 257ULL}) {
    std::vector<int> counts(bound);
    const int draws = static_cast<int>(bound) * 1000;
    for (int i = 0; i < draws; ++i) {
      const std::uint64_t value = random.below(bound);
      REQUIRE(value < bound);
      ++counts[value];
    }
    for (const int count : counts) {
      REQUIRE(count > 800);
      REQUIRE(count < 1200);
    }
  }
  for (const std::uint64_t bound :
       {1ULL << 32U, (1ULL << 32U) + 1, 3ULL << 62U, (1ULL << 63U) + 1, ~0ULL}) {
    bool upper_half = false;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t value = random.below(bound);
      REQUIRE(value < bound);
      upper_half |= value >= bound / 2;
    }
    REQUIRE(upper_half);
  }
}

TEST_CASE("between() includes both ends", "[random]") {
  Random random(4);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.between(5, 8));
  REQUIRE(seen == std::set<std::uint64_t>{5, 6, 7, 8});
  REQUIRE(random.between(9, 9) == 9);
}

TEST_CASE("unit() and chance() have the right mean", "[random]") {
  Random random(5);
  double sum = 0;
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double value = random.unit();
    REQUIRE(value >= 0);
    REQUIRE(value < 1);
    sum += value;
    if (random.chance(0.25)) ++hits;
  }
  REQUIRE(sum / 100'000 == Approx(0.5).margin(0.01));
  REQUIRE(hits / 100'000.0 == Approx(0.25).margin(0.01));
  REQUIRE_FALSE(random.chance(0));
  REQUIRE(random.chance(1));
}

TEST_CASE("A fork is a stream of its own", "[random]") {
  Random parent(6);
  Random child = parent.fork();
  Random parent_again(6);
  Random child_again = parent_again.fork();
  // What the child draws does not shift the parent.
  for (int i = 0; i < 100; ++i) REQUIRE(child.next() == child_again.next());
  for (int i = 0; i < 100; ++i) REQUIRE(parent.next() == parent_again.next());
  Random sibling = parent.fork();
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    if (sibling.next() == child.next()) ++equal;
  }
  REQUIRE(equal == 0);
}

}  // namespace
}  // namespace sandbay
