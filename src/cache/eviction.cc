// The three queues, the keys that are remembered, and who goes next.
//
// A line keeps its count of hits while it is taken out and put back; one that has been in the main
// queue goes back there.
#include "cache/eviction.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace sandbay::cache {
namespace {

// Of the capacity: the small queue's, as the paper has it.
constexpr std::size_t kSmallPart = 10;
constexpr std::uint8_t kMostHits = 3;
// How many bytes of capacity there are to a remembered key.
constexpr std::size_t kBytesPerGhost = 16 * 1024;

// The golden ratio: spreads keys in a row.
std::uint64_t hash_of(std::uint64_t key) { return key * 0x9e3779b97f4a7c15U; }

}  // namespace

Eviction::Eviction(std::size_t capacity_bytes, double read_ahead_share)
    : small_target_(capacity_bytes / kSmallPart),
      ahead_target_(
          static_cast<std::size_t>(static_cast<double>(capacity_bytes) * read_ahead_share)),
      ghosts_(std::bit_ceil(std::max<std::size_t>(64, capacity_bytes / kBytesPerGhost))) {}

Eviction::~Eviction() { assert(size() == 0); }

void Eviction::insert(Evictable& line, Hint hint) {
  assert(line.queue == 0);
  if (hint == Hint::kReadAhead) {
    link(line, kAhead, true);
  } else if (hint == Hint::kOnce) {
    link(line, kSmall, false);
  } else if (line.main || remembers(line.key)) {
    link(line, kMain, true);
  } else {
    link(line, kSmall, true);
  }
}

void Eviction::hit(Evictable& line) {
  line.hits = std::min<std::uint8_t>(line.hits + 1, kMostHits);
  if (line.queue == kAhead) first_use(line);
}

void Eviction::first_use(Evictable& line) {
  if (line.queue != kAhead) return;
  remove(line);
  link(line, line.main ? kMain : kSmall, true);
}

void Eviction::remove(Evictable& line) {
  Queue& queue = queue_of(line);
  (line.previous != nullptr ? line.previous->next : queue.first) = line.next;
  (line.next != nullptr ? line.next->previous : queue.last) = line.previous;
  line.previous = nullptr;
  line.next = nullptr;
  line.queue = 0;
  queue.bytes -= line.bytes;
  --queue.size;
}

void Eviction::resized(Evictable& line, std::uint32_t bytes) {
  if (line.queue != 0) {
    Queue& queue = queue_of(line);
    queue.bytes = queue.bytes - line.bytes + bytes;
  }
  line.bytes = bytes;
}

Evictable* Eviction::take_victim() {
  if (ahead_.bytes > ahead_target_) return take_last(ahead_);
  if (small_.bytes >= small_target_ || main_.size == 0) {
    if (Evictable* const victim = take_small()) return victim;
  }
  if (Evictable* const victim = take_main()) return victim;
  if (Evictable* const victim = take_small()) return victim;
  return take_last(ahead_);
}

// Those that were used again go over to the main queue; the first that was not is the victim.
Evictable* Eviction::take_small() {
  while (Evictable* const line = take_last(small_)) {
    if (line->hits == 0) {
      remember(*line);
      return line;
    }
    line->hits = 0;
    link(*line, kMain, true);
  }
  return nullptr;
}

Evictable* Eviction::take_main() {
  while (Evictable* const line = take_last(main_)) {
    if (line->hits == 0) {
      line->main = false;
      return line;
    }
    --line->hits;
    link(*line, kMain, true);
  }
  return nullptr;
}

Evictable* Eviction::take_last(Queue& queue) {
  Evictable* const line = queue.last;
  if (line != nullptr) remove(*line);
  return line;
}

// Queues ----------------------------------------------------------------------------------------

Eviction::Queue& Eviction::queue_of(const Evictable& line) noexcept {
  assert(line.queue != 0);
  return line.queue == kSmall ? small_ : line.queue == kMain ? main_ : ahead_;
}

void Eviction::link(Evictable& line, std::uint8_t queue, bool front) {
  line.queue = queue;
  if (queue == kMain) line.main = true;
  Queue& target = queue_of(line);
  line.previous = front ? nullptr : target.last;
  line.next = front ? target.first : nullptr;
  (line.previous != nullptr ? line.previous->next : target.first) = &line;
  (line.next != nullptr ? line.next->previous : target.last) = &line;
  target.bytes += line.bytes;
  ++target.size;
}

// Ghosts ----------------------------------------------------------------------------------------

std::size_t Eviction::ghost_place(std::uint64_t hash) const noexcept {
  return hash >> (64 - std::countr_zero(ghosts_.size()));
}

void Eviction::prefetch(std::uint64_t key) const noexcept {
  __builtin_prefetch(&ghosts_[ghost_place(hash_of(key))], 1);
}

Eviction::Ghost& Eviction::ghost_of(std::uint64_t key, std::uint32_t& tag) noexcept {
  const std::uint64_t hash = hash_of(key);
  tag = static_cast<std::uint32_t>(hash);
  return ghosts_[ghost_place(hash)];
}

void Eviction::remember(const Evictable& line) noexcept {
  std::uint32_t tag = 0;
  Ghost& ghost = ghost_of(line.key, tag);
  ghost = {.tag = tag, .time = ++evicted_};
}

// For as many evictions as there are lines in the main queue.
bool Eviction::remembers(std::uint64_t key) noexcept {
  std::uint32_t tag = 0;
  Ghost& ghost = ghost_of(key, tag);
  if (ghost.tag != tag || ghost.time == 0 || evicted_ - ghost.time > main_.size) return false;
  ghost = {};
  return true;
}

}  // namespace sandbay::cache
