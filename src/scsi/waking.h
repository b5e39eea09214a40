// Waking: ends a wait for a condition when a command is cancelled. In the waiter's frame; the
// waiter looks at the command when it is woken.
#pragma once

#include "runtime/cancellation.h"
#include "runtime/sync.h"

namespace sandbay::scsi {

class Waking final : public Cancellation::Hook {
 public:
  Waking(Cancellation* cancellation, Condition& condition)
      : Hook(cancellation, [](Hook& hook) { static_cast<Waking&>(hook).condition_.notify_all(); }),
        condition_(condition) {}

 private:
  Condition& condition_;
};

}  // namespace sandbay::scsi
