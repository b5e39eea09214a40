// Which executor's turn runs on this thread, and what an executor does that need not be its own.
#include "runtime/executor.h"

namespace sandbay {

namespace {
thread_local Executor* current_executor = nullptr;
}  // namespace

Executor& Executor::current() {
  assert(current_executor != nullptr);
  return *current_executor;
}

Executor* Executor::current_or_null() noexcept { return current_executor; }

void Executor::set_current(Executor* executor) noexcept { current_executor = executor; }

WallTime Executor::wall_time() const noexcept {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

// An executor without directories (a simulated one) has nothing to make durable there.
Task<Error> Executor::sync_directory(std::string) { co_return Error::kNone; }

}  // namespace sandbay
