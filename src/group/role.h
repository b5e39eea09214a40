// A daemon is a lead with pools and volumes of its own, or a member whose sets are a lead's. What
// the metadata hold says what it has been, and a file that makes it the other is refused as long as
// that would let two write the same sets, each without knowing of the other.
//
// Executor 0.
#pragma once

#include <string>
#include <vector>

#include "metadata/store.h"
#include "runtime/task.h"

namespace sandbay::group {

struct RoleFacts {
  bool member = false;               // What the file says.
  std::vector<std::string> pools;    // That are stored,
  std::vector<std::string> volumes;  // and those on sets or pools.
};

// Half a line about the role; empty: it may start. The store is awaited for, and stays.
Task<std::string> refusal_of_role(metadata::Store* store, RoleFacts facts);

}  // namespace sandbay::group
