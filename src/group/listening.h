// Why nothing can listen at an address, and what to do: one line for every cause, for portals and
// for the management interface.
#pragma once

#include <string>
#include <string_view>

#include "runtime/error.h"
#include "runtime/io.h"

namespace sandbay::group {

// `what` names the listener and `options` where its address is said: "listen or --portal".
std::string cannot_listen(std::string_view what, const Endpoint& where, Error error,
                          std::string_view options);

}  // namespace sandbay::group
