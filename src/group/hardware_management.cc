// What management sees of the hardware and may do with it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "group/claims.h"
#include "group/hardware.h"
#include "group/units.h"

namespace sandbay::group {

DriveBay* Hardware::bay(const std::string& name) const {
  const auto found = std::ranges::find(
      bays_, name, [](const auto& each) -> const std::string& { return each->configured().name; });
  return found == bays_.end() ? nullptr : found->get();
}

bool Hardware::has_drive(const std::string& drive) const { return bay(drive) != nullptr; }

bool Hardware::has_set(const std::string& set) const {
  return find_set(set).has_value() || configuration_.hardware.set(set) != nullptr;
}

bool Hardware::has_mirror() const {
  const auto& nvram = configuration_.hardware.nvram;
  return nvram && !nvram->mirror_path.empty();
}

void Hardware::list_claims(std::vector<Claim>& claims) const {
  for (const auto& each : bays_) {
    if (each->path().empty()) continue;
    claims.push_back({.path = each->path(),
                      .identity = each->identity(),
                      .reason = fmt::format("is drive \"{}\"; choose another file or device",
                                            each->configured().name)});
  }
  const auto& nvram = configuration_.hardware.nvram;
  if (!nvram) return;
  claims.push_back({.path = configuration_.state / nvram->path,
                    .identity = {},
                    .reason = "is the NVRAM; choose another file"});
  if (nvram->mirror_path.empty()) return;
  claims.push_back({.path = configuration_.state / nvram->mirror_path,
                    .identity = {},
                    .reason = "is the NVRAM's mirror; choose another file"});
}

// Sets, for volumes -------------------------------------------------------------------------------

Door* Hardware::door(const Uuid& set) const {
  const auto found = doors_.find(set);
  return found == doors_.end() ? nullptr : found->second.get();
}

Door* Hardware::serving(const Uuid& set) const {
  Door* const found = door(set);
  return found != nullptr && found->leads() && refusal(set).empty() ? found : nullptr;
}

std::optional<Uuid> Hardware::find_set(const std::string& name) const {
  const raid::ManagedSet* const set = controller_ != nullptr ? controller_->find(name) : nullptr;
  if (set != nullptr) return set->uuid();
  for (const auto& [uuid, known] : records_) {
    if (known.name == name) return uuid;
  }
  return std::nullopt;
}

std::string Hardware::name_of(const Uuid& set) const {
  const auto found = records_.find(set);
  return found == records_.end() ? std::string() : found->second.name;
}

std::string Hardware::refusal(const Uuid& uuid) const {
  std::string bar = cache_->bar(uuid);
  if (!bar.empty()) return bar;
  if (controller_ != nullptr) {
    for (const raid::ManagedSet* const set : controller_->sets()) {
      if (set->uuid() != uuid) continue;
      const auto faults = member_faults_.find(uuid);
      const bool away = faults != member_faults_.end() && !faults->second->present();
      if (set->running()) return away ? "a fault rule keeps its member away" : "";
      return set->refusal().empty() ? fmt::format("set {} is offline", set->name())
                                    : set->refusal();
    }
  }
  return fmt::format("all drives of set {} are missing", name_of(uuid));
}

std::string Hardware::absence() const {
  const bool away =
      !member_faults_.empty() &&
      std::ranges::none_of(member_faults_, [](const auto& each) { return each.second->present(); });
  return away ? "a fault rule keeps it away" : "";
}

std::uint64_t Hardware::used_end(const Uuid& set) const {
  const auto found = used_ends_.find(set);
  return found == used_ends_.end() ? std::numeric_limits<std::uint64_t>::max() : found->second;
}

void Hardware::raise_used_end(const Uuid& set, std::uint64_t end, metadata::Batch& batch) {
  const auto known = used_ends_.find(set);
  if (known == used_ends_.end()) return;  // All of it may have been.
  // Also where it is no more than was known: the commit that was to keep that may have failed.
  known->second = std::max(known->second, end);
  // The batch is the group's.
  batch.put(part_.key_prefix + used_key(set), encode_used(known->second));
}

// Drives ------------------------------------------------------------------------------------------

std::vector<DriveInfo> Hardware::show_drives() const {
  std::vector<raid::DriveInfo> known;
  if (controller_ != nullptr) known = controller_->show_drives();
  std::vector<DriveInfo> list;
  for (const auto& each : bays_) {
    const DriveConfiguration& configured = each->configured();
    DriveInfo info{.medium = std::string(describe(configured.medium)),
                   .path = each->path().string(),
                   .enclosure = configured.enclosure,
                   .serial = configured.serial,
                   .rotational = configured.rotational,
                   .profile = configured.profile,
                   .modelled_busy = each->modelled_busy(),
                   .modelled_queue = each->modelled_queue()};
    const auto found = std::ranges::find(known, configured.name, &raid::DriveInfo::name);
    if (found != known.end()) {
      info.raid = *found;
      if (found->use == raid::DriveUse::kAbsent && found->why.empty()) {
        info.raid.why = each->absence();
      }
      if (info.raid.why.empty()) info.raid.why = each->displacement();
    } else {
      info.raid.name = configured.name;
      info.raid.use = raid::DriveUse::kAbsent;
      info.raid.health = Health::kMissing;
      info.raid.why = each->absence();
      info.raid.byte_count = configured.size_bytes;
      info.raid.block_bytes = configured.block_bytes;
    }
    if (each->faults() != nullptr) {
      const fault::DriveStatus status = each->faults()->status();
      info.serial = status.serial;
      info.unreadable_blocks = status.unreadable_blocks;
      info.recovered_errors = status.recovered_errors;
      info.wear_percent = status.wear_percent;
      info.temperature_celsius = status.temperature_celsius;
    }
    list.push_back(std::move(info));
  }
  return list;
}

std::optional<Duration> Hardware::modelled_busy() const {
  if (timing_ == nullptr) return std::nullopt;
  return timing_->processing();
}

Task<Hardware::Outcome> Hardware::fail_drive(std::string drive) {
  co_return co_await controller_->fail_drive(std::move(drive));
}

Task<Hardware::Outcome> Hardware::replace_drive(std::string drive, std::string by) {
  co_return co_await controller_->replace_drive(std::move(drive), std::move(by));
}

Task<Hardware::Outcome> Hardware::erase_drive(std::string drive) {
  const auto erased = co_await controller_->erase_drive(drive);
  if (!erased) co_return erased;
  events_.add({.severity = Severity::kWarning,
               .kind = "drive erased",
               .drive = drive,
               .text = fmt::format("drive {}: erased by an operator; it is blank", drive)});
  co_await make_spares();
  co_return Outcome{};
}

// A set that was barred serves from now on.
Task<std::expected<DiscardedWrites, std::string>> Hardware::discard_writes(Uuid set) {
  auto discarded = co_await cache_->discard(set);
  if (discarded && controller_ != nullptr) learn_sets();
  co_return discarded;
}

Task<Hardware::Outcome> Hardware::adopt_writes(Uuid set) {
  auto adopted = co_await cache_->adopt(set);
  if (adopted && controller_ != nullptr) learn_sets();
  co_return adopted;
}

Task<Error> Hardware::lose_blocks(Uuid set, std::vector<Extent> extents) {
  if (controller_ == nullptr) co_return Error::kNotReady;
  for (raid::ManagedSet* const each : controller_->sets()) {
    if (each->uuid() != set) continue;
    co_return co_await each->lose(std::move(extents));
  }
  co_return Error::kNotReady;
}

Hardware::Outcome Hardware::verify_set(const std::string& set) {
  return controller_->verify_set(set);
}

Task<Hardware::Outcome> Hardware::start_set(std::string set, bool accept_loss) {
  const std::string name = set;
  const auto barred = [this, &name]() -> Outcome {
    for (const raid::ManagedSet* const each : controller_->sets()) {
      if (each->name() != name) continue;
      const std::string bar = cache_->bar(each->uuid());
      if (!bar.empty()) return std::unexpected(fmt::format("set {}: {}", name, bar));
    }
    return {};
  };
  // Its journal may be in the NVRAM that it waits for.
  if (const Outcome waits = barred(); accept_loss && !waits.has_value()) co_return waits;
  const Outcome started = co_await controller_->start_set(std::move(set), accept_loss);
  if (const Outcome waits = barred(); !waits.has_value()) co_return waits;
  co_return started;
}

// Sets --------------------------------------------------------------------------------------------

// What stands on the drives wins; what the file says differently is told and changes nothing.
std::vector<std::string> Hardware::disagreements(const raid::SetInfo& set) const {
  std::vector<std::string> notes;
  const SetConfiguration* const wanted = configuration_.hardware.set(set.name);
  if (wanted == nullptr) {
    notes.push_back(fmt::format("{} has no section [[raid]] for it", configuration_.file));
    return notes;
  }
  const auto compare = [&](std::string_view what, const std::string& there,
                           const std::string& said) {
    if (there == said) return;
    notes.push_back(fmt::format("{} is {}, where {} says {}", what, there, at(*wanted), said));
  };
  compare("its level", std::string(describe(set.level)), std::string(describe(wanted->level)));
  compare("its strip", format_size(set.strip_bytes), format_size(wanted->strip_bytes));
  compare("integrity", set.integrity ? "true" : "false", wanted->integrity ? "true" : "false");
  if (wanted->group_count != 0) {
    compare("the number of its groups", fmt::format("{}", set.group_count),
            fmt::format("{}", wanted->group_count));
  }
  compare("the number of its drives", fmt::format("{}", set.drive_count),
          fmt::format("{}", wanted->drives.size()));
  for (std::size_t role = 0; role < set.roles.size() && role < wanted->drives.size(); ++role) {
    const std::string& there = set.roles[role].drive;
    if (there.empty() || there == wanted->drives[role]) continue;
    notes.push_back(fmt::format("role {} is held by drive {}, where {} names {}", role, there,
                                at(*wanted), wanted->drives[role]));
  }
  return notes;
}

void Hardware::tell_disagreements() {
  for (const raid::SetInfo& set : controller_->show_sets()) {
    for (const std::string& note : disagreements(set)) {
      events_.add(
          {.severity = Severity::kWarning,
           .kind = "disagreement",
           .set = set.name,
           .text = fmt::format("set {}: {}; what is on the drives counts", set.name, note)});
    }
  }
}

// Integrity of what was on drives before the set was made begins with its first verification.
void note_unprotected(SetInfo& info) {
  const raid::SetInfo& raid = info.raid;
  if (!raid.integrity || raid.blank || raid.unverified_regions == 0) return;
  info.notes.push_back(
      fmt::format("integrity protects what was written since the set was made; the rest, which its "
                  "drives had before, when it has been verified: {} of {} regions are not yet",
                  raid.unverified_regions, raid.regions));
}

// Names the blocks that a drive has for itself until parity is verified.
void note_suspect(SetInfo& info) {
  constexpr std::size_t kMostNamed = 8;
  const std::vector<Extent>& suspect = info.raid.suspect;
  if (suspect.empty()) return;
  std::vector<std::string> names;
  for (const Extent& extent : suspect) {
    if (names.size() == kMostNamed) break;
    names.push_back(fmt::format("{} to {}", extent.first, extent.end() - 1));
  }
  const std::size_t more = suspect.size() - names.size();
  info.notes.push_back(
      fmt::format("parity of blocks {}{} is not verified since its journal was lost: blocks of a "
                  "missing drive there are medium errors, unless they were written since",
                  fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} ranges", more)));
}

// What the cache knows of the set counts, too: whether all that was acknowledged is there.
void Hardware::judge_writes(SetInfo& info) const {
  note_unprotected(info);
  note_suspect(info);
  const std::string bar = cache_->bar(info.raid.uuid);
  if (!bar.empty()) {
    info.raid.running = false;
    info.raid.refusal = bar;
  }
  for (std::string& note : cache_->notes_on(info.raid.uuid)) info.notes.push_back(std::move(note));
  const bool failing = cache_->is_failing(info.raid.uuid);
  if (failing && info.raid.health == Health::kGood) info.raid.health = Health::kDegraded;
}

std::vector<SetInfo> Hardware::show_sets() const {
  std::vector<SetInfo> list;
  if (controller_ == nullptr) return list;
  for (raid::SetInfo& set : controller_->show_sets()) {
    SetInfo info{.declared = configuration_.hardware.set(set.name) != nullptr,
                 .notes = disagreements(set)};
    if (set.progress.kind != raid::MaintenanceProgress::Kind::kNothing) {
      info.progress_age = home_.now() - set.progress.started;
    }
    info.raid = std::move(set);
    judge_writes(info);
    list.push_back(std::move(info));
  }
  // Those of which no drive is there, or that could not be made.
  for (const auto& [name, why] : not_made_) {
    if (controller_->find(name) != nullptr) continue;
    SetInfo info{.declared = true};
    info.raid.name = name;
    info.raid.health = Health::kMissing;
    info.raid.refusal = why;
    if (const SetConfiguration* const wanted = configuration_.hardware.set(name)) {
      info.raid.level = wanted->level;
      info.raid.drive_count = static_cast<unsigned>(wanted->drives.size());
      info.raid.strip_bytes = wanted->strip_bytes;
      info.raid.integrity = wanted->integrity;
    }
    const auto uuid = find_set(name);
    if (uuid) {
      const SetRecord& known = records_.at(*uuid);
      info.raid.uuid = *uuid;
      info.raid.byte_count = known.geometry.block_count * known.geometry.block_bytes;
    }
    list.push_back(std::move(info));
  }
  return list;
}

}  // namespace sandbay::group
