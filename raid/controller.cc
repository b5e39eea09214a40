// What is asked of a controller, what it shows, and what it remembers of what happened.
#include "raid/controller.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/controller_implementation.h"

namespace sandbay::raid {

namespace {

constexpr const char* kStopping = "the controller is being stopped";

bool loses_drive(SetEvent::Kind kind) {
  return kind == SetEvent::Kind::kDriveFailed || kind == SetEvent::Kind::kDriveMissing ||
         kind == SetEvent::Kind::kDriveReplaced;
}

// Whether there may be something to do for the controller.
bool wants_care(SetEvent::Kind kind) {
  return loses_drive(kind) || kind == SetEvent::Kind::kOffline || kind == SetEvent::Kind::kDegraded;
}

Drive* drive_in(const SetDrives& drives, unsigned role, bool replacement) {
  return replacement ? drives.replacement(role) : drives.drive(role);
}

}  // namespace

using Entry = Controller::Implementation::Entry;
using SetState = Controller::Implementation::SetState;

std::string_view describe(DriveUse use) {
  switch (use) {
    case DriveUse::kMember:
      return "member";
    case DriveUse::kReplacement:
      return "replacement";
    case DriveUse::kSpare:
      return "spare";
    case DriveUse::kBlank:
      return "blank";
    case DriveUse::kFailed:
      return "failed";
    case DriveUse::kStranger:
      return "stranger";
    case DriveUse::kAbsent:
      return "absent";
  }
  return "absent";
}

// ---- who is who ---------------------------------------------------------------------------------

Entry* Controller::Implementation::find_entry(std::string_view name) const {
  for (const auto& entry : entries) {
    if (entry->name == name) return entry.get();
  }
  return nullptr;
}

SetState* Controller::Implementation::find_set(std::string_view name) const {
  for (const auto& state : sets) {
    if (state->set->name() == name) return state.get();
  }
  return nullptr;
}

SetState* Controller::Implementation::find_set(const Uuid& uuid) const {
  for (const auto& state : sets) {
    if (state->set->uuid() == uuid) return state.get();
  }
  return nullptr;
}

std::optional<Controller::Implementation::Holding> Controller::Implementation::holding(
    const Entry& entry) const {
  if (entry.device == nullptr) return std::nullopt;
  for (const auto& state : sets) {
    const SetDrives* drives = state->set->drives();
    if (drives == nullptr) continue;
    for (unsigned role = 0; role < drives->layout().drive_count(); ++role) {
      for (const bool replacement : {false, true}) {
        const Drive* drive = drive_in(*drives, role, replacement);
        if (drive == nullptr || &drive->device() != entry.device) continue;
        return Holding{.state = state.get(), .role = role, .replacement = replacement};
      }
    }
  }
  return std::nullopt;
}

Entry* Controller::Implementation::holder(const SetState& state, unsigned role) const {
  const SetDrives* drives = state.set->drives();
  if (drives == nullptr || drives->drive(role) == nullptr) return nullptr;
  for (const auto& entry : entries) {
    if (entry->device == &drives->drive(role)->device()) return entry.get();
  }
  return nullptr;
}

void Controller::Implementation::settle_entry(Entry& entry) const {
  if (const auto held = holding(entry)) {
    entry.user = held->state;
    entry.set_uuid = held->state->set->uuid();
    entry.use = held->replacement ? DriveUse::kReplacement : DriveUse::kMember;
    return;
  }
  const SetState* user = std::exchange(entry.user, nullptr);
  if (user == nullptr || !user->set->assembled() || entry.device == nullptr) return;
  entry.use = DriveUse::kFailed;
  for (const RoleEntry& role : user->set->superblock().roles) {
    if (role.drive != entry.uuid) continue;
    if (role.state == RoleState::kMissing) entry.use = DriveUse::kAbsent;
  }
  if (entry.why.empty()) entry.why = "it has no role any more";
}

void Controller::Implementation::settle_entries() const {
  for (const auto& entry : entries) settle_entry(*entry);
}

// ---- events -------------------------------------------------------------------------------------

void Controller::Implementation::wake() {
  woken = true;
  changed.notify_all();
}

MaintenancePolicy Controller::Implementation::policy_of(const std::string& set) const {
  const auto own = policies.find(set);
  return own != policies.end() ? own->second : options.set.maintenance;
}

void Controller::Implementation::tell(SetState& state, Entry* entry, SetEvent::Kind kind,
                                      const std::string& text) {
  if (!sink) return;
  sink({.time = home.now(),
        .set = state.set->name(),
        .drive = entry != nullptr ? entry->name : std::string(),
        .kind = kind,
        .text =
            text.starts_with("set ") ? text : fmt::format("set {}: {}", state.set->name(), text)});
}

void Controller::Implementation::on_set_event(SetState& state, const SetEvent& event) {
  Entry* concerned = event.role != kNoRole ? holder(state, event.role) : nullptr;
  if (loses_drive(event.kind)) {
    for (const auto& entry : entries) {
      if (entry->user != &state || holding(*entry)) continue;
      entry->why = event.text;
      if (event.kind != SetEvent::Kind::kDriveReplaced) concerned = entry.get();
      settle_entry(*entry);
    }
  }
  if (event.kind == SetEvent::Kind::kDriveMissing) state.absent_since[event.role] = home.now();
  tell(state, concerned, event.kind, event.text);
  if (wants_care(event.kind)) wake();
}

Task<Error> Controller::Implementation::record(Uuid set, raid::Event event) {
  if (recorder) {
    const Error error = co_await recorder(set, event);
    if (error != Error::kNone) co_return error;
  }
  remembered.minimum_events[set] = event;
  co_return Error::kNone;
}

// ---- what it shows ------------------------------------------------------------------------------

DriveInfo Controller::Implementation::show(Entry& entry) const {
  settle_entry(entry);
  DriveInfo info{.name = entry.name, .use = entry.use};
  if (entry.use != DriveUse::kMember && entry.use != DriveUse::kReplacement) info.why = entry.why;
  info.attached = entry.device != nullptr;
  if (entry.device != nullptr) {
    info.description = entry.device->description();
    info.health = entry.device->health();
    info.block_bytes = entry.device->geometry().block_bytes;
    info.byte_count = entry.device->geometry().block_count * info.block_bytes;
  } else {
    info.health = Health::kMissing;
  }
  if (entry.use == DriveUse::kFailed) info.health = Health::kFailed;
  const bool of_a_set = entry.use == DriveUse::kMember || entry.use == DriveUse::kReplacement ||
                        entry.use == DriveUse::kSpare;
  if (of_a_set && entry.set_uuid != Uuid{}) {
    if (const SetState* state = find_set(entry.set_uuid)) info.set = state->set->name();
  }
  if (const auto held = holding(entry)) {
    const SetDrives& drives = *held->state->set->drives();
    info.role = held->role;
    info.stale_regions = drives.stale_count(held->role, held->replacement);
    info.counters = drive_in(drives, held->role, held->replacement)->counters();
  }
  return info;
}

// The roles of a set that does not run: what its superblocks say of them, and which of their drives
// are there.
void Controller::Implementation::show_absent(const Superblock& superblock, SetInfo& info) const {
  const auto present = [this](const Uuid& uuid) -> const Entry* {
    const auto found = std::ranges::find_if(entries, [&](const auto& entry) {
      return uuid != Uuid{} && entry->uuid == uuid && entry->device != nullptr;
    });
    return found == entries.end() ? nullptr : found->get();
  };
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    RoleInfo& here = info.roles[role];
    const Entry* const drive = present(superblock.roles[role].drive);
    const Entry* const replacement = present(superblock.roles[role].replacement);
    if (replacement != nullptr) here.replacement = replacement->name;
    if (drive != nullptr) {
      here.drive = drive->name;
      if (drive->use == DriveUse::kFailed) here.state = RoleState::kFailed;
    } else if (here.state == RoleState::kActive) {
      here.state = RoleState::kMissing;
    }
  }
}

