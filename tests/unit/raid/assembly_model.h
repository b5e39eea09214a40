// A model of a set's life, for the tests of assembly: drives that hold a superblock and a region
// map each, an owner that remembers an event, and, beside what the drives say, the truth about
// which regions each drive has missed acknowledged writes in. Every durable write is one step; the
// power can fail before each.
//
// The running set keeps to the order of docs/design/raid-events.md, and to nothing more.
#pragma once

#include <algorithm>
#include <bit>
#include <deque>
#include <vector>

#include "metadata_samples.h"

namespace sandbay::raid::testing {

inline constexpr std::uint64_t kRegions = 4;
inline constexpr std::uint32_t kAllRegions = (1U << kRegions) - 1;

struct ModelDrive {
  Uuid uuid{};
  std::optional<Superblock> superblock;
  std::optional<RegionMap> map;
  std::uint32_t missed = 0;  // The truth: regions with acknowledged writes that it has not.
};

class SetModel {
 public:
  // Without an owner nobody remembers an event; then all drives must be there at every start.
  SetModel(Level level, unsigned drives, std::uint64_t seed, bool owner = true)
      : random_(seed), owner_(owner) {
    const auto planned =
        plan({.name = "data", .level = level, .strip_bytes = 65536, .region_stripes = 1},
             blank_drives(drives, 64u << 20), random_);
    // Small regions are of no interest here: as few as will do.
    Superblock set = planned.superblocks[0];
    const auto layout = set.layout();
    set.region_stripes = (layout->stripe_count() + kRegions - 1) / kRegions;
    REQUIRE(set.region_count(*layout) == kRegions);
    layout_ = *layout;
    lost_ = planned.lost;
    RegionMap map(set.set_uuid, kRegions, drives);
    map.encode_next();
    for (unsigned role = 0; role < drives; ++role) {
      drives_.push_back({.uuid = set.roles[role].drive,
                         .superblock = set.for_role(role),
                         .map = map,
                         .missed = 0});
    }
    minimum_ = set.event;
    set_uuid_ = set.set_uuid;
  }

  Random& random() { return random_; }
  std::size_t drive_count() const { return drives_.size(); }
  std::uint64_t all() const { return (std::uint64_t{1} << drives_.size()) - 1; }
  Event minimum() const { return minimum_; }

  Assembly look(std::uint64_t present) const {
    std::vector<Candidate> candidates;
    for (std::size_t at = 0; at < drives_.size(); ++at) {
      if ((present >> at & 1U) == 0) continue;
      Candidate candidate = blank_drive(static_cast<unsigned>(at), 64u << 20);
      if (drives_[at].superblock.has_value()) {
        candidate.contents = {.kind = DriveContents::Kind::kSuperblock,
                              .superblock = drives_[at].superblock,
                              .error = Error::kNone,
                              .why = {}};
        candidate.lost = lost_;
      }
      candidate.regions = drives_[at].map;
      candidates.push_back(std::move(candidate));
    }
    std::ranges::shuffle(candidates, random_copy());
    return assemble(candidates,
                    {.group_uuid = {}, .minimum_events = {{set_uuid_, owner_ ? minimum_ : 0}}});
  }

  // A drive that has missed something is not taken for one that has not. False: it was.
  bool truthful(const Assembly& assembly) const {
    for (const AssembledSet& set : assembly.sets) {
      if (!set.startable) continue;
      for (unsigned role = 0; role < set.roles.size(); ++role) {
        const AssembledRole& judged = set.roles[role];
        const RoleEntry& entry = set.superblock.roles[role];
        if (judged.verdict == Verdict::kCurrent || judged.verdict == Verdict::kReturning) {
          if ((drive(entry.drive).missed & ~marked(*set.regions, role, false)) != 0) return false;
        }
        if (judged.replacement.has_value() &&
            (drive(entry.replacement).missed & ~marked(*set.regions, role, true)) != 0) {
          return false;
        }
      }
    }
    return true;
  }

