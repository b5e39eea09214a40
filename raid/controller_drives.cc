// What an operator does with a drive: fails, replaces, erases, inserts and pulls it.
#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/core.h>

#include "raid/controller_implementation.h"
#include "raid/drive_metadata.h"

namespace sandbay::raid {

using Entry = Controller::Implementation::Entry;
using SetState = Controller::Implementation::SetState;

// The role of a drive, also of one that is away; or "SET:ROLE".
std::optional<Controller::Implementation::Holding> Controller::Implementation::find_role(
    const std::string& name) const {
  if (const Entry* entry = find_entry(name)) {
    if (const auto held = holding(*entry)) return held;
    if (entry->uuid == Uuid{}) return std::nullopt;
    for (const auto& state : sets) {
      const Superblock& superblock = state->set->superblock();
      for (unsigned role = 0; role < superblock.drive_count(); ++role) {
        if (superblock.roles[role].drive != entry->uuid) continue;
        return Holding{.state = state.get(), .role = role};
      }
    }
    return std::nullopt;
  }
  const std::size_t colon = name.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  SetState* state = find_set(std::string_view(name).substr(0, colon));
  unsigned role = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + colon + 1, end, role);
  const bool good = state != nullptr && parsed.ec == std::errc{} && parsed.ptr == end &&
                    role < state->set->superblock().drive_count();
  if (!good) return std::nullopt;
  return Holding{.state = state, .role = role};
}

Task<Controller::Outcome> Controller::Implementation::fail_drive(std::string name) {
  Entry* entry = find_entry(name);
  if (entry == nullptr) co_return refusal(fmt::format("there is no drive {}", name));
  settle_entry(*entry);
  if (const auto held = holding(*entry)) {
    SetDrives& drives = *held->state->set->drives();
    if (held->replacement) {
      drives.drop_replacement(held->role, "the operator says so");
    } else if (!drives.drop(held->role, DropReason::kFailed, "the operator says so")) {
      co_return refusal(fmt::format("drive {} cannot be failed: set {} does not survive without it",
                                    name, held->state->set->name()));
    }
    entry->condemned = true;
    const Error error = co_await drives.settled();
    if (error == Error::kNone) co_return Outcome{};
    co_return refusal(fmt::format("drive {} is failed, but set {} cannot record it: {}", name,
                                  held->state->set->name(), describe(error)));
  }
  switch (entry->use) {
    case DriveUse::kSpare: {
      DriveMetadata metadata(*entry->probe);
      const Error error = co_await metadata.erase_superblock();
      if (error == Error::kNone) break;
      entry->condemned = true;
      entry->use = DriveUse::kFailed;
      entry->why = "the operator says so";
      co_return refusal(
          fmt::format("drive {} is taken for nothing any more, but its superblock cannot be "
                      "erased: {}; it is a "
                      "spare again after a restart",
                      name, describe(error)));
    }
    case DriveUse::kBlank:
      break;
    case DriveUse::kAbsent: {
      const auto role = find_role(name);
      if (!role) co_return refusal(fmt::format("drive {} is not there", name));
      role->state->absent_since[role->role] = TimePoint::min();
      break;
    }
    case DriveUse::kFailed:
      co_return refusal(fmt::format("drive {} has failed already: {}", name, entry->why));
    case DriveUse::kStranger:
      co_return refusal(fmt::format("drive {} is in no set of this group: {}", name, entry->why));
    case DriveUse::kMember:
    case DriveUse::kReplacement:
      co_return refusal(fmt::format("drive {} is of a set that does not run", name));
  }
  entry->condemned = true;
  entry->use = DriveUse::kFailed;
  entry->why = "the operator says so";
  co_return Outcome{};
}

Task<Controller::Outcome> Controller::Implementation::replace_drive(std::string name,
                                                                    std::string by) {
  settle_entries();
  const auto place = find_role(name);
  if (!place || place->replacement) {
    co_return refusal(fmt::format(
        "drive {} has no role in a set; a drive with a role, or SET:ROLE, is accepted", name));
  }
  SetState* state = place->state;
  const unsigned role = place->role;
  if (!state->set->running()) {
    co_return refusal(
        fmt::format("set {} does not run: {}", state->set->name(), state->set->refusal()));
  }
  SetDrives& drives = *state->set->drives();
  if (drives.replacement(role) != nullptr) {
    co_return refusal(fmt::format("role {} of set {} is being copied to drive {} already", role,
                                  state->set->name(), drives.replacement(role)->name()));
  }
  Entry* target = by.empty() ? best_spare(*state, role) : find_entry(by);
  if (target == nullptr) {
    co_return refusal(by.empty()
                          ? fmt::format("no spare fits role {} of set {}; name a blank drive", role,
                                        state->set->name())
                          : fmt::format("there is no drive {}", by));
  }
  const bool other_set = target->use == DriveUse::kSpare && target->set_uuid != Uuid{} &&
                         target->set_uuid != state->set->uuid();
  if ((target->use != DriveUse::kSpare && target->use != DriveUse::kBlank) || other_set) {
    const bool erasable =
        other_set || target->use == DriveUse::kStranger || target->use == DriveUse::kFailed;
    co_return refusal(fmt::format(
        "drive {} is {}; a spare or a blank drive is accepted{}", target->name,
        other_set ? std::string("another set's spare") : std::string(describe(target->use)),
        erasable ? fmt::format(": `drive erase {}` makes it blank", target->name) : ""));
  }
  const std::string unfit = misfit(*target, *state, role);
  if (!unfit.empty()) co_return refusal(unfit);
  bool good = false;
  if (drives.drive(role) == nullptr) {
    if (drives.superblock().redundancy_suspect && drives.stale_roles() != 0) {
      co_return refusal(fmt::format(
          "role {} of set {} cannot be given away while a drive that is back in another "
          "role is being rebuilt: parity is not verified, so what it has would be lost; "
          "try again when it is whole",
          role, state->set->name()));
    }
    good = co_await give_role(state, role, target);
  } else {
    good = co_await begin_copy(state, role, target);
  }
  if (good) co_return Outcome{};
  co_return refusal(fmt::format("drive {} failed when it was to take role {}", target->name, role));
}

