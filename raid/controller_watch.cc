// What a controller does of itself: gives spares to roles that have lost their drive, copies drives
// that are about to fail, and looks for what has come back.
#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "raid/controller_implementation.h"

namespace sandbay::raid {

namespace {

// The drive of another role may come back, or is back and not whole.
bool others_return(const SetDrives& drives, unsigned role) {
  const std::vector<RoleEntry>& roles = drives.superblock().roles;
  for (unsigned other = 0; other < roles.size(); ++other) {
    if (other != role && roles[other].state == RoleState::kMissing) return true;
  }
  return (drives.stale_roles() & ~(std::uint64_t{1} << role)) != 0;
}

}  // namespace

using Entry = Controller::Implementation::Entry;
using SetState = Controller::Implementation::SetState;

Task<void> Controller::Implementation::watch() {
  while (!stopping) {
    woken = false;
    co_await busy.lock();
    if (!stopping) co_await look();
    busy.unlock();
    if (!stopping && !woken) co_await changed.wait_until(home.now() + options.look_every);
  }
  gate.leave();
}

Task<void> Controller::Implementation::look() {
  settle_entries();
  const bool some_wait =
      std::ranges::any_of(sets, [](const auto& state) { return !state->set->running(); });
  const bool some_away = std::ranges::any_of(entries, [](const auto& entry) {
    return entry->use == DriveUse::kAbsent && entry->device != nullptr && !entry->condemned;
  });
  if (some_wait || some_away) co_await assemble_again(false);
  for (std::size_t at = 0; at < sets.size() && !stopping; ++at) {
    SetState* state = sets[at].get();
    co_await fill_roles(state);
    co_await replace_failing(state);
  }
}

std::string Controller::Implementation::too_small(const Entry& entry, const SetState& state,
                                                  unsigned role) const {
  const Geometry& geometry = entry.device->geometry();
  const Superblock& superblock = state.set->superblock();
  if (geometry.block_bytes != superblock.block_bytes) {
    return fmt::format("drive {} has blocks of {} bytes; set {} takes {}", entry.name,
                       geometry.block_bytes, superblock.set_name, superblock.block_bytes);
  }
  const std::uint64_t bytes = geometry.block_count * geometry.block_bytes;
  if (bytes < superblock.needed_bytes(role)) {
    return fmt::format("drive {} has {} bytes; role {} of set {} takes {}", entry.name, bytes, role,
                       superblock.set_name, superblock.needed_bytes(role));
  }
  return {};
}

std::string Controller::Implementation::misfit(const Entry& entry, const SetState& state,
                                               unsigned role) const {
  std::string why = too_small(entry, state, role);
  if (!why.empty()) return why;
  // The set's smallest update is that large: a larger physical block would be written in part.
  const std::uint32_t physical = entry.device->geometry().physical_block_bytes;
  const std::uint32_t recorded = state.set->superblock().physical_block_bytes;
  const std::uint32_t accepted =
      recorded != 0 ? recorded : state.set->geometry().physical_block_bytes;
  if (physical > accepted) {
    return fmt::format("drive {} has physical blocks of {} bytes; set {} accepts at most {}",
                       entry.name, physical, state.set->name(), accepted);
  }
  const Health health = entry.device->health();
  if (health != Health::kGood && health != Health::kDegraded) {
    return fmt::format("drive {} is failing itself", entry.name);
  }
  return {};
}

// Dedicated ones first; the smallest that fits.
Entry* Controller::Implementation::best_spare(const SetState& state, unsigned role) const {
  Entry* best = nullptr;
  for (const auto& entry : entries) {
    if (entry->use != DriveUse::kSpare || entry->device == nullptr || entry->condemned) continue;
    const bool dedicated = entry->set_uuid == state.set->uuid();
    if (!dedicated && entry->set_uuid != Uuid{}) continue;
    if (!misfit(*entry, state, role).empty()) continue;
    const auto rank = [&state](const Entry& each) {
      return std::pair(each.set_uuid != state.set->uuid(), each.device->geometry().block_count);
    };
    if (best == nullptr || rank(*entry) < rank(*best)) best = entry.get();
  }
  return best;
}

Task<bool> Controller::Implementation::give_role(SetState* state, unsigned role, Entry* entry) {
  SetDrives& drives = *state->set->drives();
  if (entry->uuid == Uuid{}) entry->uuid = make_uuid(home.random());
  drives.take_role(role, *entry->device, entry->name, options.set.drive_policy, entry->uuid, false);
  entry->why.clear();
  settle_entry(*entry);
  tell(*state, entry, SetEvent::Kind::kSpareTaken,
       fmt::format("drive {} takes role {}", entry->name, role));
  const Error error = co_await drives.settled();
  settle_entry(*entry);
  const auto held = holding(*entry);
  const bool good = error == Error::kNone && held && held->role == role;
  if (good) state->absent_since.erase(role);
  if (state->set->maintenance() != nullptr) state->set->maintenance()->wake();
  co_return good;
}

Task<bool> Controller::Implementation::begin_copy(SetState* state, unsigned role, Entry* entry) {
  SetDrives& drives = *state->set->drives();
  if (entry->uuid == Uuid{}) entry->uuid = make_uuid(home.random());
  const std::string old = drives.drive(role)->name();
  drives.begin_replacement(role, *entry->device, entry->name, options.set.drive_policy,
                           entry->uuid);
  entry->why.clear();
  settle_entry(*entry);
  tell(*state, entry, SetEvent::Kind::kSpareTaken,
       fmt::format("drive {} in role {} is copied to drive {}", old, role, entry->name));
  const Error error = co_await drives.settled();
  settle_entry(*entry);
  const auto held = holding(*entry);
  if (state->set->maintenance() != nullptr) state->set->maintenance()->wake();
  co_return error == Error::kNone&& held && held->role == role;
}

// A rebuild would give up the blocks that only the missing drive has.
void Controller::Implementation::tell_waiting(SetState* state, unsigned role) {
  const std::uint64_t bit = std::uint64_t{1} << role;
  if ((std::exchange(state->waiting_told, state->waiting_told | bit) & bit) != 0) return;
  const std::string name = state->set->name();
  tell(*state, nullptr, SetEvent::Kind::kNoSpare,
       fmt::format(
           "role {0} gets no spare by itself: parity is not verified, so some blocks of its "
           "drive cannot be computed; put the drive back, or, if it will not come back, lose "
           "these blocks with `drive replace {1}:{0}`",
           role, name));
}

Task<void> Controller::Implementation::fill_roles(SetState* state) {
  if (!state->set->running()) co_return;
  const unsigned count = state->set->superblock().drive_count();
  for (unsigned role = 0; role < count; ++role) {
    // Each turn of this loop uses a spare up.
    while (state->set->running() && !stopping) {
      const SetDrives& drives = *state->set->drives();
      if (drives.drive(role) != nullptr) {
        state->no_spare_told &= ~(std::uint64_t{1} << role);
        state->waiting_told &= ~(std::uint64_t{1} << role);
        break;
      }
      if (drives.replacement(role) != nullptr || drives.layout().redundancy() == 0) break;
      const TimePoint since = state->absent_since.try_emplace(role, home.now()).first->second;
      const bool failed = drives.superblock().roles[role].state == RoleState::kFailed;
      const bool given_up = failed || since == TimePoint::min();
      // A fresh drive would end what another one keeps that is missing or has just returned.
      const bool waits = since != TimePoint::min() && (!failed || others_return(drives, role));
      if (waits && drives.superblock().redundancy_suspect) {
        tell_waiting(state, role);
        break;
      }
      const bool due = given_up || home.now() - since >= options.absence_patience;
      if (!due) break;
      Entry* spare = best_spare(*state, role);
      if (spare == nullptr) {
        const std::uint64_t bit = std::uint64_t{1} << role;
        if ((state->no_spare_told & bit) == 0) {
          tell(*state, nullptr, SetEvent::Kind::kNoSpare,
               fmt::format("there is no spare for role {}", role));
        }
        state->no_spare_told |= bit;
        break;
      }
      co_await give_role(state, role, spare);
    }
  }
}

Task<void> Controller::Implementation::replace_failing(SetState* state) {
  if (!state->set->running()) co_return;
  const unsigned count = state->set->superblock().drive_count();
  for (unsigned role = 0; role < count && state->set->running() && !stopping; ++role) {
    const SetDrives& drives = *state->set->drives();
    Entry* entry = holder(*state, role);
    if (entry == nullptr) continue;
    // It says so by itself, without any I/O.
    const Health health = entry->device->health();
    if (health == Health::kFailed || health == Health::kMissing) {
      SetDrives& changing = *state->set->drives();
      const bool failed = health == Health::kFailed;
      const bool out = changing.drop(role, failed ? DropReason::kFailed : DropReason::kMissing,
                                     failed ? "it says that it has failed" : "it was pulled");
      if (out) co_await changing.settled();
      continue;
    }
    if (entry->device->health() != Health::kPredictedFailure) continue;
    if (!std::exchange(entry->prediction_told, true)) {
      tell(*state, entry, SetEvent::Kind::kPredictedFailure,
           fmt::format("drive {} in role {} says that it will fail", entry->name, role));
    }
    if (drives.replacement(role) != nullptr || drives.stale(role, false)) continue;
    Entry* spare = best_spare(*state, role);
    if (spare != nullptr) {
      co_await begin_copy(state, role, spare);
    } else if (!std::exchange(entry->no_copy_told, true)) {
      tell(*state, entry, SetEvent::Kind::kNoSpare,
           fmt::format("there is no spare for drive {} in role {}", entry->name, role));
    }
  }
}

}  // namespace sandbay::raid
