// Task<T>: a lazy coroutine that is awaited exactly once.
//
// It starts when awaited and resumes its awaiter by symmetric transfer when it ends, on the
// executor on which it ended. A Task that is destroyed before it was awaited never ran. No
// exception leaves a Task: one that would is a bug and ends the process.
//
// Parameters of a coroutine go by value; spans and references only where the caller awaits the
// call at once, and then the header of that function says so.
#pragma once

#include <cassert>
#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "runtime/frame_pool.h"

namespace sandbay {

template <class T = void>
class Task;

namespace detail {

class TaskPromiseBase {
 public:
  static void* operator new(std::size_t byte_count) { return allocate_frame(byte_count); }
  static void operator delete(void* memory, std::size_t byte_count) noexcept {
    free_frame(memory, byte_count);
  }

  std::suspend_always initial_suspend() noexcept { return {}; }

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      return ended.promise().continuation_;
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }

  [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
  void set_continuation(std::coroutine_handle<> handle) noexcept { continuation_ = handle; }

 private:
  std::coroutine_handle<> continuation_;
};

template <class T>
class TaskPromise final : public TaskPromiseBase {
 public:
  Task<T> get_return_object() noexcept;
  template <class U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T&& take() {
    assert(value_.has_value());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> final : public TaskPromiseBase {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() noexcept {}
};

}  // namespace detail

template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::TaskPromise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() noexcept = default;
  explicit Task(Handle handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    if (handle_) handle_.destroy();
    handle_ = std::exchange(other.handle_, {});
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  class Awaiter {
   public:
    explicit Awaiter(Handle handle) noexcept : handle_(handle) {}
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
      handle_.promise().set_continuation(awaiting);
      return handle_;
    }
    // Refers to the value in the frame, which the Task keeps until the end of the full expression:
    // take it at once.
    decltype(auto) await_resume() { return handle_.promise().take(); }

   private:
    Handle handle_;
  };

  Awaiter operator co_await() && noexcept {
    assert(handle_);
    return Awaiter(handle_);
  }

 private:
  Handle handle_;
};

namespace detail {

template <class T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<TaskPromise<T>>::from_promise(*this));
}

inline Task<void> TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise<void>>::from_promise(*this));
}

}  // namespace detail

// A coroutine that nobody awaits: it runs until its first suspension before its caller goes on, and
// frees itself when it ends. Whoever starts one keeps what it uses alive, usually with a Gate.
struct Spawned {
  struct promise_type {
    static void* operator new(std::size_t byte_count) { return allocate_frame(byte_count); }
    static void operator delete(void* memory, std::size_t byte_count) noexcept {
      free_frame(memory, byte_count);
    }
    Spawned get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
    void return_void() noexcept {}
  };
};

namespace detail {

inline Spawned run_detached(Task<void> task) { co_await std::move(task); }

}  // namespace detail

// The same of a Task.
inline void spawn(Task<void> task) { detail::run_detached(std::move(task)); }

}  // namespace sandbay
