// Drives, sets and events as management sees them.
#include <fmt/core.h>

#include <algorithm>

#include "group/running_group.h"
#include "group/set_space.h"

namespace sandbay::group {

Refusal no_such_drive(const std::string& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no drive \"{}\"; see the list of drives", name)};
}

Refusal no_such_set(const std::string& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no set \"{}\"; see the list of sets", name)};
}

// Drives
// --------------------------------------------------------------------------------------------

Task<std::vector<DriveInfo>> RunningGroup::drives_now() { co_return members_->show_drives(); }

Task<std::vector<DriveInfo>> RunningGroup::list_drives() { return looking(drives_now(), {}); }

Task<Answer<DriveInfo>> RunningGroup::drive_now(std::string name) {
  for (DriveInfo& drive : members_->show_drives()) {
    if (drive.raid.name == name) co_return std::move(drive);
  }
  co_return std::unexpected(no_such_drive(name));
}

Task<Answer<DriveInfo>> RunningGroup::show_drive(std::string name) {
  return looking(drive_now(std::move(name)));
}

Task<Answer<DriveInfo>> RunningGroup::fail_drive_now(std::string name) {
  Hardware* const hardware = members_->hardware_of_drive(name);
  if (hardware == nullptr) co_return std::unexpected(no_such_drive(name));
  const auto failed = co_await hardware->fail_drive(name);
  if (!failed) co_return refuse(Refusal::Code::kConflict, failed.error());
  co_return co_await drive_now(std::move(name));
}

Task<Answer<DriveInfo>> RunningGroup::fail_drive(std::string name) {
  return alone(fail_drive_now(std::move(name)));
}

Task<Answer<DriveInfo>> RunningGroup::replace_drive_now(std::string name, std::string by) {
  const auto colon = name.find(':');
  const bool is_role = colon != std::string::npos;
  Hardware* const hardware = is_role ? members_->hardware_of_set(name.substr(0, colon))
                                     : members_->hardware_of_drive(name);
  if (hardware == nullptr) {
    co_return std::unexpected(is_role ? no_such_set(name.substr(0, colon)) : no_such_drive(name));
  }
  if (!by.empty() && !hardware->has_drive(by)) {
    const bool elsewhere = members_->hardware_of_drive(by) != nullptr;
    if (!elsewhere) co_return std::unexpected(no_such_drive(by));
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("drive {} is another member's; name one of the same", by));
  }
  const auto before = members_->show_drives();
  const auto replaced = co_await hardware->replace_drive(name, by);
  if (!replaced) co_return refuse(Refusal::Code::kConflict, replaced.error());
  // The answer is the drive that is written now.
  for (const DriveInfo& now : members_->show_drives()) {
    const auto same = [&](const DriveInfo& old) { return old.raid.name == now.raid.name; };
    const auto old = std::ranges::find_if(before, same);
    const bool taken =
        now.raid.use == raid::DriveUse::kReplacement || now.raid.use == raid::DriveUse::kMember;
    if (taken && old != before.end() && old->raid.use != now.raid.use) co_return now;
  }
  co_return co_await drive_now(by.empty() ? std::move(name) : std::move(by));
}

Task<Answer<DriveInfo>> RunningGroup::replace_drive(std::string name, std::string by) {
  return alone(replace_drive_now(std::move(name), std::move(by)));
}

Task<Answer<DriveInfo>> RunningGroup::erase_drive_now(std::string name) {
  Hardware* const hardware = members_->hardware_of_drive(name);
  if (hardware == nullptr) co_return std::unexpected(no_such_drive(name));
  const auto erased = co_await hardware->erase_drive(name);
  if (!erased) co_return refuse(Refusal::Code::kConflict, erased.error());
  co_return co_await drive_now(std::move(name));
}

Task<Answer<DriveInfo>> RunningGroup::erase_drive(std::string name) {
  return alone(erase_drive_now(std::move(name)));
}

// Sets
// ----------------------------------------------------------------------------------------------

SetInfo RunningGroup::with_space(SetInfo set) const {
  const std::vector<Extent> taken = taken_on(set.raid.uuid);
  const Door* const door = members_->door(set.raid.uuid);
  const std::uint32_t block_bytes = door != nullptr ? door->geometry().block_bytes : 512;
  for (const auto& [name, volume] : volumes_) {
    const auto& placement = volume->record().placement;
    if (!placement || placement->set != set.raid.uuid) continue;
    set.volumes.push_back(name);
  }
  set.free_bytes = free_blocks(taken, set.raid.byte_count / block_bytes) * block_bytes;
  return set;
}

Task<std::vector<SetInfo>> RunningGroup::sets_now() {
  std::vector<SetInfo> list;
  for (SetInfo& set : members_->show_sets()) list.push_back(with_space(std::move(set)));
  co_return list;
}

Task<std::vector<SetInfo>> RunningGroup::list_sets() { return looking(sets_now(), {}); }

Task<Answer<SetInfo>> RunningGroup::set_now(std::string name) {
  for (SetInfo& set : members_->show_sets()) {
    if (set.raid.name == name) co_return with_space(std::move(set));
  }
  co_return std::unexpected(no_such_set(name));
}

Task<Answer<SetInfo>> RunningGroup::show_set(std::string name) {
  return looking(set_now(std::move(name)));
}

Task<Answer<SetInfo>> RunningGroup::verify_set_now(std::string name) {
  Hardware* const hardware = members_->hardware_of_set(name);
  if (hardware == nullptr) co_return std::unexpected(no_such_set(name));
  const auto asked = hardware->verify_set(name);
  if (!asked) co_return refuse(Refusal::Code::kConflict, asked.error());
  co_return co_await set_now(std::move(name));
}

Task<Answer<SetInfo>> RunningGroup::verify_set(std::string name) {
  return alone(verify_set_now(std::move(name)));
}

Task<Answer<SetInfo>> RunningGroup::start_set_now(std::string name, bool accept_loss) {
  Hardware* const hardware = members_->hardware_of_set(name);
  if (hardware == nullptr) co_return std::unexpected(no_such_set(name));
  const auto started = co_await hardware->start_set(name, accept_loss);
  if (!started) co_return refuse(Refusal::Code::kConflict, started.error());
  co_return co_await set_now(std::move(name));
}

Task<Answer<SetInfo>> RunningGroup::start_set(std::string name, bool accept_loss) {
  return alone(start_set_now(std::move(name), accept_loss));
}

// Events
// --------------------------------------------------------------------------------------------

Task<std::vector<EventInfo>> RunningGroup::events_now(std::uint64_t since) {
  co_return events_.since(since);
}

Task<std::vector<EventInfo>> RunningGroup::list_events(std::uint64_t since) {
  return looking(events_now(since), {});
}

}  // namespace sandbay::group
