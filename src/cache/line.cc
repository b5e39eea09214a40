// Segments of a line: searching, cutting and filling.
#include "cache/line.h"

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/frame_pool.h"

namespace sandbay::cache {
namespace {

std::uint16_t small(unsigned value) {
  assert(value <= kMostLineBlocks);
  return static_cast<std::uint16_t>(value);
}

// The part of a segment within [first, end) of the line.
Buffer bytes_of(const Segment& segment, unsigned first, unsigned end, std::uint32_t block_bytes) {
  return segment.data.slice(std::size_t{first - segment.first} * block_bytes,
                            std::size_t{end - first} * block_bytes);
}

}  // namespace

// SegmentList --------------------------------------------------------------------------------

void SegmentList::grow() {
  const unsigned capacity = capacity_ * 2;
  auto* const items = static_cast<Segment*>(allocate_frame(capacity * sizeof(Segment)));
  for (unsigned i = 0; i < capacity; ++i) new (&items[i]) Segment;
  std::move(items_, items_ + size_, items);
  const unsigned size = size_;
  clear();
  items_ = items;
  size_ = size;
  capacity_ = capacity;
}

void SegmentList::insert(unsigned index, Segment segment) {
  assert(index <= size_);
  if (size_ == capacity_) grow();
  std::move_backward(items_ + index, items_ + size_, items_ + size_ + 1);
  items_[index] = std::move(segment);
  ++size_;
}

void SegmentList::erase(unsigned first, unsigned last) {
  assert(first <= last && last <= size_);
  if (first == last) return;
  std::move(items_ + last, items_ + size_, items_ + first);
  const unsigned gone = last - first;
  for (unsigned i = size_ - gone; i < size_; ++i) items_[i] = Segment{};
  size_ -= gone;
  if (size_ == 0) clear();
}

void SegmentList::clear() noexcept {
  if (items_ == inline_) {
    for (Segment& segment : inline_) segment = Segment{};
  } else {
    for (unsigned i = 0; i < capacity_; ++i) items_[i].~Segment();
    free_frame(items_, capacity_ * sizeof(Segment));
    items_ = inline_;
    capacity_ = kInline;
  }
  size_ = 0;
}

// Line ---------------------------------------------------------------------------------------

unsigned find_segment(const Line& line, unsigned block) noexcept {
  const Segment* const found = std::ranges::partition_point(
      line.segments, [block](const Segment& segment) { return segment.end() <= block; });
  return static_cast<unsigned>(found - line.segments.begin());
}

bool collect(const Line& line, Range range, std::uint32_t block_bytes, BufferList& out) {
  if (first_gap(line, range).count != 0) return false;
  for (unsigned i = find_segment(line, range.first);
       i < line.segments.size() && line.segments[i].first < range.end(); ++i) {
    const Segment& segment = line.segments[i];
    out.append(bytes_of(segment, std::max<unsigned>(segment.first, range.first),
                        std::min(segment.end(), range.end()), block_bytes));
  }
  return true;
}

Range first_gap(const Line& line, Range range) noexcept {
  unsigned at = range.first;
  for (unsigned i = find_segment(line, at); at < range.end() && i < line.segments.size(); ++i) {
    const Segment& segment = line.segments[i];
    if (segment.first > at) {
      return {.first = at, .count = std::min<unsigned>(segment.first, range.end()) - at};
    }
    at = segment.end();
  }
  if (at >= range.end()) return {};
  return {.first = at, .count = range.end() - at};
}

void split(Line& line, unsigned block, std::uint32_t block_bytes) {
  const unsigned index = find_segment(line, block);
  if (index == line.segments.size()) return;
  Segment& segment = line.segments[index];
  if (segment.first >= block) return;
  Segment rest{.first = small(block),
               .count = small(segment.end() - block),
               .in_write_memory = segment.in_write_memory,
               .dirty = segment.dirty,
               .data = bytes_of(segment, block, segment.end(), block_bytes)};
  segment.count = small(block - segment.first);
  segment.data.truncate(std::size_t{segment.count} * block_bytes);
  line.segments.insert(index + 1, std::move(rest));
}

void put(Line& line, Segment segment) {
  const unsigned index = find_segment(line, segment.first);
  assert(index == line.segments.size() || line.segments[index].first >= segment.end());
  line.segments.insert(index, std::move(segment));
}

void fill_gaps(Line& line, Range range, std::uint32_t block_bytes, const BufferList& data) {
  assert(data.byte_count() == std::size_t{range.count} * block_bytes);
  unsigned slice_first = range.first;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    const Buffer& slice = data[i];
    assert(slice.byte_count() % block_bytes == 0);
    const auto count = static_cast<unsigned>(slice.byte_count() / block_bytes);
    const Range covered{.first = slice_first, .count = count};
    for (Range gap = first_gap(line, covered); gap.count != 0; gap = first_gap(line, covered)) {
      put(line, {.first = small(gap.first),
                 .count = small(gap.count),
                 .data = slice.slice(std::size_t{gap.first - slice_first} * block_bytes,
                                     std::size_t{gap.count} * block_bytes)});
    }
    slice_first += count;
  }
}

}  // namespace sandbay::cache
