// Backend: how a management thread asks the group. The thread waits; the group's executor does not.
//
// One request crosses as one message, runs as a coroutine on the group's executor, and its answer
// wakes the thread. The executor must run until every management thread has ended.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>
#include <vector>

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

// In a management thread: the daemon ends, and does not wait for what was asked.
struct GivenUp : std::exception {};

class Backend {
 public:
  // Service and executor outlive this. `volume_paths`: where requests may make files and open
  // devices.
  Backend(group::Service& service, Executor& home, std::vector<std::filesystem::path> volume_paths)
      : service_(service), home_(home), volume_paths_(std::move(volume_paths)) {}

  group::Service& service() const noexcept { return service_; }

  const std::vector<std::filesystem::path>& volume_paths() const noexcept { return volume_paths_; }

  TurnedAway& turned_away() noexcept { return turned_away_; }

  // From any thread that is no executor's. Throws GivenUp; then the task goes on by itself.
  template <class T>
  T run(Task<T> task) {
    auto crossing = std::make_unique<Crossing<T>>();
    crossing->task = std::move(task);
    crossing->run = [](Message& message) { spawn(carry(static_cast<Crossing<T>*>(&message))); };
    std::future<T> answer = crossing->answer.get_future();
    ++waiting_;
    home_.send(*crossing.release());
    while (answer.wait_for(kLookAround) != std::future_status::ready && !given_up_) {
    }
    --waiting_;
    if (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) throw GivenUp();
    return answer.get();
  }

  // Threads that wait for an answer; and that they shall not any longer.
  bool somebody_waits() const noexcept { return waiting_ > 0; }
  void give_up() noexcept { given_up_ = true; }

 private:
  static constexpr auto kLookAround = std::chrono::milliseconds(100);

  // The executor's from when it is sent: its thread may be gone before it is answered.
  template <class T>
  struct Crossing : Message {
    Task<T> task;
    std::promise<T> answer;
  };

  template <class T>
  static Task<void> carry(Crossing<T>* sent) {
    const std::unique_ptr<Crossing<T>> crossing(sent);
    T value = co_await std::move(crossing->task);
    crossing->answer.set_value(std::move(value));
  }

  group::Service& service_;
  Executor& home_;
  const std::vector<std::filesystem::path> volume_paths_;
  TurnedAway turned_away_;
  std::atomic<unsigned> waiting_ = 0;
  std::atomic<bool> given_up_ = false;
};

}  // namespace sandbay::mgmt
