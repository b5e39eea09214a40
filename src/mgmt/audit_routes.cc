// The audit: one route that looks. Nothing takes an entry away.
#include "mgmt/audit_routes.h"

#include "mgmt/replies.h"

namespace sandbay::mgmt {

namespace {

Reply list_audit(Backend& backend, const Call& call) {
  const auto since = since_of(call, "an audited change");
  if (!since) return error_reply(400, since.error());
  return list("changes", backend.run(backend.service().list_audit(*since)));
}

}  // namespace

std::vector<Route> audit_routes() {
  return {{.method = "GET",
           .path = "/api/v1/audit",
           .operation = "listAudit",
           .summary = "List who asked for which change, newest last",
           .description =
               "Up to 4096, over restarts too: every request that changes something, "
               "done or refused, of everybody who has a token. The callers share the "
               "room: when it is full, the oldest entry of the caller with the most "
               "entries is dropped. Requests that a token's role forbids, or that are "
               "refused before they are tried, are kept up to 16 times an hour for "
               "each caller, and then counted. Secrets are left out. Every entry is also a "
               "line of the daemon's log.",
           .response_schema = "AuditList",
           .handle = list_audit,
           .query = {{"since", "integer", "Only those with a greater number."}}}};
}

}  // namespace sandbay::mgmt
