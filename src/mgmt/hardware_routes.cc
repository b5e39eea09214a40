// Drives, RAID sets, faults and events: each handler is one operation of the service.
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
  const auto by = read_replace_drive(call.body);
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

Reply list_faults(Backend& backend, const Call&) {
  return ok(to_json(backend.run(backend.service().list_faults())));
}

Reply add_fault(Backend& backend, const Call& call) {
  auto rule = read_add_fault(call.body);
  if (!rule) return error_reply(400, rule.error());
  const auto added = backend.run(backend.service().add_fault(std::move(*rule)));
  if (!added) return refused(added.error());
  return made(to_json(added->rule), added->created,
              fmt::format("/api/v1/faults/{}", added->rule.id));
}

// One rule, or without a name in the path all of them.
Reply clear_faults(Backend& backend, const Call& call) {
  const auto id = call.parameters.find("id");
  return answer(backend.run(
      backend.service().clear_fault(id == call.parameters.end() ? std::string() : id->second)));
}

Reply list_events(Backend& backend, const Call& call) {
  const auto since = call.query.find("since");
  std::uint64_t number = 0;
  if (since != call.query.end()) {
    const auto given = number_of<std::uint64_t>(since->second);
    if (!given) {
      return error_reply(
          400, fmt::format("since is \"{}\"; write the number of an event", since->second));
    }
    number = *given;
  }
  return list("events", backend.run(backend.service().list_events(number)));
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

std::vector<Route> fault_routes() {
  return {{.method = "GET",
           .path = "/api/v1/faults",
           .operation = "listFaults",
           .summary = "List fault rules",
           .response_schema = "FaultList",
           .handle = list_faults},
          {.method = "POST",
           .path = "/api/v1/faults",
           .operation = "addFault",
           .summary = "Add a fault rule",
           .description = "Refused unless the configuration enables faults. Rules end with the "
                          "daemon. One without an id= is another each time that it is added.",
           .request_schema = "FaultCreate",
           .success = 201,
           .response_schema = "Fault",
           .refusals = {409},
           .handle = add_fault,
           .repeatable = true,
           .role = group::Role::kInject},
          {.method = "DELETE",
           .path = "/api/v1/faults",
           .operation = "clearFaults",
           .summary = "Clear all fault rules",
           .description = "What they do ends; damage to data stays until it is overwritten.",
           .success = 204,
           .refusals = {409},
           .handle = clear_faults,
           .role = group::Role::kInject},
          {.method = "DELETE",
           .path = "/api/v1/faults/{id}",
           .operation = "clearFault",
           .summary = "Clear a fault rule",
           .description = "What it does ends; damage to data stays until it is overwritten.",
           .success = 204,
           .refusals = {404, 409},
           .handle = clear_faults,
           .role = group::Role::kInject},
          {.method = "GET",
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
  for (Route& route : fault_routes()) all.push_back(std::move(route));
  return all;
}

}  // namespace sandbay::mgmt
