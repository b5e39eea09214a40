// A request enters rooms from the inside out, and keeps them while it waits for the next. So a
// waiter needs only the place that this next room hands to it, and no wake-up is lost.
#include "runtime/kernel_room.h"

#include "runtime/cancellation.h"
#include "runtime/executor.h"

namespace sandbay::detail {
namespace {

// Ends the wait of a request that nobody wants any more.
struct GiveUp final : Cancellation::Hook {
  GiveUp(Cancellation* cancellation, WaitQueue::Waiter& waiting)
      : Hook(cancellation,
             [](Hook& hook) {
               WaitQueue::Waiter& waiter = static_cast<GiveUp&>(hook).waiter_;
               waiter.queue.give_up(waiter);
             }),
        waiter_(waiting) {}

 private:
  WaitQueue::Waiter& waiter_;
};

}  // namespace

Task<bool> KernelRoom::enter(Cancellation* cancellation) {
  for (KernelRoom* room = this; room != nullptr; room = room->outer_.get()) {
    const bool entered = co_await room->enter_here(cancellation);
    if (entered) continue;
    leave_until(room);
    co_return false;
  }
  co_return true;
}

Task<bool> KernelRoom::enter_here(Cancellation* cancellation) {
  if (left_ > 0) {
    --left_;
    co_return true;
  }
  if (cancellation != nullptr && cancellation->cancelled()) co_return false;
  WaitQueue::Waiter waiter = waiting_.wait();
  const GiveUp hook(cancellation, waiter);
  co_return co_await waiter;
}

void KernelRoom::leave_until(const KernelRoom* end) {
  for (KernelRoom* room = this; room != end; room = room->outer_.get()) {
    if (!room->waiting_.wake_one()) ++room->left_;
  }
}

}  // namespace sandbay::detail
