// LineIndex: the lines of all devices of a cache, by device and line number.
//
// A hash table of fixed size over lines from slabs: in the steady state nothing is allocated, and
// both stand in huge pages, as most of them are in no processor's cache when they are needed. A
// line stays where it is in memory from obtain() to remove().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/line.h"
#include "runtime/huge_pages.h"

namespace sandbay::cache {

class LineIndex {
 public:
  // Made for so many lines, 1 or more. Its owner keeps to that, mostly.
  explicit LineIndex(std::size_t most_lines);
  ~LineIndex();  // It is empty.
  LineIndex(const LineIndex&) = delete;
  LineIndex& operator=(const LineIndex&) = delete;

  static std::uint64_t key_of(std::uint16_t device, std::uint64_t number) noexcept {
    return std::uint64_t{device} << 48U | number;
  }

  Line* find(std::uint64_t key) const noexcept {
    for (Line* line = buckets_[bucket(key)]; line != nullptr; line = line->next_in_bucket) {
      if (line->key == key) return line;
    }
    return nullptr;
  }
  // Will be looked for soon.
  void prefetch(std::uint64_t key) const noexcept { __builtin_prefetch(&buckets_[bucket(key)], 1); }
  // A new, empty line.
  Line& add(CachedDevice& device, std::uint64_t key, std::uint64_t number);
  void remove(Line& line);  // Without segments, and not pinned.

  std::size_t size() const noexcept { return size_; }
  std::size_t most_lines() const noexcept { return most_lines_; }

  // Calls visit(line) for every line; it may remove that line and no other.
  template <class Visit>
  void for_each(Visit visit) {
    for (std::size_t i = 0; i <= mask_; ++i) {
      for (Line* line = buckets_[i]; line != nullptr;) {
        Line* const next = line->next_in_bucket;
        visit(*line);
        line = next;
      }
    }
  }

 private:
  static constexpr std::size_t kMostSlabLines = kHugePageBytes / sizeof(Line);

  std::size_t bucket(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15U) >> 20U) & mask_;
  }
  std::size_t bucket_bytes() const noexcept { return (mask_ + 1) * sizeof(Line*); }
  Line* make_line();

  std::size_t most_lines_;
  std::size_t slab_lines_;
  std::size_t size_ = 0;
  std::size_t mask_ = 0;
  Line** buckets_ = nullptr;
  std::vector<std::byte*> slabs_;
  std::size_t made_ = 0;  // Lines that the last slab has.
  Line* free_ = nullptr;  // Linked by next_in_bucket.
};

}  // namespace sandbay::cache
