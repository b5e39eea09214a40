// From drives to running sets, at the beginning and whenever something has come back.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/controller_implementation.h"
#include "raid/set_back.h"
#include "runtime/known.h"

namespace sandbay::raid {

using Entry = Controller::Implementation::Entry;
using SetState = Controller::Implementation::SetState;

Entry& Controller::Implementation::add_entry(const NamedDevice& drive) {
  entries.push_back(std::make_unique<Entry>());
  Entry& entry = *entries.back();
  entry.name = drive.name;
  entry.device = drive.device;
  entry.why = "it is not there";
  if (entry.device != nullptr) {
    entry.probe =
        std::make_unique<BoundedDevice>(*entry.device, entry.name, options.set.drive_policy);
  }
  return entry;
}

SetState& Controller::Implementation::add_set(const Superblock& superblock) {
  sets.push_back(std::make_unique<SetState>());
  SetState* state = sets.back().get();
  ManagedSetOptions its_options = options.set;
  its_options.maintenance = policy_of(superblock.set_name);
  state->set = std::make_unique<ManagedSet>(home, superblock, std::move(its_options));
  state->set->on_event(
      [this, state](const ManagedSet&, SetEvent event) { on_set_event(*state, event); });
  state->set->on_record([this](Uuid set, raid::Event event) { return record(set, event); });
  return *state;
}

// ---- looking at drives --------------------------------------------------------------------------

struct Controller::Implementation::Gathering {
  std::vector<Candidate> found;
  std::size_t running = 0;
  Condition ended;
};

Task<void> Controller::Implementation::gather_one(Gathering* gathering, std::size_t at,
                                                  Entry* entry) {
  std::vector<NamedDevice> one = {{entry->name, entry->probe.get()}};
  std::vector<Candidate> found = co_await gather_candidates(std::move(one));
  gathering->found[at] = std::move(found[0]);
  if (--gathering->running == 0) gathering->ended.notify_all();
}

// Side by side: a drive that hangs costs its timeout once.
Task<std::vector<Candidate>> Controller::Implementation::gather(std::vector<Entry*> wanted) {
  Gathering gathering;
  gathering.found.resize(wanted.size());
  gathering.running = wanted.size();
  for (std::size_t at = 0; at < wanted.size(); ++at) spawn(gather_one(&gathering, at, wanted[at]));
  while (gathering.running > 0) co_await gathering.ended.wait();
  co_return std::move(gathering.found);
}

// ---- sets ---------------------------------------------------------------------------------------

void Controller::Implementation::refuse(SetState& state, std::string why) {
  if (std::exchange(state.told, why) != why) {
    tell(state, nullptr, SetEvent::Kind::kOffline, why);
  }
  state.set->refuse(std::move(why));
}

Task<void> Controller::Implementation::take_down_failed() {
  for (std::size_t at = 0; at < sets.size(); ++at) {
    SetState& state = *sets[at];
    if (state.set->running() || !state.set->assembled()) continue;
    settle_entries();
    const Error error = co_await state.set->stop(home.now() + patience());
    if (error != Error::kNone) {
      refuse(state, fmt::format("set {}: a drive of it holds requests that do not end",
                                state.set->name()));
    }
  }
}

Task<std::vector<std::string>> Controller::Implementation::assemble_again(bool all) {
  co_await take_down_failed();
  settle_entries();
  const bool some_wait =
      std::ranges::any_of(sets, [](const auto& state) { return !state->set->assembled(); });
  std::vector<Entry*> wanted;
  for (const auto& entry : entries) {
    if (entry->device == nullptr || entry->condemned || entry->user != nullptr) continue;
    // A set that waits may find its drive where another was seen.
    const bool may_differ = entry->use == DriveUse::kAbsent || some_wait;
    if ((all || may_differ) && entry->probe->idle()) wanted.push_back(entry.get());
  }
  std::vector<Candidate> found = co_await gather(wanted);
  std::vector<std::string> lines;
  std::vector<Candidate> pool;
  std::vector<Entry*> drives;
  for (std::size_t at = 0; at < found.size(); ++at) {
    Entry* entry = wanted[at];
    const DriveContents& contents = found[at].contents;
    if (contents.kind == DriveContents::Kind::kUnreadable) {
      if (entry->use != DriveUse::kFailed) {
        entry->use = DriveUse::kAbsent;
        entry->why = fmt::format("it cannot be read: {}", describe(contents.error));
      }
      lines.push_back(fmt::format("{}: it cannot be read: {}", entry->name, contents.why));
      continue;
    }
    const auto& superblock = contents.superblock;
    entry->uuid = superblock.has_value() ? superblock->drive_uuid : Uuid{};
    const SetState* state = superblock.has_value() && !superblock->is_spare()
                                ? find_set(superblock->set_uuid)
                                : nullptr;
    if (state != nullptr && state->set->assembled()) {
      if (state->set->running()) co_await consider_return(entry, *superblock);
      continue;
    }
    drives.push_back(entry);
    pool.push_back(std::move(found[at]));
  }
  Assembly assembly = assemble(pool, remembered);
  lines.insert(lines.end(), assembly.lines.begin(), assembly.lines.end());
  for (AssembledSet& set : assembly.sets) {
    const SetState* state = find_set(set.superblock.set_uuid);
    if (!set.startable || (state != nullptr && state->set->assembled())) continue;
    co_await put_set_back_aside(&set, &drives, &lines);
  }
  classify(assembly, drives);
  for (AssembledSet& set : assembly.sets) {
    SetState* state = find_set(set.superblock.set_uuid);
    if (state == nullptr) state = &add_set(set.superblock);
    if (state->set->assembled()) continue;
    if (!set.startable) {
      std::erase(lines, set.refusal);  // An event tells it.
      refuse(*state, set.refusal);
      continue;
    }
    for (const AssembledRole& role : set.roles) {
      if (role.why.empty()) continue;
      tell(*state, drives[known(role.drive)], SetEvent::Kind::kDriveFailed, role.why);
    }
    co_await start_set(state, &set, drives);
  }
  refuse_unseen(assembly);
  co_return lines;
}

void Controller::Implementation::refuse_unseen(const Assembly& assembly) {
  for (const auto& state : sets) {
    const bool seen = std::ranges::any_of(assembly.sets, [&state](const AssembledSet& set) {
      return set.superblock.set_uuid == state->set->uuid();
    });
    if (seen || state->set->assembled()) continue;
    refuse(*state, fmt::format("set {}: none of its drives is there", state->set->name()));
  }
}

// A drive that counts as current by its superblock, and not by its journal.
Task<void> Controller::Implementation::put_set_back_aside(AssembledSet* set,
                                                          const std::vector<Entry*>* drives,
                                                          std::vector<std::string>* lines) {
  std::vector<BlockDevice*> by_role(set->roles.size());
  for (std::size_t role = 0; role < by_role.size(); ++role) {
    const AssembledRole& here = set->roles[role];
    const bool active = set->superblock.roles[role].state == RoleState::kActive;
    if (here.verdict != Verdict::kCurrent || !here.drive || !active) continue;
    by_role[role] = (*drives)[*here.drive]->probe.get();
  }
  std::uint64_t found = co_await find_set_back(home, set->superblock, std::move(by_role));
  for (; found != 0; found &= found - 1) {
    const auto role = static_cast<unsigned>(std::countr_zero(found));
    std::string why = fmt::format(
        "drive {} in role {} is stale: it lacks what the journal had written on it; it is an older "
        "copy, or has lost what it said was durable",
        (*drives)[known(set->roles[role].drive)]->name, role);
    lines->push_back(fmt::format("set '{}': {}", set->superblock.set_name, why));
    put_aside(*set, role, std::move(why));
  }
}

// What each drive is that is in no running set.
void Controller::Implementation::classify(const Assembly& assembly,
                                          const std::vector<Entry*>& drives) {
  const auto become = [](Entry& entry, DriveUse use, std::string why, const Uuid& set) {
    entry.use = use;
    entry.why = std::move(why);
    entry.set_uuid = set;
  };
  for (const std::size_t at : assembly.blank) become(*drives[at], DriveUse::kBlank, {}, {});
  for (const std::size_t at : assembly.spares) become(*drives[at], DriveUse::kSpare, {}, {});
  for (const Stranger& stranger : assembly.strangers) {
    become(*drives[stranger.drive], DriveUse::kStranger, stranger.why, {});
  }
  for (const AssembledSet& set : assembly.sets) {
    const Uuid& uuid = set.superblock.set_uuid;
    for (const std::size_t at : set.spares) become(*drives[at], DriveUse::kSpare, {}, uuid);
    for (const std::size_t at : set.undecided) {
      become(*drives[at], DriveUse::kMember, "its set does not start: " + set.refusal, uuid);
    }
    for (unsigned role = 0; role < set.roles.size(); ++role) {
      const AssembledRole& here = set.roles[role];
      if (here.replacement) become(*drives[*here.replacement], DriveUse::kMember, {}, uuid);
      if (!here.drive) continue;
      if (here.verdict == Verdict::kStale) {
        become(*drives[*here.drive], DriveUse::kFailed,
               here.why.empty() ? fmt::format("it is stale: set {} has gone on without it",
                                              set.superblock.set_name)
                                : here.why,
               uuid);
      } else if (here.verdict == Verdict::kReturning &&
                 set.superblock.roles[role].state == RoleState::kFailed) {
        become(*drives[*here.drive], DriveUse::kFailed,
               fmt::format("it has failed in set {}", set.superblock.set_name), uuid);
      } else {
        become(*drives[*here.drive], DriveUse::kMember, {}, uuid);
      }
    }
  }
}

Task<void> Controller::Implementation::start_set(SetState* state, AssembledSet* found,
                                                 std::vector<Entry*> drives) {
  const unsigned count = found->superblock.drive_count();
  std::vector<SetMember> members(count);
  std::vector<SetMember> replacements(count);
  for (unsigned role = 0; role < count; ++role) {
    const AssembledRole& here = found->roles[role];
    if (here.drive && drives[*here.drive]->use == DriveUse::kMember) {
      members[role] = {drives[*here.drive]->device, drives[*here.drive]->name};
    }
    if (here.replacement) {
      replacements[role] = {drives[*here.replacement]->device, drives[*here.replacement]->name};
    }
    // One that fails while the set starts has been of the set.
    if (members[role].device != nullptr) drives[known(here.drive)]->user = state;
    if (replacements[role].device != nullptr) drives[known(here.replacement)]->user = state;
  }
  const auto started = co_await state->set->start(std::move(*found), std::move(members),
                                                  std::move(replacements), state->accept_loss);
  settle_entries();
  if (!started) {
    co_await state->set->stop(home.now() + patience());
    refuse(*state, started.error());
    co_return;
  }
  state->told.clear();
  state->no_spare_told = 0;
  state->waiting_told = 0;
  state->absent_since.clear();
  for (unsigned role = 0; role < count; ++role) {
    if (state->set->drives()->drive(role) == nullptr) state->absent_since[role] = home.now();
  }
  wake();
}

Task<Controller::Outcome> Controller::Implementation::start_set(std::string name,
                                                                bool accept_loss) {
  SetState* state = find_set(name);
  if (state == nullptr) co_return refusal(fmt::format("there is no set {}", name));
  if (state->set->running()) co_return refusal(fmt::format("set {} runs already", name));
  state->accept_loss = accept_loss;
  (void)co_await assemble_again(true);
  state->accept_loss = false;
  if (state->set->running()) co_return Outcome{};
  co_return refusal(state->set->refusal());
}

// A drive that can be read and whose superblock names a set that runs without it.
Task<void> Controller::Implementation::consider_return(Entry* entry, Superblock own) {
  SetState& state = *find_set(own.set_uuid);
  SetDrives& drives = *state.set->drives();
  const Superblock newest = drives.superblock();
  const auto found = std::ranges::find(newest.roles, own.drive_uuid, &RoleEntry::drive);
  const auto fail = [entry](std::string why) {
    entry->use = DriveUse::kFailed;
    entry->why = std::move(why);
  };
  entry->set_uuid = newest.set_uuid;
  if (found == newest.roles.end() || own.place != Place::kRole) {
    fail(fmt::format("set {} has gone on without it and given its role to another drive",
                     newest.set_name));
    co_return;
  }
  const auto role = static_cast<unsigned>(found - newest.roles.begin());
  if (drives.drive(role) != nullptr) {
    entry->use = DriveUse::kStranger;
    entry->why = fmt::format("it is a copy of drive {}", drives.drive(role)->name());
    co_return;
  }
  if (found->state == RoleState::kFailed) {
    if (entry->use != DriveUse::kFailed) {
      fail(fmt::format("it has failed in set {}", newest.set_name));
    }
    co_return;
  }
  const bool held_before = own.event == found->known_event || newest.follows(own.event);
  const bool lineage = own.role == role && held_before &&
                       own.roles[role].state == RoleState::kActive &&
                       (found->known_event == 0 || own.follows(found->known_event));
  if (std::string why = too_small(*entry, state, role); !why.empty()) {
    fail(std::move(why));
    co_return;
  }
  if (!lineage) {
    fail(fmt::format("it is stale: what it holds is not what it held when set {} lost it",
                     newest.set_name));
    co_return;
  }
  if (!drives.idle(*entry->device)) co_return;  // What was asked of it before has not ended.
  drives.take_role(role, *entry->device, entry->name, options.set.drive_policy, entry->uuid, true);
  entry->why.clear();
  settle_entry(*entry);
  tell(state, entry, SetEvent::Kind::kDriveReturned,
       fmt::format("drive {} is back in role {}; {} of {} regions are stale", entry->name, role,
                   drives.stale_count(role, false), drives.region_count()));
  co_await drives.settled();
  if (state.set->maintenance() != nullptr) state.set->maintenance()->wake();
}

}  // namespace sandbay::raid
