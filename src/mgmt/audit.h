// What the audit keeps of a request that changes something: the call without its secrets.
#pragma once

#include <string>
#include <string_view>

#include "group/audit_log.h"
#include "mgmt/route.h"

namespace sandbay::mgmt {

// A body as it may be kept: JSON without what stands under a key that speaks of secrets, cut where
// it is long; of one that was not understood, without any text. What is not JSON is left out.
std::string without_secrets(std::string_view body, bool understood = true);

group::AuditEntry audit_entry(const Route& route, std::string_view path, const Call& call,
                              const Reply& reply);

// The same of a request that was refused before any route was asked; `route` is null if there is
// none.
group::AuditEntry audit_refusal(const Route* route, std::string_view method, std::string_view path,
                                const Call& call, const Reply& reply);

// The same of a request that is about to be handled. Whether its body will be understood is not
// known yet, so no text of the body is in it.
group::AuditEntry audit_beginning(const Route& route, std::string_view path, const Call& call);

// Whether requests of this route are audited: all that change something.
inline bool is_audited(const Route& route) { return route.method != "GET"; }

}  // namespace sandbay::mgmt
