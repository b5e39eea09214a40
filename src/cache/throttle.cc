// Admission of writes, paced by what is destaged.
#include "cache/throttle.h"

#include <algorithm>
#include <cassert>

namespace sandbay::cache {
namespace {

// Until something has been measured, and never less: a writer is not to wait for ever because the
// destager had nothing to do.
constexpr double kFirstRate = 64.0 * 1024 * 1024;
constexpr double kLeastRate = 1024.0 * 1024;
constexpr Duration kWindow = std::chrono::milliseconds(50);
// One admission never costs more: a wrong measurement must not stop anybody.
constexpr Duration kLongestDelay = std::chrono::seconds(1);

}  // namespace

struct Throttle::Waiter {
  std::uint64_t byte_count = 0;
  bool admitted = false;
  Waiter* next = nullptr;
  Event event;
};

Throttle::Throttle(Executor& home, Limits limits)
    : home_(home), limits_(limits), rate_(kFirstRate) {
  assert(limits.low_bytes <= limits.high_bytes && limits.high_bytes <= limits.most_bytes);
  timer_.owner = this;
  timer_.fire = [](Timer& timer) { static_cast<Throttle*>(timer.owner)->pump(); };
}

Throttle::~Throttle() {
  assert(circle_ == nullptr);
  if (timer_.armed()) home_.disarm(timer_);
}

Task<bool> Throttle::admit(Queue& queue, std::uint64_t byte_count) {
  if (hopeless(byte_count)) co_return false;
  if (try_admit(byte_count)) co_return true;
  Waiter waiter{.byte_count = byte_count, .event = {}};
  enqueue(queue, waiter);
  pump();
  co_await waiter.event.wait();
  co_return waiter.admitted;
}

void Throttle::give_back(std::uint64_t byte_count) {
  assert(used_bytes_ >= byte_count);
  used_bytes_ -= byte_count;
  pump();
}

void Throttle::add_stuck(std::int64_t byte_count) {
  stuck_bytes_ += byte_count;
  assert(stuck_bytes_ >= 0);
  pump();
}

void Throttle::note_destaged(std::uint64_t byte_count) {
  const TimePoint now = home_.now();
  // Only a destager with enough to do shows its pace.
  if (!above_high() || now - window_start_ > 20 * kWindow) {
    window_start_ = now;
    window_bytes_ = 0;
    return;
  }
  window_bytes_ += byte_count;
  const Duration elapsed = now - window_start_;
  if (elapsed < kWindow) return;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  rate_ = std::max(kLeastRate, (rate_ + static_cast<double>(window_bytes_) / seconds) / 2);
  window_start_ = now;
  window_bytes_ = 0;
}

// The circle of queues in which somebody waits: circle_ was served last.
void Throttle::enqueue(Queue& queue, Waiter& waiter) {
  if (queue.first != nullptr) {
    queue.last->next = &waiter;
    queue.last = &waiter;
    return;
  }
  queue.first = &waiter;
  queue.last = &waiter;
  if (circle_ == nullptr) {
    queue.next = &queue;
  } else {
    queue.next = circle_->next;
    circle_->next = &queue;
  }
  circle_ = &queue;
}

Throttle::Waiter& Throttle::dequeue() {
  Queue& queue = *circle_->next;
  Waiter& waiter = *queue.first;
  queue.first = waiter.next;
  if (queue.first != nullptr) {
    circle_ = &queue;
  } else if (circle_ == &queue) {
    circle_ = nullptr;
  } else {
    circle_->next = queue.next;
  }
  return waiter;
}

void Throttle::pump() {
  while (circle_ != nullptr) {
    const std::uint64_t byte_count = circle_->next->first->byte_count;
    if (hopeless(byte_count)) {
      dequeue().event.set();
      continue;
    }
    if (used_bytes_ + byte_count > limits_.most_bytes) return;
    const TimePoint now = home_.now();
    if (now < next_admission_) {
      if (timer_.armed()) home_.disarm(timer_);
      timer_.deadline = next_admission_;
      home_.arm(timer_);
      return;
    }
    Waiter& waiter = dequeue();
    used_bytes_ += byte_count;
    next_admission_ = std::max(now, next_admission_) + delay_for(byte_count);
    waiter.admitted = true;
    waiter.event.set();
  }
}

// Halfway to the limit writers are as fast as the destager; what is left evens out its rounds.
Duration Throttle::delay_for(std::uint64_t byte_count) const {
  if (!above_high() || limits_.most_bytes == limits_.high_bytes) return Duration::zero();
  const double level = static_cast<double>(used_bytes_ - limits_.high_bytes) /
                       static_cast<double>(limits_.most_bytes - limits_.high_bytes);
  const double seconds = static_cast<double>(byte_count) / rate_ * 2 * std::min(level, 1.0);
  const auto delay = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return std::min(delay, kLongestDelay);
}

}  // namespace sandbay::cache
