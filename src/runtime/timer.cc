// TimerHeap: a binary heap; every timer in it knows its place.
#include "runtime/timer.h"

#include <cassert>

namespace sandbay {

void TimerHeap::sift_up(std::size_t index, Entry entry) noexcept {
  Entry* const heap = heap_.data();
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (heap[parent].deadline <= entry.deadline) break;
    heap[index] = heap[parent];
    heap[index].timer->heap_index = index;
    index = parent;
  }
  heap[index] = entry;
  entry.timer->heap_index = index;
}

void TimerHeap::sift_down(std::size_t index, Entry entry) noexcept {
  Entry* const heap = heap_.data();
  const std::size_t size = heap_.size();
  while (true) {
    std::size_t child = 2 * index + 1;
    if (child >= size) break;
    if (child + 1 < size && heap[child + 1].deadline < heap[child].deadline) ++child;
    if (entry.deadline <= heap[child].deadline) break;
    heap[index] = heap[child];
    heap[index].timer->heap_index = index;
    index = child;
  }
  heap[index] = entry;
  entry.timer->heap_index = index;
}

void TimerHeap::insert(Timer& timer) {
  assert(!timer.armed());
  assert(timer.fire != nullptr);
  const Entry entry{.deadline = timer.deadline, .timer = &timer};
  heap_.push_back(entry);
  sift_up(heap_.size() - 1, entry);
}

void TimerHeap::remove(Timer& timer) noexcept {
  if (!timer.armed()) return;
  const std::size_t index = timer.heap_index;
  assert(index < heap_.size() && heap_[index].timer == &timer);
  assert(heap_[index].deadline == timer.deadline);
  timer.heap_index = Timer::kIdle;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.timer == &timer) return;
  // The last one comes from another branch, so it may belong above or below.
  if (index > 0 && last.deadline < heap_[(index - 1) / 2].deadline) {
    sift_up(index, last);
  } else {
    sift_down(index, last);
  }
}

Timer* TimerHeap::pop_due(TimePoint now) {
  if (heap_.empty() || heap_.front().deadline > now) return nullptr;
  Timer* const timer = heap_.front().timer;
  remove(*timer);
  return timer;
}

}  // namespace sandbay
