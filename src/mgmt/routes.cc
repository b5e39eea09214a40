// The table of routes and their handlers. A handler turns a call into one operation of the group's
// service and its answer into JSON; it decides nothing itself.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "group/claims.h"
#include "group/json_text.h"
#include "mgmt/audit.h"
#include "mgmt/audit_routes.h"
#include "mgmt/cache_routes.h"
#include "mgmt/export_routes.h"
#include "mgmt/hardware_routes.h"
#include "mgmt/json.h"
#include "mgmt/member_routes.h"
#include "mgmt/metrics.h"
#include "mgmt/openapi.h"
#include "mgmt/pool_routes.h"
#include "mgmt/replies.h"
#include "mgmt/requests.h"
#include "mgmt/reservation_routes.h"
#include "mgmt/route.h"
#include "mgmt/snapshot_routes.h"

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

Reply show_group(Backend& backend, const Call&) {
  return ok(to_json(backend.run(backend.service().show_group())));
}

Reply list_portals(Backend& backend, const Call&) {
  return list("portals", backend.run(backend.service().show_group()).portals);
}

Reply change_portal(Backend& backend, const Call& call) {
  auto advertised = read_word(call.body, "advertised",
                              "an address such as \"192.0.2.1:3260\", \"auto\" or \"none\"");
  if (!advertised) return error_reply(400, advertised.error());
  return answer(backend.run(
      backend.service().advertise(call.parameters.at("listen"), std::move(*advertised))));
}

Reply set_access_state(Backend& backend, const Call& call) {
  auto state = read_word(call.body, "state", "an access state such as \"standby\"");
  if (!state) return error_reply(400, state.error());
  const std::string& text = call.parameters.at("tag");
  std::uint16_t tag = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tag);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return error_reply(404, fmt::format("portal group {}: is not a tag of portals", text));
  }
  return list("portals", backend.run(backend.service().set_access_state(tag, std::move(*state))));
}

Reply list_volumes(Backend& backend, const Call&) {
  return list("volumes", *backend.run(backend.service().list_volumes()));
}

Reply create_volume(Backend& backend, const Call& call) {
  auto request = read_create_volume(call.body);
  if (!request) return error_reply(400, request.error());
  const group::VolumeSpecification& s = request->specification;
  if (!s.path.empty()) {
    const auto outside = group::outside_of(s.path, backend.volume_paths());
    if (outside) return error_reply(403, fmt::format("volume \"{}\": {}", s.name, *outside));
  }
  const auto created = backend.run(backend.service().create_volume(std::move(*request)));
  if (!created) return refused(created.error());
  return made(to_json(created->volume), created->created,
              "/api/v1/volumes/" + created->volume.name);
}

Reply show_volume(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_volume(call.parameters.at("name"))));
}

Reply change_volume(Backend& backend, const Call& call) {
  auto request = read_change_volume(call.body);
  if (!request) return error_reply(400, request.error());
  return answer(backend.run(
      backend.service().change_volume(call.parameters.at("name"), std::move(*request))));
}

Reply delete_volume(Backend& backend, const Call& call) {
  const auto force = call.query.find("force");
  const bool forced = force != call.query.end() && force->second == "true";
  return answer(backend.run(backend.service().delete_volume(call.parameters.at("name"), forced)));
}

Reply list_access(Backend& backend, const Call& call) {
  return list("access", backend.run(backend.service().list_access(call.parameters.at("name"))));
}

Reply add_access(Backend& backend, const Call& call) {
  auto record = read_access(call.body);
  if (!record) return error_reply(400, record.error());
  const std::string& volume = call.parameters.at("name");
  const auto added = backend.run(backend.service().add_access(volume, std::move(*record)));
  if (!added) return refused(added.error());
  return made(to_json(added->access), added->created,
              fmt::format("/api/v1/volumes/{}/access/{}", volume, added->access.id));
}

Reply remove_access(Backend& backend, const Call& call) {
  return answer(backend.run(
      backend.service().remove_access(call.parameters.at("name"), call.parameters.at("id"))));
}

Reply list_targets(Backend& backend, const Call&) {
  return list("targets", *backend.run(backend.service().list_targets()));
}

Reply show_target(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_target(call.parameters.at("name"))));
}

Reply list_sessions(Backend& backend, const Call&) {
  return list("sessions", backend.run(backend.service().list_sessions()));
}

std::string not_a_tsih(const Call& call) {
  return fmt::format("\"{}\" is not a TSIH; write a number from 1 to 65535",
                     call.parameters.at("tsih"));
}

