// Least recently used first.
#include "cache/eviction.h"

#include <cassert>

namespace sandbay::cache {

Eviction::Eviction(std::size_t /*capacity_bytes*/) {}

Eviction::~Eviction() { assert(size_ == 0); }

void Eviction::insert(Evictable& line, Hint hint) {
  if (hint == Hint::kOnce) {
    link_back(line);
  } else {
    link_front(line);
  }
  bytes_ += line.bytes;
  ++size_;
  line.queue = 1;
}

void Eviction::hit(Evictable& line) {
  if (line.queue == 0 || first_ == &line) return;
  unlink(line);
  link_front(line);
}

void Eviction::remove(Evictable& line) {
  assert(line.queue != 0);
  unlink(line);
  bytes_ -= line.bytes;
  --size_;
  line.queue = 0;
}

void Eviction::resized(Evictable& line, std::uint32_t bytes) {
  if (line.queue != 0) bytes_ = bytes_ - line.bytes + bytes;
  line.bytes = bytes;
}

Evictable* Eviction::take_victim() {
  Evictable* const victim = last_;
  if (victim != nullptr) remove(*victim);
  return victim;
}

void Eviction::link_front(Evictable& line) {
  line.previous = nullptr;
  line.next = first_;
  (first_ != nullptr ? first_->previous : last_) = &line;
  first_ = &line;
}

void Eviction::link_back(Evictable& line) {
  line.next = nullptr;
  line.previous = last_;
  (last_ != nullptr ? last_->next : first_) = &line;
  last_ = &line;
}

void Eviction::unlink(Evictable& line) {
  (line.previous != nullptr ? line.previous->next : first_) = line.next;
  (line.next != nullptr ? line.next->previous : last_) = line.previous;
  line.previous = nullptr;
  line.next = nullptr;
}

}  // namespace sandbay::cache
