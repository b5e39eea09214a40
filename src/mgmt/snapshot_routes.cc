// Snapshots: each handler is one operation of the service. What an operation does beside its name
// stands in the body.
#include "mgmt/snapshot_routes.h"

#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

group::SnapshotName name_of(const Call& call) {
  const auto snapshot = call.parameters.find("snapshot");
  return {.volume = call.parameters.at("name"),
          .snapshot = snapshot == call.parameters.end() ? "" : snapshot->second};
}

bool is_forced(const Call& call) {
  const auto force = call.query.find("force");
  return force != call.query.end() && force->second == "true";
}

Reply list_snapshots(Backend& backend, const Call& call) {
  return list("snapshots",
              backend.run(backend.service().list_snapshots(call.parameters.at("name"))));
}

Reply create_snapshots(Backend& backend, const Call& call) {
  auto request = read_create_snapshots(call.body);
  if (!request) return error_reply(400, request.error());
  request->volumes.insert(request->volumes.begin(), call.parameters.at("name"));
  const auto created = backend.run(backend.service().create_snapshots(std::move(*request)));
  if (!created) return refused(created.error());
  nlohmann::json array = nlohmann::json::array();
  for (const group::SnapshotInfo& one : created->snapshots) array.push_back(to_json(one));
  return ok({{"snapshots", std::move(array)}}, created->created ? 201 : 200);
}

Reply show_snapshot(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_snapshot(name_of(call))));
}

Reply delete_snapshot(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().delete_snapshot(name_of(call), is_forced(call))));
}

Reply restore_snapshot(Backend& backend, const Call& call) {
  auto forced = read_flag(call.body, "force");
  if (!forced) return error_reply(400, forced.error());
  return answer(backend.run(backend.service().restore_snapshot(name_of(call), *forced)));
}

Reply online_snapshot(Backend& backend, const Call& call) {
  auto writable = read_flag(call.body, "writable");
  if (!writable) return error_reply(400, writable.error());
  return answer(backend.run(backend.service().online_snapshot(name_of(call), *writable)));
}

Reply offline_snapshot(Backend& backend, const Call& call) {
  auto forced = read_flag(call.body, "force");
  if (!forced) return error_reply(400, forced.error());
  return answer(backend.run(backend.service().offline_snapshot(name_of(call), *forced)));
}

// Of a snapshot, or of the volume as it is.
Reply clone_volume(Backend& backend, const Call& call) {
  auto request = read_clone(call.body);
  if (!request) return error_reply(400, request.error());
  const auto created = backend.run(backend.service().clone_snapshot(
      name_of(call), std::move(request->name), request->full_copy));
  if (!created) return refused(created.error());
  return made(to_json(created->volume), created->created,
              "/api/v1/volumes/" + created->volume.name);
}

Reply list_schedules(Backend& backend, const Call& call) {
  return list("schedules",
              backend.run(backend.service().list_schedules(call.parameters.at("name"))));
}

Reply create_schedule(Backend& backend, const Call& call) {
  auto schedule = read_create_schedule(call.body);
  if (!schedule) return error_reply(400, schedule.error());
  schedule->volume = call.parameters.at("name");
  const auto created = backend.run(backend.service().create_schedule(std::move(*schedule)));
  if (!created) return refused(created.error());
  return ok(to_json(created->schedule), created->created ? 201 : 200);
}

Reply delete_schedule(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().delete_schedule(call.parameters.at("name"),
                                                              call.parameters.at("schedule"))));
}

