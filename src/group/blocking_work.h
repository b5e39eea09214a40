// BlockingWork: work that takes a processor for long, or blocks, on a thread of its own, while the
// coroutine that wants it done waits on its executor.
#pragma once

#include <coroutine>
#include <functional>
#include <thread>
#include <utility>

#include "runtime/executor.h"
#include "runtime/message.h"

namespace sandbay::group {

// To be awaited once, on `home`. What `work` refers to outlives the wait.
class BlockingWork {
 public:
  BlockingWork(Executor& home, std::function<void()> work) : home_(home), work_(std::move(work)) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    ended_.handle = handle;
    ended_.run = [](Message& message) { static_cast<Ended&>(message).handle.resume(); };
    thread_ = std::thread([this] {
      work_();
      home_.send(ended_);
    });
  }
  void await_resume() { thread_.join(); }

 private:
  struct Ended : Message {
    std::coroutine_handle<> handle;
  };
  Executor& home_;
  std::function<void()> work_;
  Ended ended_;
  std::thread thread_;
};

}  // namespace sandbay::group
