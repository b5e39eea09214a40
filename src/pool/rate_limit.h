// RateLimit: at most so many operations and so many bytes a second, evenly.
//
// Each limit is a leaky bucket: an operation moves the moment at which the bucket is empty again by
// what it costs, and may pass when that moment is at most kBurst away. So what has been idle may
// send kBurst's worth at once and no more, and an operation that costs more than that passes and is
// paid for by those after it. First come, first served; whoever is cancelled or late leaves.
//
// Lives on one executor; its waiters' frames hold it. Costs nothing while there is no limit.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/cancellation.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::pool {

struct RateLimits {
  std::uint64_t operations_per_second = 0;  // 0: any number.
  std::uint64_t bytes_per_second = 0;       // 0: any number.
  bool operator==(const RateLimits&) const = default;
};

class RateLimit {
 public:
  static constexpr Duration kBurst = std::chrono::milliseconds(10);

  RateLimit() = default;
  ~RateLimit();  // Nobody waits.
  RateLimit(const RateLimit&) = delete;
  RateLimit& operator=(const RateLimit&) = delete;

  // From now on, for those who wait, too.
  void set(const RateLimits& limits, TimePoint now);
  const RateLimits& limits() const noexcept { return limits_; }

  // Whether an operation may pass at once; then it is paid for.
  bool try_pass(TimePoint now, std::uint64_t byte_count) noexcept {
    if (limits_ == RateLimits{}) return true;
    if (first_ != nullptr || now < due()) return false;
    pay(now, byte_count);
    return true;
  }
  // Waits until it may. kCancelled, or kTimedOut at the deadline: it is not paid for.
  Task<Error> pass(Executor& home, std::uint64_t byte_count, Cancellation* cancellation,
                   TimePoint deadline);

  std::uint64_t delayed_count() const noexcept { return delayed_count_; }

 private:
  struct Waiter {
    Event wake;
    Waiter* next = nullptr;
  };
  TimePoint due() const noexcept;
  void pay(TimePoint now, std::uint64_t byte_count) noexcept;
  void append(Waiter& waiter) noexcept;
  void remove(Waiter& waiter);

  RateLimits limits_;
  TimePoint operations_empty_{};  // When the bucket of operations is empty again.
  TimePoint bytes_empty_{};
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
  std::uint64_t delayed_count_ = 0;
};

}  // namespace sandbay::pool
