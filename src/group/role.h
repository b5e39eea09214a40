// A daemon is a lead with pools and volumes of its own, or a member whose sets are a lead's. What
// the metadata hold says what it has been, and a file that makes it the other is refused as long as
// that would let two write the same sets, each without knowing of the other.
//
// Executor 0.
#pragma once

#include <string>
#include <vector>

#include "metadata/store.h"
#include "runtime/start_refusal.h"
#include "runtime/task.h"

namespace sandbay::group {

struct RoleFacts {
  bool member = false;               // What the file says.
  std::vector<std::string> pools;    // That are stored,
  std::vector<std::string> volumes;  // and those on sets or pools.
};

// Whether the group may start in its role; if not, half a line about the role. Waits for the store,
// which outlives the task.
Task<Started> role_fits(metadata::Store* store, RoleFacts facts);

}  // namespace sandbay::group
