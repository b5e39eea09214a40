// Superblocks, maps and sets for the tests of what stands on drives: of any level, drawn from a
// seed, all of them consistent.
#pragma once

#include <vector>

#include <catch2/catch.hpp>

#include "raid/assembly.h"
#include "runtime/random.h"

namespace sandbay::raid::testing {

inline constexpr Level kLevels[] = {Level::kJbod,   Level::kConcatenation, Level::kRaid0,
                                    Level::kRaid1,  Level::kRaid5,         Level::kRaid6,
                                    Level::kRaid10, Level::kRaid50,        Level::kRaid60};

// A blank drive of so many bytes.
inline Candidate blank_drive(unsigned number, std::uint64_t bytes,
                             std::uint32_t block_bytes = 512) {
  return {.name = "d" + std::to_string(number),
          .block_bytes = block_bytes,
          .block_count = bytes / block_bytes,
          .contents = {.kind = DriveContents::Kind::kBlank,
                       .superblock = {},
                       .error = Error::kNone,
                       .why = "it is blank"}};
}

inline std::vector<Candidate> blank_drives(unsigned count, std::uint64_t bytes = 24u << 20,
                                           std::uint32_t block_bytes = 512) {
  std::vector<Candidate> drives;
  for (unsigned number = 0; number < count; ++number) {
    drives.push_back(blank_drive(number, bytes, block_bytes));
  }
  return drives;
}

inline PlannedSet plan(const NewSet& wanted, const std::vector<Candidate>& drives, Random& random) {
  auto planned = plan_new_set(wanted, drives, random);
  if (!planned.has_value()) FAIL(planned.error());
  return std::move(*planned);
}

// How many drives a set of that level may well have.
inline unsigned some_drive_count(Level level, Random& random) {
  switch (level) {
    case Level::kJbod:
      return 1;
    case Level::kConcatenation:
    case Level::kRaid0:
      return static_cast<unsigned>(random.between(1, kMostDrives));
    case Level::kRaid1:
      return static_cast<unsigned>(random.between(2, 8));
    case Level::kRaid5:
      return static_cast<unsigned>(random.between(3, kMostDrives));
    case Level::kRaid6:
      return static_cast<unsigned>(random.between(4, kMostDrives));
    case Level::kRaid10:
      return static_cast<unsigned>(random.between(2, 16) * 2);
    case Level::kRaid50:
      return static_cast<unsigned>(random.between(3, 16) * 2);
    case Level::kRaid60:
      return static_cast<unsigned>(random.between(4, 16) * 2);
  }
  return 0;
}

// A superblock that has seen some events; of a role or a replacement.
inline Superblock some_superblock(Random& random) {
  const Level level = kLevels[random.below(std::size(kLevels))];
  const unsigned count = some_drive_count(level, random);
  NewSet wanted{.name = std::string(random.between(1, kMostSetNameBytes), 'n'),
                .level = level,
                .strip_bytes = 4096u << random.below(9),
                .integrity = random.chance(0.3)};
  if (random.chance(0.5)) wanted.group_uuid = make_uuid(random);
  if (random.chance(0.5)) wanted.journal_bytes = random.below(64) * 4096;
  const std::uint32_t block_bytes = random.chance(0.5) ? 512 : 4096;
  std::vector<Candidate> drives;
  for (unsigned number = 0; number < count; ++number) {
    drives.push_back(blank_drive(number, random.between(40u << 20, 80u << 20), block_bytes));
  }
  Superblock set = plan(wanted, drives, random).superblocks[0];
  for (std::uint64_t events = random.below(200); events > 0; --events) {
    if (random.chance(0.5)) set.mark_complete();
    set.advance(random);
  }
  for (RoleEntry& role : set.roles) {
    if (random.chance(0.2)) role.replacement = make_uuid(random);
    role.state = static_cast<RoleState>(random.between(1, 3));
  }
  set.clean = random.chance(0.5);
  set.redundancy_suspect = random.chance(0.2);
  set.mark_complete();
  const auto role = static_cast<unsigned>(random.below(count));
  const bool replacement = set.roles[role].replacement != Uuid{} && random.chance(0.5);
  return replacement ? set.for_replacement(role) : set.for_role(role);
}

inline std::vector<std::byte> flipped(std::vector<std::byte> bytes, std::size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  return bytes;
}

}  // namespace sandbay::raid::testing
