// Drives, RAID sets and events: each handler is one operation of the service.
#include "mgmt/hardware_routes.h"

#include <fmt/core.h>

#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

Reply list_drives(Backend& backend, const Call&) {
  return list("drives", backend.run(backend.service().list_drives()));
}

Reply show_drive(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_drive(call.parameters.at("name"))));
}

Reply fail_drive(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().fail_drive(call.parameters.at("name"))));
}

Reply replace_drive(Backend& backend, const Call& call) {
  const auto by = read_word(call.body, "by");
  if (!by) return error_reply(400, by.error());
  return answer(backend.run(backend.service().replace_drive(call.parameters.at("name"), *by)));
}

Reply erase_drive(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().erase_drive(call.parameters.at("name"))));
}

Reply list_sets(Backend& backend, const Call&) {
  return list("sets", backend.run(backend.service().list_sets()));
}

Reply show_set(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_set(call.parameters.at("name"))));
}

Reply verify_set(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().verify_set(call.parameters.at("name"))));
}

Reply start_set(Backend& backend, const Call& call) {
  const auto accept_loss = read_flag(call.body, "accept_loss");
  if (!accept_loss) return error_reply(400, accept_loss.error());
  return answer(backend.run(backend.service().start_set(call.parameters.at("name"), *accept_loss)));
}

Reply list_events(Backend& backend, const Call& call) {
  const auto since = since_of(call, "an event");
  if (!since) return error_reply(400, since.error());
  return list("events", backend.run(backend.service().list_events(*since)));
}

std::vector<Route> drive_routes() {
  return {{.method = "GET",
           .path = "/api/v1/drives",
           .operation = "listDrives",
           .summary = "List drives",
           .response_schema = "DriveList",
           .handle = list_drives},
          {.method = "GET",
           .path = "/api/v1/drives/{name}",
           .operation = "showDrive",
           .summary = "Show a drive",
           .response_schema = "Drive",
           .refusals = {404},
           .handle = show_drive},
          {.method = "POST",
           .path = "/api/v1/drives/{name}/fail",
           .operation = "failDrive",
           .summary = "Take a drive out of its set for good",
           .description = "A spare takes its place. Refused where the set would not survive it.",
           .response_schema = "Drive",
           .refusals = {404, 409},
           .handle = fail_drive},
          {.method = "POST",
           .path = "/api/v1/drives/{name}/erase",
           .operation = "eraseDrive",
           .summary = "Make a drive blank",
           .description = "Deletes all data and marks on it: those of another group, of a set in "
                          "which it failed, of a spare. Refused for a drive that a set uses.",
           .response_schema = "Drive",
           .refusals = {404, 409},
           .handle = erase_drive},
          {.method = "POST",
           .path = "/api/v1/drives/{name}/replace",
           .operation = "replaceDrive",
           .summary = "Copy a drive to another, which then takes its place",
           .description = "The name may also be SET:ROLE, for a role that has lost its drive. The "
                          "answer is the drive that is written.",
           .request_schema = "DriveReplace",
           .response_schema = "Drive",
           .refusals = {404, 409},
           .handle = replace_drive}};
}

std::vector<Route> set_routes() {
  return {{.method = "GET",
           .path = "/api/v1/raid-sets",
           .operation = "listRaidSets",
           .summary = "List RAID sets",
           .response_schema = "RaidSetList",
           .handle = list_sets},
          {.method = "GET",
           .path = "/api/v1/raid-sets/{name}",
           .operation = "showRaidSet",
           .summary = "Show a RAID set",
           .response_schema = "RaidSet",
           .refusals = {404},
           .handle = show_set},
          {.method = "POST",
           .path = "/api/v1/raid-sets/{name}/verify",
           .operation = "verifyRaidSet",
           .summary = "Verify a RAID set",
           .description = "In the background: reads everything, repairs what does not match, and "
                          "reports. progress says how far it is, events when it has ended.",
           .response_schema = "RaidSet",
           .refusals = {404, 409},
           .handle = verify_set},
          {.method = "POST",
           .path = "/api/v1/raid-sets/{name}/start",
           .operation = "startRaidSet",
           .summary = "Start a RAID set that does not run",
           .description = "Looks at its drives again. With accept_loss the set also starts if its "
                          "journal was lost while a drive is missing or not whole: blocks that "
                          "only redundancy could give then read as medium errors until the drives "
                          "are back or the blocks are rewritten.",
           .request_schema = "RaidSetStart",
           .response_schema = "RaidSet",
           .refusals = {404, 409},
           .handle = start_set}};
}

std::vector<Route> event_routes() {
  return {{.method = "GET",
           .path = "/api/v1/events",
           .operation = "listEvents",
           .summary = "List events, newest last",
           .response_schema = "EventList",
           .handle = list_events,
           .query = {{"since", "integer", "Only those with a greater number."}}}};
}

}  // namespace

std::vector<Route> hardware_routes() {
  std::vector<Route> all = drive_routes();
  for (Route& route : set_routes()) all.push_back(std::move(route));
  for (Route& route : event_routes()) all.push_back(std::move(route));
  return all;
}

}  // namespace sandbay::mgmt
