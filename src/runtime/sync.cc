// The waiting lists behind Event, Condition, Mutex and Gate.
//
// A waiter stands in the frame of the coroutine that waits. Waking unlinks it and posts its
// coroutine; from then on neither refers to the other, so the object that it waited for may be
// gone before the coroutine runs again.
#include "runtime/sync.h"

#include "runtime/executor.h"

namespace sandbay {

namespace detail {

void WaitQueue::Waiter::await_suspend(std::coroutine_handle<> waiting) {
  handle = waiting;
  executor = &Executor::current();
  queue.link(*this);
  if (deadline == kNever) return;
  timer.deadline = deadline;
  timer.owner = this;
  timer.fire = [](Timer& fired) {
    auto& waiter = *static_cast<Waiter*>(fired.owner);
    waiter.queue.unlink(waiter);
    waiter.executor->post(waiter.handle);
  };
  executor->arm(timer);
}

void WaitQueue::link(Waiter& waiter) {
  assert(!waiter.linked);
  waiter.previous = last_;
  waiter.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &waiter;
  last_ = &waiter;
  waiter.linked = true;
}

void WaitQueue::unlink(Waiter& waiter) {
  assert(waiter.linked);
  (waiter.previous != nullptr ? waiter.previous->next : first_) = waiter.next;
  (waiter.next != nullptr ? waiter.next->previous : last_) = waiter.previous;
  waiter.linked = false;
}

bool WaitQueue::wake_one() {
  if (first_ == nullptr) return false;
  Waiter& waiter = *first_;
  unlink(waiter);
  waiter.woken = true;
  if (waiter.timer.armed()) waiter.executor->disarm(waiter.timer);
  waiter.executor->post(waiter.handle);
  return true;
}

void WaitQueue::give_up(Waiter& waiter) {
  if (!waiter.linked) return;
  unlink(waiter);
  if (waiter.timer.armed()) waiter.executor->disarm(waiter.timer);
  waiter.executor->post(waiter.handle);
}

void WaitQueue::wake_all() {
  while (wake_one()) {
  }
}

}  // namespace detail

Task<void> Event::wait() {
  if (set_) co_return;
  co_await queue_.wait();
}

Task<bool> Event::wait_until(TimePoint deadline) {
  if (set_) co_return true;
  co_return co_await queue_.wait(deadline);
}

Task<void> Mutex::lock() {
  if (!locked_) {
    locked_ = true;
    co_return;
  }
  co_await queue_.wait();
  // unlock() has handed it over: nobody else could take it meanwhile.
}

void Mutex::unlock() {
  assert(locked_);
  if (!queue_.wake_one()) locked_ = false;
}

Task<void> Gate::close() {
  closed_ = true;
  if (count_ == 0) co_return;
  co_await idle_.wait();
}

Task<bool> Gate::close_until(TimePoint deadline) {
  closed_ = true;
  if (count_ == 0) co_return true;
  co_return co_await idle_.wait(deadline);
}

Task<void> Gate::drain() {
  if (count_ == 0) co_return;
  co_await idle_.wait();
}

}  // namespace sandbay
