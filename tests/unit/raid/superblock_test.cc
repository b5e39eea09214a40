// Superblocks: what is written is read again; no damage is accepted, bit by bit; and what is whole
// but inconsistent is refused with a reason.
#include "raid/superblock.h"

#include <functional>

#include <rapidcheck.h>

#include "metadata_samples.h"
#include "raid/metadata_image.h"
#include "runtime/crc32c.h"

namespace sandbay::raid::testing::superblock_test {
namespace {

constexpr std::string_view kMagic = "SBRAIDSB";

TEST_CASE("a superblock is read as it was written", "[raid][superblock]") {
  REQUIRE(rc::check("round trip", [](std::uint64_t seed) {
    Random random(seed);
    const Superblock written = some_superblock(random);
    const std::uint64_t sequence = random.next();
    const auto image = encode(written, sequence);
    RC_ASSERT(image.size() == kSuperblockBytes);
    RC_ASSERT(looks_like_superblock(image));
    const auto read = decode_superblock(image);
    RC_ASSERT(read.has_value());
    RC_ASSERT(read->superblock == written);
    RC_ASSERT(read->copy_sequence == sequence);
  }));
}

TEST_CASE("a spare is read as it was written", "[raid][superblock]") {
  Random random(1);
  const Superblock global = make_spare(make_uuid(random), make_uuid(random), 4096);
  const Superblock dedicated = make_spare(make_uuid(random), {}, 512, make_uuid(random), "data");
  for (const Superblock& spare : {global, dedicated}) {
    const auto read = decode_superblock(encode(spare, 7));
    REQUIRE(read.has_value());
    REQUIRE(read->superblock == spare);
    REQUIRE(read->superblock.is_spare());
  }
}

TEST_CASE("no superblock with a flipped bit is accepted", "[raid][superblock]") {
  Random random(2);
  const auto image = encode(some_superblock(random), 3);
  for (std::size_t bit = 0; bit < image.size() * 8; ++bit) {
    const auto read = decode_superblock(flipped(image, bit));
    if (read.has_value()) FAIL("bit " << bit << " was accepted");
    if (read.error().empty()) FAIL("bit " << bit << " has no reason");
  }
}

TEST_CASE("no superblock with any byte changed, cut or torn is accepted", "[raid][superblock]") {
  Random random(3);
  const auto image = encode(some_superblock(random), 3);
  const auto other = encode(some_superblock(random), 4);
  for (std::size_t bytes = 0; bytes < image.size(); bytes += 16) {
    REQUIRE(!decode_superblock(std::span(image).first(bytes)).has_value());
  }
  for (std::size_t torn_at = 512; torn_at < image.size(); torn_at += 512) {
    auto torn = image;
    std::copy(other.begin() + static_cast<std::ptrdiff_t>(torn_at), other.end(),
              torn.begin() + static_cast<std::ptrdiff_t>(torn_at));
    if (torn != image) REQUIRE(!decode_superblock(torn).has_value());
  }
  for (int round = 0; round < 2000; ++round) {
    auto noise = image;
    for (std::uint64_t count = random.between(1, 8); count > 0; --count) {
      noise[random.below(noise.size())] = static_cast<std::byte>(random.next());
    }
    if (noise != image) REQUIRE(!decode_superblock(noise).has_value());
  }
}

// A checksum that matches is no reason to believe what stands there.
TEST_CASE("a sealed superblock with any field damaged is refused or consistent",
          "[raid][superblock]") {
  Random random(4);
  unsigned refused = 0;
  for (int round = 0; round < 4; ++round) {
    const Superblock superblock = some_superblock(random);
    const auto image = encode(superblock, 3);
    for (std::size_t bit = 48 * 8; bit < image.size() * 8; bit += 1 + random.below(6)) {
      auto damaged = flipped(image, bit);
      seal_image(damaged, {.magic = kMagic,
                           .version = kSuperblockVersion,
                           .sequence = 3,
                           .uuid = superblock.drive_uuid});
      const auto read = decode_superblock(damaged);
      if (!read.has_value()) {
        ++refused;
        continue;
      }
      // Then it says just what stands there, and can be used.
      REQUIRE(encode(read->superblock, read->copy_sequence) == damaged);
      if (!read->superblock.is_spare()) REQUIRE(read->superblock.layout().has_value());
    }
  }
  REQUIRE(refused > 1000);
}

TEST_CASE("a superblock of version 1 is read, and has no keys of journals", "[raid][superblock]") {
  Random random(5);
  Superblock superblock = some_superblock(random);
  const auto as_version_1 = [&] {
    auto image = encode(superblock, 3);
    seal_image(image, {.magic = kMagic, .sequence = 3, .uuid = superblock.drive_uuid});
    return decode_superblock(image);
  };
  superblock.redundancy_suspect = true;  // It could say so.
  superblock.blank = true;
  superblock.journal_key = 7;
  superblock.next_journal_key = 8;
  const auto current = decode_superblock(encode(superblock, 3));
  REQUIRE(current.has_value());
  REQUIRE(current->superblock == superblock);
  superblock.blank = false;
  const auto refused = as_version_1();
  REQUIRE(!refused.has_value());
  REQUIRE(refused.error() == "its reserved fields are not zero");
  superblock.journal_key = superblock.next_journal_key = 0;
  superblock.physical_block_bytes = 0;
  const auto read = as_version_1();
  REQUIRE(read.has_value());
  REQUIRE(read->superblock == superblock);
}

TEST_CASE("a superblock before version 4 has no size of physical blocks",
          "[raid][superblock][R-C4]") {
  Random random(5);
  Superblock superblock = some_superblock(random);
  const auto as_version_3 = [&] {
    auto image = encode(superblock, 3);
    seal_image(image,
               {.magic = kMagic, .version = 3, .sequence = 3, .uuid = superblock.drive_uuid});
    return decode_superblock(image);
  };
  superblock.physical_block_bytes = 8192;
  const auto current = decode_superblock(encode(superblock, 3));
  REQUIRE(current.has_value());
  REQUIRE(current->superblock.physical_block_bytes == 8192);
  REQUIRE(!as_version_3().has_value());
  superblock.physical_block_bytes = 0;
  const auto read = as_version_3();
  REQUIRE(read.has_value());
  REQUIRE(read->superblock == superblock);
}

TEST_CASE("a flag that is not known is refused by every version", "[raid][superblock]") {
  Random random(5);
  const Superblock superblock = some_superblock(random);
  for (const std::uint32_t version : {1U, 2U, 3U, 4U, 5U}) {
    auto image = encode(superblock, 3);
    image[90] |= version < 3 ? std::byte{8} : std::byte{16};
    seal_image(image,
               {.magic = kMagic, .version = version, .sequence = 3, .uuid = superblock.drive_uuid});
    const auto read = decode_superblock(image);
    REQUIRE(!read.has_value());
    REQUIRE(read.error() == "it has unknown flags");
  }
}

TEST_CASE("a later version is refused by its number", "[raid][superblock]") {
  Random random(5);
  const Superblock superblock = some_superblock(random);
  auto image = encode(superblock, 3);
  put_little_endian(std::span(image), 8, kSuperblockVersion + 1);
  // The seal with another version: by the CRC's linearity there is no shorter way than its own.
  put_little_endian(std::span(image), 12, std::uint32_t{0});
  put_little_endian(std::span(image), 12, crc32c(image));
  const auto read = decode_superblock(image);
  REQUIRE(!read.has_value());
  REQUIRE(read.error() == "it is of version 7; up to 6 is known");
}

TEST_CASE("inconsistent fields are refused, each with its reason", "[raid][superblock]") {
  Random random(6);
  const Superblock good =
      plan({.name = "data", .level = Level::kRaid6}, blank_drives(6), random).superblocks[2];
  REQUIRE(superblock_error(good).empty());
  struct Case {
    std::string_view reason;
    std::function<void(Superblock&)> damage;
  };
  const Case cases[] = {
      {"its drive has no UUID", [](Superblock& it) { it.drive_uuid = {}; }},
      {"its set has no UUID", [](Superblock& it) { it.set_uuid = {}; }},
      {"its set has no name", [](Superblock& it) { it.set_name.clear(); }},
      {"the set's name has 64 bytes", [](Superblock& it) { it.set_name.assign(64, 'x'); }},
      {"control characters", [](Superblock& it) { it.set_name = "a\nb"; }},
      {"its event is 0", [](Superblock& it) { it.event = 0; }},
      {"its history is not in order", [](Superblock& it) { it.history = {it.event}; }},
      {"its history is not in order",
       [](Superblock& it) {
         it.event = Event{9} << 32;
         it.history = {Event{3} << 32, Event{5} << 32};
       }},
      {"its history is too long", [](Superblock& it) { it.history.resize(kMostHistory + 1); }},
      {"its place 9 is unknown", [](Superblock& it) { it.place = static_cast<Place>(9); }},
      {"its own role 6 is none of 6", [](Superblock& it) { it.role = 6; }},
      {"role 1 names another drive", [](Superblock& it) { it.role = 1; }},
      {"role 2 names another drive", [](Superblock& it) { it.place = Place::kReplacement; }},
      {"role 4 names no drive", [](Superblock& it) { it.roles[4].drive = {}; }},
      {"the drive of role 4 is named twice",
       [](Superblock& it) { it.roles[4].drive = it.roles[1].drive; }},
      {"the drive of role 3 is named twice",
       [](Superblock& it) { it.roles[3].replacement = it.roles[0].drive; }},
      {"role 3 has the unknown state 0",
       [](Superblock& it) { it.roles[3].state = static_cast<RoleState>(0); }},
      {"role 3 has the unknown state 4",
       [](Superblock& it) { it.roles[3].state = static_cast<RoleState>(4); }},
      {"impossible data area", [](Superblock& it) { it.roles[3].data_blocks = ~0ULL; }},
      {"not a multiple of the strip", [](Superblock& it) { ++it.roles[3].data_blocks; }},
      {"differs from that of role 0", [](Superblock& it) { it.roles[3].data_blocks -= 128; }},
      {"an integrity area and the set no integrity",
       [](Superblock& it) { it.roles[3].integrity_bytes = 4096; }},
      {"the integrity area of role 0 is impossible", [](Superblock& it) { it.integrity = true; }},
      {"an event that has not been",
       [](Superblock& it) { it.roles[3].known_event = it.event + (Event{1} << 32); }},
      {"knows an event of no replacement",
       [](Superblock& it) { it.roles[3].replacement_known_event = it.event; }},
      {"0 drives are impossible", [](Superblock& it) { it.roles.clear(); }},
      {"65 drives are impossible", [](Superblock& it) { it.roles.resize(65); }},
      {"not 3", [](Superblock& it) { it.group_count = 3; }},
      {"blocks of 1024 bytes", [](Superblock& it) { it.block_bytes = 1024; }},
      {"its strip has no blocks", [](Superblock& it) { it.strip_blocks = 0; }},
      {"strip", [](Superblock& it) { it.strip_blocks = 3; }},
      {"its data area is not aligned", [](Superblock& it) { ++it.data_offset_blocks; }},
      {"begins before what precedes it", [](Superblock& it) { it.data_offset_blocks = 2048; }},
      {"begins impossibly late", [](Superblock& it) { it.data_offset_blocks = ~0ULL; }},
      {"its journal is not where", [](Superblock& it) { it.journal_offset_bytes += 4096; }},
      {"not a multiple of 4096", [](Superblock& it) { ++it.journal_bytes; }},
      {"impossibly large", [](Superblock& it) { it.journal_bytes = ~0ULL; }},
      {"regions of 0 stripes", [](Superblock& it) { it.region_stripes = 0; }},
      {"regions of", [](Superblock& it) { it.region_stripes = ~0ULL; }},
      {"level", [](Superblock& it) { it.level = static_cast<Level>(77); }},
      {"fields of a set", [](Superblock& it) { it.place = Place::kSpare; }},
  };
  for (const Case& one : cases) {
    Superblock bad = good;
    one.damage(bad);
    CAPTURE(one.reason, superblock_error(bad));
    CHECK(superblock_error(bad).find(one.reason) != std::string::npos);
  }
}

TEST_CASE("events follow from one another", "[raid][superblock]") {
  Random random(7);
  Superblock set =
      plan({.name = "data", .level = Level::kRaid1}, blank_drives(2), random).superblocks[0];
  REQUIRE(event_number(set.event) == 1);
  REQUIRE(set.history.empty());
  Superblock one = set;
  one.advance(random);
  Superblock two = set;
  two.advance(random);
  REQUIRE(event_number(one.event) == 2);
  REQUIRE(one.event != two.event);
  REQUIRE(one.follows(set.event));
  REQUIRE(one.follows(one.event));
  REQUIRE(!one.follows(two.event));
  REQUIRE(!set.follows(one.event));
  for (std::size_t count = 0; count < kMostHistory + 5; ++count) one.advance(random);
  REQUIRE(one.history.size() == kMostHistory);
  REQUIRE(!one.follows(set.event));
  REQUIRE(superblock_error(one).empty());
  one.roles[1].state = RoleState::kMissing;
  one.mark_complete();
  REQUIRE(one.roles[0].known_event == one.event);
  REQUIRE(one.roles[1].known_event == 0);
  REQUIRE(one.same_version(one.for_role(1)));
  REQUIRE(!one.same_version(two));
}

}  // namespace
}  // namespace sandbay::raid::testing::superblock_test
