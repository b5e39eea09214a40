// Layout against brute force: every level, many shapes, every block in both directions.
//
// The model places strips one after another by the rotation's drawing and shares no code with the
// product: stripe by stripe it deals members out to the drives of a group, going round from the
// drive behind P, and counts how many strips each drive has got.
#include "raid/layout.h"

#include <fmt/core.h>

#include <bit>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>

namespace sandbay::raid::layout_test {
namespace {

Shape shape_of(Level level, unsigned drives, unsigned groups = 0, std::uint64_t strips = 13,
               std::uint32_t strip_blocks = 8) {
  return {.level = level,
          .drive_count = drives,
          .group_count = groups,
          .block_bytes = 512,
          .strip_blocks = strip_blocks,
          .drive_blocks = std::vector<std::uint64_t>(drives, strips * strip_blocks)};
}

Layout made(const Shape& shape) {
  const auto layout = Layout::make(shape);
  INFO((layout ? "" : layout.error()));
  REQUIRE(layout.has_value());
  return *layout;
}

// Every shape up to 12 drives, and some wide ones.
std::vector<Shape> shapes() {
  std::vector<Shape> all{shape_of(Level::kJbod, 1)};
  for (const unsigned n : {1u, 2u, 3u, 5u, 8u, 12u, 63u, 64u}) {
    all.push_back(shape_of(Level::kConcatenation, n));
    all.push_back(shape_of(Level::kRaid0, n));
    if (n >= 2) all.push_back(shape_of(Level::kRaid1, n));
  }
  for (const unsigned n : {3u, 4u, 5u, 6u, 7u, 8u, 9u, 12u, 16u, 64u}) {
    all.push_back(shape_of(Level::kRaid5, n, 0, 67));
    if (n >= 4) all.push_back(shape_of(Level::kRaid6, n, 0, 67));
  }
  for (const unsigned n : {4u, 6u, 8u, 9u, 12u, 16u, 64u}) {
    for (unsigned groups = 2; groups <= n / 2; ++groups) {
      if (n % groups != 0) continue;
      all.push_back(shape_of(Level::kRaid10, n, groups));
      if (n / groups >= 3) all.push_back(shape_of(Level::kRaid50, n, groups, 37));
      if (n / groups >= 4) all.push_back(shape_of(Level::kRaid60, n, groups, 37));
    }
  }
  // Drives of unequal size, none a multiple of the strip.
  for (const Level level : {Level::kConcatenation, Level::kRaid0, Level::kRaid1, Level::kRaid5,
                            Level::kRaid6, Level::kRaid10, Level::kRaid50}) {
    Shape shape = shape_of(level, 6);
    for (unsigned role = 0; role < 6; ++role) {
      shape.drive_blocks[role] = 8 * ((role * 5 + 3) % 7 + 2) + role;
    }
    all.push_back(shape);
  }
  return all;
}

std::string text_of(const Shape& shape) {
  return fmt::format("{} of {} drives in {} groups", describe(shape.level), shape.drive_count,
                     shape.group_count);
}

unsigned model_parity(Level level) {
  if (level == Level::kRaid5 || level == Level::kRaid50) return 1;
  return level == Level::kRaid6 || level == Level::kRaid60 ? 2 : 0;
}

struct Place {
  unsigned role = 0;
  std::uint64_t strip = 0;  // Of that drive.
};

// The drives of the members of every stripe: data, P, Q; or the mirrors.
struct Model {
  std::vector<std::vector<Place>> stripes;
  unsigned data_chunks = 1;
  unsigned redundancy = 0;
  std::vector<unsigned> group_of_role;

  explicit Model(const Shape& shape);

