// A request enters rooms from the inside out, and keeps them while it waits for the next. So a
// waiter needs only the place that this next room hands to it, and no wake-up is lost.
#include "runtime/kernel_room.h"

#include <chrono>

#include "runtime/cancellation.h"
#include "runtime/executor.h"

namespace sandbay::detail {
namespace {

constexpr Duration kLookForCancellation = std::chrono::milliseconds(100);

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
  while (cancellation == nullptr || !cancellation->cancelled()) {
    // Cancelling does not wake it, so it looks.
    const TimePoint deadline =
        cancellation == nullptr ? kNever : Executor::current().now() + kLookForCancellation;
    const bool handed = co_await waiting_.wait(deadline);
    if (handed) co_return true;
  }
  co_return false;
}

void KernelRoom::leave_until(const KernelRoom* end) {
  for (KernelRoom* room = this; room != end; room = room->outer_.get()) {
    if (!room->waiting_.wake_one()) ++room->left_;
  }
}

}  // namespace sandbay::detail
