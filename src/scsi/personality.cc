// The list of all personalities.
#include "scsi/personality.h"

namespace sandbay::scsi {

const Personality* find_personality(std::string_view name) {
  return name == kRdac.name ? &kRdac : nullptr;
}

}  // namespace sandbay::scsi
