// Assembly, in four steps: drives that cannot be used are put aside; the others are sorted by set;
// each set is judged by itself; what no set has claimed is a spare or a stranger.
#include "raid/assembly.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <memory>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "raid/metadata_image.h"
#include "raid/versions.h"
#include "runtime/known.h"

namespace sandbay::raid {
namespace {

constexpr std::string_view kWhereMetadataWereLost =
    "if that group's metadata were lost, start with an empty state directory and this UUID as "
    "group.uuid";

std::string roles_text(std::uint64_t roles) {
  std::string text = std::has_single_bit(roles) ? "role " : "roles ";
  for (std::string_view comma; roles != 0; roles &= roles - 1, comma = ", ") {
    text += fmt::format("{}{}", comma, std::countr_zero(roles));
  }
  return text;
}

class Assembler {
 public:
  Assembler(std::span<const Candidate> candidates, const Remembered& remembered)
      : candidates_(candidates), remembered_(remembered), used_(candidates.size()) {}

  Assembly run() {
    sort_out();
    refuse_copies();
    std::set<Uuid> sets;
    for (std::size_t at = 0; at < candidates_.size(); ++at) {
      if (!used_[at] && !superblock(at).is_spare()) sets.insert(superblock(at).set_uuid);
    }
    for (const Uuid& set : sets) judge_set(set);
    refuse_shared();
    for (const Pending& pending : pending_) finish_set(pending);
    for (const auto& [set, minimum] : remembered_.minimum_events) {
      if (sets.contains(set)) continue;
      tell(fmt::format("set {}: none of its drives is there", format_uuid(set)));
    }
    sort_spares();
    return std::move(assembly_);
  }

 private:
  // A set whose superblock has been chosen, or could not be.
  struct Pending {
    Uuid set{};
    std::vector<std::size_t> members;
    std::shared_ptr<Versions> versions;
    const Superblock* counts = nullptr;
    std::string refusal;
  };

  const Superblock& superblock(std::size_t at) const {
    return known(candidates_[at].contents.superblock);
  }
  const std::string& name(std::size_t at) const { return candidates_[at].name; }
  void tell(std::string line) { assembly_.lines.push_back(std::move(line)); }
  void estrange(std::size_t at, std::string why) {
    used_[at] = true;
    std::string line = fmt::format("{}: {}", name(at), why);
    tell(line);
    assembly_.strangers.push_back({.drive = at, .why = std::move(line)});
  }

  void sort_out();
  void refuse_copies();
  void judge_set(const Uuid& set);
  void refuse_shared();
  void finish_set(const Pending& pending);
  void sort_spares();

  // Steps of finish_set().
  std::optional<std::size_t> find(const Superblock& counts, unsigned role, const Uuid& drive);
  AssembledRole judge_role(const Pending& pending, unsigned role);
  void judge_replacement(const Pending& pending, unsigned role, AssembledRole& judged);
  void take_maps(AssembledSet& set, const Layout& layout);
  void settle_returning(AssembledSet& set);
  void estrange_rest(const Pending& pending, const std::string& label);
  std::string fits(std::size_t at, const Superblock& as, std::uint64_t needed_bytes) const;

