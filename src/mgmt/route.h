// Route: one operation of the REST interface: what it is called with, what it does, and what the
// OpenAPI document says about it. The table of routes is the only place that knows them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mgmt/backend.h"

namespace sandbay::mgmt {

// Who asks.
struct Caller {
  std::string name;     // The token's, or "uid 1000" on loopback without tokens.
  std::string address;  // Without a port.
};

struct Call {
  std::map<std::string, std::string> parameters;  // Of the path: {"name", "quickstart"}.
  std::map<std::string, std::string> query;
  std::string_view body;
  Caller caller;
};

struct Reply {
  int status = 200;
  std::string body;
  std::string_view content_type = "application/json";
  std::string location;  // With 201: the new object's path.
};

struct QueryParameter {
  std::string_view name;
  std::string_view type;  // "boolean", "integer", "string"
  std::string_view description;
};

struct Route {
  std::string_view method;  // "GET", "POST", "PATCH", "DELETE"
  std::string_view path;    // "/api/v1/volumes/{name}"
  std::string_view operation;
  std::string_view summary;
  std::string_view description;
  std::string_view request_schema;  // Empty: only an empty body or {} is accepted.
  int success = 200;
  std::string_view response_schema;  // Empty: no content, or text.
  std::vector<int> refusals;         // Besides those that every route has.
  Reply (*handle)(Backend& backend, const Call& call) = nullptr;
  std::vector<QueryParameter> query = {};
  bool repeatable = false;  // With 201: asked again, it answers 200 and the same.
  // The least that may call it. None: kRead to look, kOperate to change.
  std::optional<group::Role> role = std::nullopt;
};

std::span<const Route> routes();

// Finds the route for a path and fills in the path's parameters. Null if no route has this path;
// `*path_known` tells whether one has it with another method.
const Route* find_route(std::string_view method, std::string_view path,
                        std::map<std::string, std::string>* parameters, bool* path_known);

// Checks the query, calls the handler, and gives the answer for what has no route.
Reply answer(Backend& backend, std::string_view method, std::string_view path, Call call);

// "GET, HEAD, OPTIONS": what a path offers; empty if there is nothing.
std::string allowed_methods(std::string_view path);

Reply error_reply(int status, std::string_view message);
// The word that stands in an error's "code" for a status.
std::string_view code_of(int status);

}  // namespace sandbay::mgmt
