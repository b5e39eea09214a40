// Eviction: which clean line leaves the cache when memory is needed.
//
// The policy knows lines as Evictables, in intrusive lists, and nothing else about them. Lines that
// may not go (dirty, being fetched, in use) are not with the policy: the cache removes them when
// they become so and inserts them again afterwards.
//
// Used on one executor; nothing here allocates in the steady state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sandbay::cache {

struct Evictable {
  std::uint64_t key = 0;    // Of device and line; the same when the line comes back.
  std::uint32_t bytes = 0;  // What its segments hold; the cache says resized() when it changes.
  // The policy's.
  Evictable* previous = nullptr;
  Evictable* next = nullptr;
  std::uint8_t queue = 0;
  std::uint8_t hits = 0;
};

enum class Hint : std::uint8_t {
  kNormal,
  kReadAhead,  // Read before anybody asked for it.
  kOnce,       // Will not be asked for again (DPO): first to go.
};

class Eviction {
 public:
  explicit Eviction(std::size_t capacity_bytes);
  ~Eviction();
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  void insert(Evictable& line, Hint hint);
  void hit(Evictable& line);  // Inserted or not: the use counts when it is inserted again.
  void remove(Evictable& line);
  void resized(Evictable& line, std::uint32_t bytes);  // Inserted or not.
  // Takes the line out that should go next; null if there is none.
  Evictable* take_victim();

  std::size_t bytes() const noexcept { return bytes_; }  // Of the lines that are inserted.
  std::size_t size() const noexcept { return size_; }

 private:
  void link_front(Evictable& line);
  void link_back(Evictable& line);
  void unlink(Evictable& line);

  Evictable* first_ = nullptr;  // Most recently used.
  Evictable* last_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t size_ = 0;
};

}  // namespace sandbay::cache
