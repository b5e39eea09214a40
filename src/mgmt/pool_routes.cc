// Pools: each handler is one operation of the service.
#include "mgmt/pool_routes.h"

#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

Reply list_pools(Backend& backend, const Call&) {
  return list("pools", backend.run(backend.service().list_pools()));
}

Reply show_pool(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_pool(call.parameters.at("name"))));
}

Reply create_pool(Backend& backend, const Call& call) {
  auto request = read_create_pool(call.body);
  if (!request) return error_reply(400, request.error());
  const auto created = backend.run(backend.service().create_pool(std::move(*request)));
  if (!created) return refused(created.error());
  return made(to_json(created->pool), created->created, "/api/v1/pools/" + created->pool.name);
}

Reply delete_pool(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().delete_pool(call.parameters.at("name"))));
}

Reply discard_map(Backend& backend, const Call& call) {
  auto confirmed = read_word(call.body, "confirm", "the pool once more");
  if (!confirmed) return error_reply(400, confirmed.error());
  return answer(backend.run(
      backend.service().discard_map(call.parameters.at("name"), std::move(*confirmed))));
}

Reply accept_older_map(Backend& backend, const Call& call) {
  auto confirmed = read_word(call.body, "confirm", "the pool once more");
  if (!confirmed) return error_reply(400, confirmed.error());
  return answer(backend.run(
      backend.service().accept_older_map(call.parameters.at("name"), std::move(*confirmed))));
}

Reply list_tasks(Backend& backend, const Call&) {
  return list("tasks", backend.run(backend.service().list_tasks()));
}

Reply check_group(Backend& backend, const Call&) {
  return list("pools", backend.run(backend.service().check_group()));
}

Route older_map_route() {
  return {.method = "POST",
          .path = "/api/v1/pools/{name}/accept-older-map",
          .operation = "acceptOlderMap",
          .summary = "Use a map of a pool that is older than its sets",
          .description =
              "Every page that the map has on a set that is newer than the map is in "
              "doubt: each of its chunks of 64 KiB is a medium error until it is "
              "written as a whole or unmapped. Newer maps are refused from then on. "
              "The map is verified. Refused if the map is not older.",
          .request_schema = "PoolDiscard",
          .response_schema = "PoolDiscarded",
          .refusals = {404, 409, 500},
          .handle = accept_older_map};
}

}  // namespace

std::vector<Route> pool_routes() {
  return {{.method = "GET",
           .path = "/api/v1/tasks",
           .operation = "listTasks",
           .summary = "List what goes on in the background",
           .response_schema = "TaskList",
           .handle = list_tasks},
          {.method = "POST",
           .path = "/api/v1/group/check",
           .operation = "checkGroup",
           .summary = "Verify the maps of all pools",
           .description = "Writes wait for that: about a second for a million pages.",
           .response_schema = "GroupCheck",
           .handle = check_group},
          {.method = "GET",
           .path = "/api/v1/pools",
           .operation = "listPools",
           .summary = "List pools",
           .response_schema = "PoolList",
           .handle = list_pools},
          {.method = "POST",
           .path = "/api/v1/pools",
           .operation = "createPool",
           .summary = "Make a pool of members",
           .description = "It has the RAID sets of its members that carry no volumes of their own. "
                          "Answers 200 and changes nothing if the same pool exists already.",
           .request_schema = "PoolCreate",
           .success = 201,
           .response_schema = "Pool",
           .refusals = {404, 409, 500},
           .handle = create_pool,
           .repeatable = true},
          {.method = "GET",
           .path = "/api/v1/pools/{name}",
           .operation = "showPool",
           .summary = "Show a pool",
           .response_schema = "Pool",
           .refusals = {404},
           .handle = show_pool},
          {.method = "DELETE",
           .path = "/api/v1/pools/{name}",
           .operation = "deletePool",
           .summary = "Delete a pool that has no volumes",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = delete_pool},
          {.method = "POST",
           .path = "/api/v1/pools/{name}/discard",
           .operation = "discardMap",
           .summary = "Open a pool without the changes of its map that are lost with an NVRAM",
           .description = "Its volumes are then as the map's last checkpoint has them: what was "
                          "written since to places that were new is lost, what was unmapped, "
                          "moved or deleted since may show what others have written there. The "
                          "map is verified. Refused where nothing is lost.",
           .request_schema = "PoolDiscard",
           .response_schema = "PoolDiscarded",
           .refusals = {404, 409, 500},
           .handle = discard_map},
          older_map_route()};
}

}  // namespace sandbay::mgmt
