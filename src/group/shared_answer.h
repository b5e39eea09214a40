// SharedAnswer: one look for all callers that ask at the same time. A look begins after the
// question that it answers: callers that come while a look is under way share the next one.
//
// Executor 0.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::group {

template <class T>
class SharedAnswer {
 public:
  // Each look calls `look` once. The objects that it refers to outlive all callers.
  explicit SharedAnswer(std::function<Task<T>()> look) : look_(std::move(look)) {}

  Task<std::shared_ptr<const T>> ask() {
    const std::uint64_t wanted = begun_ + 1;
    ++waiting_;
    while (ended_ < wanted) {
      if (looking_) {
        co_await changed_.wait();
        continue;
      }
      looking_ = true;
      const std::uint64_t number = ++begun_;
      T value = co_await look_();
      answer_ = std::make_shared<const T>(std::move(value));
      ended_ = number;
      looking_ = false;
      changed_.notify_all();
    }
    std::shared_ptr<const T> answer = answer_;
    if (--waiting_ == 0) answer_.reset();
    co_return answer;
  }
  std::uint64_t looks() const noexcept { return begun_; }

 private:
  std::function<Task<T>()> look_;
  std::shared_ptr<const T> answer_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
  std::size_t waiting_ = 0;
  bool looking_ = false;
  Condition changed_;
};

}  // namespace sandbay::group
