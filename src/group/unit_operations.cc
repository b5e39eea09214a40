// What hosts have done to units of volumes and snapshots, as management sees it: reservations and
// sanitize operations.
#include <fmt/core.h>

#include "group/log.h"
#include "group/running_group.h"

namespace sandbay::group {

namespace {

ReservationsInfo info_of(SnapshotName name, const scsi::LogicalUnit& unit) {
  const scsi::PersistentReservations& now = unit.reservations();
  ReservationsInfo info{.volume = std::move(name.volume),
                        .snapshot = std::move(name.snapshot),
                        .type = std::string(scsi::describe(now.type)),
                        .generation = now.generation,
                        .kept = now.through_power_loss,
                        .lost = now.lost,
                        .reserved_by = unit.reserved_by(),
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
Task<std::optional<ReservationsInfo>> look_at(std::shared_ptr<Volume> volume, SnapshotName name) {
  if (!volume->has_unit()) co_return std::nullopt;
  co_return info_of(std::move(name), volume->unit());
}

Task<Error> end_at(std::shared_ptr<Volume> volume, bool lose) {
  if (!volume->has_unit()) co_return Error::kClosed;
  scsi::LogicalUnit& unit = volume->unit();
  co_return co_await (lose ? unit.lose_reservations() : unit.clear_reservations());
}

std::string called(const SnapshotName& name) {
  if (name.snapshot.empty()) return fmt::format("volume \"{}\"", name.volume);
  return fmt::format("snapshot \"{}\" of volume \"{}\"", name.snapshot, name.volume);
}

std::unexpected<Refusal> not_served(const SnapshotName& name, const std::string& why) {
  return refuse(Refusal::Code::kConflict, fmt::format("{} is not served: {}", called(name), why));
}

}  // namespace

Answer<std::shared_ptr<Volume>> RunningGroup::with_unit(const SnapshotName& name) {
  std::shared_ptr<Volume> found = find(name.volume);
  if (found == nullptr) return std::unexpected(no_such_volume(name.volume));
  if (!name.snapshot.empty()) {
    const Snapshot* const snapshot = find(name);
    if (snapshot == nullptr) return std::unexpected(no_such_snapshot(name));
    if (snapshot->volume == nullptr) return not_served(name, "it is offline");
    found = snapshot->volume;
  }
  if (found->has_unit()) return found;
  return not_served(name, found->reason());
}

Task<Answer<ReservationsInfo>> RunningGroup::reservations_now(SnapshotName name) {
  auto volume = with_unit(name);
  if (!volume) co_return std::unexpected(volume.error());
  auto info = co_await invoke_on((*volume)->home(), look_at(*volume, name));
  if (!info) co_return not_served(name, "it has just been closed");
  co_return std::move(*info);
}

Task<Answer<ReservationsInfo>> RunningGroup::list_reservations(SnapshotName unit) {
  return looking(reservations_now(std::move(unit)));
}

Task<Answer<void>> RunningGroup::end_reservations_now(SnapshotName name, bool lose) {
  auto volume = with_unit(name);
  if (!volume) co_return std::unexpected(volume.error());
  const Error error = co_await invoke_on((*volume)->home(), end_at(*volume, lose));
  if (error == Error::kClosed) co_return not_served(name, "it has just been closed");
  if (error == Error::kInvalid) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("{}: no reservation of it outlives the daemon, so there is nothing "
                    "to lose; let a host register with APTPL first",
                    called(name)));
  }
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("{}: its reservations stay: {}", called(name), unwritten(error)));
  }
  log(Severity::kInformation,
      fmt::format("{}: its reservations are {}", called(name), lose ? "lost" : "cleared"));
  co_return Answer<void>{};
}

void RunningGroup::note_sanitize(const Uuid& uuid,
                                 const std::optional<scsi::SanitizeOperation>& before,
                                 const std::optional<scsi::SanitizeOperation>& now) {
  const bool worked = before && !before->failed;
  const bool works = now && !now->failed;
  if (worked && works) return;
  const std::shared_ptr<Volume> volume = find(uuid);
  std::string name = volume ? fmt::format("volume \"{}\"", volume->name()) : "a snapshot";
  const auto snapshot = snapshots_.find(uuid);
  if (!volume && snapshot != snapshots_.end()) {
    name = fmt::format("snapshot \"{}\"", snapshot->second.record.name);
  }
  EventInfo event;
  if (works) {
    event.kind = "sanitize started";
    event.text =
        fmt::format("{}: a host has all of it sanitized ({})", name, describe(now->method));
  } else if (now) {
    event.severity = Severity::kError;
    event.kind = "sanitize failed";
    event.text = fmt::format(
        "{}: its sanitize operation has failed; hosts read and write it when "
        "another has ended{}",
        name, now->allows_exit ? ", or with EXIT FAILURE MODE" : "");
  } else {
    event.kind = "sanitize ended";
    event.text = worked ? fmt::format("{}: it is sanitized", name)
                        : fmt::format(
                              "{}: a host has it left the failure of its sanitize "
                              "operation",
                              name);
  }
  events_.add(std::move(event));
}

Task<Answer<void>> RunningGroup::clear_reservations(SnapshotName unit) {
  return alone(lasting(end_reservations_now(std::move(unit), false)));
}

Task<Answer<void>> RunningGroup::lose_reservations(SnapshotName unit) {
  return alone(lasting(end_reservations_now(std::move(unit), true)));
}

}  // namespace sandbay::group
