// Backend: how a management thread asks the group. The thread waits; the group's executor does not.
//
// One request crosses as one message, runs as a coroutine on the group's executor, and its answer
// wakes the thread. The executor must run until every management thread has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <utility>

#include "group/service.h"
#include "runtime/executor.h"
#include "runtime/message.h"
#include "runtime/task.h"

namespace sandbay::mgmt {

// Requests that a listener turned away.
struct TurnedAway {
  std::atomic<std::uint64_t> unknown = 0;    // No token, or none that is known.
  std::atomic<std::uint64_t> forbidden = 0;  // Its role does not suffice.
};

class Backend {
 public:
  // Both outlive this.
  Backend(group::Service& service, Executor& home) : service_(service), home_(home) {}

  group::Service& service() const noexcept { return service_; }

  TurnedAway& turned_away() noexcept { return turned_away_; }

  // From any thread that is no executor's.
  template <class T>
  T run(Task<T> task) {
    Crossing<T> crossing;
    crossing.task = std::move(task);
    crossing.run = [](Message& message) { spawn(carry(static_cast<Crossing<T>*>(&message))); };
    std::future<T> answer = crossing.answer.get_future();
    home_.send(crossing);
    return answer.get();
  }

 private:
  template <class T>
  struct Crossing : Message {
    Task<T> task;
    std::promise<T> answer;
  };

  // The crossing stands on the waiting thread's stack, which goes on when the answer is set; so
  // the promise is taken out of it first.
  template <class T>
  static Task<void> carry(Crossing<T>* crossing) {
    std::promise<T> answer = std::move(crossing->answer);
    Task<T> task = std::move(crossing->task);
    T value = co_await std::move(task);
    answer.set_value(std::move(value));
  }

  group::Service& service_;
  Executor& home_;
  TurnedAway turned_away_;
};

}  // namespace sandbay::mgmt
