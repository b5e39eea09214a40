// The name of the NVRAM in the stored checkpoint of a map (map_log.h).
#pragma once

#include "metadata/store.h"
#include "runtime/uuid.h"

namespace sandbay::pool {

// Puts another name in its place; zeros: the map needs no NVRAM. False: it needs none already, or
// is damaged, and is left as it is.
bool rename_log(metadata::Entry* checkpoint, const Uuid& name);

}  // namespace sandbay::pool
