// The version of this program, as the build system knows it. Daemon, command line and REST all
// take it from here.
#pragma once

#include <string_view>

namespace sandbay::group {

std::string_view version();

}  // namespace sandbay::group