SetInfo Controller::Implementation::show(const SetState& state) const {
  const ManagedSet& set = *state.set;
  const Superblock& superblock = set.superblock();
  SetInfo info{.name = set.name(),
               .uuid = set.uuid(),
               .level = superblock.level,
               .drive_count = superblock.drive_count(),
               .group_count = superblock.group_count,
               .strip_bytes = superblock.strip_blocks * superblock.block_bytes,
               .byte_count = set.geometry().block_count * superblock.block_bytes,
               .integrity = superblock.integrity,
               .blank = superblock.blank,
               .running = set.running(),
               .health = set.health(),
               .refusal = set.running() ? std::string() : set.refusal()};
  info.roles.resize(superblock.drive_count());
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    info.roles[role].state = superblock.roles[role].state;
  }
  for (const auto& entry : entries) {
    if (entry->use == DriveUse::kSpare && entry->set_uuid == set.uuid()) {
      info.spares.push_back(entry->name);
    }
  }
  SetDrives* drives = set.drives();
  if (drives == nullptr) show_absent(superblock, info);
  if (drives == nullptr) return info;
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    RoleInfo& here = info.roles[role];
    if (drives->drive(role) != nullptr) here.drive = drives->drive(role)->name();
    here.stale_regions = drives->stale_count(role, false);
    if (drives->replacement(role) != nullptr) here.replacement = drives->replacement(role)->name();
  }
  info.regions = drives->region_count();
  info.unverified_regions = drives->unverified_count();
  info.lost = drives->lost().extents();
  info.suspect = drives->suspect_blocks();
  if (set.maintenance() != nullptr) info.progress = set.maintenance()->progress();
  if (set.set() == nullptr) return info;
  info.counters = set.set()->counters();
  if (const Journal* journal = set.set()->journal()) {
    info.journal_used_bytes = journal->used_bytes();
    info.journal_size_bytes = journal->size_bytes();
    info.journal_written_bytes = journal->written_bytes();
  }
  return info;
}