// Seconds out of the query, within what initiators can be told; else a sentence.
std::expected<Duration, std::string> seconds_of(const Call& call, const std::string& name,
                                                Duration otherwise) {
  const auto given = call.query.find(name);
  if (given == call.query.end()) return otherwise;
  const auto most =
      std::chrono::duration_cast<std::chrono::seconds>(iscsi::kLongestLogoutTime).count();
  const auto seconds = number_of<std::uint32_t>(given->second);
  if (!seconds || *seconds == 0 || *seconds > most) {
    return std::unexpected(
        fmt::format("{} is \"{}\"; write seconds from 1 to {}", name, given->second, most));
  }
  return std::chrono::seconds(*seconds);
}

// Of a session, or of the connection that the path names.
Reply drop_session(Backend& backend, const Call& call) {
  const auto tsih = number_of<std::uint16_t>(call.parameters.at("tsih"));
  if (!tsih) return error_reply(400, not_a_tsih(call));
  iscsi::SessionDrop drop;
  const auto connection = call.parameters.find("cid");
  if (connection != call.parameters.end()) {
    drop.cid = number_of<std::uint16_t>(connection->second);
    if (!drop.cid) {
      return error_reply(400, fmt::format("\"{}\" is not a CID; write a number from 0 to 65535",
                                          connection->second));
    }
  }
  const auto time = seconds_of(call, "logout_request", Duration{0});
  if (!time) return error_reply(400, time.error());
  drop.logout_time = *time;
  return answer(backend.run(backend.service().drop_session(*tsih, drop)));
}

Reply request_negotiation(Backend& backend, const Call& call) {
  const auto tsih = number_of<std::uint16_t>(call.parameters.at("tsih"));
  if (!tsih) return error_reply(400, not_a_tsih(call));
  const auto within = seconds_of(call, "within", std::chrono::seconds(15));
  if (!within) return error_reply(400, within.error());
  return answer(backend.run(backend.service().request_negotiation(*tsih, *within)));
}

Reply show_openapi(Backend&, const Call&) { return {.status = 200, .body = openapi_text()}; }

