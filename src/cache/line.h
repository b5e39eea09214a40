// Line: 64 KiB of a device's address space, and what the cache has of it.
//
// A line has segments: runs of blocks with their bytes, in ascending order, never overlapping. A
// block is valid if a segment has it, and dirty if that segment names a dirty part. Bytes that are
// in a segment never change: an overwrite cuts the old segment and puts another buffer in.
//
// The functions here know nothing of devices, pools or I/O.
#pragma once

#include <bitset>
#include <cassert>
#include <cstdint>
#include <memory>

#include "cache/eviction.h"
#include "runtime/buffer.h"
#include "runtime/clock.h"

namespace sandbay::cache {

class CachedDevice;
struct DirtyPart;
struct FetchPart;
struct VolumeState;

inline constexpr std::uint32_t kLineBytes = 64 * 1024;
inline constexpr unsigned kMostLineBlocks = kLineBytes / 512;

// Blocks within a line.
struct Range {
  unsigned first = 0;
  unsigned count = 0;

  unsigned end() const noexcept { return first + count; }
  bool overlaps(const Range& other) const noexcept {
    return first < other.end() && other.first < end();
  }
};

struct Segment {
  std::uint16_t first = 0;
  std::uint16_t count = 0;
  bool in_write_memory = false;  // `data` lies in the data area of the NVRAM.
  DirtyPart* dirty = nullptr;    // Who has to be destaged; null: what is below is the same.
  Buffer data;                   // count blocks.

  unsigned end() const noexcept { return unsigned{first} + count; }
};

// The segments of a line in ascending order. Two stand inside; more are in pooled memory.
class SegmentList {
 public:
  SegmentList() = default;
  ~SegmentList() { clear(); }
  SegmentList(const SegmentList&) = delete;
  SegmentList& operator=(const SegmentList&) = delete;

  unsigned size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  Segment& operator[](unsigned index) noexcept {
    assert(index < size_);
    return items_[index];
  }
  const Segment& operator[](unsigned index) const noexcept {
    assert(index < size_);
    return items_[index];
  }
  Segment* begin() noexcept { return items_; }
  Segment* end() noexcept { return items_ + size_; }
  const Segment* begin() const noexcept { return items_; }
  const Segment* end() const noexcept { return items_ + size_; }

  void insert(unsigned index, Segment segment);
  void erase(unsigned first, unsigned last);  // [first, last)
  void clear() noexcept;

 private:
  static constexpr unsigned kInline = 2;
  void grow();

  Segment inline_[kInline];
  Segment* items_ = inline_;
  unsigned size_ = 0;
  unsigned capacity_ = kInline;
};

struct Line : Evictable {
  // What it is: never changes while it is in the index. `key` of Evictable is made of both.
  CachedDevice* device = nullptr;
  std::uint64_t number = 0;
  Line* next_in_bucket = nullptr;

  SegmentList segments;
  // Parts of dirty records that are not released yet, oldest first; see dirty.h.
  DirtyPart* first_part = nullptr;
  DirtyPart* last_part = nullptr;
  FetchPart* fetches = nullptr;  // In flight.
  // What was read ahead and that nobody has asked for yet.
  std::bitset<kMostLineBlocks> unread;
  VolumeState* read_ahead_for = nullptr;
  TimePoint read_ahead_at{};
  std::uint32_t pins = 0;  // Whoever waits and comes back to it.
  bool listed = false;     // In the eviction policy: clean and of use to nobody just now.
  // The list of lines with clean segments in write memory, oldest first.
  Line* previous_clean = nullptr;
  Line* next_clean = nullptr;
  bool in_clean_list = false;
  std::uint32_t clean_bytes = 0;  // In write memory, while it is in that list.

  bool pinned() const noexcept { return pins != 0 || first_part != nullptr || fetches != nullptr; }
};

// The index of the first segment that ends behind `block`; size() if there is none.
unsigned find_segment(const Line& line, unsigned block) noexcept;

// Appends shared slices of the range to `out` if all of it is valid; else changes nothing.
bool collect(const Line& line, Range range, std::uint32_t block_bytes, BufferList& out);

// The first run of blocks within `range` that no segment has; empty if there is none.
Range first_gap(const Line& line, Range range) noexcept;

// Makes `block` a border between segments.
void split(Line& line, unsigned block, std::uint32_t block_bytes);

// Takes the range out. Calls visit(segment) for each segment that goes.
template <class Visit>
void cut(Line& line, Range range, std::uint32_t block_bytes, Visit visit) {
  split(line, range.first, block_bytes);
  split(line, range.end(), block_bytes);
  const unsigned first = find_segment(line, range.first);
  unsigned last = first;
  while (last < line.segments.size() && line.segments[last].first < range.end()) {
    visit(line.segments[last]);
    ++last;
  }
  line.segments.erase(first, last);
}

// Puts a segment where nothing is.
void put(Line& line, Segment segment);

// Puts slices of `data`, which is the range's content, into the gaps of the range.
void fill_gaps(Line& line, Range range, std::uint32_t block_bytes, const BufferList& data);

}  // namespace sandbay::cache
