// RegionMap against plain vectors of bits; images of every kind; and that the largest map of every
// number of drives fits.
#include "raid/region_map.h"

#include <rapidcheck.h>

#include "metadata_samples.h"
#include "raid/metadata_image.h"

namespace sandbay::raid::testing::region_map_test {
namespace {

struct Model {
  Model(std::uint64_t regions, unsigned drives)
      : bits(1 + drives * std::size_t{2}, std::vector<bool>(regions)) {}
  std::vector<std::vector<bool>> bits;
};

std::optional<std::uint64_t> first_of(const std::vector<bool>& bits, std::uint64_t from) {
  for (std::uint64_t at = from; at < bits.size(); ++at) {
    if (bits[at]) return at;
  }
  return std::nullopt;
}

void compare(const RegionMap& map, const Model& model, Random& random) {
  const std::uint64_t regions = map.region_count();
  const auto compare_one = [&](const std::vector<bool>& bits, auto test, auto first, auto count) {
    RC_ASSERT(count() == static_cast<std::uint64_t>(std::ranges::count(bits, true)));
    for (int probe = 0; probe < 20; ++probe) {
      const std::uint64_t at = random.below(regions);
      RC_ASSERT(test(at) == bits[at]);
      RC_ASSERT(first(at) == first_of(bits, at));
    }
    RC_ASSERT(first(regions) == std::nullopt);
  };
  compare_one(
      model.bits[0], [&](std::uint64_t at) { return map.dirty(at); },
      [&](std::uint64_t from) { return map.first_dirty(from); }, [&] { return map.dirty_count(); });
  for (unsigned role = 0; role < map.drive_count(); ++role) {
    for (const bool replacement : {false, true}) {
      compare_one(
          model.bits[1 + role * 2 + (replacement ? 1 : 0)],
          [&](std::uint64_t at) { return map.stale(role, replacement, at); },
          [&](std::uint64_t from) { return map.first_stale(role, replacement, from); },
          [&] { return map.stale_count(role, replacement); });
    }
  }
}

void step(RegionMap& map, Model& model, Random& random) {
  const auto role = static_cast<unsigned>(random.below(map.drive_count()));
  const bool replacement = random.chance(0.3);
  const bool value = random.chance(0.6);
  const std::uint64_t region = random.below(map.region_count());
  auto& bits = model.bits[1 + role * 2 + (replacement ? 1 : 0)];
  switch (random.below(12)) {
    case 0:
      map.set_all_dirty(value);
      model.bits[0].assign(map.region_count(), value);
      break;
    case 1:
      map.set_all_stale(role, replacement, value);
      bits.assign(map.region_count(), value);
      break;
    case 2:
      map.promote_replacement(role);
      model.bits[1 + role * 2] = model.bits[2 + role * 2];
      model.bits[2 + role * 2].assign(map.region_count(), false);
      break;
    case 3:
    case 4:
      map.set_dirty(region, value);
      model.bits[0][region] = value;
      break;
    default:
      map.set_stale(role, replacement, region, value);
      bits[region] = value;
  }
}

TEST_CASE("a region map keeps what plain bits keep", "[raid][region_map]") {
  REQUIRE(rc::check("model", [](std::uint64_t seed) {
    Random random(seed);
    const auto drives = static_cast<unsigned>(random.between(1, 6));
    const std::uint64_t regions = random.between(1, random.chance(0.5) ? 5 : 300);
    RegionMap map({1}, regions, drives);
    Model model(regions, drives);
    for (int count = 0; count < 60; ++count) {
      step(map, model, random);
      if (!random.chance(0.2)) continue;
      compare(map, model, random);
      const std::uint64_t before = map.sequence();
      const auto image = map.encode_next();
      RC_ASSERT(map.sequence() == before + 1);
      RC_ASSERT(!map.changed());
      auto read = RegionMap::decode(image);
      RC_ASSERT(read.has_value());
      RC_ASSERT(read->same_content(map));
      RC_ASSERT(read->sequence() == map.sequence());
      RC_ASSERT(!read->changed());
      map = std::move(*read);  // Going on with what was read is the same.
      compare(map, model, random);
    }
  }));
}

TEST_CASE("a region map says when it has changed", "[raid][region_map]") {
  RegionMap map({1}, 10, 3);
  REQUIRE(!map.changed());
  map.set_dirty(3, false);
  map.set_all_stale(1, false, false);
  map.promote_replacement(1);
  REQUIRE(!map.changed());
  map.set_dirty(3, true);
  REQUIRE(map.changed());
  map.encode_next();
  REQUIRE(!map.changed());
  map.set_dirty(3, true);
  REQUIRE(!map.changed());
}

TEST_CASE("every region map fits its slot, whatever is marked", "[raid][region_map]") {
  for (unsigned drives = 1; drives <= kMostDrives; ++drives) {
    const std::uint64_t regions = most_regions(drives);
    REQUIRE(regions >= 8192);
    REQUIRE(regions <= kMostRegions);
    RegionMap map({1}, regions, drives);
    for (unsigned role = 0; role < drives; ++role) {
      for (const bool replacement : {false, true}) {
        map.set_all_stale(role, replacement, true);
        map.set_stale(role, replacement, regions - 1, false);
      }
    }
    map.set_dirty(0, true);
    const auto image = map.encode_next();
    REQUIRE(image.size() <= kRegionMapBytes);
    REQUIRE(RegionMap::decode(image).has_value());
  }
  REQUIRE(most_regions(8) == kMostRegions);
}

TEST_CASE("bitmaps that are all clear or all set take no room", "[raid][region_map]") {
  RegionMap map({1}, kMostRegions, 4);
  const std::size_t empty = map.encode_next().size();
  map.set_all_dirty(true);
  map.set_all_stale(2, false, true);
  REQUIRE(map.encode_next().size() == empty);
  map.set_stale(2, false, 7, false);
  REQUIRE(map.encode_next().size() == empty + kMostRegions / 8);
}

TEST_CASE("regions are chosen so that there are enough and not too many", "[raid][region_map]") {
  REQUIRE(rc::check("chosen", [](std::uint64_t seed) {
    Random random(seed);
    const auto drives = static_cast<unsigned>(random.between(1, kMostDrives));
    const std::uint64_t stripes = random.between(1, std::uint64_t{1} << random.between(1, 48));
    const std::uint64_t stripe_bytes = 4096ULL << random.below(14);
    const std::uint64_t each = choose_region_stripes(stripes, stripe_bytes, drives);
    const std::uint64_t regions = (stripes + each - 1) / each;
    RC_ASSERT(regions >= 1U);
    RC_ASSERT(regions <= most_regions(drives));
    RC_ASSERT((each == 1 || regions >= 128U));
  }));
  REQUIRE(choose_region_stripes(100, 65536, 4) == 1);
  REQUIRE(choose_region_stripes(1u << 20, 8u << 20, 4) == 64);
}

TEST_CASE("no damaged region map is accepted", "[raid][region_map]") {
  RegionMap map({1}, 200, 3);
  map.set_stale(1, false, 100, true);
  map.set_all_dirty(true);
  const auto image = map.encode_next();
  for (std::size_t bit = 0; bit < image.size() * 8; ++bit) {
    REQUIRE(!RegionMap::decode(flipped(image, bit)).has_value());
  }
  for (std::size_t bytes = 0; bytes < image.size(); ++bytes) {
    REQUIRE(!RegionMap::decode(std::span(image).first(bytes)).has_value());
  }
  // Sealed again: refused, or just what stands there.
  unsigned refused = 0;
  for (std::size_t bit = 48 * 8; bit < image.size() * 8; ++bit) {
    auto damaged = flipped(image, bit);
    seal_image(damaged, {.magic = kRegionMapMagic, .sequence = 4, .uuid = {1}});
    auto read = RegionMap::decode(damaged);
    if (!read.has_value()) {
      ++refused;
      continue;
    }
    REQUIRE(read->region_count() <= most_regions(read->drive_count()));
    auto again = RegionMap::decode(read->encode_next());
    REQUIRE(again.has_value());
    REQUIRE(again->same_content(*read));
  }
  REQUIRE(refused > 100);
}

}  // namespace
}  // namespace sandbay::raid::testing::region_map_test
