// The controller's cache: each handler is one operation of the service.
#include "mgmt/cache_routes.h"

#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

Reply show_cache(Backend& backend, const Call&) {
  return ok(to_json(backend.run(backend.service().show_cache())));
}

Reply flush_cache(Backend& backend, const Call& call) {
  auto set = read_word(call.body, "set");
  if (!set) return error_reply(400, set.error());
  const auto flushed = backend.run(backend.service().flush_cache(std::move(*set)));
  if (!flushed) return refused(flushed.error());
  return ok(to_json(backend.run(backend.service().show_cache())));
}

Reply discard_writes(Backend& backend, const Call& call) {
  auto confirmed = read_word(call.body, "confirm", "the set once more");
  if (!confirmed) return error_reply(400, confirmed.error());
  return answer(backend.run(
      backend.service().discard_writes(call.parameters.at("name"), std::move(*confirmed))));
}

Reply adopt_writes(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().adopt_writes(call.parameters.at("name"))));
}

Reply acknowledge_lost_writes(Backend& backend, const Call& call) {
  return answer(backend.run(backend.service().acknowledge_lost_writes(call.parameters.at("name"))));
}

}  // namespace

std::vector<Route> cache_routes() {
  return {{.method = "GET",
           .path = "/api/v1/cache",
           .operation = "showCache",
           .summary = "Show the controller's cache",
           .response_schema = "Cache",
           .handle = show_cache},
          {.method = "POST",
           .path = "/api/v1/cache/flush",
           .operation = "flushCache",
           .summary = "Bring everything that was acknowledged to the drives",
           .description = "Flushes one set or all sets. The answer comes when it is done.",
           .request_schema = "CacheFlush",
           .response_schema = "Cache",
           .refusals = {404, 500},
           .handle = flush_cache},
          {.method = "POST",
           .path = "/api/v1/cache/sets/{name}/discard",
           .operation = "discardWrites",
           .summary = "Give up acknowledged writes that cannot be brought to a set's drives",
           .description = "They are shown as lost from then on: what was on its way to the drives "
                          "when they failed may still be there afterwards. Refused while nothing "
                          "has failed. The set may also be named by its UUID.",
           .request_schema = "CacheDiscard",
           .response_schema = "CacheDiscarded",
           .refusals = {404, 409, 500},
           .handle = discard_writes},
          {.method = "POST",
           .path = "/api/v1/cache/sets/{name}/adopt",
           .operation = "adoptWrites",
           .summary = "Let writes go to a set's drives that an import did not know of",
           .description = "After an import the NVRAM may have writes of which the imported "
                          "metadata say nothing; the set is barred until they are adopted or "
                          "discarded. Refused if there are no such writes.",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = adopt_writes},
          {.method = "POST",
           .path = "/api/v1/cache/sets/{name}/acknowledge",
           .operation = "acknowledgeLostWrites",
           .summary = "Take notice of the writes that the NVRAM has lost of a set",
           .description = "The set no longer shows them. Refused if no write is lost.",
           .success = 204,
           .refusals = {404, 409, 500},
           .handle = acknowledge_lost_writes}};
}

}  // namespace sandbay::mgmt
