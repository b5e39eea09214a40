// Eviction: which clean line leaves the cache when memory is needed.
//
// S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023): new
// lines wait in a small queue; those that are used again before they reach its end move to the main
// one, the others go, and their keys are remembered for a while: whoever comes back in that time
// starts in the main queue. In there a used line gets another round. So a scan passes through the
// small queue and leaves the rest alone. What was read ahead waits in a queue of its own until it
// is asked for. tools/bench/cache compares it with LRU and ARC.
//
// The policy knows lines as Evictables, in intrusive lists, and nothing else about them. Lines that
// may not go (dirty, being fetched, in use) are not with the policy: the cache removes them when
// they become so and inserts them again afterwards; they come back to where they were.
//
// Used on one executor; nothing here allocates after the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sandbay::cache {

struct Evictable {
  std::uint64_t key = 0;    // Of device and line; the same when the line comes back.
  std::uint32_t bytes = 0;  // What its segments hold; the cache says resized() when it changes.
  // The policy's.
  Evictable* previous = nullptr;
  Evictable* next = nullptr;
  std::uint8_t queue = 0;  // 0: not inserted.
  std::uint8_t hits = 0;
  bool main = false;  // Has been in the main queue.
};

enum class Hint : std::uint8_t {
  kNormal,
  kReadAhead,  // Read before anybody asked for it.
  kOnce,       // Will not be asked for again (DPO): first to go.
};

class Eviction {
 public:
  // `capacity_bytes` is what all lines together may hold; `read_ahead_share` of it is left to what
  // nobody has asked for yet.
  explicit Eviction(std::size_t capacity_bytes, double read_ahead_share = 0.25);
  ~Eviction();
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  void insert(Evictable& line, Hint hint);
  void hit(Evictable& line);        // Asked for again. Inserted or not.
  void first_use(Evictable& line);  // Of what was read ahead.
  void remove(Evictable& line);
  void resized(Evictable& line, std::uint32_t bytes);  // Inserted or not.
  // Of those that nobody has asked for yet; null if there is none.
  Evictable* oldest_read_ahead() const noexcept { return ahead_.last; }
  // Takes the line out that should go next; null if there is none.
  Evictable* take_victim();
  // Whether a line of this key has gone lately will soon be asked, or noted.
  void prefetch(std::uint64_t key) const noexcept;
  // Most probably the next; a hint.
  const Evictable* likely_victim() const noexcept {
    const Queue& queue = small_.bytes >= small_target_ || main_.size == 0 ? small_ : main_;
    return queue.last;
  }

  std::size_t bytes() const noexcept { return small_.bytes + main_.bytes + ahead_.bytes; }
  std::size_t size() const noexcept { return small_.size + main_.size + ahead_.size; }

 private:
  struct Queue {
    Evictable* first = nullptr;  // The newest.
    Evictable* last = nullptr;
    std::size_t bytes = 0;
    std::size_t size = 0;
  };
  struct Ghost {
    std::uint32_t tag = 0;
    std::uint32_t time = 0;
  };
  static constexpr std::uint8_t kSmall = 1;
  static constexpr std::uint8_t kMain = 2;
  static constexpr std::uint8_t kAhead = 3;

  Queue& queue_of(const Evictable& line) noexcept;
  void link(Evictable& line, std::uint8_t queue, bool front);
  Evictable* take_small();
  Evictable* take_main();
  Evictable* take_last(Queue& queue);
  std::size_t ghost_place(std::uint64_t hash) const noexcept;
  Ghost& ghost_of(std::uint64_t key, std::uint32_t& tag) noexcept;
  void remember(const Evictable& line) noexcept;
  bool remembers(std::uint64_t key) noexcept;

  std::size_t small_target_;
  std::size_t ahead_target_;
  Queue small_;
  Queue main_;
  Queue ahead_;
  // Keys of lines that went from the small queue, by their hash; who comes there takes the place.
  std::vector<Ghost> ghosts_;
  std::uint32_t evicted_ = 0;  // From the small queue: the time of ghosts.
};

}  // namespace sandbay::cache