std::vector<Route> making_routes() {
  return {{.method = "GET",
           .path = "/api/v1/volumes/{name}/snapshots",
           .operation = "listSnapshots",
           .summary = "List the snapshots of a volume, oldest first",
           .response_schema = "SnapshotList",
           .refusals = {404},
           .handle = list_snapshots},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots",
           .operation = "createSnapshots",
           .summary = "Take a snapshot of a volume, and of others at the same moment",
           .description = "Answers 200 and changes nothing if they exist already.",
           .request_schema = "SnapshotCreate",
           .success = 201,
           .response_schema = "SnapshotList",
           .refusals = {404, 409, 500},
           .handle = create_snapshots,
           .repeatable = true},
          {.method = "GET",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}",
           .operation = "showSnapshot",
           .summary = "Show a snapshot",
           .response_schema = "Snapshot",
           .refusals = {404},
           .handle = show_snapshot},
          {.method = "DELETE",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}",
           .operation = "deleteSnapshot",
           .summary = "Delete a snapshot",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = delete_snapshot,
           .query = {{"force", "boolean", "Also while it is online; its sessions are ended."}}},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/clone",
           .operation = "cloneVolume",
           .summary = "Make a volume that begins as this one is now",
           .description = "Answers 200 and changes nothing if the same clone exists already.",
           .request_schema = "Clone",
           .success = 201,
           .response_schema = "Volume",
           .refusals = {404, 409, 500},
           .handle = clone_volume,
           .repeatable = true}};
}

std::vector<Route> using_routes() {
  return {{.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/restore",
           .operation = "restoreSnapshot",
           .summary = "Make the volume's content the snapshot's",
           .description = "Refused while the volume is in use, unless forced: initiators get the "
                          "unit attention MEDIUM MAY HAVE CHANGED.",
           .request_schema = "SnapshotForce",
           .response_schema = "Volume",
           .refusals = {404, 409, 500},
           .handle = restore_snapshot},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/online",
           .operation = "onlineSnapshot",
           .summary = "Give a snapshot a target of its own",
           .description = "The initiators of the volume may use it. Writes to it do not change the "
                          "snapshot, and are kept until it is online again.",
           .request_schema = "SnapshotOnline",
           .response_schema = "Snapshot",
           .refusals = {404, 409, 500},
           .handle = online_snapshot},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/offline",
           .operation = "offlineSnapshot",
           .summary = "Take a snapshot's target away",
           .request_schema = "SnapshotForce",
           .response_schema = "Snapshot",
           .refusals = {404, 409, 500},
           .handle = offline_snapshot},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/snapshots/{snapshot}/clone",
           .operation = "cloneSnapshot",
           .summary = "Make a volume that begins as the snapshot",
           .description = "Answers 200 and changes nothing if the same clone exists already.",
           .request_schema = "Clone",
           .success = 201,
           .response_schema = "Volume",
           .refusals = {404, 409, 500},
           .handle = clone_volume,
           .repeatable = true}};
}

std::vector<Route> schedule_routes() {
  return {{.method = "GET",
           .path = "/api/v1/volumes/{name}/schedules",
           .operation = "listSchedules",
           .summary = "List when snapshots of a volume are taken",
           .response_schema = "ScheduleList",
           .refusals = {404},
           .handle = list_schedules},
          {.method = "POST",
           .path = "/api/v1/volumes/{name}/schedules",
           .operation = "createSchedule",
           .summary = "Take a snapshot of a volume every so often, and keep the newest",
           .request_schema = "ScheduleCreate",
           .success = 201,
           .response_schema = "Schedule",
           .refusals = {404, 409, 500},
           .handle = create_schedule,
           .repeatable = true},
          {.method = "DELETE",
           .path = "/api/v1/volumes/{name}/schedules/{schedule}",
           .operation = "deleteSchedule",
           .summary = "Take no more snapshots by that schedule; those that it has taken stay",
           .success = 204,
           .refusals = {404, 500},
           .handle = delete_schedule}};
}

}  // namespace

std::vector<Route> snapshot_routes() {
  std::vector<Route> all = making_routes();
  for (Route& route : schedule_routes()) all.push_back(std::move(route));
  for (Route& route : using_routes()) all.push_back(std::move(route));
  return all;
}

}  // namespace sandbay::mgmt
