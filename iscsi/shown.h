// Shown: a value that one executor changes and that any may read, perhaps a moment late. It orders
// nothing else, and costs what a plain one does.
#pragma once

#include <atomic>

namespace sandbay::iscsi {

template <class Value>
class Shown {
 public:
  Shown(Value value = Value()) noexcept : value_(value) {}  // NOLINT: stands for its value.
  Shown& operator=(Value value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator Value() const noexcept {  // NOLINT: stands for its value.
    return value_.load(std::memory_order_relaxed);
  }
  // Only by the executor that changes it.
  Shown& operator++() noexcept { return *this = Value(*this) + 1; }

 private:
  std::atomic<Value> value_;
};

}  // namespace sandbay::iscsi
