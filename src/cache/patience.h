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

  class Wait;
  // Until the condition is notified or patience ends; now, if it has ended. Awaited at once by the
  // owner of the condition, or by one who keeps it alive.
  Wait wait(Condition* condition, TimePoint until = kNever) const;

 private:
  Cancellation* cancellation_ = nullptr;
  TimePoint deadline_ = kNever;
};

// Stands in the frame of the one who waits.
class Patience::Wait {
 public:
  Wait(const Patience& patience, Condition* condition, TimePoint until)
      : ended_(!patience.lasts()),
        wake_(patience.cancellation(), condition),
        waiter_(condition->wait_until(std::min(until, patience.deadline()))) {}

  bool await_ready() const noexcept { return ended_; }
  void await_suspend(std::coroutine_handle<> handle) { waiter_.await_suspend(handle); }
  void await_resume() const noexcept {}

 private:
  struct Wake : Cancellation::Hook {
    Wake(Cancellation* cancellation, Condition* to_notify)
        : Hook(cancellation, [](Hook& hook) { static_cast<Wake&>(hook).condition->notify_all(); }),
          condition(to_notify) {}
    Condition* condition;
  };

  bool ended_;
  Wake wake_;
  detail::WaitQueue::Waiter waiter_;
};

inline Patience::Wait Patience::wait(Condition* condition, TimePoint until) const {
  return {*this, condition, until};
}

}  // namespace sandbay::cache