Reply show_metrics(Backend& backend, const Call&) {
  return {.status = 200,
          .body = metrics_text(*backend.run(backend.service().measure()), backend.turned_away()),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

const std::vector<Route> kOwnRoutes = {
    {.method = "GET",
     .path = "/api/v1/group",
     .operation = "showGroup",
     .summary = "Show the group",
     .response_schema = "Group",
     .handle = show_group},
    {.method = "GET",
     .path = "/api/v1/portals",
     .operation = "listPortals",
     .summary = "List portals",
     .response_schema = "PortalList",
     .handle = list_portals},
    {.method = "PATCH",
     .path = "/api/v1/portals/{listen}",
     .operation = "changePortal",
     .summary = "Change what discovery names for a portal",
     .description = "Until the daemon ends. Where a port is mapped, name the outer address; with "
                    "\"auto\" an initiator goes on where it has come.",
     .request_schema = "PortalChange",
     .response_schema = "Portal",
     .refusals = {404, 409},
     .handle = change_portal},
    {.method = "POST",
     .path = "/api/v1/portal-groups/{tag}/access-state",
     .operation = "setAccessState",
     .summary = "Set the asymmetric access state of a portal group for every volume",
     .description =
         "Until the daemon ends, or a host sets another for a volume. Hosts get the unit "
         "attention ASYMMETRIC ACCESS STATE CHANGED.",
     .request_schema = "AccessStateChange",
     .response_schema = "PortalList",
     .refusals = {404},
     .handle = set_access_state},
    {.method = "GET",
     .path = "/api/v1/volumes",
     .operation = "listVolumes",
     .summary = "List volumes",
     .response_schema = "VolumeList",
     .handle = list_volumes},
    {.method = "POST",
     .path = "/api/v1/volumes",
     .operation = "createVolume",
     .summary = "Create a volume",
     .description = "Answers 200 and changes nothing if a volume of that name, size and backing "
                    "exists already.",
     .request_schema = "VolumeCreate",
     .success = 201,
     .response_schema = "Volume",
     .refusals = {409, 500},
     .handle = create_volume,
     .repeatable = true},
    {.method = "GET",
     .path = "/api/v1/volumes/{name}",
     .operation = "showVolume",
     .summary = "Show a volume",
     .response_schema = "Volume",
     .refusals = {404},
     .handle = show_volume},
    {.method = "PATCH",
     .path = "/api/v1/volumes/{name}",
     .operation = "changeVolume",
     .summary = "Resize, rename or otherwise change a volume",
     .description =
         "A volume grows online, and initiators get a unit attention; it shrinks only on a pool, "
         "and only if forced. A renamed volume keeps its target and its identity; a request that "
         "renames changes nothing else. An offline volume answers NOT READY.",
     .request_schema = "VolumeChange",
     .response_schema = "Volume",
     .refusals = {404, 409, 500},
     .handle = change_volume},
    {.method = "DELETE",
     .path = "/api/v1/volumes/{name}",
     .operation = "deleteVolume",
     .summary = "Delete a volume and its data",
     .success = 204,
     .refusals = {404, 409, 500},
     .handle = delete_volume,
     .query = {{"force", "boolean",
                "Also while sessions use it, which are ended, and with all its snapshots."}}},
    {.method = "GET",
     .path = "/api/v1/volumes/{name}/access",
     .operation = "listAccess",
     .summary = "List who may use a volume",
     .description = "Access records belong to the volume's target and hold for all its LUNs.",
     .response_schema = "AccessList",
     .refusals = {404},
     .handle = list_access},
    {.method = "POST",
     .path = "/api/v1/volumes/{name}/access",
     .operation = "addAccess",
     .summary = "Let an initiator use a volume",
     .description = "Applies to later logins. Answers 200 and changes nothing if the same record "
                    "exists already.",
     .request_schema = "AccessCreate",
     .success = 201,
     .response_schema = "Access",
     .refusals = {404, 409, 500},
     .handle = add_access,
     .repeatable = true},
    {.method = "DELETE",
     .path = "/api/v1/volumes/{name}/access/{id}",
     .operation = "removeAccess",
     .summary = "Remove an access record",
     .description = "Counts for logins to come; sessions stay.",
     .success = 204,
     .refusals = {404, 409, 500},
     .handle = remove_access},
    {.method = "GET",
     .path = "/api/v1/targets",
     .operation = "listTargets",
     .summary = "List targets",
     .response_schema = "TargetList",
     .handle = list_targets},
    {.method = "GET",
     .path = "/api/v1/targets/{name}",
     .operation = "showTarget",
     .summary = "Show a target",
     .response_schema = "Target",
     .refusals = {404},
     .handle = show_target},
    {.method = "GET",
     .path = "/api/v1/sessions",
     .operation = "listSessions",
     .summary = "List sessions and their connections",
     .response_schema = "SessionList",
     .handle = list_sessions},
    {.method = "DELETE",
     .path = "/api/v1/sessions/{tsih}",
     .operation = "dropSession",
     .summary = "End a session",
     .description = "Its commands are finished or aborted first. Most initiators log in again.",
     .success = 204,
     .refusals = {404, 500},
     .handle = drop_session,
     .query = {{"logout_request", "integer",
                "Seconds that the initiator has to log out by itself; it is not asked if this is "
                "left out."}}},
    {.method = "DELETE",
     .path = "/api/v1/sessions/{tsih}/connections/{cid}",
     .operation = "dropConnection",
     .summary = "End one connection of a session",
     .description = "Its commands are aborted; the session ends with its last connection.",
     .success = 204,
     .refusals = {404, 500},
     .handle = drop_session,
     .query = {{"logout_request", "integer",
                "Seconds that the initiator has to log the connection out by itself; it is not "
                "asked if this is left out."}}},
    {.method = "POST",
     .path = "/api/v1/sessions/{tsih}/negotiation-request",
     .operation = "requestNegotiation",
     .summary = "Ask a session's initiator to negotiate its text parameters anew",
     .description = "The initiator decides what it offers, and whether it does.",
     .success = 204,
     .refusals = {404, 500},
     .handle = request_negotiation,
     .query = {{"within", "integer", "Seconds that it has for it; 15 if this is left out."}}},
    {.method = "GET",
     .path = "/api/v1/openapi.json",
     .operation = "showOpenapi",
     .summary = "This document",
     .response_schema = "OpenApi",
     .handle = show_openapi},
    {.method = "GET",
     .path = "/metrics",
     .operation = "showMetrics",
     .summary = "Counters in Prometheus' text format",
     .handle = show_metrics},
};

// Those of the hardware, the cache and the pools stand in files of their own.
std::vector<Route> all_routes() {
  std::vector<Route> all = kOwnRoutes;
  std::ranges::copy(hardware_routes(), std::back_inserter(all));
  std::ranges::copy(fault_routes(), std::back_inserter(all));
  std::ranges::copy(cache_routes(), std::back_inserter(all));
  std::ranges::copy(reservation_routes(), std::back_inserter(all));
  std::ranges::copy(member_routes(), std::back_inserter(all));
  std::ranges::copy(pool_routes(), std::back_inserter(all));
  std::ranges::copy(snapshot_routes(), std::back_inserter(all));
  std::ranges::copy(audit_routes(), std::back_inserter(all));
  std::ranges::copy(export_routes(), std::back_inserter(all));
  return all;
}

const std::vector<Route> kRoutes = all_routes();

// Takes the first part off a path, without its slash.
std::string_view next_part(std::string_view& path) {
  path.remove_prefix(1);
  const auto slash = path.find('/');
  const std::string_view part = path.substr(0, slash);
  path = slash == std::string_view::npos ? std::string_view() : path.substr(slash);
  return part;
}

// A name in a path may hold any byte as %XX; other percent signs stand for themselves.
std::string decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* const end = text.data() + i + 3;
      const auto [stop, error] = std::from_chars(text.data() + i + 1, end, value, 16);
      if (error == std::errc{} && stop == end) {
        decoded += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    decoded += text[i];
  }
  return decoded;
}

bool matches(std::string_view pattern, std::string_view path,
             std::map<std::string, std::string>* parameters) {
  parameters->clear();
  while (pattern.starts_with('/') && path.starts_with('/')) {
    const std::string_view wanted = next_part(pattern);
    const std::string_view given = next_part(path);
    if (wanted.starts_with('{')) {
      if (given.empty()) return false;
      parameters->emplace(wanted.substr(1, wanted.size() - 2), decode(given));
    } else if (wanted != given) {
      return false;
    }
  }
  return pattern.empty() && path.empty();
}

// An unexpected body is refused, too: the client may mean another operation.
std::optional<std::string> wrong_request(const Route& route, const Call& call) {
  const bool empty = call.body.find_first_not_of(" \t\r\n{}") == std::string_view::npos;
  if (route.request_schema.empty() && !empty) {
    return fmt::format("{} {} has no body; leave it out, or write {{}}", route.method, route.path);
  }
  for (const auto& [name, value] : call.query) {
    const auto known = std::ranges::find(route.query, name, &QueryParameter::name);
    if (known == route.query.end()) {
      return fmt::format("unknown query parameter \"{}\" of {} {}", name, route.method, route.path);
    }
    if (known->type == "boolean" && value != "true" && value != "false") {
      return fmt::format("{} is \"{}\"; write true or false", name, value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(std::string_view method, std::string_view path,
                        std::map<std::string, std::string>* parameters, bool* path_known) {
  *path_known = false;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, path, parameters)) continue;
    *path_known = true;
    if (route.method == method) return &route;
  }
  return nullptr;
}

std::string allowed_methods(std::string_view path) {
  std::string allowed;
  for (const std::string_view method : {"GET", "POST", "PATCH", "DELETE"}) {
    std::map<std::string, std::string> parameters;
    bool known = false;
    if (find_route(method, path, &parameters, &known) == nullptr) continue;
    allowed += std::string(method) + (method == "GET" ? ", HEAD, " : ", ");
  }
  return allowed.empty() ? allowed : allowed + "OPTIONS";
}

std::string_view code_of(int status) {
  switch (status) {
    case 400:
      return "invalid";
    case 401:
      return "unauthenticated";
    case 403:
      return "forbidden";
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 409:
      return "conflict";
    case 413:
      return "too_large";
    case 415:
      return "unsupported_media_type";
    case 503:
      return "unavailable";
    default:
      return "failed";
  }
}

Reply error_reply(int status, std::string_view message) {
  return {.status = status, .body = group::to_text(error_json(code_of(status), message))};
}

Reply answer(Backend& backend, std::string_view method, std::string_view path, Call call) {
  bool path_known = false;
  const Route* route = find_route(method, path, &call.parameters, &path_known);
  if (route == nullptr && path_known) {
    return error_reply(
        405, fmt::format("{} is not offered for {}; see /api/v1/openapi.json", method, path));
  }
  if (route == nullptr) {
    return error_reply(404, fmt::format("there is nothing at {}; see /api/v1/openapi.json", path));
  }
  const auto error = wrong_request(*route, call);
  if (!is_audited(*route)) return error ? error_reply(400, *error) : route->handle(backend, call);
  std::string begun;
  if (!error)
    begun = backend.run(backend.service().begin_change(audit_beginning(*route, path, call)));
  const Reply reply = error ? error_reply(400, *error) : route->handle(backend, call);
  group::AuditEntry entry = audit_entry(*route, path, call, reply);
  entry.begun = std::move(begun);
  backend.run(backend.service().note_change(std::move(entry)));
  return reply;
}

}  // namespace sandbay::mgmt