// ---- what is asked of it ------------------------------------------------------------------------

Controller::Controller(Executor& home, ControllerOptions options)
    : self_(std::make_unique<Implementation>(home, std::move(options))) {}

Controller::~Controller() = default;

void Controller::on_event(std::function<void(const ControllerEvent&)> sink) {
  self_->sink = std::move(sink);
}

void Controller::on_record(ManagedSet::Recorder recorder) { self_->recorder = std::move(recorder); }

Task<std::vector<std::string>> Controller::start(std::vector<NamedDevice> drives,
                                                 Remembered remembered) {
  Implementation& self = *self_;
  std::vector<std::string> lines;
  if (!self.gate.enter()) {
    lines.emplace_back(kStopping);
    co_return lines;
  }
  self.remembered = std::move(remembered);
  if (self.remembered.group_uuid == Uuid{}) {
    self.remembered.group_uuid = self.options.group_uuid;
  }
  for (const NamedDevice& drive : drives) {
    if (self.find_entry(drive.name) != nullptr) {
      lines.push_back(fmt::format("drive {} is named twice; the second is not used", drive.name));
      continue;
    }
    self.add_entry(drive);
  }
  co_await self.busy.lock();
  std::vector<std::string> found = co_await self.assemble_again(true);
  self.busy.unlock();
  for (std::string& line : found) lines.push_back(std::move(line));
  spawn(self.watch());  // Leaves the gate when it ends.
  co_return lines;
}

Task<std::expected<ManagedSet*, std::string>> Controller::create_set(
    NewSet wanted, std::vector<std::string> drives) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  auto made = co_await self_->create_set(std::move(wanted), std::move(drives));
  self_->busy.unlock();
  self_->gate.leave();
  co_return made;
}

Task<Controller::Outcome> Controller::add_spare(std::string drive, std::string set,
                                                bool overwrite) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->add_spare(std::move(drive), std::move(set), overwrite);
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

Task<Controller::Outcome> Controller::erase_drive(std::string drive) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->erase_drive(std::move(drive));
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