 private:
  void deal(const Shape& shape, unsigned groups);
};

Model::Model(const Shape& shape) {
  const unsigned n = shape.drive_count;
  if (shape.level == Level::kConcatenation) {
    for (unsigned role = 0; role < n; ++role) {
      group_of_role.push_back(role);
      for (std::uint64_t at = 0; (at + 1) * shape.strip_blocks <= shape.drive_blocks[role]; ++at) {
        stripes.push_back({{role, at}});
      }
    }
    return;
  }
  unsigned groups = shape.group_count;
  if (groups == 0) {
    groups = shape.level == Level::kRaid0    ? n
             : shape.level == Level::kRaid10 ? n / 2
             : shape.level == Level::kRaid50 ? 2
             : shape.level == Level::kRaid60 ? 2
                                             : 1;
  }
  deal(shape, groups);
}

void Model::deal(const Shape& shape, unsigned groups) {
  const unsigned width = shape.drive_count / groups;
  const unsigned parity = model_parity(shape.level);
  const bool mirrored = parity == 0 && width > 1;
  data_chunks = mirrored ? 1 : width - parity;
  redundancy = mirrored ? width - 1 : parity;
  for (unsigned role = 0; role < shape.drive_count; ++role) group_of_role.push_back(role / width);

  std::uint64_t strips = shape.drive_blocks[0] / shape.strip_blocks;
  for (const std::uint64_t blocks : shape.drive_blocks) {
    strips = std::min(strips, blocks / shape.strip_blocks);
  }
  for (std::uint64_t strip = 0; strip < strips; ++strip) {
    for (unsigned group = 0; group < groups; ++group) {
      // P walks from the last drive to the first; Q and data follow it, going round.
      std::vector<Place> stripe(width);
      unsigned p = width - 1;
      for (std::uint64_t i = 0; i < strip; ++i) p = p == 0 ? width - 1 : p - 1;
      unsigned drive = parity == 0 ? 0 : p;
      std::vector<unsigned> order;  // Members as they follow one another on the drives.
      if (parity > 0) order.push_back(data_chunks);
      if (parity > 1) order.push_back(data_chunks + 1);
      for (unsigned member = 0; member < width - parity; ++member) order.push_back(member);
      for (const unsigned member : order) {
        stripe[member] = {group * width + drive, strip};
        drive = drive + 1 == width ? 0 : drive + 1;
      }
      stripes.push_back(stripe);
    }
  }
}

TEST_CASE("Every shape is where brute force puts it", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    INFO(text_of(shape));
    const Layout layout = made(shape);
    const Model model{shape};
    REQUIRE(layout.level() == shape.level);
    REQUIRE(layout.drive_count() == shape.drive_count);
    REQUIRE(layout.stripe_count() == model.stripes.size());
    REQUIRE(layout.data_chunks() == model.data_chunks);
    REQUIRE(layout.redundancy() == model.redundancy);
    REQUIRE(layout.width() == model.stripes[0].size());
    REQUIRE(layout.stripe_blocks() == model.data_chunks * shape.strip_blocks);
    REQUIRE(layout.block_count() == model.stripes.size() * layout.stripe_blocks());
    REQUIRE(layout.parity_chunks() == model_parity(shape.level));
    REQUIRE(layout.mirrored() == (model_parity(shape.level) == 0 && layout.width() > 1));

    std::set<std::pair<unsigned, Lba>> used;  // Strips by role and first block.
    for (std::uint64_t stripe = 0; stripe < model.stripes.size(); ++stripe) {
      for (unsigned member = 0; member < layout.width(); ++member) {
        const Place& place = model.stripes[stripe][member];
        const Lba first = place.strip * shape.strip_blocks;
        bool right = layout.role(stripe, member) == place.role &&
                     layout.member(stripe, place.role) == member &&
                     layout.drive_lba(stripe) == first &&
                     layout.group(stripe) == model.group_of_role[place.role] &&
                     layout.group_of_role(place.role) == model.group_of_role[place.role] &&
                     used.insert({place.role, first}).second;
        for (std::uint32_t row = 0; row < shape.strip_blocks; ++row) {
          const Layout::OnDrive expected{stripe, member, row};
          right = right && layout.on_drive(place.role, first + row) == expected;
        }
        if (!right) FAIL("stripe " << stripe << " member " << member);
      }
    }

    // Nothing of a used data area is left over, and nothing lies outside.
    std::uint64_t strips = 0;
    for (unsigned role = 0; role < shape.drive_count; ++role) {
      REQUIRE(layout.drive_blocks(role) <= shape.drive_blocks[role]);
      strips += layout.drive_blocks(role) / shape.strip_blocks;
    }
    REQUIRE(strips == used.size());
  }
}

TEST_CASE("Every block of a set has its own place on a drive, and back", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    INFO(text_of(shape));
    const Layout layout = made(shape);
    std::set<std::pair<unsigned, Lba>> used;
    Layout::Position expected;
    for (Lba lba = 0; lba < layout.block_count(); ++lba) {
      const Layout::Position position = layout.position(lba);
      const unsigned role = layout.role(position.stripe, position.chunk);
      const Lba on_drive = layout.drive_lba(position.stripe) + position.row;
      const Layout::OnDrive back = layout.on_drive(role, on_drive);
      const bool right = position == expected && layout.lba(position) == lba &&
                         on_drive < layout.drive_blocks(role) &&
                         used.insert({role, on_drive}).second && back.stripe == position.stripe &&
                         back.member == position.chunk && back.row == position.row;
      if (!right) FAIL("block " << lba);

      if (++expected.row < shape.strip_blocks) continue;
      expected.row = 0;
      if (++expected.chunk < layout.data_chunks()) continue;
      expected.chunk = 0;
      ++expected.stripe;
    }
    REQUIRE(used.size() == layout.block_count());
  }
}