std::string Controller::Implementation::counted_on(const Entry& entry) const {
  if (entry.device == nullptr || entry.use == DriveUse::kAbsent) {
    return fmt::format("drive {} is not there: {}", entry.name, entry.why);
  }
  if (entry.use == DriveUse::kMember || entry.use == DriveUse::kReplacement) {
    const SetState* const state = find_set(entry.set_uuid);
    return fmt::format("drive {} is in use by set {}", entry.name,
                       state != nullptr ? state->set->name() : "of another name");
  }
  for (const auto& state : sets) {
    if (!state->set->assembled() || state->set->drives()->idle(*entry.device)) continue;
    return fmt::format("drive {} still holds requests of set {}", entry.name, state->set->name());
  }
  return {};
}

Task<Controller::Outcome> Controller::Implementation::erase_drive(std::string name) {
  Entry* entry = find_entry(name);
  if (entry == nullptr) co_return refusal(fmt::format("there is no drive {}", name));
  settle_entry(*entry);
  const std::string needed = counted_on(*entry);
  if (!needed.empty()) co_return refusal(fmt::format("{}; nothing of it is erased", needed));
  DriveMetadata metadata(*entry->probe);
  const Error error = co_await metadata.erase_all();
  if (error != Error::kNone) {
    co_return refusal(fmt::format("drive {} cannot be erased: {}", name, describe(error)));
  }
  entry->use = DriveUse::kBlank;
  entry->why.clear();
  entry->uuid = {};
  entry->set_uuid = {};
  entry->condemned = false;
  entry->prediction_told = false;
  entry->no_copy_told = false;
  co_return Outcome{};
}

Task<Controller::Outcome> Controller::Implementation::insert_drive(std::string name,
                                                                   BlockDevice* device) {
  assert(device != nullptr);
  Entry* entry = find_entry(name);
  if (entry != nullptr && entry->device != nullptr) {
    co_return refusal(fmt::format("drive {} is there already; it has to be removed first", name));
  }
  for (const auto& other : entries) {
    if (other->device != device) continue;
    co_return refusal(fmt::format("drive {} is the same as drive {}", name, other->name));
  }
  if (entry == nullptr) entry = &add_entry({name, nullptr});
  entry->device = device;
  entry->probe = std::make_unique<BoundedDevice>(*device, name, options.set.drive_policy);
  entry->use = DriveUse::kAbsent;
  entry->why = "it has not been read";
  entry->uuid = {};
  entry->set_uuid = {};
  entry->condemned = false;
  entry->prediction_told = false;
  entry->no_copy_told = false;
  co_await assemble_again(true);
  for (const auto& state : sets) state->no_spare_told = 0;
  if (entry->use == DriveUse::kAbsent) {
    co_return refusal(fmt::format("drive {}: {}", name, entry->why));
  }
  co_return Outcome{};
}

Task<Controller::Outcome> Controller::Implementation::remove_drive(std::string name) {
  Entry* entry = find_entry(name);
  if (entry == nullptr) co_return refusal(fmt::format("there is no drive {}", name));
  if (entry->device == nullptr) co_return refusal(fmt::format("drive {} is not there", name));
  settle_entry(*entry);
  SetState* stopped = nullptr;
  bool stuck = false;
  if (const auto held = holding(*entry)) {
    SetDrives& drives = *held->state->set->drives();
    if (held->replacement) {
      drives.drop_replacement(held->role, "it was pulled");
      co_await drives.settled();
    } else if (drives.survives_without(held->role)) {
      drives.drop(held->role, DropReason::kMissing, "it was pulled");
      co_await drives.settled();
    } else {
      stopped = held->state;
      const Error error = co_await stopped->set->stop(home.now() + patience());
      stuck = error != Error::kNone;
      refuse(*stopped, fmt::format("set {}: drive {} was pulled, and it cannot run without it",
                                   stopped->set->name(), name));
    }
  }
  settle_entry(*entry);
  const bool idle = co_await let_go(entry, stopped);
  entry->user = nullptr;
  entry->device = nullptr;
  entry->use = DriveUse::kAbsent;
  entry->why = "it was pulled";
  if (idle && !stuck) co_return Outcome{};
  co_return refusal(fmt::format(
      "drive {} is out, but holds requests that do not end: its device must be kept", name));
}

// Waits until nothing that was ever asked of the device is still in it, for a while.
Task<bool> Controller::Implementation::let_go(Entry* entry, SetState* user) {
  const TimePoint deadline = home.now() + patience();
  const auto idle = [this, entry] {
    return entry->probe->idle() && std::ranges::all_of(sets, [entry](const auto& state) {
             const SetDrives* drives = state->set->drives();
             return drives == nullptr || drives->idle(*entry->device);
           });
  };
  if (user != nullptr && user->set->assembled()) co_return false;
  while (!idle() && home.now() < deadline) co_await home.sleep_for(kLookForIdleEvery);
  const bool good = idle();
  if (entry->probe->idle()) {
    entry->probe.reset();
  } else {
    leaving.push_back(std::move(entry->probe));
  }
  co_return good;
}

}  // namespace sandbay::raid
