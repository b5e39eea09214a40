// TimerHeap: a binary heap; every timer in it knows its place.
#include "runtime/timer.h"

#include <cassert>

namespace sandbay {

void TimerHeap::place(std::size_t index, Timer* timer) noexcept {
  heap_[index] = timer;
  timer->heap_index = index;
}

void TimerHeap::sift_up(std::size_t index) noexcept {
  Timer* const timer = heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (heap_[parent]->deadline <= timer->deadline) break;
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, timer);
}

void TimerHeap::sift_down(std::size_t index) noexcept {
  Timer* const timer = heap_[index];
  while (true) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->deadline < heap_[child]->deadline) ++child;
    if (timer->deadline <= heap_[child]->deadline) break;
    place(index, heap_[child]);
    index = child;
  }
  place(index, timer);
}

void TimerHeap::insert(Timer& timer) {
  assert(!timer.armed());
  assert(timer.fire != nullptr);
  heap_.push_back(&timer);
  sift_up(heap_.size() - 1);
}

void TimerHeap::remove(Timer& timer) noexcept {
  if (!timer.armed()) return;
  const std::size_t index = timer.heap_index;
  assert(index < heap_.size() && heap_[index] == &timer);
  timer.heap_index = Timer::kIdle;
  Timer* const last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  place(index, last);
  // The last one comes from another branch, so it may belong above or below.
  sift_up(index);
  sift_down(last->heap_index);
}

Timer* TimerHeap::pop_due(TimePoint now) {
  if (heap_.empty() || heap_.front()->deadline > now) return nullptr;
  Timer* const timer = heap_.front();
  remove(*timer);
  return timer;
}

}  // namespace sandbay
