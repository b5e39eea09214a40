// ByteBudget: how much memory operations may hold together. Whoever needs some takes all of it at
// once, first come first served, and gives it back at the end. Used on one executor.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::raid {

class ByteBudget {
 public:
  explicit ByteBudget(std::size_t limit) : left_(limit), limit_(limit) {}
  ~ByteBudget() { assert(left_ == limit_); }
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // A share of the budget; more than all of it counts as all of it.
  class Share {
   public:
    Share(ByteBudget& budget, std::size_t byte_count) noexcept
        : budget_(budget), byte_count_(byte_count) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { budget_.give(byte_count_); }

   private:
    ByteBudget& budget_;
    std::size_t byte_count_;
  };

  // Waits until that much is left, and gives how much was taken: for a Share.
  Task<std::size_t> take(std::size_t byte_count) {
    byte_count = std::min(byte_count, limit_);
    if (waiting_ == 0 && byte_count <= left_) {
      left_ -= byte_count;
      co_return byte_count;
    }
    ++waiting_;
    co_await turn_.lock();
    while (byte_count > left_) co_await given_.wait();
    left_ -= byte_count;
    --waiting_;
    turn_.unlock();
    co_return byte_count;
  }

 private:
  void give(std::size_t byte_count) {
    left_ += byte_count;
    if (waiting_ > 0) given_.notify_all();
  }

  std::size_t left_;
  std::size_t limit_;
  std::size_t waiting_ = 0;
  Mutex turn_;  // Held by the first that waits.
  Condition given_;
};

}  // namespace sandbay::raid
