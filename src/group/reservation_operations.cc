// Reservations of volumes and snapshots as management sees them.
#include <fmt/core.h>

#include "group/log.h"
#include "group/running_group.h"

namespace sandbay::group {

namespace {

ReservationsInfo info_of(std::string name, const scsi::LogicalUnit& unit) {
  const scsi::PersistentReservations& now = unit.reservations();
  ReservationsInfo info{.volume = std::move(name),
                        .type = std::string(scsi::describe(now.type)),
                        .generation = now.generation,
                        .kept = now.through_power_loss,
                        .reserved_by_reserve = unit.reserved(),
                        .registrations = {}};
  for (const auto& [nexus, key] : now.keys) {
    info.registrations.push_back({.initiator_port = nexus.initiator_port,
                                  .target_port = nexus.target_port,
                                  .key = key,
                                  .holder = now.reserved() && now.holds(nexus)});
  }
  return info;
}

// It may have been closed on the way to its home.
Task<std::optional<ReservationsInfo>> look_at(std::shared_ptr<Volume> volume, std::string name) {
  if (!volume->has_unit()) co_return std::nullopt;
  co_return info_of(std::move(name), volume->unit());
}

Task<Error> clear_at(std::shared_ptr<Volume> volume) {
  if (!volume->has_unit()) co_return Error::kClosed;
  co_return co_await volume->unit().clear_reservations();
}

}  // namespace

// A volume, or a snapshot that is online by the name of its target's end: VOLUME-SNAPSHOT.
Answer<std::shared_ptr<Volume>> RunningGroup::with_unit(const std::string& name) const {
  std::shared_ptr<Volume> found = find(name);
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (found != nullptr) break;
    if (snapshot.volume != nullptr && snapshot.volume->name() == name) found = snapshot.volume;
  }
  if (found == nullptr) return std::unexpected(no_such_volume(name));
  if (found->has_unit()) return found;
  return refuse(Refusal::Code::kConflict,
                fmt::format("volume \"{}\" is not served: {}", name, found->reason()));
}

Task<Answer<ReservationsInfo>> RunningGroup::reservations_now(std::string name) {
  auto volume = with_unit(name);
  if (!volume) co_return std::unexpected(volume.error());
  auto info = co_await invoke_on((*volume)->home(), look_at(*volume, name));
  if (!info) co_return std::unexpected(no_such_volume(name));
  co_return std::move(*info);
}

Task<Answer<ReservationsInfo>> RunningGroup::list_reservations(std::string volume) {
  return looking(reservations_now(std::move(volume)));
}

Task<Answer<void>> RunningGroup::clear_reservations_now(std::string name) {
  auto volume = with_unit(name);
  if (!volume) co_return std::unexpected(volume.error());
  const Error error = co_await invoke_on((*volume)->home(), clear_at(*volume));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\": its reservations stay: the metadata cannot be "
                                 "written: {}",
                                 name, describe(error)));
  }
  log(Severity::kInformation, fmt::format("volume {}: its reservations are cleared", name));
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::clear_reservations(std::string volume) {
  return alone(lasting(clear_reservations_now(std::move(volume))));
}

}  // namespace sandbay::group
