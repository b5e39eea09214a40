// ExtentSet against a set of blocks, and its bytes against damage.
#include "block/extent_set.h"

#include <set>

#include <rapidcheck.h>
#include <catch2/catch.hpp>

namespace sandbay::testing {
namespace {

constexpr Lba kBlocks = 1000;

Extent any_extent() {
  const Lba first = *rc::gen::inRange<Lba>(0, kBlocks);
  return {first, *rc::gen::inRange<std::uint64_t>(0, std::min<Lba>(24, kBlocks - first) + 1)};
}

std::set<Lba> blocks_of(const ExtentSet& set) {
  std::set<Lba> blocks;
  Lba last_end = 0;
  for (const Extent& run : set.runs()) {
    RC_ASSERT(blocks.empty() || run.first > last_end);  // Runs do not touch.
    for (Lba lba = run.first; lba < run.end(); ++lba) blocks.insert(lba);
    last_end = run.end();
  }
  return blocks;
}

void check_against(const ExtentSet& set, const std::set<Lba>& model, const Extent& asked) {
  RC_ASSERT(set.block_count() == model.size());
  RC_ASSERT(set.empty() == model.empty());
  const auto found = model.lower_bound(asked.first);
  const bool there = found != model.end() && *found < asked.end();
  RC_ASSERT(set.first_in(asked) == (there ? std::optional(*found) : std::nullopt));
  std::uint64_t alike = 0;
  const bool in = model.contains(asked.first);
  while (alike < asked.block_count && model.contains(asked.first + alike) == in) ++alike;
  RC_ASSERT(set.alike(asked) == alike);
  std::vector<std::byte> bytes;
  set.pack(&bytes);
  RC_ASSERT(bytes.size() == set.packed_bytes());
  std::span<const std::byte> left(bytes);
  const auto again = ExtentSet::unpack(&left, set.run_count(), kBlocks);
  RC_ASSERT(again.has_value());
  RC_ASSERT(*again == set);
  RC_ASSERT(again->packed_bytes() == set.packed_bytes());
  RC_ASSERT(left.empty());
}

TEST_CASE("a set of extents is a set of blocks", "[block][extent_set]") {
  REQUIRE(rc::check([] {
    ExtentSet set;
    std::set<Lba> model;
    const auto steps = *rc::gen::inRange(1, 60);
    for (int step = 0; step < steps; ++step) {
      const Extent extent = any_extent();
      const std::set<Lba> before = model;
      const bool adds = *rc::gen::arbitrary<bool>();
      for (Lba lba = extent.first; lba < extent.end(); ++lba) {
        if (adds) {
          model.insert(lba);
        } else {
          model.erase(lba);
        }
      }
      RC_ASSERT((adds ? set.add(extent) : set.remove(extent)) == (model != before));
      check_against(set, model, any_extent());
    }
    RC_ASSERT(blocks_of(set) == model);
    set.clear();
    check_against(set, {}, any_extent());
  }));
}

TEST_CASE("the smallest gap is found beside what is kept", "[block][extent_set]") {
  ExtentSet set;
  CHECK_FALSE(set.smallest_gap({}).has_value());
  set.add({10, 5});
  CHECK_FALSE(set.smallest_gap({}).has_value());
  set.add({20, 5});
  set.add({27, 1});
  set.add({40, 1});
  CHECK(set.smallest_gap({}) == Extent{25, 2});
  CHECK(set.smallest_gap({26, 1}) == Extent{15, 5});
  CHECK_FALSE(set.smallest_gap({0, 50}).has_value());
}

// The first bytes of a pack, with which a set of `runs` runs in 2^64 - 1 blocks is asked for.
bool taken(std::vector<unsigned> numbers, std::size_t runs) {
  std::vector<std::byte> bytes;
  for (const unsigned number : numbers) bytes.push_back(static_cast<std::byte>(number));
  std::span<const std::byte> left(bytes);
  return ExtentSet::unpack(&left, runs, ~std::uint64_t{0}).has_value();
}

TEST_CASE("only what a set of extents packs is taken", "[block][extent_set]") {
  CHECK(taken({3, 4}, 1));
  CHECK(taken({3, 4, 1, 1}, 2));
  CHECK_FALSE(taken({3, 4}, 2));
  CHECK_FALSE(taken({3, 0}, 1));        // No block.
  CHECK_FALSE(taken({3, 4, 0, 1}, 2));  // The runs touch.
  CHECK_FALSE(taken({0x83, 0, 4}, 1));  // A byte too many.
  CHECK_FALSE(taken({3, 0x80}, 1));     // A byte too few.
  std::vector<unsigned> largest(9, 0xff);
  largest.push_back(1);
  std::vector<unsigned> whole{0};
  whole.insert(whole.end(), largest.begin(), largest.end());
  CHECK(taken(whole, 1));
  CHECK_FALSE(taken({1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 1));
  CHECK_FALSE(taken({0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3}, 1));
  std::vector<std::byte> bytes{std::byte{3}, std::byte{4}};
  std::span<const std::byte> left(bytes);
  CHECK_FALSE(ExtentSet::unpack(&left, 1, 6).has_value());
}

}  // namespace
}  // namespace sandbay::testing
