// Patience: how long a request waits for others. It ends when the request is cancelled or its
// deadline has passed; without either it lasts for ever.
//
// Whoever waits within a request waits like this, and looks at what he waits for and at his
// patience each time he wakes:
//
//   while (!there() && patience.lasts()) co_await patience.wait(&changed);
//
// What has been done by then stays; what was only asked for is given back. Belongs to the
// request's executor.
#pragma once

#include <algorithm>

#include "block/block_device.h"
#include "runtime/cancellation.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class Patience {
 public:
  Patience() = default;
  explicit Patience(const Request& request) noexcept
      : cancellation_(request.cancellation), deadline_(request.deadline) {}

  // Why it has ended; kNone while it lasts.
  Error end() const noexcept {
    if (cancellation_ != nullptr && cancellation_->cancelled()) return Error::kCancelled;
    if (deadline_ != kNever && Executor::current().now() >= deadline_) return Error::kTimedOut;
    return Error::kNone;
  }
  bool lasts() const noexcept { return end() == Error::kNone; }
  Cancellation* cancellation() const noexcept { return cancellation_; }
  TimePoint deadline() const noexcept { return deadline_; }

  // Until the condition is notified or patience ends; now, if it has ended. Awaited at once by the
  // owner of the condition, or by one who keeps it alive.
  Task<void> wait(Condition* condition, TimePoint until = kNever) const {
    return wait_for(*this, condition, until);
  }

 private:
  struct Wake : Cancellation::Hook {
    Wake(Cancellation* cancellation, Condition* to_notify)
        : Hook(cancellation, [](Hook& hook) { static_cast<Wake&>(hook).condition->notify_all(); }),
          condition(to_notify) {}
    Condition* condition;
  };
  static Task<void> wait_for(Patience patience, Condition* condition, TimePoint until) {
    if (!patience.lasts()) co_return;
    const Wake wake(patience.cancellation_, condition);
    (void)co_await condition->wait_until(std::min(until, patience.deadline_));
  }

  Cancellation* cancellation_ = nullptr;
  TimePoint deadline_ = kNever;
};

}  // namespace sandbay::cache