ManagedSet* Controller::find(std::string_view set_name) const {
  const SetState* state = self_->find_set(set_name);
  return state != nullptr ? state->set.get() : nullptr;
}

std::vector<ManagedSet*> Controller::sets() const {
  std::vector<ManagedSet*> all;
  for (const auto& state : self_->sets) all.push_back(state->set.get());
  return all;
}

std::vector<DriveInfo> Controller::show_drives() const {
  std::vector<DriveInfo> all;
  for (const auto& entry : self_->entries) all.push_back(self_->show(*entry));
  return all;
}

std::vector<SetInfo> Controller::show_sets() const {
  std::vector<SetInfo> all;
  self_->settle_entries();
  for (const auto& state : self_->sets) all.push_back(self_->show(*state));
  return all;
}

Task<Controller::Outcome> Controller::fail_drive(std::string drive) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->fail_drive(std::move(drive));
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

Task<Controller::Outcome> Controller::replace_drive(std::string drive, std::string by) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->replace_drive(std::move(drive), std::move(by));
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

Task<Controller::Outcome> Controller::insert_drive(std::string name, BlockDevice* device) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->insert_drive(std::move(name), device);
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

Task<Controller::Outcome> Controller::remove_drive(std::string name) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->remove_drive(std::move(name));
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

Controller::Outcome Controller::verify_set(std::string_view set) {
  const SetState* state = self_->find_set(set);
  if (state == nullptr) return refusal(fmt::format("there is no set {}", set));
  if (!state->set->running()) {
    return refusal(fmt::format("set {} does not run: {}", set, state->set->refusal()));
  }
  const SetDrives& drives = *state->set->drives();
  if (drives.superblock().redundancy_suspect && drives.absent_roles() != 0) {
    return refusal(
        fmt::format("set {} cannot be verified: its journal was lost and {} of its drives "
                    "are missing; it verifies itself when all are back",
                    set, std::popcount(drives.absent_roles())));
  }
  state->set->maintenance()->request_verify();
  return {};
}

Task<Controller::Outcome> Controller::start_set(std::string set, bool accept_loss) {
  if (!self_->gate.enter()) co_return refusal(kStopping);
  co_await self_->busy.lock();
  const Outcome outcome = co_await self_->start_set(std::move(set), accept_loss);
  self_->busy.unlock();
  self_->wake();
  self_->gate.leave();
  co_return outcome;
}

void Controller::set_policy(std::string set, MaintenancePolicy policy) {
  if (SetState* const state = self_->find_set(set)) state->set->set_policy(policy);
  self_->policies.insert_or_assign(std::move(set), policy);
}

MaintenancePolicy Controller::policy(std::string_view set) const {
  return self_->policy_of(std::string(set));
}

// Sets are stopped side by side, so that one that hangs takes no time from the others.
Task<bool> Controller::stop(TimePoint deadline) {
  Implementation& self = *self_;
  self.stopping = true;
  self.wake();
  const bool quiet = co_await self.gate.close_until(deadline);
  if (!quiet) co_return false;
  struct Stops {
    std::size_t running = 0;
    bool good = true;
    Condition ended;
  } stops;
  const auto stop_one = [](Stops* all, ManagedSet* set, TimePoint until) -> Task<void> {
    const Error error = co_await set->stop(until);
    all->good &= error == Error::kNone;
    if (--all->running == 0) all->ended.notify_all();
  };
  for (const auto& state : self.sets) {
    ++stops.running;
    spawn(stop_one(&stops, state->set.get(), deadline));
  }
  while (stops.running > 0) co_await stops.ended.wait();
  const auto idle = [&self] {
    return std::ranges::all_of(
               self.entries,
               [](const auto& entry) { return entry->probe == nullptr || entry->probe->idle(); }) &&
           std::ranges::all_of(self.leaving, [](const auto& probe) { return probe->idle(); });
  };
  while (!idle() && self.home.now() < deadline) {
    co_await self.home.sleep_for(Implementation::kLookForIdleEvery);
  }
  const bool good = idle() && stops.good;
  co_return good;
}

}  // namespace sandbay::raid
