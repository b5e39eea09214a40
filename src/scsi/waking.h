// Waking: ends a wait for a condition when a command is cancelled. In the waiter's frame; the
// waiter looks at the command when it is woken. pause(): before something is tried again.
#pragma once

#include <chrono>

#include "runtime/cancellation.h"
#include "runtime/executor.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::scsi {

class Waking final : public Cancellation::Hook {
 public:
  Waking(Cancellation* cancellation, Condition& condition)
      : Hook(cancellation, [](Hook& hook) { static_cast<Waking&>(hook).condition_.notify_all(); }),
        condition_(condition) {}

 private:
  Condition& condition_;
};

// A second, less if it is cancelled or the condition is notified.
inline Task<void> pause(Executor& home, Cancellation& cancellation, Condition& condition) {
  if (cancellation.cancelled()) co_return;
  const Waking waking(&cancellation, condition);
  (void)co_await condition.wait_until(home.now() + std::chrono::seconds(1));
}

}  // namespace sandbay::scsi
