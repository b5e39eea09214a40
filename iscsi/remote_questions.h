// What a logical unit is asked before it is used: SPC-4 clauses 6.6, 6.33, 6.47 and 7.8, SBC-3
// clauses 5.16 and 6.5. Answers are a peer's bytes: whatever they hold ends in a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/remote_unit.h"
#include "runtime/error.h"
#include "runtime/task.h"

namespace sandbay::iscsi {

// The session is awaited on its home, and stays until the question is answered. A unit attention
// is taken and the question asked again; `attention` (may be null) is then set. kNotReady: the unit
// does not serve; kInvalid: its answer makes no sense.
Task<Result<std::vector<std::uint32_t>>> ask_luns(InitiatorSession* session);
Task<Result<RemoteUnitFacts>> ask_facts(InitiatorSession* session, std::uint32_t lun);
Task<Error> ask_ready(InitiatorSession* session, std::uint32_t lun, bool* attention);
// What ask_facts() would say of the caches now, in `geometry`.
Task<Error> ask_caches(InitiatorSession* session, std::uint32_t lun, Geometry* geometry);

}  // namespace sandbay::iscsi
