// The eviction policy: scans leave what is used alone, lines come back to where they were, what was
// read ahead has its own share, and the accounts are right after any sequence of calls.
#include "cache/eviction.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <vector>

#include "runtime/random.h"

namespace sandbay::cache {
namespace {

constexpr std::uint32_t kLine = 64 * 1024;

// A cache of so many lines, without content.
class Lines {
 public:
  explicit Lines(std::size_t capacity) : capacity_(capacity), eviction_(capacity * kLine) {}
  ~Lines() {
    while (eviction_.take_victim() != nullptr) {
    }
  }

  // Whether it was a hit.
  bool use(std::uint64_t key, Hint hint = Hint::kNormal) {
    if (const auto found = lines_.find(key); found != lines_.end()) {
      eviction_.hit(*found->second);
      return true;
    }
    while (lines_.size() >= capacity_) {
      Evictable* const victim = eviction_.take_victim();
      REQUIRE(victim != nullptr);
      lines_.erase(victim->key);
    }
    auto line = std::make_unique<Evictable>();
    line->key = key;
    line->bytes = kLine;
    eviction_.insert(*line, hint);
    lines_.emplace(key, std::move(line));
    return false;
  }
  bool has(std::uint64_t key) const { return lines_.contains(key); }
  Evictable& line(std::uint64_t key) { return *lines_.at(key); }
  Eviction& eviction() { return eviction_; }

 private:
  std::size_t capacity_;
  Eviction eviction_;
  std::map<std::uint64_t, std::unique_ptr<Evictable>> lines_;
};

}  // namespace

TEST_CASE("A scan leaves what is used alone", "[eviction]") {
  Lines lines(100);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t key = 0; key < 80; ++key) lines.use(key);
  }
  for (std::uint64_t key = 1000; key < 3000; ++key) lines.use(key);
  std::size_t left = 0;
  for (std::uint64_t key = 0; key < 80; ++key) left += lines.has(key) ? 1 : 0;
  CHECK(left == 80);
}

TEST_CASE("Who comes back soon starts in the main queue", "[eviction]") {
  Lines lines(100);
  for (std::uint64_t key = 0; key < 100; ++key) {
    lines.use(key);
    lines.use(key);
  }
  for (std::uint64_t key = 500; key < 520; ++key) lines.use(key);
  REQUIRE_FALSE(lines.has(500));
  CHECK_FALSE(lines.use(500));
  CHECK(lines.line(500).main);
  CHECK_FALSE(lines.use(9999));
  CHECK_FALSE(lines.line(9999).main);
}

TEST_CASE("What was read ahead keeps to its share and is not in the way of others", "[eviction]") {
  Lines lines(100);
  for (std::uint64_t key = 0; key < 60; ++key) {
    lines.use(key);
    lines.use(key);
  }
  for (std::uint64_t key = 1000; key < 1500; ++key) lines.use(key, Hint::kReadAhead);
  std::size_t ahead = 0;
  for (std::uint64_t key = 1000; key < 1500; ++key) ahead += lines.has(key) ? 1 : 0;
  CHECK(ahead >= 25);
  std::size_t used = 0;
  for (std::uint64_t key = 0; key < 60; ++key) used += lines.has(key) ? 1 : 0;
  CHECK(used >= 55);
  // The newest are those that will be asked for.
  for (std::uint64_t key = 1480; key < 1500; ++key) CHECK(lines.has(key));
}

TEST_CASE("What is not worth keeping goes first", "[eviction]") {
  Lines lines(20);
  for (std::uint64_t key = 0; key < 19; ++key) lines.use(key);
  lines.use(100, Hint::kOnce);
  lines.use(200);
  CHECK_FALSE(lines.has(100));
  CHECK(lines.has(0));
}

TEST_CASE("Lines that were taken out come back to where they were", "[eviction]") {
  Lines lines(100);
  for (std::uint64_t key = 0; key < 90; ++key) {
    lines.use(key);
    lines.use(key);
  }
  for (std::uint64_t key = 500; key < 530; ++key) lines.use(key);  // Moves them to the main queue.
  Evictable& line = lines.line(5);
  REQUIRE(line.main);
  lines.eviction().remove(line);
  lines.eviction().resized(line, 4096);
  lines.eviction().insert(line, Hint::kNormal);
  CHECK(line.queue != 0);
  for (std::uint64_t key = 2000; key < 2050; ++key) lines.use(key);
  CHECK(lines.has(5));
}

TEST_CASE("The accounts are right after any sequence of calls", "[eviction]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    Eviction eviction(50 * kLine);
    std::vector<Evictable> lines(60);
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i].key = i;
    for (int step = 0; step < 2000; ++step) {
      Evictable& line = lines[random.below(lines.size())];
      switch (random.below(6)) {
        case 0:
          eviction.hit(line);
          break;
        case 1:
          eviction.resized(line, static_cast<std::uint32_t>(random.below(kLine)));
          break;
        case 2:
          if (line.queue != 0) eviction.remove(line);
          break;
        case 3:
          eviction.first_use(line);
          break;
        case 4:
          if (Evictable* const victim = eviction.take_victim()) CHECK(victim->queue == 0);
          break;
        default:
          if (line.queue == 0) eviction.insert(line, static_cast<Hint>(random.below(3)));
      }
      std::size_t bytes = 0;
      std::size_t count = 0;
      for (const Evictable& each : lines) {
        bytes += each.queue != 0 ? each.bytes : 0;
        count += each.queue != 0 ? 1 : 0;
      }
      REQUIRE(eviction.bytes() == bytes);
      REQUIRE(eviction.size() == count);
    }
    std::size_t left = eviction.size();
    while (eviction.take_victim() != nullptr) --left;
    CHECK(left == 0);
  }
}

}  // namespace sandbay::cache
