// The one file that is compiled with the version's definition, so that a new version compiles
// nothing else anew.
#include "group/version.h"

namespace sandbay::group {

std::string_view version() { return SANDBAY_VERSION; }

}  // namespace sandbay::group
