// Why nothing can listen at an address, and what to do: one line for every cause, for portals and
// for the management interface.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "group/configuration.h"
#include "runtime/error.h"
#include "runtime/io.h"

namespace sandbay::group {

// `what` names the listener and `options` where its address is said: "listen or --portal".
std::string cannot_listen(std::string_view what, const Endpoint& where, Error error,
                          std::string_view options);

// Why one of the configuration's addresses cannot be listened at now; the same line. Asked before
// anything is made that a daemon which does not start would leave behind. Addresses that are in use
// are waited for, all together for `patience`.
std::optional<std::string> cannot_listen(
    const Configuration& configuration,
    std::chrono::milliseconds patience = std::chrono::milliseconds(3000));

}  // namespace sandbay::group