TEST_CASE("The stripes of a role are those that have a member there", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    INFO(text_of(shape));
    const Layout layout = made(shape);
    const Model model{shape};
    for (unsigned role = 0; role < shape.drive_count; ++role) {
      std::vector<std::uint64_t> expected;
      for (std::uint64_t stripe = 0; stripe < model.stripes.size(); ++stripe) {
        bool has = false;
        for (const Place& place : model.stripes[stripe]) has = has || place.role == role;
        if (has) expected.push_back(stripe);
        if (layout.member(stripe, role).has_value() != has) FAIL("stripe " << stripe);
      }
      std::vector<std::uint64_t> found;
      for (auto at = layout.first_stripe(role); at; at = layout.next_stripe(role, *at)) {
        found.push_back(*at);
      }
      REQUIRE(found == expected);
      REQUIRE(layout.stripes_on_role(role) == expected.size());
      for (std::uint64_t from = 0; from <= model.stripes.size() + 2; ++from) {
        const auto at = std::ranges::lower_bound(expected, from);
        const auto first = layout.first_stripe(role, from);
        if (first.has_value() != (at != expected.end()) || (first && *first != *at)) {
          FAIL("from stripe " << from);
        }
      }
    }
  }
}

TEST_CASE("Stripes in a row have the asked bytes on each drive", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    const Layout layout = made(shape);
    const std::uint64_t strip_bytes = std::uint64_t{shape.strip_blocks} * layout.block_bytes();
    CHECK(layout.stripes_with(strip_bytes - 1) == layout.stripes_with(strip_bytes));
    for (const std::uint64_t strips : {1U, 3U}) {
      INFO(text_of(shape) << ", " << strips);
      const std::uint64_t stripes = layout.stripes_with(strips * strip_bytes);
      // A concatenation fills one drive after the other.
      const bool one = shape.level == Level::kConcatenation;
      CHECK(stripes * layout.width() == strips * (one ? 1 : layout.drive_count()));
      if (one || stripes > layout.stripe_count()) continue;
      for (unsigned role = 0; role < shape.drive_count; ++role) {
        std::uint64_t members = 0;
        for (std::uint64_t stripe = 0; stripe < stripes; ++stripe) {
          members += layout.member(stripe, role).has_value() ? 1 : 0;
        }
        CHECK(members == strips);
      }
    }
  }
}

TEST_CASE("A set survives what leaves every stripe enough members", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    if (shape.drive_count > 12) continue;
    INFO(text_of(shape));
    const Layout layout = made(shape);
    const Model model{shape};
    std::set<std::vector<unsigned>> sets_of_roles;
    for (const auto& stripe : model.stripes) {
      std::vector<unsigned> roles;
      for (const Place& place : stripe) roles.push_back(place.role);
      std::ranges::sort(roles);
      sets_of_roles.insert(roles);
    }
    for (std::uint64_t missing = 0; missing < (1u << shape.drive_count); ++missing) {
      bool survives = true;
      for (const auto& roles : sets_of_roles) {
        unsigned lost = 0;
        for (const unsigned role : roles) lost += (missing >> role) & 1;
        survives = survives && lost <= model.redundancy;
      }
      if (layout.survives(missing) != survives) FAIL("missing " << missing);
    }
    REQUIRE(layout.survives(~((1ull << shape.drive_count) - 1)));  // Roles that do not exist.
  }
}

