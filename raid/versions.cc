// Which version of a set's superblock counts. A set has at most a hundred drives, so every
// comparison is between all pairs.
#include "raid/versions.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <ranges>

#include <fmt/core.h>

namespace sandbay::raid {
namespace {

// The history does not go back so far: whether it followed from `event` cannot be told any more.
bool forgotten(const Superblock& superblock, Event event) {
  return superblock.history.size() == kMostHistory &&
         event_number(event) < event_number(superblock.history.back());
}

// As far as is known; what is forgotten is taken for the past.
bool follows(const Superblock& superblock, Event event) {
  return superblock.follows(event) || forgotten(superblock, event);
}

bool same_geometry(const Superblock& one, const Superblock& two) {
  return one.level == two.level && one.group_count == two.group_count &&
         one.block_bytes == two.block_bytes && one.strip_blocks == two.strip_blocks &&
         one.data_offset_blocks == two.data_offset_blocks &&
         one.journal_bytes == two.journal_bytes && one.region_stripes == two.region_stripes &&
         one.integrity == two.integrity &&
         std::ranges::equal(one.roles, two.roles, [](const RoleEntry& a, const RoleEntry& b) {
           return a.data_blocks == b.data_blocks &&
                  a.integrity_offset_bytes == b.integrity_offset_bytes &&
                  a.integrity_bytes == b.integrity_bytes;
         });
}

}  // namespace

Versions::Versions(std::span<const Witness> witnesses)
    : witnesses_(witnesses.begin(), witnesses.end()) {
  for (std::size_t at = 0; at < witnesses_.size(); ++at) {
    const Superblock& superblock = *witnesses_[at].superblock;
    witness_of_drive_.emplace(superblock.drive_uuid, at);
    if (superblock.is_spare()) continue;
    Version& version = versions_[superblock.event];
    if (version.superblock == nullptr) version.superblock = &superblock;
    version.holders.push_back(at);
  }
  assert(!versions_.empty());
  for (auto& [event, version] : versions_) judge(version);
}

const Superblock& Versions::newest() const noexcept {
  return *std::prev(versions_.end())->second.superblock;
}

void Versions::judge(Version& version) const {
  const Superblock& mine = *version.superblock;
  for (const RoleEntry& role : mine.roles) {
    if (role.state != RoleState::kActive) continue;
    const auto found = witness_of_drive_.find(role.drive);
    if (found == witness_of_drive_.end()) continue;
    const Superblock& theirs = *witnesses_[found->second].superblock;
    if (theirs.is_spare()) {
      version.refuted = true;
    } else if (!follows(theirs, mine.event)) {
      version.refuted = true;
      if (!follows(mine, theirs.event)) version.contradicted = true;
    }
  }
}

std::string Versions::contradiction() const {
  const Version& first = versions_.begin()->second;
  for (const auto& [event, version] : versions_) {
    if (!same_geometry(*first.superblock, *version.superblock)) {
      return fmt::format("the superblocks of {} and {} tell of different geometries", holder(first),
                         holder(version));
    }
    for (const std::size_t at : version.holders) {
      if (version.superblock->same_version(*witnesses_[at].superblock)) continue;
      return fmt::format("the superblocks of {} and {} are both of event {} and yet differ",
                         holder(version), witnesses_[at].name, event_number(event));
    }
  }
  return {};
}

std::string Versions::apart(const Version& one, const Version& two) const {
  return fmt::format(
      "{} (event {}) and {} (event {}) went on without each other; which of them is right "
      "cannot be told",
      holder(one), event_number(one.superblock->event), holder(two),
      event_number(two.superblock->event));
}

std::expected<const Superblock*, std::string> Versions::choose(Event minimum) {
  if (std::string error = contradiction(); !error.empty()) return std::unexpected(error);
  minimum_ = minimum;
  Line passing;  // Newest first, so that an ancestor comes after what follows from it.
  Line sound;    // Those of them that no other sound one follows from.
  for (const auto& [event, version] : versions_ | std::views::reverse) {
    if (minimum != 0 && !follows(*version.superblock, minimum)) continue;
    passing.push_back(&version);
    if (!version.refuted && !leads_to_any(version, sound)) sound.push_back(&version);
  }
  if (passing.empty()) {
    return std::unexpected(
        fmt::format("the newest superblock found is that of {}, of event {}, which does not follow "
                    "from the event {} that is remembered: newer drives are away",
                    holder(std::prev(versions_.end())->second), event_number(newest().event),
                    event_number(minimum)));
  }
  // The owner learns of an event before anything is acknowledged on its account: where it knows
  // of none of two, neither matters.
  const bool remembers = minimum != 0 && std::ranges::any_of(passing, [&](const Version* version) {
                           return version->superblock->follows(minimum);
                         });
  if (sound.size() > 1 && !remembers) return std::unexpected(apart(*sound[0], *sound[1]));
  const Version* counts = sound.size() == 1 ? sound[0] : common_ancestor(passing, sound);
  if (const Version* later = taken_up(counts, passing)) {
    counts = later;
  } else if (remembers && (counts == nullptr || !has_maps(*counts))) {
    counts = best_attended(passing);
  }
  if (counts == nullptr) return std::unexpected(apart(*passing.back(), *passing.front()));
  remembers_ = remembers;
  minimum_was_too_old_ = minimum != 0 && !counts->superblock->follows(minimum);
  return counts->superblock;
}

bool Versions::leads_to_any(const Version& version, const Line& others) const {
  return std::ranges::any_of(others, [&](const Version* other) {
    return follows(*other->superblock, version.superblock->event);
  });
}

// The newest of the versions that all the others in `of` follow from, if any of it is left.
const Versions::Version* Versions::common_ancestor(const Line& among, const Line& of) const {
  if (of.empty()) return nullptr;
  for (const Version* version : among) {
    const bool common = std::ranges::all_of(of, [&](const Version* one) {
      return one->superblock->follows(version->superblock->event);
    });
    if (common) return version;
  }
  return nullptr;
}

// The event after it that a crash cut short, if there is one and only one line of them.
const Versions::Version* Versions::taken_up(const Version* counts, const Line& among) const {
  const Version* last = nullptr;
  for (const Version* version : among) {
    if (version == counts) continue;
    if (counts != nullptr && !version->superblock->follows(counts->superblock->event)) continue;
    if (version->contradicted) return nullptr;
    if (last == nullptr) {
      last = version;
    } else if (!last->superblock->follows(version->superblock->event)) {
      return nullptr;
    }
  }
  return last;
}

// Whether one of its own drives has stayed with it: only there is a region map to be had.
bool Versions::has_maps(const Version& version) const {
  const Superblock& mine = *version.superblock;
  return std::ranges::any_of(mine.roles, [&](const RoleEntry& role) {
    const auto found = witness_of_drive_.find(role.drive);
    if (role.state != RoleState::kActive || found == witness_of_drive_.end()) return false;
    const Superblock& theirs = *witnesses_[found->second].superblock;
    return !theirs.is_spare() && follows(mine, theirs.event);
  });
}

// The one with most of its drives there.
const Versions::Version* Versions::best_attended(const Line& among) const {
  const auto attendance = [&](const Version* version) -> std::ptrdiff_t {
    if (!has_maps(*version)) return -1;
    return std::ranges::count_if(version->superblock->roles, [&](const RoleEntry& role) {
      return role.state == RoleState::kActive && witness_of_drive_.contains(role.drive);
    });
  };
  return *std::ranges::max_element(among, {}, attendance);
}

Versions::Standing Versions::standing(const Superblock& counts, const Superblock& drive,
                                      Event known_event) const {
  if (drive.is_spare()) return {};
  const Event event = drive.event;
  if (event == known_event || counts.follows(event)) return {.base = event};
  if (drive.follows(counts.event)) return {.aside = true, .base = counts.event};
  if (forgotten(counts, event)) return {.base = event};
  // It went another way. If that came to nothing, it stands where the ways parted.
  const bool came_to_nothing =
      versions_.at(event).refuted || (remembers_ && drive.follows(minimum_));
  if (!came_to_nothing) return {.apart = true};
  for (const Event before : drive.history) {
    if (before == known_event || counts.follows(before)) return {.aside = true, .base = before};
  }
  return {.apart = true};
}

}  // namespace sandbay::raid
