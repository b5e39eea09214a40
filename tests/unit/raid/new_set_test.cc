// Planning new sets: what comes out is consistent and fits the drives at every level; whatever is
// wrong is refused in one line that names the drive or the key.
#include <functional>

#include <rapidcheck.h>

#include "metadata_samples.h"
#include "raid/integrity_format.h"

namespace sandbay::raid::testing::new_set_test {
namespace {

TEST_CASE("a planned set is consistent and fits its drives", "[raid][new_set]") {
  REQUIRE(rc::check("planned", [](std::uint64_t seed) {
    Random random(seed);
    const Level level = kLevels[random.below(std::size(kLevels))];
    const unsigned count = some_drive_count(level, random);
    NewSet wanted{.name = "data",
                  .group_uuid = {4},
                  .level = level,
                  .strip_bytes = 4096u << random.below(9),
                  .integrity = random.chance(0.5)};
    if (random.chance(0.3)) wanted.journal_bytes = random.below(3) * (1u << 20);
    const std::uint32_t block_bytes = random.chance(0.5) ? 512 : 4096;
    std::vector<Candidate> drives;
    for (unsigned number = 0; number < count; ++number) {
      drives.push_back(blank_drive(number, random.between(32u << 20, 64u << 20), block_bytes));
    }
    const auto planned = plan_new_set(wanted, drives, random);
    RC_ASSERT(planned.has_value());
    RC_ASSERT(planned->superblocks.size() == count);
    for (unsigned role = 0; role < count; ++role) {
      const Superblock& superblock = planned->superblocks[role];
      RC_ASSERT(superblock_error(superblock).empty());
      RC_ASSERT(superblock.role == role);
      RC_ASSERT(superblock.same_version(planned->superblocks[0]));
      const std::uint64_t bytes = drives[role].block_count * block_bytes;
      RC_ASSERT(superblock.needed_bytes(role) <= bytes);
      const std::uint64_t smallest =
          std::ranges::min(drives, {}, &Candidate::block_count).block_count * block_bytes;
      const std::uint64_t room = level == Level::kConcatenation ? bytes : smallest;
      // A strip more, with its integrity data, would not fit.
      const std::uint64_t more = integrity_area_bytes(wanted.strip_bytes) + 8192;
      RC_ASSERT(superblock.needed_bytes(role) + wanted.strip_bytes + more > room);
    }
    const auto layout = planned->superblocks[0].layout();
    RC_ASSERT(layout.has_value());
    RC_ASSERT(planned->lost.set_block_count() == layout->block_count());
    RC_ASSERT(planned->regions.region_count() == planned->superblocks[0].region_count(*layout));
    const bool redundant = layout->redundancy() > 0;
    RC_ASSERT(planned->regions.dirty_count() == (redundant ? planned->regions.region_count() : 0));
  }));
}

TEST_CASE("a journal is there where it is needed", "[raid][new_set]") {
  const auto journal = [](NewSet wanted, unsigned count) {
    Random random(1);
    return plan(wanted, blank_drives(count, 40u << 20), random).superblocks[0].journal_bytes;
  };
  REQUIRE(journal({.name = "a", .level = Level::kRaid5}, 3) == kDefaultJournalBytes);
  REQUIRE(journal({.name = "a", .level = Level::kRaid5, .journal_bytes = 0}, 3) == 0);
  REQUIRE(journal({.name = "a", .level = Level::kRaid5, .journal_bytes = 8192}, 3) == 8192);
  REQUIRE(journal({.name = "a", .level = Level::kRaid10}, 4) == 0);
  REQUIRE(journal({.name = "a", .level = Level::kRaid10, .integrity = true}, 4) ==
          kDefaultJournalBytes);
  REQUIRE(journal({.name = "a", .level = Level::kRaid0}, 4) == 0);
}

TEST_CASE("what is wrong with a new set is told by drive and key", "[raid][new_set]") {
  Random random(2);
  const Superblock member =
      plan({.name = "old", .level = Level::kRaid1}, blank_drives(2), random).superblocks[1];
  const auto holding = [](Candidate& drive, std::optional<Superblock> superblock,
                          DriveContents::Kind kind, std::string why) {
    drive.contents = {.kind = kind,
                      .superblock = std::move(superblock),
                      .error = Error::kNone,
                      .why = std::move(why)};
  };
  using Kind = DriveContents::Kind;
  struct Case {
    std::string_view line;
    std::function<void(NewSet&, std::vector<Candidate>&)> change;
  };
  using Drives = std::vector<Candidate>;
  const Case cases[] = {
      {"set '': a set must have a name", [](NewSet& set, Drives&) { set.name.clear(); }},
      {"name: ", [](NewSet& set, Drives&) { set.name.assign(64, 'x'); }},
      {"name: it has control characters", [](NewSet& set, Drives&) { set.name = "a\tb"; }},
      {"set 'data': drives: a set needs at least one",
       [](NewSet&, Drives& drives) { drives.clear(); }},
      {"drives: 65 are too many", [](NewSet&, Drives& drives) { drives = blank_drives(65); }},
      {"drives: drive d1 is named twice", [](NewSet&, Drives& drives) { drives[3] = drives[1]; }},
      {"drive d2: its blocks have 4096 bytes and those of drive d0 have 512",
       [](NewSet&, Drives& drives) { drives[2] = blank_drive(2, 24u << 20, 4096); }},
      {"drive d2: it is in role 1 of set 'old'; it is taken with 'overwrite' only",
       [&](NewSet&, Drives& drives) { holding(drives[2], member, Kind::kSuperblock, {}); }},
      {"drive d2: it is a spare; it is taken with 'overwrite' only",
       [&](NewSet&, Drives& drives) {
         holding(drives[2], make_spare({3}, {}, 512), Kind::kSuperblock, {});
       }},
      {"drive d2: other data; it is taken with 'overwrite' only",
       [&](NewSet&, Drives& drives) { holding(drives[2], {}, Kind::kForeign, "other data"); }},
      {"drive d2: it is broken",
       [&](NewSet& set, Drives& drives) {
         set.overwrite = true;
         holding(drives[2], {}, Kind::kUnreadable, "it is broken");
       }},
      {"drive d3: it and drive d2 are copies of one drive, or the same one",
       [&](NewSet& set, Drives& drives) {
         set.overwrite = true;
         holding(drives[2], member, Kind::kSuperblock, {});
         holding(drives[3], member, Kind::kSuperblock, {});
       }},
      {"drive d1: 17825792 bytes are too few; a strip takes 17891328",
       [](NewSet&, Drives& drives) { drives[1] = blank_drive(1, 17u << 20); }},
      {"strip", [](NewSet& set, Drives&) { set.strip_bytes = 12288; }},
      {"journal: 100 bytes; a multiple of 4096",
       [](NewSet& set, Drives&) { set.journal_bytes = 100; }},
      {"raid6",
       [](NewSet& set, Drives& drives) {
         set.level = Level::kRaid6;
         drives = blank_drives(3);
       }},
      {"regions of", [](NewSet& set, Drives&) { set.region_stripes = ~0ULL; }},
  };
  for (const Case& one : cases) {
    NewSet wanted{.name = "data", .level = Level::kRaid5};
    auto drives = blank_drives(4);
    one.change(wanted, drives);
    const auto planned = plan_new_set(wanted, drives, random);
    CAPTURE(one.line);
    REQUIRE(!planned.has_value());
    CAPTURE(planned.error());
    CHECK(planned.error().find(one.line) != std::string::npos);
    CHECK(planned.error().find('\n') == std::string::npos);
  }
}

TEST_CASE("drives that are not blank are taken if that is wanted", "[raid][new_set]") {
  Random random(3);
  auto drives = blank_drives(3);
  drives[1].contents = {.kind = DriveContents::Kind::kForeign,
                        .superblock = {},
                        .error = Error::kNone,
                        .why = "other data"};
  const NewSet wanted{.name = "data", .level = Level::kRaid5, .overwrite = true};
  REQUIRE(plan_new_set(wanted, drives, random).has_value());
}

}  // namespace
}  // namespace sandbay::raid::testing::new_set_test
