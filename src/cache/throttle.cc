// Admission of writes, paced by what is destaged.
#include "cache/throttle.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sandbay::cache {
namespace {

// Until something has been measured, and never less: a writer is not to wait for ever because the
// destager had nothing to do.
constexpr double kFirstRate = 64.0 * 1024 * 1024;
constexpr double kLeastRate = 1024.0 * 1024;
// More says nothing but that the drives are as fast as memory, and is to be forgotten in some
// seconds.
constexpr double kMostRate = 16.0 * 1024 * 1024 * 1024;
// What was measured so long ago counts for a third.
constexpr double kRateMemorySeconds = 1;
// Too short a time at work tells no pace, but that it is hardly less than if it had been so long.
constexpr double kLeastSeconds = 0.05;
constexpr double kLevelMemorySeconds = 0.15;
// One admission never costs more: a wrong measurement must not stop anybody.
constexpr Duration kLongestDelay = std::chrono::seconds(1);
// What was not admitted for want of room may follow at once when there is room again.
constexpr Duration kMostBehind = std::chrono::milliseconds(20);
constexpr Duration kCalm = std::chrono::milliseconds(200);

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

struct Throttle::Waiter {
  std::uint64_t byte_count = 0;
  Queue* queue = nullptr;
  bool admitted = false;
  bool waiting = true;  // It stands in its queue.
  Waiter* next = nullptr;
  Condition changed;
};

Throttle::Throttle(Executor& home, Limits limits)
    : home_(home), all_(limits), limits_(limits), rate_(kFirstRate) {
  assert(limits.low_bytes <= limits.high_bytes && limits.high_bytes <= limits.most_bytes);
  timer_.owner = this;
  timer_.fire = [](Timer& timer) { static_cast<Throttle*>(timer.owner)->pump(); };
}

Throttle::~Throttle() {
  assert(circle_ == nullptr);
  if (timer_.armed()) home_.disarm(timer_);
}

Task<bool> Throttle::admit(Queue& queue, std::uint64_t byte_count, bool begun, Patience patience) {
  if (hopeless(byte_count) || !patience.lasts()) co_return false;
  const TimePoint now = home_.now();
  if (may_end_pace(now)) paced_ = false;
  if (try_admit(byte_count)) co_return true;
  if (!paced_) {
    paced_ = true;
    level_ = static_cast<double>(used_bytes_);
    level_time_ = now;
    destage_time_ = now;
    next_admission_ = now;
  }
  Waiter waiter{.byte_count = byte_count, .queue = &queue, .changed = {}};
  enqueue(queue, waiter, begun);
  pump();
  while (waiter.waiting && patience.lasts()) co_await patience.wait(&waiter.changed);
  if (waiter.waiting) give_up(waiter);
  co_return waiter.admitted;
}

void Throttle::give_back(std::uint64_t byte_count) {
  assert(used_bytes_ >= byte_count);
  if (paced_) note_level(home_.now());
  used_bytes_ -= byte_count;
  pump();
}

void Throttle::add_stuck(std::int64_t byte_count) {
  stuck_bytes_ += byte_count;
  assert(stuck_bytes_ >= 0);
  const std::uint64_t stuck = std::min(static_cast<std::uint64_t>(stuck_bytes_), all_.most_bytes);
  const double left = all_.most_bytes == 0 ? 1
                                           : static_cast<double>(all_.most_bytes - stuck) /
                                                 static_cast<double>(all_.most_bytes);
  const auto above_stuck = [&](std::uint64_t mark) {
    const auto share = static_cast<std::uint64_t>(static_cast<double>(mark) * left);
    return std::min(stuck + share, all_.most_bytes);
  };
  limits_.low_bytes = above_stuck(all_.low_bytes);
  limits_.high_bytes = above_stuck(all_.high_bytes);
  pump();
}

void Throttle::note_begun() {
  if (destages_++ == 0) destage_time_ = home_.now();
}

void Throttle::note_destaged(std::uint64_t byte_count) {
  assert(destages_ > 0);
  --destages_;
  if (!paced_) return;
  const TimePoint now = home_.now();
  double seconds = seconds_of(now - destage_time_);
  double bytes = static_cast<double>(byte_count);
  destage_time_ = now;
  const double kept = std::exp(-seconds / kRateMemorySeconds);
  if (seconds > kRateMemorySeconds) {  // One that hung is forgotten like any other.
    bytes *= kRateMemorySeconds / seconds;
    seconds = kRateMemorySeconds;
  }
  destaged_bytes_ = destaged_bytes_ * kept + bytes;
  destage_seconds_ = destage_seconds_ * kept + seconds;
  const bool too_short = destage_seconds_ < kLeastSeconds;
  const double busy = std::max(destage_seconds_, kLeastSeconds);
  destaged_bytes_ = std::min(destaged_bytes_, kMostRate * busy);
  rate_ = std::max(too_short ? rate_ : kLeastRate, destaged_bytes_ / busy);
}

// The circle of queues in which somebody waits: circle_ was served last.
void Throttle::enqueue(Queue& queue, Waiter& waiter, bool first) {
  if (queue.first != nullptr && first) {
    waiter.next = queue.first;
    queue.first = &waiter;
    return;
  }
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
  waiter.waiting = false;
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

// It leaves its queue, and perhaps that the circle; those behind it go on.
void Throttle::give_up(Waiter& waiter) {
  Queue& queue = *waiter.queue;
  Waiter** link = &queue.first;
  Waiter* before = nullptr;
  while (*link != &waiter) {
    before = *link;
    link = &before->next;
  }
  *link = waiter.next;
  if (queue.last == &waiter) queue.last = before;
  waiter.waiting = false;
  if (queue.first == nullptr) {
    Queue* last = circle_;
    while (last->next != &queue) last = last->next;
    last->next = queue.next;
    if (circle_ == &queue) circle_ = last != &queue ? last : nullptr;
  }
  pump();
}

void Throttle::pump() {
  const TimePoint now = home_.now();
  while (circle_ != nullptr) {
    last_wait_ = now;
    Waiter& first = *circle_->next->first;
    const std::uint64_t byte_count = first.byte_count;
    if (hopeless(byte_count)) {
      dequeue().changed.notify_all();
      continue;
    }
    if (used_bytes_ + byte_count > limits_.most_bytes) return;
    if (now < next_admission_) {
      if (timer_.armed()) home_.disarm(timer_);
      timer_.deadline = next_admission_;
      home_.arm(timer_);
      return;
    }
    dequeue();
    note_level(now);
    used_bytes_ += byte_count;
    next_admission_ = std::max(now - kMostBehind, next_admission_) + delay_for(byte_count);
    first.admitted = true;
    first.changed.notify_all();
  }
}

bool Throttle::short_of_room() const noexcept {
  return circle_ != nullptr && used_bytes_ + circle_->next->first->byte_count > limits_.most_bytes;
}

bool Throttle::may_end_pace(TimePoint now) const noexcept {
  return circle_ == nullptr && now - last_wait_ > kCalm && now >= next_admission_;
}

// The level was what it is now since it was noted last, nearly.
void Throttle::note_level(TimePoint now) noexcept {
  const double kept = std::exp(-seconds_of(now - level_time_) / kLevelMemorySeconds);
  level_ = level_ * kept + static_cast<double>(used_bytes_) * (1 - kept);
  level_time_ = now;
}

// Halfway between the high watermark and the limit writers are as fast as the destager; above they
// are slower, at the limit by a quarter. Below they are faster, near the high watermark almost
// three times and at the low one four times: a destager that is always at work may show no more
// than what writers gave it.
Duration Throttle::delay_for(std::uint64_t byte_count) const {
  const auto low = static_cast<double>(limits_.low_bytes);
  const auto high = static_cast<double>(limits_.high_bytes);
  const auto most = static_cast<double>(limits_.most_bytes);
  double factor = 2.75;
  if (level_ >= high) {
    const double room = most > high ? std::max((most - level_) / (most - high), 0.0) : 0.5;
    factor = 0.75 + 2 * room * room * room;
  } else {
    factor += high > low ? 1.25 * std::min((high - level_) / (high - low), 1.0) : 1.25;
  }
  const double seconds = static_cast<double>(byte_count) / (rate_ * factor);
  const auto delay = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return std::min(delay, kLongestDelay);
}

}  // namespace sandbay::cache