  // Starts what was assembled; false if the power failed. `fuse` steps are left.
  bool start(const AssembledSet& assembled, unsigned* fuse, bool readmit) {
    fuse_ = fuse;
    set_ = assembled.superblock;
    map_ = assembled.regions;
    live_.assign(set_.roles.size(), nullptr);
    replacing_.assign(set_.roles.size(), nullptr);
    for (unsigned role = 0; role < live_.size(); ++role) {
      RoleEntry& entry = set_.roles[role];
      const AssembledRole& judged = assembled.roles[role];
      const bool there = judged.verdict == Verdict::kCurrent || (readmit && judged.drive);
      if (judged.verdict == Verdict::kStale && there) map_->set_all_stale(role, false, true);
      if (judged.verdict == Verdict::kStale && there) entry.known_event = 0;
      if (there) live_[role] = &drive(entry.drive);
      if (there) {
        entry.state = RoleState::kActive;
      } else if (entry.state == RoleState::kActive) {
        entry.state = RoleState::kMissing;
      }
      if (judged.replacement) {
        replacing_[role] = &drive(entry.replacement);
      } else if (entry.replacement != Uuid{}) {
        entry.replacement = {};
        entry.replacement_known_event = 0;
        map_->set_all_stale(role, true, true);
      }
    }
    return write_map() && event();
  }

  // One change of a running set; false if the power failed in it.
  bool act() {
    const auto role = static_cast<unsigned>(random_.below(live_.size()));
    const auto region = static_cast<unsigned>(random_.below(kRegions));
    switch (random_.below(9)) {
      case 0:
      case 1:
        return lose(role);
      case 2:
      case 3:
        return write(region);
      case 4:
        return rebuild(role, region, false);
      case 5:
        return rebuild(role, region, true);
      case 6:
        return replace(role);
      case 7:
        return begin_copy(role);
      default:
        return promote(role);
    }
  }

  // An acknowledged write.
  bool write(unsigned region) {
    for (unsigned role = 0; role < live_.size(); ++role) {
      if (live_[role] == nullptr) map_->set_stale(role, false, region, true);
    }
    if (map_->changed() && !write_map()) return false;
    if (!step()) return false;
    for (ModelDrive& one : drives_) {
      if (!written(one)) one.missed |= 1U << region;
    }
    return true;
  }

  // Just the superblocks of an event, on the drives in `cut` (bits of drives), for tests that try
  // all of them. The owner is told, and one write is acknowledged, if it was complete and `ended`.
  void start_cut(const AssembledSet& assembled, std::uint64_t cut, bool readmit, bool ended) {
    unsigned plenty = 1000;
    cut_ = cut;
    start(assembled, &plenty, readmit);
    cut_.reset();
    if (!ended) return;
    tell();
    write(static_cast<unsigned>(random_.below(kRegions)));
  }
  // The drives that a start would write on.
  std::uint64_t written_by(const AssembledSet& assembled, bool readmit) const {
    std::uint64_t drives = 0;
    for (std::size_t at = 0; at < drives_.size(); ++at) {
      for (unsigned role = 0; role < assembled.roles.size(); ++role) {
        const AssembledRole& judged = assembled.roles[role];
        const bool there = judged.verdict == Verdict::kCurrent || (readmit && judged.drive);
        if (there && assembled.superblock.roles[role].drive == drives_[at].uuid) {
          drives |= std::uint64_t{1} << at;
        }
      }
    }
    return drives;
  }

 private:
  Random random_copy() const { return Random(minimum_ + drives_.size()); }

  ModelDrive& drive(const Uuid& uuid) {
    return *std::ranges::find(drives_, uuid, &ModelDrive::uuid);
  }
  const ModelDrive& drive(const Uuid& uuid) const {
    return *std::ranges::find(drives_, uuid, &ModelDrive::uuid);
  }
  static std::uint32_t marked(const RegionMap& map, unsigned role, bool replacement) {
    std::uint32_t regions = 0;
    for (unsigned region = 0; region < kRegions; ++region) {
      if (map.stale(role, replacement, region)) regions |= 1U << region;
    }
    return regions;
  }
  bool written(const ModelDrive& one) const {
    return std::ranges::find(live_, &one) != live_.end() ||
           std::ranges::find(replacing_, &one) != replacing_.end();
  }

  bool step() {
    if (*fuse_ == 0) return false;
    --*fuse_;
    return true;
  }

  struct Target {
    ModelDrive* drive;
    unsigned role;
    bool replacement;
  };
  // In an order drawn by chance.
  std::vector<Target> targets() {
    std::vector<Target> all;
    for (unsigned role = 0; role < live_.size(); ++role) {
      if (live_[role] != nullptr) all.push_back({live_[role], role, false});
      if (replacing_[role] != nullptr) all.push_back({replacing_[role], role, true});
    }
    std::ranges::shuffle(all, random_);
    return all;
  }

  bool write_map() {
    map_->encode_next();
    for (const Target& target : targets()) {
      if (!step()) return false;
      target.drive->map = map_;
    }
    return true;
  }

