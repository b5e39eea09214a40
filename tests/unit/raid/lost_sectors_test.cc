// LostSectors against a set of blocks, and what happens when there is no more room: more is
// reported, never less, and what was just rewritten is not reported.
#include "raid/lost_sectors.h"

#include <set>

#include <rapidcheck.h>

#include "metadata_samples.h"
#include "raid/metadata_image.h"

namespace sandbay::raid::testing::lost_sectors_test {
namespace {

constexpr std::uint64_t kBlocks = 200;
// Runs for which an image has room, wherever they lie within 2 MiB blocks: three bytes of a gap and
// one of a length.
constexpr std::size_t kManyRuns = 16'000;

void compare(const LostSectors& lost, const std::set<Lba>& model) {
  RC_ASSERT(lost.empty() == model.empty());
  RC_ASSERT(lost.lost_blocks() == model.size());
  std::set<Lba> listed;
  std::optional<Lba> end;
  for (const Extent& extent : lost.extents()) {
    RC_ASSERT((!end.has_value() || extent.first > *end));  // Neither overlap nor touch.
    end = extent.end();
    for (Lba lba = extent.first; lba < extent.end(); ++lba) listed.insert(lba);
  }
  RC_ASSERT(listed == model);
}

TEST_CASE("lost sectors are what was added and not removed", "[raid][lost_sectors]") {
  REQUIRE(rc::check("model", [](std::uint64_t seed) {
    Random random(seed);
    LostSectors lost({1}, kBlocks);
    std::set<Lba> model;
    for (int count = 0; count < 200; ++count) {
      const Lba first = random.below(kBlocks);
      const Extent extent{.first = first,
                          .block_count = random.below(std::min<Lba>(kBlocks - first, 12) + 1)};
      const std::set<Lba> before = model;
      for (Lba lba = extent.first; lba < extent.end(); ++lba) {
        if (count % 2 == 0) {
          model.insert(lba);
        } else {
          model.erase(lba);
        }
      }
      const bool changed = count % 2 == 0 ? lost.add(extent) : lost.remove(extent);
      RC_ASSERT(changed == (model != before));
      compare(lost, model);
      const Lba from = random.below(kBlocks);
      const Extent probe{.first = from, .block_count = random.below(kBlocks - from + 1)};
      const auto hit = model.lower_bound(probe.first);
      const bool overlaps = hit != model.end() && *hit < probe.end();
      RC_ASSERT(lost.first_overlap(probe) == (overlaps ? std::optional(*hit) : std::nullopt));
      if (!random.chance(0.1)) continue;
      const auto read = LostSectors::decode(lost.encode_next());
      RC_ASSERT(read.has_value());
      RC_ASSERT(read->sequence() == lost.sequence());
      RC_ASSERT(read->set_block_count() == kBlocks);
      compare(*read, model);
      lost = *read;
    }
    RC_ASSERT(lost.merged_blocks() == 0U);
  }));
}

TEST_CASE("a full list reports more rather than less", "[raid][lost_sectors]") {
  Random random(1);
  constexpr std::uint64_t kMany = 1u << 20;
  LostSectors lost({1}, kMany);
  std::set<Lba> model;
  // Every loss that a full list takes is a walk along all of it.
  unsigned later = 0;  // Losses since the first that was joined to another.
  while (later < 1'000 && model.size() < kManyRuns * 4) {
    const Lba lba = random.below(kMany);
    lost.add({.first = lba, .block_count = 1});
    model.insert(lba);
    later += lost.merged_blocks() > 0;
  }
  REQUIRE(lost.merged_blocks() > 0);
  REQUIRE(lost.lost_blocks() > model.size());
  REQUIRE(lost.lost_blocks() <= model.size() + lost.merged_blocks());
  for (const Lba lba : model) {
    REQUIRE(lost.first_overlap({.first = lba, .block_count = 1}) == lba);
  }
  const auto image = lost.encode_next();
  REQUIRE(image.size() <= kLostSectorsBytes);
  const auto read = LostSectors::decode(image);
  REQUIRE(read.has_value());
  REQUIRE(read->extents() == lost.extents());
  REQUIRE(read->merged_blocks() == lost.merged_blocks());
}

TEST_CASE("a list has room for losses that lie far apart", "[raid][lost_sectors][N4]") {
  constexpr std::uint64_t kStep = 96;
  LostSectors lost({1}, kStep * kManyRuns);
  for (std::uint64_t at = 0; at < kManyRuns; ++at) {
    lost.add({.first = at * kStep, .block_count = 8});
  }
  REQUIRE(lost.merged_blocks() == 0);
  REQUIRE(lost.lost_blocks() == kManyRuns * 8);
  const auto read = LostSectors::decode(lost.encode_next());
  REQUIRE(read.has_value());
  REQUIRE(read->extents() == lost.extents());
}

TEST_CASE("what was rewritten is healed also when the list is full", "[raid][lost_sectors]") {
  constexpr std::uint64_t kStep = 8;
  constexpr std::uint64_t kRuns = 100;
  // Each run takes two bytes.
  LostSectors lost({1}, kStep * (kRuns + 1));
  lost.limit(88 + kRuns * 2);
  for (std::uint64_t at = 0; at < kRuns; ++at) {
    lost.add({.first = at * kStep, .block_count = 3});
  }
  REQUIRE(lost.extents().size() == kRuns);
  // Splits a run in two by a gap that is the smallest of all.
  const Extent rewritten{.first = 40 * kStep + 1, .block_count = 1};
  REQUIRE(lost.remove(rewritten));
  REQUIRE(lost.extents().size() == kRuns);
  REQUIRE(!lost.first_overlap(rewritten).has_value());
  REQUIRE(lost.first_overlap({.first = 40 * kStep, .block_count = 1}).has_value());
  REQUIRE(lost.first_overlap({.first = 40 * kStep + 2, .block_count = 1}).has_value());
  REQUIRE(lost.merged_blocks() == kStep - 3);
}

TEST_CASE("a list has rows that match and regions that keep", "[raid][lost_sectors][N3]") {
  LostSectors lost({1}, 1000);
  REQUIRE(lost.add({.first = 3, .block_count = 4}));
  REQUIRE(lost.add_matched({.first = 10, .block_count = 20}));
  REQUIRE(lost.set_keeping(1, 0, true));
  REQUIRE(lost.set_keeping(1, 7, true));
  REQUIRE(lost.set_keeping(63, 7, true));
  CHECK_FALSE(lost.set_keeping(1, 7, true));
  REQUIRE(lost.forget_matched({.first = 12, .block_count = 2}));
  auto read = LostSectors::decode(lost.encode_next());
  REQUIRE(read.has_value());
  CHECK(read->extents() == lost.extents());
  CHECK(read->matched().runs() == std::vector<Extent>{{10, 2}, {14, 16}});
  for (const std::uint64_t region : {0, 7}) CHECK(read->keeps(1, region));
  CHECK_FALSE(read->keeps(1, 1));
  CHECK_FALSE(read->keeps(0, 7));
  CHECK(read->set_keeping(1, 0, false));
  CHECK_FALSE(read->keeps(1, 0));
  CHECK(read->stop_keeping(1));
  CHECK_FALSE(read->stop_keeping(1));
  CHECK_FALSE(read->keeps(1, 7));
  CHECK(read->keeps(63, 7));
}

TEST_CASE("rows that match take half of a list, and nothing is joined for them",
          "[raid][lost_sectors][N3]") {
  LostSectors lost({1}, 100'000);
  lost.limit(1000);
  std::uint64_t row = 0;
  while (lost.add_matched({.first = row, .block_count = 1})) row += 3;
  CHECK(row > 3 * 200);
  CHECK(lost.add_matched({.first = 0, .block_count = 1}));
  CHECK_FALSE(lost.add_matched({.first = row + 100, .block_count = 1}));
  CHECK(lost.matched().block_count() == row / 3);
  while (lost.merged_blocks() == 0) {
    REQUIRE(lost.add({.first = row, .block_count = 1}));
    row += 3;
  }
  CHECK(lost.encode_next().size() <= 1000);
  CHECK(lost.set_keeping(0, 5, true) == false);
  CHECK_FALSE(lost.keeps(0, 5));
}

// As version 1 has them.
std::vector<std::byte> old_image(std::span<const Extent> runs, std::uint64_t block_count) {
  std::vector<std::byte> image(64 + runs.size() * 16);
  put_little_endian(std::span(image), 48, block_count);
  put_little_endian(std::span(image), 56, std::uint64_t{7});
  for (std::size_t at = 0; at < runs.size(); ++at) {
    put_little_endian(std::span(image), 64 + at * 16, runs[at].first);
    put_little_endian(std::span(image), 72 + at * 16, runs[at].block_count);
  }
  seal_image(image, {.magic = kLostSectorsMagic, .version = 1, .sequence = 9, .uuid = {1}});
  return image;
}

TEST_CASE("a list of version 1 is read", "[raid][lost_sectors]") {
  const std::vector<Extent> runs{{0, 4}, {9, 1}, {990, 10}};
  const auto read = LostSectors::decode(old_image(runs, 1000));
  REQUIRE(read.has_value());
  REQUIRE(read->extents() == runs);
  REQUIRE(read->set_block_count() == 1000);
  REQUIRE(read->merged_blocks() == 7);
  REQUIRE(read->sequence() == 9);
  for (const std::vector<Extent>& wrong : {std::vector<Extent>{{0, 4}, {4, 1}},
                                           {{9, 1}, {0, 4}},
                                           {{0, 0}},
                                           {{991, 10}},
                                           {{0, ~std::uint64_t{0}}, {9, 1}}}) {
    REQUIRE(!LostSectors::decode(old_image(wrong, 1000)).has_value());
  }
}

TEST_CASE("a list of version 2 is read, and roles that are blank are kept",
          "[raid][lost_sectors]") {
  LostSectors lost({1}, 1000);
  lost.add({.first = 3, .block_count = 4});
  REQUIRE(lost.add_matched({.first = 8, .block_count = 2}));
  REQUIRE(lost.set_keeping(0, 5, true));
  REQUIRE(lost.set_blank(63, true));
  REQUIRE_FALSE(lost.set_blank(63, true));
  auto image = lost.encode_next();
  const auto read = LostSectors::decode(image);
  REQUIRE(read.has_value());
  REQUIRE(read->blank(63));
  REQUIRE_FALSE(read->blank(0));
  REQUIRE(read->keeps(0, 5));
  REQUIRE_FALSE(read->keeps(1, 5));
  image.erase(image.begin() + 80, image.begin() + 88);
  seal_image(image, {.magic = kLostSectorsMagic, .version = 2, .sequence = 4, .uuid = {1}});
  const auto older = LostSectors::decode(image);
  REQUIRE(older.has_value());
  REQUIRE(older->extents() == lost.extents());
  REQUIRE(older->matched().runs() == lost.matched().runs());
  for (const unsigned role : {0, 1, 63}) REQUIRE(older->keeps(role, 5));
  REQUIRE_FALSE(older->keeps(0, 4));
  REQUIRE_FALSE(older->blank(63));
}

// As version 2 has them.
std::vector<std::byte> image_of_version_2(const ExtentSet& lost, const ExtentSet& keeping,
                                          std::uint64_t block_count) {
  std::vector<std::byte> image(80);
  put_little_endian(std::span(image), 48, block_count);
  put_little_endian(std::span(image), 64, static_cast<std::uint32_t>(lost.run_count()));
  put_little_endian(std::span(image), 72, static_cast<std::uint32_t>(keeping.run_count()));
  lost.pack(&image);
  keeping.pack(&image);
  seal_image(image, {.magic = kLostSectorsMagic, .version = 2, .sequence = 4, .uuid = {1}});
  return image;
}

TEST_CASE("A list of an older version fits its place", "[raid][lost_sectors][D-18]") {
  constexpr std::uint64_t kMany = 10'000'000;
  ExtentSet lost;
  lost.add({.first = 9, .block_count = 8});
  ExtentSet keeping;
  for (std::uint64_t region = 0; region < 1200; region += 2) {
    keeping.add({.first = region, .block_count = 1});
  }
  auto scattered = LostSectors::decode(image_of_version_2(lost, keeping, kMany));
  REQUIRE(scattered.has_value());
  CHECK(scattered->keeps(0, 1198));
  CHECK(scattered->add({.first = 5'000'000, .block_count = 1}));
  CHECK(scattered->lost_blocks() == 9);
  CHECK(scattered->encode_next().size() <= kLostSectorsBytes);

  for (Lba lba = 100; 80 + lost.packed_bytes() + 2 <= kLostSectorsBytes; lba += 3) {
    lost.add({.first = lba, .block_count = 1});
  }
  auto full = LostSectors::decode(image_of_version_2(lost, {}, kMany));
  REQUIRE(full.has_value());
  for (const Extent& run : lost.runs()) REQUIRE(full->covers(run));
  CHECK(full->merged_blocks() < 16);
  CHECK(full->encode_next().size() <= kLostSectorsBytes);
  CHECK_FALSE(full->tells_blank());
}

TEST_CASE("A role that keeps everywhere does so whatever others miss",
          "[raid][lost_sectors][D-18]") {
  constexpr std::uint64_t kRegions = 16'384;
  LostSectors lost({1}, 100'000'000);
  for (std::uint64_t region = 0; region < kRegions; ++region) {
    for (unsigned role = 0; role < 6; ++role) {
      if (role < 4 || region % 2 == 0) lost.set_keeping(role, region, true);
    }
  }
  for (unsigned role = 0; role < 4; ++role) {
    for (std::uint64_t region = 0; region < kRegions; ++region) REQUIRE(lost.keeps(role, region));
  }
  // A region that stops keeping costs room for its gap, from its own neighbours alone.
  for (std::uint64_t region = 1; region < kRegions; region += 2) {
    REQUIRE(lost.set_keeping(0, region, false));
    REQUIRE_FALSE(lost.keeps(0, region));
    if (region > 8000) break;
  }
  CHECK(lost.keeps(0, kRegions - 1));
  for (std::uint64_t region = 0; region < kRegions; ++region) REQUIRE(lost.keeps(3, region));
  CHECK(lost.encode_next().size() <= kLostSectorsBytes / 4 + 100);

  lost.set_blank(5, true);
  lost.cut(5, 100);
  CHECK(lost.keeps(3, 99));
  CHECK_FALSE(lost.keeps(3, 100));
  CHECK_FALSE(lost.keeps(5, 0));
  CHECK_FALSE(lost.blank(5));
}

TEST_CASE("A gap in what a role keeps makes no list longer than its place",
          "[raid][lost_sectors][D-18]") {
  LostSectors lost({1}, 1'000'000'000);
  for (std::uint64_t region = 0; region < 300; ++region) lost.set_keeping(0, region, true);
  for (Lba lba = 0; lba < 300; lba += 3) lost.add({.first = lba, .block_count = 1});
  const std::size_t most = lost.encode_next().size();
  lost.limit(most);
  REQUIRE(lost.set_keeping(0, 127, false));
  CHECK_FALSE(lost.keeps(0, 127));
  CHECK(lost.encode_next().size() <= most);
}

TEST_CASE("no damaged list of lost sectors is accepted", "[raid][lost_sectors]") {
  LostSectors lost({1}, 1000);
  lost.add({.first = 3, .block_count = 4});
  lost.add({.first = 900, .block_count = 100});
  const auto image = lost.encode_next();
  for (std::size_t bit = 0; bit < image.size() * 8; ++bit) {
    REQUIRE(!LostSectors::decode(flipped(image, bit)).has_value());
  }
  for (std::size_t bytes = 0; bytes < image.size(); ++bytes) {
    REQUIRE(!LostSectors::decode(std::span(image).first(bytes)).has_value());
  }
  unsigned refused = 0;
  for (std::size_t bit = 48 * 8; bit < image.size() * 8; ++bit) {
    auto damaged = flipped(image, bit);
    seal_image(
        damaged,
        {.magic = kLostSectorsMagic, .version = kLostSectorsVersion, .sequence = 4, .uuid = {1}});
    auto read = LostSectors::decode(damaged);
    if (!read.has_value()) {
      ++refused;
      continue;
    }
    for (const Extent& extent : read->extents()) REQUIRE(extent.end() <= read->set_block_count());
    const auto again = LostSectors::decode(read->encode_next());
    REQUIRE(again.has_value());
    REQUIRE(again->extents() == read->extents());
  }
  REQUIRE(refused > 50);
}

TEST_CASE("a list that claims the last block of all is judged like every other",
          "[raid][lost_sectors]") {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  REQUIRE(LostSectors::decode(old_image(std::vector<Extent>{{0, kAll}}, kAll)).has_value());
  const std::vector<Extent> runs{{0, kAll}, {9, 1}};
  REQUIRE(!LostSectors::decode(old_image(runs, kAll)).has_value());
}

}  // namespace
}  // namespace sandbay::raid::testing::lost_sectors_test
