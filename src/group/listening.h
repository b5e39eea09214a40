// Why nothing can listen at an address, and what to do: one line for every cause, for portals and
// for the management interface.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "group/configuration.h"
#include "runtime/error.h"
#include "runtime/io.h"
#include "runtime/start_refusal.h"

namespace sandbay::group {

// `what` names the listener and `options` where its address is said: "listen or --portal".
std::string cannot_listen(std::string_view what, const Endpoint& where, Error error,
                          std::string_view options);

// Whether the daemon could listen at all addresses of the configuration; if not, the same line. It
// asks before it makes anything that a failed start would leave behind. It waits for addresses that
// are in use, all together for `patience`. Every refusal may pass: addresses come and go.
Started can_listen(const Configuration& configuration,
                   std::chrono::milliseconds patience = std::chrono::milliseconds(3000));

}  // namespace sandbay::group
