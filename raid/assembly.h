// Assembly: finds the sets that a number of drives make up, and says of each drive whether what is
// on it can be trusted. Pure; gather_candidates() does the reading.
//
// Which superblock counts. Superblocks of a set with the same event are one *version*. A version
// is *refuted* if a drive that it counts as active is there and holds a version that does not
// follow from it: then it was never on all its drives, and since a write that skips a drive is
// acknowledged only when the event that lost the drive is on all others (and known to the owner),
// nothing was ever acknowledged on its account. Among the versions that are not refuted and that
// follow from the minimum event, the newest counts, if the others are its ancestors; two that went
// separate ways are refused. A refuted version that follows from it, of which there is no second
// and whose other drives only hold what it follows from, is an event that a crash cut short: it is
// taken up after all, because it says more about what is wrong.
//
// Which drive is current. One that the version that counts names as active in its role, unless what
// it holds is older than what it is known to have held. Its superblock may be older than the
// version: then only writing that superblock was cut short, no write was skipped. It may be of a
// refuted version: likewise. Every other drive is not current: *returning* if the version lists it
// as lost, it held what it should when it was lost, it did not go on without the others, and a
// region map says what it has missed; otherwise *stale*.
//
// So a drive that has missed an acknowledged write is never current, provided that the minimum
// event is that of the last version that was written on all drives and acted upon. The order
// of events in which this holds is in docs/design/raid-events.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "raid/drive_metadata.h"
#include "raid/layout.h"
#include "raid/lost_sectors.h"
#include "raid/region_map.h"
#include "raid/superblock.h"

namespace sandbay::raid {

// A drive as it was found.
struct Candidate {
  std::string name;  // As in messages: "drive 3 (d3.img)".
  std::uint32_t block_bytes = 512;
  std::uint64_t block_count = 0;
  std::uint32_t physical_block_bytes = 0;  // 0: as its blocks.
  DriveContents contents;
  // Of the set that the superblock names; nothing if none is whole.
  std::optional<RegionMap> regions = {};
  std::optional<LostSectors> lost = {};
};

// What the caller remembers.
struct Remembered {
  Uuid group_uuid{};  // Zero: drives of any group will do.
  // By set; 0 or absent: none. Whoever remembers one was told of every event before anything was
  // done on its account: a set that has seen one to its end since then is remembered by a copy of
  // what is newer, and is refused.
  std::map<Uuid, Event> minimum_events;
  std::set<Uuid> older = {};  // But those that are meant to be taken as they are.
};

enum class Verdict : std::uint8_t {
  kAbsent,     // No drive.
  kCurrent,    // Takes part; the region map may still call regions of it stale.
  kReturning,  // Missed what the region map calls stale, and nothing else.
  kStale,      // Only good as a fresh drive.
};

struct AssembledRole {
  std::optional<std::size_t> drive;  // Index of the candidate.
  Verdict verdict = Verdict::kAbsent;
  std::optional<std::size_t> replacement;  // Only one that is current.
  std::string why;                         // Of a stale one that was found later.
};

struct AssembledSet {
  Superblock superblock;  // The version that counts; its own place is that of some drive.
  std::vector<AssembledRole> roles;
  std::uint64_t current_roles = 0;
  bool startable = false;
  bool degraded = false;
  // Why it is not startable: a sentence that begins with the set's name. Empty if it is.
  std::string refusal;
  // Its drives, where no version of its superblocks counts: their roles are not known.
  std::vector<std::size_t> undecided;
  // From the current drives, the newest. Always there when startable.
  std::optional<RegionMap> regions;
  std::optional<LostSectors> lost;
  std::vector<std::size_t> spares;  // Dedicated to it.
};

struct Stranger {
  std::size_t drive = 0;
  std::string why;  // The same as in `lines`.
};

struct Assembly {
  std::vector<AssembledSet> sets;   // In the order of their UUIDs.
  std::vector<std::size_t> spares;  // Global ones.
  std::vector<std::size_t> blank;
  // Drives that belong to nothing here or must not be used; they are never written.
  std::vector<Stranger> strangers;
  // One line for each thing worth telling, each naming its drive or set.
  std::vector<std::string> lines;
};

Assembly assemble(std::span<const Candidate> candidates, const Remembered& remembered);

// The drive in this role, that counted as current, was set back (set_back.h): it is stale, and
// failed, and nothing on it counts any more. The set may not be startable then.
void put_aside(AssembledSet& set, unsigned role, std::string why);

// A drive to look at.
struct NamedDevice {
  std::string name;
  BlockDevice* device = nullptr;
};
// Reads what assemble() needs, drive after drive.
Task<std::vector<Candidate>> gather_candidates(std::vector<NamedDevice> devices);

// New sets. ---------------------------------------------------------------------------------------

struct NewSet {
  std::string name;
  Uuid group_uuid{};
  Level level = Level::kRaid5;
  unsigned group_count = 0;  // As in Shape.
  std::uint32_t strip_bytes = 64u << 10;
  bool integrity = false;
  // Nothing: 16 MiB where a journal is needed (parity, or integrity), else none. 0: none, because
  // it is in NVRAM.
  std::optional<std::uint64_t> journal_bytes;
  std::uint64_t region_stripes = 0;  // 0: choose_region_stripes().
  bool overwrite = false;            // Drives that are not blank will do.
  // For who must know them before anything is written. Zero and empty: drawn.
  Uuid set_uuid{};
  std::vector<Uuid> drive_uuids;  // By role; as many as drives.
};

// What the journal takes on each drive: what is asked for, else the default that stands there.
std::uint64_t journal_bytes_on_drives(const NewSet& wanted);

struct PlannedSet {
  std::vector<Superblock> superblocks;  // By role, in the order of the drives.
  RegionMap regions;                    // All dirty where there is redundancy to make valid.
  LostSectors lost;
};

// The error is one sentence that names the drive or the key. Nothing is written: the caller writes
// region map and lost sectors on all drives first, then the superblocks, then mark_complete().
std::expected<PlannedSet, std::string> plan_new_set(const NewSet& wanted,
                                                    std::span<const Candidate> drives,
                                                    Random& random);

}  // namespace sandbay::raid
