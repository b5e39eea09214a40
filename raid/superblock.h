// Superblock: what a drive says of itself and of the set that it belongs to. 8 KiB, twice on each
// drive; docs/formats/raid.md has it byte by byte.
//
// All but the drive's own place in it is common to the drives of a set, and changes only in events:
// advance() begins one, then the superblock is written on every drive that takes part. Two
// superblocks of a set with the same event are the same; the history says which events an event
// stands upon, so that of two superblocks it is known whether one follows from the other or each
// went its own way.
//
// A Superblock that decode() gives is consistent: its layout can be made, its areas lie one after
// another, its drives are all different and its own place is in its table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "raid/layout.h"
#include "runtime/random.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

// Where things stand on a drive, in bytes.
inline constexpr std::size_t kSuperblockBytes = 8u << 10;
// What is written. Lower versions, which are read, too, have zeros for what came later: version 4
// has the size of physical blocks, version 3 `blank`, version 2 the keys of journals. Versions 5
// and 6 say that a list of lost sectors may be of version 2 or 3, which who knows only 4 or 5 would
// pass over.
inline constexpr std::uint32_t kSuperblockVersion = 6;
inline constexpr std::array<std::uint64_t, 2> kSuperblockOffset = {0, 64u << 10};
inline constexpr std::array<std::uint64_t, 2> kRegionMapOffset = {128u << 10, 384u << 10};
inline constexpr std::size_t kRegionMapBytes = 192u << 10;
inline constexpr std::array<std::uint64_t, 2> kLostSectorsOffset = {640u << 10, 704u << 10};
inline constexpr std::size_t kLostSectorsBytes = 64u << 10;
inline constexpr std::uint64_t kJournalOffset = 1u << 20;
inline constexpr std::uint64_t kAreaAlignment = 1u << 20;  // Of the data area.
inline constexpr std::uint64_t kDefaultJournalBytes = 16u << 20;
inline constexpr std::uint64_t kDefaultDataOffset = kJournalOffset + kDefaultJournalBytes;
inline constexpr std::size_t kMostSetNameBytes = 63;
inline constexpr std::size_t kMostHistory = 128;
inline constexpr std::uint32_t kMostPhysicalBlockBytes = 1u << 20;

// An event: a counter in the upper half and a tag drawn by chance in the lower, so that two drives
// that counted on alone do not arrive at the same one. 0: none. The higher is the newer, if one of
// the two follows from the other at all.
using Event = std::uint64_t;
constexpr std::uint32_t event_number(Event event) {
  return static_cast<std::uint32_t>(event >> 32);
}

// The values are on disk.
enum class RoleState : std::uint8_t {
  kActive = 1,  // Its drive takes part, whole or with stale regions.
  kMissing,     // Its drive is away; a change log is kept.
  kFailed,      // Its drive was there and failed.
};
std::string_view describe(RoleState state);  // "active", "missing", "failed"

struct RoleEntry {
  Uuid drive{};        // Never zero: a role without a drive names the one that it lost.
  Uuid replacement{};  // Zero: none.
  RoleState state = RoleState::kActive;
  std::uint64_t data_blocks = 0;             // Of the data area; the same but in a concatenation.
  std::uint64_t integrity_offset_bytes = 0;  // On the drive; 0 without integrity.
  std::uint64_t integrity_bytes = 0;
  // The newest event that is known to have been durable on the drive, 0 if none is: a drive that
  // holds an older superblock than that has been set back. Kept when the drive is lost.
  Event known_event = 0;
  Event replacement_known_event = 0;
  bool operator==(const RoleEntry&) const = default;
};

// The values are on disk.
enum class Place : std::uint8_t { kRole = 1, kReplacement, kSpare };

struct Superblock {
  // The drive's own.
  Uuid drive_uuid{};
  Place place = Place::kRole;
  unsigned role = 0;  // With kRole and kReplacement.

  // Of a spare: zero for any set, else the set that it is kept for. All that follows the group is
  // empty in a spare, but for the name of that set.
  Uuid set_uuid{};
  Uuid group_uuid{};  // Who owns it; may be zero.
  std::string set_name;

  Event event = 0;
  std::vector<Event> history;  // The events before, the newest first; at most kMostHistory.
  Level level = Level::kJbod;
  unsigned group_count = 1;
  std::uint32_t block_bytes = 512;
  std::uint32_t strip_blocks = 0;
  std::uint64_t data_offset_blocks = 0;
  std::uint64_t journal_offset_bytes = 0;
  std::uint64_t journal_bytes = 0;   // 0: no journal on the drives.
  std::uint64_t region_stripes = 0;  // Stripes in a region.
  bool integrity = false;
  bool clean = true;  // Stopped in order: no journal to replay, no mirror to compare.
  // The journal was lost: where redundancy is not verified, nothing is computed from it.
  bool redundancy_suspect = false;
  // With integrity: the data areas were proven to be zeros when the set was made, so a cell whose
  // entry was never written has zeros.
  bool blank = false;
  // The key of the journal that was used last (Journal::Keys), 0 if none ever was, and, while a set
  // starts, of the one that it begins.
  std::uint64_t journal_key = 0;
  std::uint64_t next_journal_key = 0;
  // The largest physical block among the drives that the set was made of, whichever are here now;
  // 0 in a set that an older version has made, until it starts with all its drives.
  std::uint32_t physical_block_bytes = 0;
  std::vector<RoleEntry> roles;

  bool is_spare() const noexcept { return place == Place::kSpare; }
  unsigned drive_count() const noexcept { return static_cast<unsigned>(roles.size()); }
  std::expected<Layout, std::string> layout() const;
  std::uint64_t region_count(const Layout& layout) const {
    return (layout.stripe_count() + region_stripes - 1) / region_stripes;
  }
  // What the drive of a role must have, in bytes.
  std::uint64_t needed_bytes(unsigned role) const;

  // The next event. What has changed with it stands in the fields before or after this call; the
  // superblocks of all drives are then made of it and written.
  void advance(Random& random);
  // The event is durable on the drive of every active role and on every replacement. Stored with
  // the next event; what assemble() detects of drives that were set back rests on it.
  void mark_complete();
  // The same with another place in it.
  Superblock for_role(unsigned its_role) const;
  Superblock for_replacement(unsigned its_role) const;

  bool operator==(const Superblock&) const = default;
  // Equal but for the drive's own place.
  bool same_version(const Superblock& other) const;
  // Whether this superblock's event is `other` or follows from it, as far as the history tells.
  bool follows(Event other) const;
};

Superblock make_spare(const Uuid& drive_uuid, const Uuid& group_uuid, std::uint32_t block_bytes,
                      const Uuid& set_uuid = {}, std::string set_name = {});

// Exactly kSuperblockBytes. `copy_sequence` orders what was ever written on one drive.
std::vector<std::byte> encode(const Superblock& superblock, std::uint64_t copy_sequence);

struct DecodedSuperblock {
  Superblock superblock;
  std::uint64_t copy_sequence = 0;
};
// The error is one half-sentence: what is wrong with it. Any bytes may come.
std::expected<DecodedSuperblock, std::string> decode_superblock(std::span<const std::byte> bytes);
// Whether it was meant to be one, whole or not.
bool looks_like_superblock(std::span<const std::byte> bytes);
// What is inconsistent in it, or an empty text; encode() asserts that it is empty.
std::string superblock_error(const Superblock& superblock);

}  // namespace sandbay::raid
