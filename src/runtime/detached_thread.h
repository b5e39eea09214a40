// Threads beside the reactors. Nobody joins one, because its work may hang. All signals are blocked
// on it: they are for the threads that wait for them.
#pragma once

#include <functional>
#include <system_error>

namespace sandbay::detail {

// Runs `work` on a new thread. An error: the system has no thread to give, and nothing runs.
[[nodiscard]] std::error_code start_detached(std::function<void()> work);

}  // namespace sandbay::detail