TEST_CASE("Sixty-four drives survive what they should", "[raid][layout]") {
  const Layout mirror = made(shape_of(Level::kRaid1, 64));
  REQUIRE(mirror.survives(~1ull));
  REQUIRE_FALSE(mirror.survives(~0ull));
  const Layout raid6 = made(shape_of(Level::kRaid6, 64));
  REQUIRE(raid6.survives(1ull << 63 | 1));
  REQUIRE_FALSE(raid6.survives(1ull << 63 | 3));
  const Layout raid60 = made(shape_of(Level::kRaid60, 64, 16));
  REQUIRE(raid60.survives(0x3333'3333'3333'3333));
  REQUIRE_FALSE(raid60.survives(0x7000'0000'0000'0000));
  REQUIRE_FALSE(made(shape_of(Level::kRaid0, 64)).survives(1ull << 63));
}

TEST_CASE("The largest set does not overflow", "[raid][layout]") {
  Shape shape = shape_of(Level::kRaid50, 64, 2);
  shape.drive_blocks.assign(64, kMostDriveBytes / 512);
  const Layout layout = made(shape);
  const Lba last = layout.block_count() - 1;
  REQUIRE(layout.block_count() == 62 * (kMostDriveBytes / 512));
  REQUIRE(layout.lba(layout.position(last)) == last);
  REQUIRE(layout.position(last).stripe == layout.stripe_count() - 1);
  REQUIRE(layout.drive_lba(layout.stripe_count() - 1) + 8 == kMostDriveBytes / 512);
}

TEST_CASE("The strip goes from 4 KiB to 1 MiB", "[raid][layout]") {
  for (const std::uint32_t block_bytes : {512u, 4096u}) {
    for (std::uint32_t bytes = kLeastStripBytes; bytes <= kMostStripBytes; bytes *= 2) {
      Shape shape = shape_of(Level::kRaid5, 4, 0, 9, bytes / block_bytes);
      shape.block_bytes = block_bytes;
      const Layout layout = made(shape);
      REQUIRE(layout.strip_blocks() == bytes / block_bytes);
      REQUIRE(layout.block_count() == 27 * (bytes / block_bytes));
      const Lba last = layout.block_count() - 1;
      REQUIRE(layout.lba(layout.position(last)) == last);
    }
  }
}

TEST_CASE("The rotation is the one that is on disk", "[raid][layout]") {
  const Layout raid5 = made(shape_of(Level::kRaid5, 4));
  const unsigned expected5[4][4] = {{0, 1, 2, 3}, {3, 0, 1, 2}, {2, 3, 0, 1}, {1, 2, 3, 0}};
  for (unsigned stripe = 0; stripe < 4; ++stripe) {
    for (unsigned i = 0; i < 4; ++i) REQUIRE(raid5.role(stripe, i) == expected5[stripe][i]);
  }
  const Layout raid6 = made(shape_of(Level::kRaid6, 5));
  const unsigned expected6[3][5] = {{1, 2, 3, 4, 0}, {0, 1, 2, 3, 4}, {4, 0, 1, 2, 3}};
  for (unsigned stripe = 0; stripe < 3; ++stripe) {
    for (unsigned i = 0; i < 5; ++i) REQUIRE(raid6.role(stripe, i) == expected6[stripe][i]);
  }
  const Layout raid50 = made(shape_of(Level::kRaid50, 6));
  REQUIRE(raid50.role(3, 2) == 4);  // Stripe 1 of group 1: P on its second drive.
}

TEST_CASE("A shape made from a layout's own numbers is the same layout", "[raid][layout]") {
  for (const Shape& shape : shapes()) {
    const Layout layout = made(shape);
    Shape again = shape;
    again.group_count = layout.group_count();
    for (unsigned role = 0; role < again.drive_count; ++role) {
      again.drive_blocks[role] = layout.drive_blocks(role);
    }
    const Layout same = made(again);
    REQUIRE(same.stripe_count() == layout.stripe_count());
    REQUIRE(same.width() == layout.width());
  }
}

struct Impossible {
  const char* what;
  Shape shape;
  const char* message;
};

Shape with_strip(std::uint32_t block_bytes, std::uint32_t strip_blocks) {
  Shape shape = shape_of(Level::kRaid5, 3);
  shape.block_bytes = block_bytes;
  shape.strip_blocks = strip_blocks;
  return shape;
}

Shape with_drive(unsigned role, std::uint64_t blocks) {
  Shape shape = shape_of(Level::kRaid5, 3);
  shape.drive_blocks[role] = blocks;
  return shape;
}

Shape with_sizes(std::size_t count) {
  Shape shape = shape_of(Level::kRaid5, 3);
  shape.drive_blocks.resize(count, 1000);
  return shape;
}

TEST_CASE("An impossible shape says what is wrong and what is accepted", "[raid][layout]") {
  const Impossible cases[] = {
      {"no level", shape_of(Level{0}, 1),
       "there is no level 0: 1 (jbod) to 9 (raid60) are accepted"},
      {"level 10", shape_of(Level{10}, 1),
       "there is no level 10: 1 (jbod) to 9 (raid60) are accepted"},
      {"jbod 2", shape_of(Level::kJbod, 2), "jbod takes exactly 1 drive, not 2"},
      {"none", shape_of(Level::kRaid0, 0), "raid0 takes 1 to 64 drives, not 0"},
      {"concat 65", shape_of(Level::kConcatenation, 65), "concat takes 1 to 64 drives, not 65"},
      {"raid1 1", shape_of(Level::kRaid1, 1), "raid1 takes 2 to 64 drives, not 1"},
      {"raid5 2", shape_of(Level::kRaid5, 2), "raid5 takes 3 to 64 drives, not 2"},
      {"raid6 3", shape_of(Level::kRaid6, 3), "raid6 takes 4 to 64 drives, not 3"},
      {"raid10 3", shape_of(Level::kRaid10, 3), "raid10 takes 4 to 64 drives, not 3"},
      {"raid50 5", shape_of(Level::kRaid50, 5), "raid50 takes 6 to 64 drives, not 5"},
      {"raid60 7", shape_of(Level::kRaid60, 7), "raid60 takes 8 to 64 drives, not 7"},
      {"raid10 5", shape_of(Level::kRaid10, 5),
       "5 drives cannot be divided into 2 groups of raid10: a multiple of 2 is accepted"},
      {"raid50 7", shape_of(Level::kRaid50, 7),
       "7 drives cannot be divided into 2 groups of raid50: a multiple of 2 is accepted"},
      {"raid50 in 3", shape_of(Level::kRaid50, 6, 3),
       "raid50 of 6 drives takes 2 groups of at least 3 drives, not 3"},
      {"raid60 in 1", shape_of(Level::kRaid60, 12, 1),
       "raid60 of 12 drives takes 2 to 3 groups of at least 4 drives, not 1"},
      {"raid10 in 5", shape_of(Level::kRaid10, 8, 5),
       "raid10 of 8 drives takes 2 to 4 groups of at least 2 drives, not 5"},
      {"raid5 in 2", shape_of(Level::kRaid5, 6, 2),
       "raid5 is not divided into groups; leave their number out, and not 2"},
      {"block 520", with_strip(520, 8), "blocks have 512 or 4096 bytes, not 520"},
      {"strip 0", with_strip(512, 0), "a strip is a power of two from 4 KiB to 1 MiB, not 0 bytes"},
      {"strip 2 KiB", with_strip(512, 4),
       "a strip is a power of two from 4 KiB to 1 MiB, not 2048 bytes"},
      {"strip 12 KiB", with_strip(4096, 3),
       "a strip is a power of two from 4 KiB to 1 MiB, not 12288 bytes"},
      {"strip 2 MiB", with_strip(4096, 512),
       "a strip is a power of two from 4 KiB to 1 MiB, not 2097152 bytes"},
      {"strip 2^44", with_strip(4096, 0xffffffff),
       "a strip is a power of two from 4 KiB to 1 MiB, not 17592186040320 bytes"},
      {"small drive", with_drive(2, 7),
       "drive 2 offers 7 blocks for data: a strip of 8 is the least"},
      {"vast drive", with_drive(1, kMostDriveBytes / 512 + 1),
       "drive 1 offers 140737488355329 blocks for data: 64 PiB are the most"},
      {"sizes", with_sizes(2), "the sizes of 2 drives are given for 3"},
  };
  for (const Impossible& each : cases) {
    INFO(each.what);
    const auto layout = Layout::make(each.shape);
    REQUIRE_FALSE(layout.has_value());
    REQUIRE(layout.error() == each.message);
  }
}

TEST_CASE("Levels have names, and are known by others", "[raid][layout]") {
  for (unsigned i = 1; i <= 9; ++i) {
    const Level level{static_cast<std::uint8_t>(i)};
    REQUIRE(parse_level(describe(level)) == level);
  }
  REQUIRE(describe(Level::kRaid50) == "raid50");
  REQUIRE(describe(Level{77}) == "unknown");
  REQUIRE(parse_level("5") == Level::kRaid5);
  REQUIRE(parse_level("RAID5") == Level::kRaid5);
  REQUIRE(parse_level("raid-5") == Level::kRaid5);
  REQUIRE(parse_level("RAID 60") == Level::kRaid60);
  REQUIRE(parse_level("10") == Level::kRaid10);
  REQUIRE(parse_level("JBOD") == Level::kJbod);
  REQUIRE(parse_level("Concatenation") == Level::kConcatenation);
  for (const char* text : {"", "raid", "raid-", "raid2", "raid55", "raid--5", "raidjbod", "5 ",
                           "raidraid5", "raid05", "unknown"}) {
    INFO(text);
    REQUIRE_FALSE(parse_level(text).has_value());
  }
}

}  // namespace
}  // namespace sandbay::raid::layout_test