  std::span<const Candidate> candidates_;
  const Remembered& remembered_;
  std::vector<bool> used_;  // Has found its place, good or bad.
  std::map<Uuid, std::size_t> by_drive_;
  std::vector<Pending> pending_;
  std::uint64_t aside_ = 0;  // Roles of the set at hand whose drives' maps do not count.
  Assembly assembly_;
};

std::string label(const Superblock& superblock) {
  return fmt::format("set '{}'", superblock.set_name);
}

std::string Assembler::fits(std::size_t at, const Superblock& as,
                            std::uint64_t needed_bytes) const {
  const Candidate& candidate = candidates_[at];
  if (candidate.block_bytes != as.block_bytes) {
    return fmt::format("its blocks have {} bytes, and {} by its superblock", candidate.block_bytes,
                       as.block_bytes);
  }
  const std::uint64_t bytes = candidate.block_count * candidate.block_bytes;
  if (bytes < needed_bytes) {
    return fmt::format("it has {} bytes, and {} takes {}", bytes, label(as), needed_bytes);
  }
  return {};
}

void Assembler::sort_out() {
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    const DriveContents& contents = candidates_[at].contents;
    if (contents.kind == DriveContents::Kind::kBlank) {
      used_[at] = true;
      assembly_.blank.push_back(at);
      continue;
    }
    if (!contents.superblock.has_value()) {
      estrange(at, contents.why);
      continue;
    }
    if (!contents.why.empty()) tell(fmt::format("{}: {}", name(at), contents.why));
    const Superblock& own = *contents.superblock;
    const std::uint64_t needed = own.is_spare() ? kJournalOffset : own.needed_bytes(own.role);
    if (std::string error = fits(at, own, needed); !error.empty()) estrange(at, std::move(error));
  }
}

void Assembler::refuse_copies() {
  std::map<Uuid, std::vector<std::size_t>> drives;
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    if (!used_[at]) drives[superblock(at).drive_uuid].push_back(at);
  }
  for (const auto& [uuid, copies] : drives) {
    by_drive_.emplace(uuid, copies.front());
    if (copies.size() == 1) continue;
    by_drive_.erase(uuid);
    for (const std::size_t at : copies) {
      const std::size_t other = copies[at == copies[0] ? 1 : 0];
      estrange(at, fmt::format("it and {} are copies of one drive ({}); neither is used",
                               name(other), format_uuid(uuid)));
    }
  }
}

// The newest event of which its owner was told, by what is on its drives.
Event last_told(const Superblock& superblock) {
  Event last = 0;
  for (const RoleEntry& role : superblock.roles) {
    last = std::max({last, role.known_event, role.replacement_known_event});
  }
  return last;
}

bool was_told_of_later(const Superblock& superblock, Event remembered) {
  return remembered != 0 && event_number(last_told(superblock)) > event_number(remembered);
}

void Assembler::judge_set(const Uuid& set) {
  Pending pending{.set = set};
  std::vector<Witness> witnesses;
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    if (used_[at]) continue;
    const bool spare = superblock(at).is_spare();
    if (!spare && superblock(at).set_uuid != set) continue;
    witnesses.push_back({.name = name(at), .superblock = &superblock(at)});
    if (!spare) pending.members.push_back(at);
  }
  pending.versions = std::make_shared<Versions>(witnesses);
  const auto minimum = remembered_.minimum_events.find(set);
  const Event event = minimum == remembered_.minimum_events.end() ? 0 : minimum->second;
  const auto counts = pending.versions->choose(event);
  if (!counts.has_value()) {
    pending.refusal = counts.error();
  } else if (was_told_of_later(**counts, event) && !remembered_.older.contains(set)) {
    pending.refusal = fmt::format(
        "its drives were brought to event {}, and event {} is the newest that is remembered: the "
        "metadata are an older copy, and it is not served with them; bring back the newest, or "
        "import an export of the group",
        event_number(last_told(**counts)), event_number(event));
  } else {
    pending.counts = *counts;
  }
  const Superblock& newest = counts.has_value() ? **counts : pending.versions->newest();
  if (!is_zero(remembered_.group_uuid) && !is_zero(newest.group_uuid) &&
      newest.group_uuid != remembered_.group_uuid) {
    for (const std::size_t at : pending.members) {
      estrange(at, fmt::format("it belongs to {} of another group ({}); {}", label(newest),
                               format_uuid(newest.group_uuid), kWhereMetadataWereLost));
    }
    return;
  }
  pending_.push_back(std::move(pending));
}

// A drive that two sets name, or one that another set than its own counts as a part: nobody's.
void Assembler::refuse_shared() {
  std::map<Uuid, const Superblock*> named;
  for (const Pending& pending : pending_) {
    if (pending.counts == nullptr) continue;
    for (const RoleEntry& role : pending.counts->roles) {
      for (const Uuid& drive : {role.drive, role.replacement}) {
        const auto found = by_drive_.find(drive);
        if (is_zero(drive) || found == by_drive_.end() || used_[found->second]) continue;
        const std::size_t at = found->second;
        const auto [before, first] = named.emplace(drive, pending.counts);
        const Superblock& own = superblock(at);
        if (!first) {
          estrange(at, fmt::format("both {} and {} name it", label(*before->second),
                                   label(*pending.counts)));
        } else if (!is_zero(own.set_uuid) && own.set_uuid != pending.set) {
          estrange(at, fmt::format("it is a drive of {}, but {} names it too", label(own),
                                   label(*pending.counts)));
        }
      }
    }
  }
}

