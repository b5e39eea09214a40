// Throttle: the room for dirty data, and how writers are slowed down when it gets scarce.
//
// Up to the high watermark writers are admitted at once. Above it each byte costs time: the more,
// the nearer the level is to the limit, and halfway what the destager needs for it, so that writers
// are slowed smoothly down to its pace before they would hit the limit. Who waits, waits first come
// first served with its volume; volumes take turns.
//
// Used on one executor.
#pragma once

#include <cstdint>

#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class Throttle {
 public:
  struct Limits {
    std::uint64_t low_bytes = 0;   // Destaging goes down to it.
    std::uint64_t high_bytes = 0;  // Delays begin.
    std::uint64_t most_bytes = 0;
  };

  Throttle(Executor& home, Limits limits);
  ~Throttle();
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  struct Waiter;
  // One a volume.
  struct Queue {
    Waiter* first = nullptr;
    Waiter* last = nullptr;
    Queue* next = nullptr;  // In the circle of those that wait.
  };

  // At once, if nobody waits and the level allows it.
  bool try_admit(std::uint64_t byte_count) noexcept {
    if (circle_ != nullptr || used_bytes_ + byte_count > limits_.high_bytes) return false;
    used_bytes_ += byte_count;
    return true;
  }
  // Ends with true when so many bytes may become dirty; they count from then on. With false if that
  // will not be soon: so much cannot be destaged that there is no room.
  Task<bool> admit(Queue& queue, std::uint64_t byte_count);
  // The same for what is dirty already, without asking.
  void take(std::uint64_t byte_count) noexcept { used_bytes_ += byte_count; }
  // They are not dirty any more, or did not become so.
  void give_back(std::uint64_t byte_count);
  // Written by the destager: the pace of writers.
  void note_destaged(std::uint64_t byte_count);

  // What cannot be destaged just now: room that will not come back soon.
  void add_stuck(std::int64_t byte_count);
  bool hopeless(std::uint64_t byte_count) const noexcept {
    return stuck_bytes_ + static_cast<std::int64_t>(byte_count) >
           static_cast<std::int64_t>(limits_.most_bytes);
  }

  std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  const Limits& limits() const noexcept { return limits_; }
  bool above_low() const noexcept { return used_bytes_ > limits_.low_bytes; }
  bool above_high() const noexcept { return used_bytes_ > limits_.high_bytes; }
  bool waiting() const noexcept { return circle_ != nullptr; }
  std::int64_t stuck_bytes() const noexcept { return stuck_bytes_; }
  double bytes_per_second() const noexcept { return rate_; }

 private:
  void enqueue(Queue& queue, Waiter& waiter);
  Waiter& dequeue();
  void pump();
  Duration delay_for(std::uint64_t byte_count) const;

  Executor& home_;
  Limits limits_;
  std::uint64_t used_bytes_ = 0;
  std::int64_t stuck_bytes_ = 0;
  Queue* circle_ = nullptr;  // The last one that was served; its next is the next.
  TimePoint next_admission_{};
  Timer timer_;
  // The destager's pace: bytes of the window that runs, and the mean of those before.
  TimePoint window_start_{};
  std::uint64_t window_bytes_ = 0;
  double rate_;
};

}  // namespace sandbay::cache
