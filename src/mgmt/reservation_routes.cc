// Reservations that hosts have at a volume: who is registered, who holds one, and their end.
#include "mgmt/reservation_routes.h"

#include <fmt/core.h>

#include "mgmt/replies.h"

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

json document_of(const group::ReservationsInfo& info) {
  json registrations = json::array();
  for (const group::RegistrationInfo& each : info.registrations) {
    registrations.push_back({{"initiator_port", each.initiator_port},
                             {"target_port", each.target_port},
                             {"key", fmt::format("{:#018x}", each.key)},
                             {"holder", each.holder}});
  }
  return {{"volume", info.volume},
          {"snapshot", info.snapshot},
          {"type", info.type},
          {"generation", info.generation},
          {"kept", info.kept},
          {"lost", info.lost},
          {"reserved_by", info.reserved_by},
          {"registrations", std::move(registrations)}};
}

group::SnapshotName unit_of(const Call& call) {
  const auto snapshot = call.parameters.find("snapshot");
  return {.volume = call.parameters.at("name"),
          .snapshot = snapshot == call.parameters.end() ? "" : snapshot->second};
}

Reply list_reservations(Backend& backend, const Call& call) {
  const auto info = backend.run(backend.service().list_reservations(unit_of(call)));
  return info ? ok(document_of(*info)) : refused(info.error());
}

Reply clear_reservations(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().clear_reservations(unit_of(call))));
}

Reply lose_reservations(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().lose_reservations(unit_of(call))));
}

}  // namespace

std::vector<Route> reservation_routes() {
  return {{.method = "GET",
           .path = "/api/v1/volumes/{name}/reservations",
           .operation = "listReservations",
           .summary = "List who is registered at a volume, and who has reserved it",
           .response_schema = "Reservations",
           .refusals = {404, 409},
           .handle = list_reservations},
          {.method = "DELETE",
           .path = "/api/v1/volumes/{name}/reservations",
           .operation = "clearReservations",
           .summary = "End every registration and reservation of a volume",
           .description = "Hosts get the unit attention RESERVATIONS PREEMPTED.",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = clear_reservations},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/reservations/lose",
           .operation = "loseReservations",
           .summary = "Lose the reservations of a volume that outlive the daemon, for tests",
           .description = "Commands end with PERSISTENT RESERVATION INFORMATION LOST until a host "
                          "replaces them.",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = lose_reservations},
          {.method = "GET",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/reservations",
           .operation = "listSnapshotReservations",
           .summary = "List who is registered at a snapshot, and who has reserved it",
           .response_schema = "Reservations",
           .refusals = {404, 409},
           .handle = list_reservations},
          {.method = "DELETE",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/reservations",
           .operation = "clearSnapshotReservations",
           .summary = "End every registration and reservation of a snapshot",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = clear_reservations},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/reservations/lose",
           .operation = "loseSnapshotReservations",
           .summary = "Lose the reservations of a snapshot that outlive the daemon, for tests",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = lose_reservations}};
}

}  // namespace sandbay::mgmt