std::optional<std::size_t> Assembler::find(const Superblock& counts, unsigned role,
                                           const Uuid& drive) {
  const auto found = by_drive_.find(drive);
  if (found == by_drive_.end() || used_[found->second]) return std::nullopt;
  const std::size_t at = found->second;
  if (std::string error = fits(at, counts, counts.needed_bytes(role)); !error.empty()) {
    estrange(at, std::move(error));
    return std::nullopt;
  }
  used_[at] = true;
  return at;
}

AssembledRole Assembler::judge_role(const Pending& pending, unsigned role) {
  const Superblock& counts = *pending.counts;
  const RoleEntry& entry = counts.roles[role];
  const std::string where = fmt::format("{}, role {}", label(counts), role);
  AssembledRole judged;
  aside_ &= ~(std::uint64_t{1} << role);
  const auto at = find(counts, role, entry.drive);
  if (!at.has_value()) {
    tell(fmt::format("{}: its drive ({}) is not there{}", where, format_uuid(entry.drive),
                     entry.state == RoleState::kActive
                         ? ""
                         : fmt::format(" and was {} before", describe(entry.state))));
    return judged;
  }
  judged.drive = at;
  judged.verdict = Verdict::kStale;
  const Superblock& held = superblock(*at);
  const auto standing = pending.versions->standing(counts, held, entry.known_event);
  if (standing.aside) aside_ |= std::uint64_t{1} << role;
  if (standing.apart) {
    tell(fmt::format("{}: {} is stale: it went on without the others (event {})", where, name(*at),
                     event_number(held.event)));
  } else if (event_number(standing.base) < event_number(entry.known_event)) {
    tell(fmt::format("{}: {} is stale: it holds event {} although event {} had been written on it",
                     where, name(*at), event_number(standing.base),
                     event_number(entry.known_event)));
  } else if (entry.state == RoleState::kActive) {
    judged.verdict = Verdict::kCurrent;
    if (held.event != counts.event) {
      tell(
          fmt::format("{}: the superblock of {} is of event {} and that of the set of event {}; "
                      "the drive counts as current; if it is an older copy of itself, replace it",
                      where, name(*at), event_number(held.event), event_number(counts.event)));
    }
  } else {
    judged.verdict = Verdict::kReturning;  // If a map is found.
  }
  return judged;
}

void Assembler::judge_replacement(const Pending& pending, unsigned role, AssembledRole& judged) {
  const Superblock& counts = *pending.counts;
  const RoleEntry& entry = counts.roles[role];
  if (is_zero(entry.replacement)) return;
  const auto at = find(counts, role, entry.replacement);
  if (!at.has_value()) {
    tell(fmt::format("{}, role {}: its replacement ({}) is not there", label(counts), role,
                     format_uuid(entry.replacement)));
    return;
  }
  const auto standing =
      pending.versions->standing(counts, superblock(*at), entry.replacement_known_event);
  if (standing.apart || event_number(standing.base) < event_number(entry.replacement_known_event)) {
    used_[*at] = false;
    estrange(*at, fmt::format("it was a replacement in {}, role {}, and has missed writes",
                              label(counts), role));
    return;
  }
  judged.replacement = at;
}

void Assembler::take_maps(AssembledSet& set, const Layout& layout) {
  const Superblock& counts = set.superblock;
  const std::uint64_t regions = counts.region_count(layout);
  for (unsigned role = 0; role < set.roles.size(); ++role) {
    if (set.roles[role].verdict != Verdict::kCurrent || (aside_ >> role & 1U) != 0) continue;
    const Candidate& candidate = candidates_[known(set.roles[role].drive)];
    if (const auto& map = candidate.regions;
        map.has_value() && map->set_uuid() == counts.set_uuid && map->region_count() == regions &&
        map->drive_count() == counts.drive_count() &&
        (!set.regions.has_value() || map->sequence() > set.regions->sequence())) {
      set.regions = map;
    }
    if (const auto& lost = candidate.lost;
        lost.has_value() && lost->set_uuid() == counts.set_uuid &&
        lost->set_block_count() == layout.block_count() &&
        (!set.lost.has_value() || lost->sequence() > set.lost->sequence())) {
      set.lost = lost;
    }
  }
  // Without redundancy nothing is ever stale.
  if (!set.regions.has_value() && layout.redundancy() == 0) {
    set.regions = RegionMap(counts.set_uuid, regions, counts.drive_count());
  }
}

