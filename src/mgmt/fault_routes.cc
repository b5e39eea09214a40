// Faults: rules, what they have done, and what there is to break and how. Each handler is one
// operation of the service, or shows a table of the fault module.
#include <fmt/core.h>

#include "fault/rule_words.h"
#include "fault/traits.h"
#include "mgmt/hardware_routes.h"
#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

std::string id_of(const Call& call) {
  const auto id = call.parameters.find("id");
  return id == call.parameters.end() ? std::string() : id->second;
}

Reply list_faults(Backend& backend, const Call&) {
  return ok(to_json(backend.run(backend.service().list_faults())));
}

Reply show_fault(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_fault(id_of(call))));
}

Reply add_fault(Backend& backend, const Call& call) {
  auto rule = read_word(call.body, "rule", "a rule such as \"at=drive:d0 do=fail\"");
  if (!rule) return error_reply(400, rule.error());
  auto added = backend.run(backend.service().add_faults({std::move(*rule)}));
  if (!added) {
    constexpr std::string_view kNumber = "rule 1: ";
    std::string& message = added.error().message;
    if (message.starts_with(kNumber)) message.erase(0, kNumber.size());
    return refused(added.error());
  }
  const group::AddedFault& one = added->front();
  return made(to_json(one.rule), one.created, fmt::format("/api/v1/faults/{}", one.rule.id));
}

Reply add_faults(Backend& backend, const Call& call) {
  auto rules = read_rules(call.body);
  if (!rules) return error_reply(400, rules.error());
  const auto added = backend.run(backend.service().add_faults(std::move(*rules)));
  if (!added) return refused(added.error());
  json array = json::array();
  for (const group::AddedFault& one : *added) array.push_back(to_json(one.rule));
  return ok({{"faults", std::move(array)}});
}

Reply enable_fault(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().enable_fault(id_of(call), true)));
}

Reply disable_fault(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().enable_fault(id_of(call), false)));
}

Reply release_fault(Backend& backend, const Call& call) {
  const auto released = backend.run(backend.service().release_fault(id_of(call)));
  if (!released) return refused(released.error());
  return ok({{"released", released->operations}, {"fault", to_json(released->rule)}});
}

Reply heal_drive(Backend& backend, const Call& call) {
  auto drive = read_word(call.body, "drive", "the name of a drive");
  if (!drive) return error_reply(400, drive.error());
  return answer(backend.run(backend.service().heal_drive(std::move(*drive))));
}

// One rule, or without a name in the path all of them.
Reply clear_faults(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().clear_fault(id_of(call))));
}

Reply list_firings(Backend& backend, const Call& call) {
  const auto since = since_of(call, "a firing");
  if (!since) return error_reply(400, since.error());
  return list("firings", backend.run(backend.service().list_firings(*since)));
}

Reply replay_faults(Backend& backend, const Call&) {
  return answer(backend.run(backend.service().replay_faults()));
}

Reply list_places(Backend& backend, const Call&) {
  const auto places = backend.run(backend.service().list_fault_places());
  return places ? ok({{"places", *places}}) : refused(places.error());
}

Reply list_kinds(Backend&, const Call&) {
  json kinds = json::array();
  for (const fault::Traits& traits : fault::all_traits()) {
    json places = json::array();
    for (std::size_t kind = 0; kind < fault::kPlaceKinds; ++kind) {
      const fault::Place place{.kind = static_cast<fault::Place::Kind>(kind), .name = {}};
      if ((traits.places & fault::bit(place.kind)) != 0) places.push_back(place_text(place));
    }
    json words = json::array();
    for (const fault::Word& word : fault::rule_words()) {
      if (word.faults != fault::kEveryFault && word.knows(traits.fault)) words.push_back(word.name);
    }
    kinds.push_back({{"fault", traits.name},
                     {"about", traits.about},
                     {"manner", describe(traits.manner)},
                     {"places", std::move(places)},
                     {"operations", fault::operation_names(traits.operations)},
                     {"words", std::move(words)}});
  }
  return ok({{"kinds", std::move(kinds)}});
}