  // All superblocks, then the owner is told.
  bool event() {
    set_.advance(random_);
    for (const Target& target : targets()) {
      if (cut_.has_value() && (*cut_ >> position(*target.drive) & 1U) == 0) continue;
      if (!step()) return false;
      target.drive->superblock =
          target.replacement ? set_.for_replacement(target.role) : set_.for_role(target.role);
    }
    if (cut_.has_value()) return true;
    set_.mark_complete();
    if (!step()) return false;
    tell();
    return true;
  }
  void tell() { minimum_ = set_.event; }
  std::size_t position(const ModelDrive& one) const {
    for (std::size_t at = 0; at < drives_.size(); ++at) {
      if (&drives_[at] == &one) return at;
    }
    return drives_.size();
  }

  bool survives_without(unsigned role) const {
    std::uint64_t unreadable = std::uint64_t{1} << role;
    for (unsigned other = 0; other < live_.size(); ++other) {
      if (live_[other] == nullptr || map_->stale_count(other, false) > 0) {
        unreadable |= std::uint64_t{1} << other;
      }
    }
    return layout_->survives(unreadable);
  }

  bool lose(unsigned role) {
    if (live_[role] == nullptr || !survives_without(role)) return true;
    live_[role] = nullptr;
    set_.roles[role].state = random_.chance(0.5) ? RoleState::kMissing : RoleState::kFailed;
    if (map_->changed() && !write_map()) return false;
    return event();
  }

  // Brings a stale region of a drive up to date.
  bool rebuild(unsigned role, unsigned region, bool replacement) {
    ModelDrive* target = replacement ? replacing_[role] : live_[role];
    if (target == nullptr || !map_->stale(role, replacement, region)) return true;
    if (!step()) return false;
    target->missed &= ~(1U << region);
    map_->set_stale(role, replacement, region, false);
    return random_.chance(0.5) || write_map();
  }

  ModelDrive* fresh_drive() {
    if (drives_.size() >= 12) return nullptr;
    drives_.push_back({.uuid = make_uuid(random_),
                       .superblock = std::nullopt,
                       .map = std::nullopt,
                       .missed = kAllRegions});
    return &drives_.back();
  }

  // A spare takes an absent role.
  bool replace(unsigned role) {
    if (live_[role] != nullptr || replacing_[role] != nullptr) return true;
    ModelDrive* fresh = fresh_drive();
    if (fresh == nullptr) return true;
    const bool as_spare = random_.chance(0.5);
    if (as_spare) fresh->superblock = make_spare(fresh->uuid, {}, set_.block_bytes);
    map_->set_all_stale(role, false, true);
    live_[role] = fresh;
    RoleEntry& entry = set_.roles[role];
    entry.drive = fresh->uuid;
    entry.state = RoleState::kActive;
    entry.known_event = 0;
    return write_map() && event();
  }

  bool begin_copy(unsigned role) {
    if (live_[role] == nullptr || replacing_[role] != nullptr) return true;
    ModelDrive* fresh = fresh_drive();
    if (fresh == nullptr) return true;
    replacing_[role] = fresh;
    map_->set_all_stale(role, true, true);
    set_.roles[role].replacement = fresh->uuid;
    set_.roles[role].replacement_known_event = 0;
    return write_map() && event();
  }

  bool promote(unsigned role) {
    ModelDrive* copy = replacing_[role];
    if (copy == nullptr || live_[role] == nullptr) return true;
    // A drive's own stale regions are the set's to rebuild first, else its marks would be the
    // copy's before the copy has the role.
    if (map_->stale_count(role, true) > 0) return true;
    RoleEntry& entry = set_.roles[role];
    entry.drive = entry.replacement;
    entry.known_event = entry.replacement_known_event;
    entry.replacement = {};
    entry.replacement_known_event = 0;
    live_[role] = copy;
    replacing_[role] = nullptr;
    if (!event()) return false;
    map_->promote_replacement(role);
    return write_map();
  }

  Random random_;
  bool owner_;
  std::optional<Layout> layout_;
  std::optional<LostSectors> lost_;
  Uuid set_uuid_{};
  std::deque<ModelDrive> drives_;  // Drives stay where they are.
  Event minimum_ = 0;              // What the owner remembers.

  // While it runs.
  Superblock set_;
  std::optional<RegionMap> map_;
  std::vector<ModelDrive*> live_;  // By role.
  std::vector<ModelDrive*> replacing_;
  unsigned* fuse_ = nullptr;
  std::optional<std::uint64_t> cut_;
};

}  // namespace sandbay::raid::testing