void Assembler::settle_returning(AssembledSet& set) {
  for (unsigned role = 0; role < set.roles.size(); ++role) {
    AssembledRole& judged = set.roles[role];
    if (judged.verdict == Verdict::kCurrent || !judged.drive.has_value()) continue;
    const std::string where = fmt::format("{}, role {}", label(set.superblock), role);
    if (judged.verdict != Verdict::kReturning) continue;
    const std::string_view state = describe(set.superblock.roles[role].state);
    if (!set.regions.has_value()) {
      judged.verdict = Verdict::kStale;
      tell(fmt::format("{}: {} is stale: it was {}, and no region map says what it has missed",
                       where, name(*judged.drive), state));
    } else {
      tell(fmt::format("{}: {} is returning: it was {} and has missed {} of {} regions", where,
                       name(*judged.drive), state, known(set.regions).stale_count(role, false),
                       known(set.regions).region_count()));
    }
  }
}

// Which roles cannot be read, of the regions where this is worst.
std::uint64_t first_fatal(const AssembledSet& set, const Layout& layout) {
  std::uint64_t absent = 0;
  std::vector<unsigned> partly;
  for (unsigned role = 0; role < set.roles.size(); ++role) {
    const std::uint64_t bit = std::uint64_t{1} << role;
    if (set.roles[role].verdict != Verdict::kCurrent) {
      absent |= bit;
    } else if (known(set.regions).stale_count(role, false) > 0) {
      partly.push_back(role);
    }
  }
  if (!layout.survives(absent)) return absent;
  if (partly.empty()) return 0;
  std::uint64_t before = absent;
  for (std::uint64_t region = 0; region < known(set.regions).region_count(); ++region) {
    std::uint64_t missing = absent;
    for (const unsigned role : partly) {
      if (known(set.regions).stale(role, false, region)) missing |= std::uint64_t{1} << role;
    }
    if (missing != before && !layout.survives(missing)) return missing;
    before = missing;
  }
  return 0;
}

void decide_start(AssembledSet& set, const Layout& layout) {
  set.current_roles = 0;
  set.degraded = false;
  set.refusal.clear();
  const std::string named = label(set.superblock);
  for (unsigned role = 0; role < set.roles.size(); ++role) {
    if (set.roles[role].verdict == Verdict::kCurrent) {
      set.current_roles |= std::uint64_t{1} << role;
      if (set.regions.has_value() && known(set.regions).stale_count(role, false) > 0) {
        set.degraded = true;
      }
    } else {
      set.degraded = true;
    }
  }
  if (set.current_roles == 0) {
    set.refusal = fmt::format("{}: none of its drives is current", named);
  } else if (!set.regions.has_value()) {
    set.refusal = fmt::format("{}: its region map cannot be read on any current drive", named);
  } else if (!set.lost.has_value()) {
    set.refusal =
        fmt::format("{}: its list of lost sectors cannot be read on any current drive", named);
  } else if (const std::uint64_t fatal = first_fatal(set, layout); fatal != 0) {
    const bool one = std::has_single_bit(fatal);
    set.refusal =
        fmt::format("{}: {} {} not there or not fresh, which {} does not survive; put {} back",
                    named, roles_text(fatal), one ? "is" : "are", describe(layout.level()),
                    one ? "its drive" : "their drives");
  }
  set.startable = set.refusal.empty();
}

void Assembler::estrange_rest(const Pending& pending, const std::string& named) {
  for (const std::size_t at : pending.members) {
    if (used_[at]) continue;
    const Superblock& held = superblock(at);
    estrange(at, fmt::format("it was in role {} of {} and is not any more", held.role, named));
  }
}