std::vector<Route> rule_routes() {
  constexpr auto kInject = group::Role::kInject;
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
           .role = kInject},
          {.method = "POST",
           .path = "/api/v1/fault-sets",
           .operation = "addFaults",
           .summary = "Add several fault rules, or none if one is wrong",
           .description = "In any order; a rule that exists already stays as it is.",
           .request_schema = "FaultSetCreate",
           .response_schema = "FaultSet",
           .refusals = {409},
           .handle = add_faults,
           .role = kInject},
          {.method = "DELETE",
           .path = "/api/v1/faults",
           .operation = "clearFaults",
           .summary = "Clear all fault rules",
           .description = "What they do ends; damage to data stays until it is overwritten.",
           .success = 204,
           .refusals = {409},
           .handle = clear_faults,
           .role = kInject},
          {.method = "POST",
           .path = "/api/v1/faults/heal",
           .operation = "healDrive",
           .summary = "Take the damage away that rules have done to the data of a drive",
           .request_schema = "Heal",
           .response_schema = "Drive",
           .refusals = {404, 409},
           .handle = heal_drive,
           .role = kInject}};
}

std::vector<Route> one_rule_routes() {
  constexpr auto kInject = group::Role::kInject;
  return {{.method = "GET",
           .path = "/api/v1/faults/{id}",
           .operation = "showFault",
           .summary = "Show a fault rule",
           .response_schema = "Fault",
           .refusals = {404, 409},
           .handle = show_fault},
          {.method = "DELETE",
           .path = "/api/v1/faults/{id}",
           .operation = "clearFault",
           .summary = "Clear a fault rule",
           .description = "What it does ends; damage to data stays until it is overwritten.",
           .success = 204,
           .refusals = {404, 409},
           .handle = clear_faults,
           .role = kInject},
          {.method = "POST",
           .path = "/api/v1/faults/{id}/enable",
           .operation = "enableFault",
           .summary = "Enable a fault rule",
           .response_schema = "Fault",
           .refusals = {404, 409},
           .handle = enable_fault,
           .role = kInject},
          {.method = "POST",
           .path = "/api/v1/faults/{id}/disable",
           .operation = "disableFault",
           .summary = "Disable a fault rule; what it does ends",
           .response_schema = "Fault",
           .refusals = {404, 409},
           .handle = disable_fault,
           .role = kInject},
          {.method = "POST",
           .path = "/api/v1/faults/{id}/release",
           .operation = "releaseFault",
           .summary = "Let the operations go on that a fault rule holds",
           .response_schema = "FaultRelease",
           .refusals = {404, 409},
           .handle = release_fault,
           .role = kInject}};
}

std::vector<Route> looking_routes() {
  return {{.method = "GET",
           .path = "/api/v1/fault-journal",
           .operation = "listFirings",
           .summary = "List the latest effects of fault rules, oldest first",
           .response_schema = "FiringList",
           .refusals = {409},
           .handle = list_firings,
           .query = {{"since", "integer", "Only those with a greater number."}}},
          {.method = "GET",
           .path = "/api/v1/fault-replay",
           .operation = "replayFaults",
           .summary = "Write what has fired as rules that fire without chance",
           .description = "The same operations at the same times fail in the same way by them.",
           .response_schema = "FaultReplay",
           .refusals = {409},
           .handle = replay_faults},
          {.method = "GET",
           .path = "/api/v1/fault-places",
           .operation = "listFaultPlaces",
           .summary = "List what fault rules may name after at=",
           .response_schema = "FaultPlaceList",
           .refusals = {409},
           .handle = list_places},
          {.method = "GET",
           .path = "/api/v1/fault-kinds",
           .operation = "listFaultKinds",
           .summary = "List the faults, with the words of a rule that only some of them know",
           .response_schema = "FaultKindList",
           .handle = list_kinds}};
}

}  // namespace

std::vector<Route> fault_routes() {
  std::vector<Route> all = rule_routes();
  for (Route& route : one_rule_routes()) all.push_back(std::move(route));
  for (Route& route : looking_routes()) all.push_back(std::move(route));
  return all;
}

}  // namespace sandbay::mgmt
