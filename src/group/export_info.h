// What management gives and takes as a backup of the metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group/event_log.h"
#include "metadata/store.h"

namespace sandbay::group {

struct ExportedGroup {
  WallTime time{};
  std::vector<metadata::Entry> entries;  // Without what is history alone: events, the audit.
};

struct ImportPart {
  std::string text;
  std::uint64_t offset = 0;  // Where it stands in the whole; 0 begins anew.
  bool last = false;
  std::string sha256;  // With the last: of the whole text, in hexadecimal.
  bool force = false;  // Also where something is provisioned, which is forgotten.
};

}  // namespace sandbay::group
