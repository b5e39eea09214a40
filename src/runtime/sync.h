// Waiting for one another, within one executor. None of these is for threads.
//
// Waiters always go through the executor's ready queue and are never resumed inline, so the stack
// stays bounded and a simulation can shuffle them.
#pragma once

#include <cassert>
#include <coroutine>
#include <cstddef>
#include <deque>

#include "runtime/executor.h"

namespace sandbay {

namespace detail {

// A first-in first-out list of suspended coroutines, each with an optional deadline.
class WaitQueue {
 public:
  struct Waiter {
    WaitQueue& queue;
    TimePoint deadline = kNever;
    std::coroutine_handle<> handle;
    Executor* executor = nullptr;
    Waiter* next = nullptr;
    Waiter* previous = nullptr;
    Timer timer;
    bool linked = false;
    bool woken = false;  // False after await: the deadline passed.

    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiting);
    bool await_resume() const noexcept { return woken; }
  };

  WaitQueue() = default;
  WaitQueue(const WaitQueue&) = delete;
  WaitQueue& operator=(const WaitQueue&) = delete;
  ~WaitQueue() { assert(first_ == nullptr); }

  bool empty() const noexcept { return first_ == nullptr; }
  Waiter wait(TimePoint deadline = kNever) { return Waiter{.queue = *this, .deadline = deadline}; }
  bool wake_one();
  void wake_all();
  // Wakes the waiter with `woken` false, as a deadline does; nothing if it waits no more.
  void give_up(Waiter& waiter);

 private:
  void link(Waiter& waiter);
  void unlink(Waiter& waiter);
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
};

}  // namespace detail

// Set once or reset; wakes everybody who waits.
class Event {
 public:
  bool is_set() const noexcept { return set_; }
  void set() {
    set_ = true;
    queue_.wake_all();
  }
  void reset() noexcept { set_ = false; }
  Task<void> wait();
  // False if the deadline passed first.
  Task<bool> wait_until(TimePoint deadline);

 private:
  bool set_ = false;
  detail::WaitQueue queue_;
};

// Wakes waiters that then look again at a condition of their own.
class Condition {
 public:
  // Not coroutines: awaited at once.
  detail::WaitQueue::Waiter wait() { return queue_.wait(); }
  // False if the deadline passed first.
  detail::WaitQueue::Waiter wait_until(TimePoint deadline) { return queue_.wait(deadline); }
  void notify_one() { queue_.wake_one(); }
  void notify_all() { queue_.wake_all(); }

 private:
  detail::WaitQueue queue_;
};

class Mutex {
 public:
  Task<void> lock();
  void unlock();
  bool locked() const noexcept { return locked_; }

 private:
  bool locked_ = false;  // Handed over to the first waiter, not released, when there is one.
  detail::WaitQueue queue_;
};

// Counts what is in flight. close() waits until it is nothing; enter() fails afterwards.
class Gate {
 public:
  ~Gate() { assert(count_ == 0); }
  [[nodiscard]] bool enter() noexcept {
    if (closed_) return false;
    ++count_;
    return true;
  }
  void leave() {
    assert(count_ > 0);
    if (--count_ == 0) idle_.wake_all();
  }
  bool closed() const noexcept { return closed_; }
  std::size_t count() const noexcept { return count_; }
  Task<void> close();
  Task<bool> close_until(TimePoint deadline);  // False if something was still in flight then.
  Task<void> drain();                          // Waits for nothing in flight; stays open.

 private:
  std::size_t count_ = 0;
  bool closed_ = false;
  detail::WaitQueue idle_;
};

// Leaves the gate when it goes out of scope.
class GateHold {
 public:
  explicit GateHold(Gate& entered) noexcept : gate_(&entered) {}
  GateHold(GateHold&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
  GateHold& operator=(GateHold&&) = delete;
  ~GateHold() {
    if (gate_ != nullptr) gate_->leave();
  }

 private:
  Gate* gate_;
};

}  // namespace sandbay
