// Puts the document together: one path item for each path of the table of routes, one operation
// for each of its methods, every refusal as the one error format.
#include "mgmt/openapi.h"

#include <fmt/core.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "group/json_text.h"
#include "group/version.h"
#include "mgmt/authority.h"
#include "mgmt/json.h"
#include "mgmt/openapi_schemas.h"
#include "mgmt/route.h"

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

json reference(std::string_view schema) {
  return {{"$ref", fmt::format("#/components/schemas/{}", schema)}};
}

json content(std::string_view schema) {
  if (schema.empty()) return {{"text/plain", {{"schema", {{"type", "string"}}}}}};
  return {{"application/json", {{"schema", reference(schema)}}}};
}

std::string_view describe_status(int status) {
  switch (status) {
    case 400:
      return "The request itself is wrong; the message says what would be accepted.";
    case 401:
      return "A token is demanded, and none was given that is known.";
    case 403:
      return "The token's role or the configuration does not permit it; or, without tokens, the "
             "caller is another user of the machine, or the Host header is neither an IP address "
             "nor localhost.";
    case 404:
      return "There is no such object.";
    case 409:
      return "An object exists already, is in use, or its state forbids the change.";
    case 413:
      return "The body is larger than a request may be, or its length is not declared.";
    case 415:
      return "The body is not declared as application/json.";
    case 500:
      return "A device, a file or the metadata failed.";
    case 503:
      return "The group is shutting down.";
    default:
      return "Refused.";
  }
}

json parameters_of(const Route& route) {
  json list = json::array();
  for (std::size_t at = route.path.find('{'); at != std::string_view::npos;
       at = route.path.find('{', at + 1)) {
    const std::string_view name = route.path.substr(at + 1, route.path.find('}', at) - at - 1);
    list.push_back(
        {{"name", name},
         {"in", "path"},
         {"required", true},
         {"schema", {{"type", name == "tsih" || name == "cid" ? "integer" : "string"}}}});
  }
  for (const QueryParameter& query : route.query) {
    list.push_back({{"name", query.name},
                    {"in", "query"},
                    {"required", false},
                    {"description", query.description},
                    {"schema", {{"type", query.type}}}});
  }
  return list;
}

// What writes has a body that is declared as JSON, even if it says nothing.
std::string_view body_schema(const Route& route) {
  if (!route.request_schema.empty()) return route.request_schema;
  return route.method == "POST" || route.method == "PATCH" ? "Nothing" : "";
}

json responses_of(const Route& route) {
  json responses = json::object();
  json success{{"description", route.success == 201   ? "Created."
                               : route.success == 204 ? "Done."
                                                      : "The answer."}};
  if (route.success != 204) success["content"] = content(route.response_schema);
  // What creates once finds its work done when it is asked again.
  if (route.success == 201 && route.repeatable) {
    responses["200"] = {{"description", "It existed already."},
                        {"content", content(route.response_schema)}};
  }
  responses[fmt::format("{}", route.success)] = std::move(success);
  std::vector<int> refusals = {400, 401, 403, 503};
  if (!body_schema(route).empty()) refusals.insert(refusals.end(), {413, 415});
  refusals.insert(refusals.end(), route.refusals.begin(), route.refusals.end());
  for (const int status : refusals) {
    responses[fmt::format("{}", status)] = {{"description", describe_status(status)},
                                            {"content", content("Error")}};
  }
  return responses;
}

json operation_of(const Route& route) {
  json operation{{"operationId", route.operation},
                 {"summary", route.summary},
                 {"x-sandbay-role", describe(needed_role(route))},
                 {"responses", responses_of(route)}};
  if (!route.description.empty()) operation["description"] = route.description;
  json parameters = parameters_of(route);
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  if (const auto schema = body_schema(route); !schema.empty()) {
    operation["requestBody"] = {{"required", true}, {"content", content(schema)}};
  }
  return operation;
}

std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace

json openapi_document() {
  json paths = json::object();
  for (const Route& route : routes()) {
    paths[std::string(route.path)][lower_case(route.method)] = operation_of(route);
  }
  json schemas = group::parse_json(kSchemas);
  schemas.update(group::parse_json(kHardwareSchemas));
  schemas.update(group::parse_json(kCacheSchemas));
  schemas.update(group::parse_json(kPoolSchemas));
  schemas.update(group::parse_json(kMemberSchemas));
  schemas["Nothing"] = {{"type", "object"}, {"description", "No key is looked at."}};
  return {{"openapi", "3.0.3"},
          {"info",
           {{"title", "Sandbay"},
            {"version", group::version()},
            {"description",
             "Management of a Sandbay group. Where the daemon's configuration has tokens, every "
             "request needs one; x-sandbay-role says the least role of each operation: read, "
             "operate or inject. Without tokens the listener is meant for loopback."}}},
          // Either: whether a token is demanded, the configuration says.
          {"security", json::array({json{{"token", json::array()}}, json::object()})},
          {"paths", std::move(paths)},
          {"components",
           {{"schemas", std::move(schemas)},
            {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

const std::string& openapi_text() {
  static const std::string kText = group::to_text(openapi_document());
  return kText;
}

}  // namespace sandbay::mgmt
