// FileThreads: the threads that carry out one reactor's requests to files where the kernel offers
// no other way. A request holds a thread for as long as its storage takes; the number of threads
// follows the number of requests, up to a limit. Included by the runtime's own files only.
#pragma once

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "runtime/executor.h"
#include "runtime/io_engine.h"

namespace sandbay::detail {

// Makes the request's system call and returns its answer: a negated errno on failure. `flags` as
// preadv2(2) has them, for reads and writes.
int carry_out(const FileOperation& operation, int flags);

class FileThreads {
 public:
  static constexpr unsigned kStartsAtOnce = 8;  // By the reactor; threads start the others.
  static constexpr auto kIdle = std::chrono::seconds(10);  // A thread that has no work ends.
  static constexpr auto kEndPatience = std::chrono::seconds(1);

  // `home` makes the requests, and hears of their ends by messages.
  FileThreads(Executor& home, unsigned most) : shared_(std::make_shared<Shared>(home, most)) {}
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;
  // Waits a moment after stop() for requests that are under way. One that hangs keeps its thread
  // until the process ends, and nobody hears of its end.
  ~FileThreads();
  // Nobody waits for a request any more. From any thread.
  void stop() noexcept;
  unsigned most() const noexcept { return shared_->most; }

  // Starts the first thread, which stays. False if the system has no thread to give.
  bool start();
  // Takes a chain of requests from `first` to `last`, linked by Message::next.
  void submit(FileOperation& first, FileOperation& last, unsigned count);
  // Takes back a request that no thread has begun. False if one has.
  bool take_back(FileOperation& operation);

 private:
  // Outlives the object in the hands of a thread whose request hangs.
  struct Shared {
    Shared(Executor& of, unsigned limit) : home(of), most(limit) {}

    Executor& home;
    const unsigned most;     // Threads.
    cpu_set_t processors{};  // The process's, when it began.
    std::mutex mutex;
    std::condition_variable changed;  // For the threads.
    std::condition_variable ended;    // For the end.
    Message* first = nullptr;
    Message* last = nullptr;
    unsigned waiting = 0;
    unsigned threads = 0;
    unsigned idle = 0;
    bool stopping = false;
    std::chrono::steady_clock::time_point end;  // Of the wait for threads, when stopping.
  };

  // Under the lock: starts a thread if requests wait and none is free for them.
  static bool start_if_wanted(const std::shared_ptr<Shared>& shared);
  static bool start_thread(const std::shared_ptr<Shared>& shared, bool stays);
  static void serve(const std::shared_ptr<Shared>& shared, bool stays);
  // Under the lock. Null: nothing waits.
  static FileOperation* take(Shared& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace sandbay::detail
