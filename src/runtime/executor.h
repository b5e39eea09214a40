// Executor: the one door to the outside. Everything above the runtime sees time, other
// executors, files, sockets and chance only through it.
//
// Two implementations: Reactor (io_uring or epoll, one thread each) and SimulatedExecutor (virtual
// clock, seeded scheduler, all executors of a world in one thread). Every object lives on one
// executor, its home, and is touched only there; other executors send it a Message or hop with
// invoke_on(). Executors are numbered 0 … peers().size() - 1 within their group.
#pragma once

#include <coroutine>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/io.h"
#include "runtime/message.h"
#include "runtime/random.h"
#include "runtime/task.h"
#include "runtime/timer.h"

namespace sandbay {

class BufferPool;

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  // The executor whose turn runs on this thread. current_or_null() is null on foreign threads.
  static Executor& current();
  static Executor* current_or_null() noexcept;

  virtual unsigned index() const noexcept = 0;
  virtual std::span<Executor* const> peers() const noexcept = 0;  // Includes this one.
  virtual TimePoint now() const noexcept = 0;  // Read once a turn; never goes back.
  // What a clock on the wall shows, UTC; for people, and for what is due at a time of the day.
  virtual WallTime wall_time() const noexcept;
  virtual Random& random() noexcept = 0;
  virtual BufferPool& buffers() noexcept = 0;

  // Own thread only: resumes the handle from the ready queue, never inline.
  virtual void post(std::coroutine_handle<> handle) = 0;
  // Own thread only: resumes it when the ready queue has run empty, just before the executor
  // submits its I/O and sleeps. Where answers are gathered into one send.
  virtual void post_at_turn_end(std::coroutine_handle<> handle) = 0;

  // From this executor's own thread; the timer stands still in memory while armed.
  virtual void arm(Timer& timer) = 0;
  virtual void disarm(Timer& timer) noexcept = 0;

  // From any thread: runs message.run on this executor. Sent in batches, one a turn, by executors
  // of the same group; at once by foreign threads.
  virtual void send(Message& message) noexcept = 0;

  virtual Task<Result<std::unique_ptr<File>>> open_file(std::string path, FileOptions options) = 0;
  // Takes the file's name away, durably; kNotFound if it is not there.
  virtual Task<Error> remove_file(std::string path) = 0;
  // Names made and taken away in the directory before are durable afterwards.
  virtual Task<Error> sync_directory(std::string path);
  virtual Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) = 0;
  virtual Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) = 0;

  // Awaitables ---------------------------------------------------------------------------------

  // Lets everything else that is ready run first.
  struct Yield {
    Executor& executor;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const { executor.post(handle); }
    void await_resume() const noexcept {}
  };
  Yield yield() noexcept { return Yield{*this}; }

  struct TurnEnd {
    Executor& executor;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const { executor.post_at_turn_end(handle); }
    void await_resume() const noexcept {}
  };
  TurnEnd turn_end() noexcept { return TurnEnd{*this}; }

  class Sleep {
   public:
    Sleep(Executor& executor, TimePoint deadline) : executor_(executor) {
      timer_.deadline = deadline;
      timer_.fire = [](Timer& timer) {
        auto& self = *static_cast<Sleep*>(timer.owner);
        self.executor_.post(self.handle_);
      };
      timer_.owner = this;
    }
    bool await_ready() const noexcept { return timer_.deadline <= executor_.now(); }
    void await_suspend(std::coroutine_handle<> handle) {
      handle_ = handle;
      timer_.owner = this;
      executor_.arm(timer_);
    }
    void await_resume() const noexcept {}

   private:
    Executor& executor_;
    Timer timer_;
    std::coroutine_handle<> handle_;
  };
  Sleep sleep_until(TimePoint deadline) { return Sleep(*this, deadline); }
  Sleep sleep_for(Duration duration) { return Sleep(*this, now() + duration); }

 protected:
  static void set_current(Executor* executor) noexcept;
};

// Awaiting it resumes the coroutine on `target` (at once if it is there already).
class SwitchTo {
 public:
  explicit SwitchTo(Executor& target) : target_(target) {}
  bool await_ready() const noexcept { return Executor::current_or_null() == &target_; }
  void await_suspend(std::coroutine_handle<> handle) noexcept {
    crossing_.handle = handle;
    crossing_.run = [](Message& message) { static_cast<Crossing&>(message).handle.resume(); };
    target_.send(crossing_);
  }
  void await_resume() const noexcept {}

 private:
  struct Crossing : Message {
    std::coroutine_handle<> handle;
  };
  Executor& target_;
  Crossing crossing_;
};

// Runs `task` on `home` and resumes the caller where it was. Without a crossing if home is here.
template <class T>
Task<T> invoke_on(Executor& home, Task<T> task) {
  Executor& origin = Executor::current();
  if (&origin == &home) co_return co_await std::move(task);
  co_await SwitchTo(home);
  T value = co_await std::move(task);
  co_await SwitchTo(origin);
  co_return value;
}

template <>
inline Task<void> invoke_on(Executor& home, Task<void> task) {
  Executor& origin = Executor::current();
  if (&origin == &home) {
    co_await std::move(task);
    co_return;
  }
  co_await SwitchTo(home);
  co_await std::move(task);
  co_await SwitchTo(origin);
}

}  // namespace sandbay
