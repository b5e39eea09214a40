// Which executor's turn runs on this thread.
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

}  // namespace sandbay
