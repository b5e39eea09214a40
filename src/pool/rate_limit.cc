// RateLimit: two buckets, one queue. Only the first in it has a timer; it wakes the next.
#include "pool/rate_limit.h"

#include <algorithm>
#include <cassert>

namespace sandbay::pool {

namespace {

constexpr double kNanosecondsASecond = 1e9;
// A bucket is never further ahead: of absurd limits.
constexpr Duration kMostAhead = std::chrono::hours(24);

// What `amount` costs.
Duration cost(std::uint64_t amount, std::uint64_t per_second) {
  const double nanoseconds =
      static_cast<double>(amount) * kNanosecondsASecond / static_cast<double>(per_second);
  const auto most = static_cast<double>(kMostAhead.count());
  return Duration(static_cast<Duration::rep>(std::min(nanoseconds, most)));
}

struct CancelHook : Cancellation::Hook {
  CancelHook(Cancellation* cancellation, Event& to_wake)
      : Hook(cancellation, [](Hook& hook) { static_cast<CancelHook&>(hook).wake.set(); }),
        wake(to_wake) {}
  Event& wake;
};

}  // namespace

RateLimit::~RateLimit() { assert(first_ == nullptr); }

void RateLimit::set(const RateLimits& limits, TimePoint now) {
  limits_ = limits;
  // What was paid by the old limits does not hold up by the new ones.
  operations_empty_ = std::min(operations_empty_, now + kBurst);
  bytes_empty_ = std::min(bytes_empty_, now + kBurst);
  if (first_ != nullptr) first_->wake.set();
}

TimePoint RateLimit::due() const noexcept {
  TimePoint empty{};
  if (limits_.operations_per_second > 0) empty = operations_empty_;
  if (limits_.bytes_per_second > 0) empty = std::max(empty, bytes_empty_);
  return empty - kBurst;
}

void RateLimit::pay(TimePoint now, std::uint64_t byte_count) noexcept {
  if (limits_.operations_per_second > 0) {
    operations_empty_ = std::max(operations_empty_, now) + cost(1, limits_.operations_per_second);
  }
  if (limits_.bytes_per_second > 0) {
    bytes_empty_ = std::max(bytes_empty_, now) + cost(byte_count, limits_.bytes_per_second);
  }
}

void RateLimit::append(Waiter& waiter) noexcept {
  (last_ != nullptr ? last_->next : first_) = &waiter;
  last_ = &waiter;
}

void RateLimit::remove(Waiter& waiter) {
  Waiter* before = nullptr;
  for (Waiter* at = first_; at != &waiter; at = at->next) before = at;
  (before != nullptr ? before->next : first_) = waiter.next;
  if (last_ == &waiter) last_ = before;
  if (before == nullptr && first_ != nullptr) first_->wake.set();
}

Task<Error> RateLimit::pass(Executor& home, std::uint64_t byte_count, Cancellation* cancellation,
                            TimePoint deadline) {
  Waiter waiter;
  append(waiter);
  const CancelHook hook(cancellation, waiter.wake);
  Error error = Error::kNone;
  while (true) {
    const TimePoint now = home.now();
    if (cancellation != nullptr && cancellation->cancelled()) {
      error = Error::kCancelled;
      break;
    }
    if (now >= deadline) {
      error = Error::kTimedOut;
      break;
    }
    const bool first = first_ == &waiter;
    if (first && (limits_ == RateLimits{} || now >= due())) {
      pay(now, byte_count);
      break;
    }
    waiter.wake.reset();
    co_await waiter.wake.wait_until(first ? std::min(due(), deadline) : deadline);
  }
  remove(waiter);
  ++delayed_count_;
  co_return error;
}

}  // namespace sandbay::pool
