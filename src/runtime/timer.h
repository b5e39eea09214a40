// Timer: one deadline of one object, intrusive. `fire` runs on the executor that it is armed on,
// once, after the deadline; it may arm the timer again. TimerHeap is the queue both executors use.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/clock.h"

namespace sandbay {

struct Timer {
  static constexpr std::size_t kIdle = ~std::size_t{0};

  TimePoint deadline = kNever;  // As it is while the timer is armed.
  void (*fire)(Timer& timer) = nullptr;
  void* owner = nullptr;
  std::size_t heap_index = kIdle;

  bool armed() const noexcept { return heap_index != kIdle; }
};

// A binary heap by deadline that knows where each timer stands, so that disarming is logarithmic.
class TimerHeap {
 public:
  void insert(Timer& timer);
  void remove(Timer& timer) noexcept;  // Nothing happens if it is not in the heap.
  bool empty() const noexcept { return heap_.empty(); }
  TimePoint earliest() const noexcept { return heap_.empty() ? kNever : heap_.front().deadline; }
  // Takes the earliest timer out if its deadline is at or before `now`, else returns null.
  Timer* pop_due(TimePoint now);
  std::size_t size() const noexcept { return heap_.size(); }

 private:
  struct Entry {
    TimePoint deadline;  // The timer's: looked at without the timer.
    Timer* timer;
  };
  // Finds the place for what is taken to stand at `index`.
  void sift_up(std::size_t index, Entry entry) noexcept;
  void sift_down(std::size_t index, Entry entry) noexcept;

  std::vector<Entry> heap_;
};

}  // namespace sandbay
