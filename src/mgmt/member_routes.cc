// Members: each handler is one operation of the service.
#include "mgmt/member_routes.h"

#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

Reply list_members(Backend& backend, const Call&) {
  return list("members", backend.run(backend.service().list_members()));
}

Reply show_member(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().show_member(call.parameters.at("name"))));
}

Reply add_member(Backend& backend, const Call& call) {
  const auto pool = read_word(call.body, "pool");
  if (!pool) return error_reply(400, pool.error());
  return answer(backend.run(backend.service().add_member(call.parameters.at("name"), *pool)));
}

Reply remove_member(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().remove_member(call.parameters.at("name"))));
}

}  // namespace

std::vector<Route> member_routes() {
  return {{.method = "GET",
           .path = "/api/v1/members",
           .operation = "listMembers",
           .summary = "List members, whether a pool has them or not",
           .response_schema = "MemberList",
           .handle = list_members},
          {.method = "GET",
           .path = "/api/v1/members/{name}",
           .operation = "showMember",
           .summary = "Show a member and its sets",
           .response_schema = "Member",
           .refusals = {404},
           .handle = show_member},
          {.method = "POST",
           .path = "/api/v1/members/{name}/pool",
           .operation = "addMember",
           .summary = "Give a member's free sets to a pool",
           .description = "They can be used at once; volumes spread to them in the background. A "
                          "member that is about to leave that pool stays.",
           .request_schema = "PoolChoice",
           .response_schema = "Member",
           .refusals = {404, 409, 500},
           .handle = add_member,
           .repeatable = true},
          {.method = "DELETE",
           .path = "/api/v1/members/{name}/pool",
           .operation = "removeMember",
           .summary = "Empty a member's sets, and take them from their pool then",
           .description = "Their data moves to other sets while it is in use; the list of tasks "
                          "shows the progress. Refused if there is no room.",
           .response_schema = "Member",
           .refusals = {404, 409, 500},
           .handle = remove_member}};
}

}  // namespace sandbay::mgmt
