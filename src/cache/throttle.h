// Throttle: the room for dirty data, and how writers are slowed down when it gets scarce.
//
// Up to the high watermark writers are admitted at once. When they come above it, they are paced:
// each byte costs time, what the destager needs for it where the level is halfway to the limit,
// less while it is low and more while it is high. The level that counts is a mean over a while, and
// the pace ends only when nobody has waited for some time: what the destager releases comes in
// pieces, and whoever was admitted without a pause after each would find nothing left before the
// next. Who waits, waits first come first served with its volume; volumes take turns.
//
// What cannot be destaged just now is set aside: watermarks are those of the room that is left, so
// that a device which has failed slows nobody down who writes to others.
//
// Used on one executor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/patience.h"
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
    if (paced_ || used_bytes_ + byte_count > limits_.high_bytes) return false;
    used_bytes_ += byte_count;
    return true;
  }
  // Ends with true when so many bytes may become dirty; they count from then on. With false if that
  // will not be soon: so much cannot be destaged that there is no room; or when patience has ended.
  // Whoever has `begun`, with an earlier part of the same request, goes before the others of the
  // queue: otherwise many would wait with a part of the room each, and none would end. The queue
  // outlives the call.
  Task<bool> admit(Queue& queue, std::uint64_t byte_count, bool begun = false,
                   Patience patience = {});
  // The same for what is dirty already, without asking.
  void take(std::uint64_t byte_count) noexcept { used_bytes_ += byte_count; }
  // They are not dirty any more, or did not become so.
  void give_back(std::uint64_t byte_count);
  // A destager has begun something, and ended it, having written so much: the pace of writers.
  // Ended before what was written is given back.
  void note_begun();
  void note_destaged(std::uint64_t byte_count);

  // What cannot be destaged just now: room that will not come back soon.
  void add_stuck(std::int64_t byte_count);
  // What is left beside it is too little for that, or for anybody.
  bool hopeless(std::uint64_t byte_count) const noexcept {
    const auto stuck = static_cast<std::uint64_t>(stuck_bytes_);
    const std::uint64_t left = limits_.most_bytes - std::min(stuck, limits_.most_bytes);
    return left < std::max(byte_count, limits_.most_bytes / kLeastShare);
  }

  std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  // As they are now, for used_bytes(): with what is stuck below all of them.
  const Limits& limits() const noexcept { return limits_; }
  bool above_low() const noexcept { return used_bytes_ > limits_.low_bytes; }
  bool above_high() const noexcept { return used_bytes_ > limits_.high_bytes; }
  bool waiting() const noexcept { return circle_ != nullptr; }
  // Whoever is next would not be admitted even if it were his turn.
  bool short_of_room() const noexcept;
  std::int64_t stuck_bytes() const noexcept { return stuck_bytes_; }
  double bytes_per_second() const noexcept { return rate_; }

 private:
  void enqueue(Queue& queue, Waiter& waiter, bool first);
  Waiter& dequeue();
  void give_up(Waiter& waiter);
  void pump();
  bool may_end_pace(TimePoint now) const noexcept;
  void note_level(TimePoint now) noexcept;
  Duration delay_for(std::uint64_t byte_count) const;

  // Of all the room: where less is left beside what is stuck, writes do not wait for it.
  static constexpr std::uint64_t kLeastShare = 16;

  Executor& home_;
  const Limits all_;  // While nothing is stuck.
  Limits limits_;
  std::uint64_t used_bytes_ = 0;
  std::int64_t stuck_bytes_ = 0;
  Queue* circle_ = nullptr;  // The last one that was served; its next is the next.
  bool paced_ = false;       // As long as anybody waits, and some time longer.
  TimePoint last_wait_{};
  TimePoint next_admission_{};
  Timer timer_;
  double level_ = 0;  // The mean of used_bytes_ over the last while.
  TimePoint level_time_{};
  // The destagers' pace: what they did while writers were paced, and how long they were at it;
  // while they had nothing to do no pace shows, and before they were some time at it the pace only
  // rises. Both fade.
  double rate_;
  double destaged_bytes_ = 0;
  double destage_seconds_ = 0;
  TimePoint destage_time_{};  // Until then it is counted.
  unsigned destages_ = 0;     // Begun and not ended.
};

}  // namespace sandbay::cache
