// New sets and new spares: everything is checked before anything is written.
#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "raid/controller_implementation.h"
#include "raid/drive_metadata.h"

namespace sandbay::raid {

using Entry = Controller::Implementation::Entry;
using SetState = Controller::Implementation::SetState;

namespace {

// A drive with more runs of mapped and unmapped blocks than this counts as written.
constexpr unsigned kMostRuns = 64;

}  // namespace

std::string Controller::Implementation::choose_drives(const NewSet& wanted,
                                                      const std::vector<std::string>& names,
                                                      std::vector<Entry*>* chosen) const {
  if (find_set(wanted.name) != nullptr)
    return fmt::format("there is a set {} already", wanted.name);
  for (const std::string& name : names) {
    Entry* entry = find_entry(name);
    if (entry == nullptr) return fmt::format("set '{}': there is no drive {}", wanted.name, name);
    if (std::ranges::find(*chosen, entry) != chosen->end()) {
      return fmt::format("set '{}': drives: drive {} is named twice", wanted.name, name);
    }
    settle_entry(*entry);
    const bool used = entry->use == DriveUse::kMember || entry->use == DriveUse::kReplacement;
    if (used) {
      const SetState* user = find_set(entry->set_uuid);
      return fmt::format("set '{}': drive {} is in use by set {}", wanted.name, name,
                         user != nullptr ? user->set->name() : std::string("of another name"));
    }
    if (entry->device == nullptr || entry->use == DriveUse::kAbsent) {
      return fmt::format("set '{}': drive {} is not there: {}", wanted.name, name, entry->why);
    }
    const bool taken = entry->use == DriveUse::kBlank && !entry->condemned;
    if (!taken && !wanted.overwrite) {
      return fmt::format(
          "set '{}': drive {} is not blank but {}; it is taken with 'overwrite' only", wanted.name,
          name, describe(entry->use));
    }
    for (const auto& state : sets) {
      if (!state->set->assembled() || state->set->drives()->idle(*entry->device)) continue;
      return fmt::format("set '{}': drive {} still holds requests of set {}", wanted.name, name,
                         state->set->name());
    }
    chosen->push_back(entry);
  }
  return {};
}

Task<bool> Controller::Implementation::all_zero(std::vector<Entry*> drives, Superblock superblock) {
  for (std::size_t role = 0; role < drives.size(); ++role) {
    Entry* entry = drives[role];
    const Geometry& geometry = entry->device->geometry();
    Lba lba = superblock.data_offset_blocks;
    const Lba end = std::min(lba + superblock.roles[role].data_blocks, geometry.block_count);
    for (unsigned runs = 0; lba < end; ++runs) {
      const auto run = co_await entry->probe->provisioning(lba, end);
      if (!run || run->mapped || run->block_count == 0 || runs == kMostRuns) co_return false;
      lba += run->block_count;
    }
  }
  co_return true;
}

// Room for what a set must be able to write at any time: what its drives live on may fill up. A
// drive whose blocks are all there has it; zeroing those may take long.
Task<Error> Controller::Implementation::reserve(Entry* entry, Extent area) {
  if (area.block_count == 0 || !entry->device->geometry().unmap) co_return Error::kNone;
  Request request;
  request.operation = Operation::kWriteZeroes;
  request.extent = area;
  const Completion done = co_await entry->probe->submit(std::move(request));
  co_return done.error == Error::kUnsupported ? Error::kNone : done.error;
}

Task<Error> Controller::Implementation::reserve_areas(Entry* entry, Superblock superblock) {
  Error error = co_await reserve(entry, {.first = 0, .block_count = superblock.data_offset_blocks});
  if (error != Error::kNone) co_return error;
  const RoleEntry& role = superblock.roles[superblock.role];
  error = co_await reserve(entry, {.first = role.integrity_offset_bytes / superblock.block_bytes,
                                   .block_count = role.integrity_bytes / superblock.block_bytes});
  co_return error;
}

// Map and lost sectors first: a drive on which the superblock is found has everything.
Task<std::string> Controller::Implementation::write_set(PlannedSet* planned,
                                                        std::vector<Entry*> drives) {
  const auto regions =
      std::make_shared<const std::vector<std::byte>>(planned->regions.encode_next());
  const auto lost = std::make_shared<const std::vector<std::byte>>(planned->lost.encode_next());
  std::vector<std::unique_ptr<DriveMetadata>> metadata;
  for (std::size_t role = 0; role < drives.size(); ++role) {
    Entry* entry = drives[role];
    metadata.push_back(std::make_unique<DriveMetadata>(*entry->probe));
    Error error = co_await reserve_areas(entry, planned->superblocks[role]);
    if (error == Error::kNone) error = co_await metadata.back()->write_region_map(regions);
    if (error == Error::kNone) error = co_await metadata.back()->write_lost_sectors(lost);
    if (error != Error::kNone) {
      co_return fmt::format("drive {} cannot be written: {}", entry->name, describe(error));
    }
  }
  for (std::size_t role = 0; role < drives.size(); ++role) {
    const Error error = co_await metadata[role]->write_superblock(planned->superblocks[role]);
    if (error == Error::kNone) continue;
    for (std::size_t written = 0; written <= role; ++written) {
      co_await metadata[written]->erase_superblock();
    }
    co_return fmt::format("drive {} cannot be written: {}", drives[role]->name, describe(error));
  }
  co_return std::string();
}

Task<std::expected<ManagedSet*, std::string>> Controller::Implementation::create_set(
    NewSet wanted, std::vector<std::string> names) {
  if (wanted.group_uuid == Uuid{}) wanted.group_uuid = options.group_uuid;
  if (!wanted.journal_bytes && options.set.nvram != nullptr) wanted.journal_bytes = 0;
  std::vector<Entry*> drives;
  const std::string unfit = choose_drives(wanted, names, &drives);
  if (!unfit.empty()) co_return refusal(unfit);
  const std::vector<Candidate> candidates = co_await gather(drives);
  auto planned = plan_new_set(wanted, candidates, home.random());
  if (!planned) co_return refusal(planned.error());
  const Superblock& first = planned->superblocks[0];
  // Parity of zeros is zeros, and zeros are alike. With integrity verify writes what is known then.
  const bool zero = co_await all_zero(drives, first);
  if (zero && !wanted.integrity) planned->regions.set_all_dirty(false);
  for (Superblock& superblock : planned->superblocks) superblock.blank = zero && wanted.integrity;
  const std::string unwritten = co_await write_set(&*planned, drives);
  if (!unwritten.empty()) co_return refusal(fmt::format("set '{}': {}", wanted.name, unwritten));
  const Error recorded = co_await record(first.set_uuid, first.event);
  if (recorded != Error::kNone) {
    co_return refusal(
        fmt::format("set '{}': it cannot be recorded: {}", wanted.name, describe(recorded)));
  }
  AssembledSet made{.superblock = first, .startable = true};
  made.superblock.mark_complete();
  made.regions = std::move(planned->regions);
  made.lost = std::move(planned->lost);
  made.roles.resize(drives.size());
  for (std::size_t role = 0; role < drives.size(); ++role) {
    made.roles[role] = {.drive = role, .verdict = Verdict::kCurrent};
    drives[role]->uuid = planned->superblocks[role].drive_uuid;
    drives[role]->set_uuid = first.set_uuid;
    drives[role]->use = DriveUse::kMember;
    drives[role]->condemned = false;
    drives[role]->why.clear();
  }
  SetState& state = add_set(made.superblock);
  co_await start_set(&state, &made, drives);
  if (!state.set->running()) co_return refusal(state.set->refusal());
  co_return state.set.get();
}

Task<Controller::Outcome> Controller::Implementation::add_spare(std::string name, std::string set,
                                                                bool overwrite) {
  Entry* entry = find_entry(name);
  if (entry == nullptr) co_return refusal(fmt::format("there is no drive {}", name));
  settle_entry(*entry);
  const std::string needed = overwrite ? counted_on(*entry) : std::string();
  if (!needed.empty()) co_return refusal(fmt::format("{}; it becomes no spare", needed));
  const bool blank = entry->use == DriveUse::kBlank && entry->device != nullptr;
  if (!blank && !overwrite) {
    co_return refusal(
        fmt::format("drive {} is not blank but {}; it becomes a spare with 'overwrite' only", name,
                    describe(entry->use)));
  }
  const SetState* state = nullptr;
  if (!set.empty()) {
    state = find_set(set);
    if (state == nullptr) co_return refusal(fmt::format("there is no set {}", set));
    bool fits_any = false;
    std::string why;
    for (unsigned role = 0; role < state->set->superblock().drive_count(); ++role) {
      why = misfit(*entry, *state, role);
      fits_any |= why.empty();
    }
    if (!fits_any) co_return refusal(why);
  }
  if (!blank || entry->condemned) {
    const Outcome erased = co_await erase_drive(name);
    if (!erased) co_return erased;
  }
  const Uuid uuid = make_uuid(home.random());
  const Uuid set_uuid = state != nullptr ? state->set->uuid() : Uuid{};
  DriveMetadata metadata(*entry->probe);
  const Error error = co_await metadata.write_superblock(make_spare(
      uuid, options.group_uuid, entry->device->geometry().block_bytes, set_uuid, std::move(set)));
  if (error != Error::kNone) {
    co_return refusal(fmt::format("drive {} cannot be written: {}", name, describe(error)));
  }
  entry->uuid = uuid;
  entry->set_uuid = set_uuid;
  entry->use = DriveUse::kSpare;
  entry->why.clear();
  for (const auto& each : sets) each->no_spare_told = 0;
  co_return Outcome{};
}

}  // namespace sandbay::raid