void Assembler::finish_set(const Pending& pending) {
  AssembledSet set;
  set.superblock = pending.counts != nullptr ? *pending.counts : pending.versions->newest();
  const std::string named = label(set.superblock);
  set.roles.resize(set.superblock.drive_count());
  if (pending.counts == nullptr) {
    set.refusal = fmt::format("{}: {}", named, pending.refusal);
    set.degraded = true;
    tell(set.refusal);
    // Nobody else's either.
    for (const std::size_t at : pending.members) used_[at] = true;
    set.undecided = pending.members;
    assembly_.sets.push_back(std::move(set));
    return;
  }
  if (pending.versions->minimum_was_too_old()) {
    tell(fmt::format("{}: the event {} that is remembered is older than its history goes back",
                     named, event_number(remembered_.minimum_events.at(pending.set))));
  }
  for (unsigned role = 0; role < set.superblock.drive_count(); ++role) {
    set.roles[role] = judge_role(pending, role);
    judge_replacement(pending, role, set.roles[role]);
  }
  const auto layout = set.superblock.layout();
  assert(layout.has_value());  // decode_superblock() has made it before.
  take_maps(set, *layout);
  settle_returning(set);
  decide_start(set, *layout);
  if (!set.startable) {
    tell(set.refusal);
  } else if (set.degraded) {
    tell(fmt::format("{}: starts degraded", named));
  }
  estrange_rest(pending, named);
  assembly_.sets.push_back(std::move(set));
}

void Assembler::sort_spares() {
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    if (used_[at]) continue;
    const Superblock& spare = superblock(at);
    assert(spare.is_spare());  // Drives of sets have found their places.
    if (!is_zero(remembered_.group_uuid) && !is_zero(spare.group_uuid) &&
        spare.group_uuid != remembered_.group_uuid) {
      estrange(at, fmt::format("it is a spare of another group ({}); {}",
                               format_uuid(spare.group_uuid), kWhereMetadataWereLost));
      continue;
    }
    if (is_zero(spare.set_uuid)) {
      used_[at] = true;
      assembly_.spares.push_back(at);
      continue;
    }
    const auto set = std::ranges::find_if(assembly_.sets, [&](const AssembledSet& one) {
      return one.superblock.set_uuid == spare.set_uuid;
    });
    if (set == assembly_.sets.end()) {
      estrange(at, fmt::format("it is a spare of {}, which is not here", label(spare)));
      continue;
    }
    used_[at] = true;
    set->spares.push_back(at);
  }
}

}  // namespace

void put_aside(AssembledSet& set, unsigned role, std::string why) {
  const auto layout = set.superblock.layout();
  assert(layout.has_value() && set.roles[role].verdict == Verdict::kCurrent);
  set.roles[role].verdict = Verdict::kStale;
  set.superblock.roles[role].state = RoleState::kFailed;
  // What it has missed nobody knows. That is durable with the first event without it.
  if (set.regions) set.regions->set_all_stale(role, false, true);
  set.roles[role].why = std::move(why);
  decide_start(set, *layout);
  for (const AssembledRole& each : set.roles) {
    if (!set.startable && !each.why.empty()) set.refusal += fmt::format("; {}", each.why);
  }
}

Assembly assemble(std::span<const Candidate> candidates, const Remembered& remembered) {
  return Assembler(candidates, remembered).run();
}

Task<std::vector<Candidate>> gather_candidates(std::vector<NamedDevice> devices) {
  std::vector<Candidate> candidates;
  for (const NamedDevice& named : devices) {
    const Geometry& geometry = named.device->geometry();
    Candidate candidate{.name = named.name,
                        .block_bytes = geometry.block_bytes,
                        .block_count = geometry.block_count,
                        .physical_block_bytes = geometry.physical_block_bytes,
                        .contents = {}};
    DriveMetadata metadata(*named.device);
    candidate.contents = co_await metadata.read_contents();
    const auto& superblock = candidate.contents.superblock;
    if (superblock.has_value() && !superblock->is_spare()) {
      auto regions = co_await metadata.read_region_map(superblock->set_uuid);
      if (regions.has_value()) candidate.regions = std::move(*regions);
      auto lost = co_await metadata.read_lost_sectors(superblock->set_uuid);
      if (lost.has_value()) candidate.lost = std::move(*lost);
    }
    candidates.push_back(std::move(candidate));
  }
  co_return candidates;
}

}  // namespace sandbay::raid
