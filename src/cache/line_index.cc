// Buckets and slabs.
#include "cache/line_index.h"

#include <bit>

namespace sandbay::cache {

LineIndex::LineIndex(std::size_t most_lines)
    : most_lines_(most_lines),
      mask_(std::bit_ceil(most_lines) - 1),
      buckets_(std::make_unique<Line*[]>(mask_ + 1)) {
  assert(most_lines > 0);
}

LineIndex::~LineIndex() { assert(size_ == 0); }

Line& LineIndex::add(CachedDevice& device, std::uint64_t key, std::uint64_t number) {
  assert(find(key) == nullptr);
  if (free_ == nullptr) {
    slabs_.push_back(std::make_unique<Line[]>(kSlabLines));
    for (std::size_t i = kSlabLines; i-- > 0;) {
      slabs_.back()[i].next_in_bucket = free_;
      free_ = &slabs_.back()[i];
    }
  }
  Line* const line = free_;
  free_ = line->next_in_bucket;
  line->key = key;
  line->device = &device;
  line->number = number;
  Line*& first = buckets_[bucket(key)];
  line->next_in_bucket = first;
  first = line;
  ++size_;
  return *line;
}

void LineIndex::remove(Line& line) {
  assert(line.segments.empty() && !line.pinned() && !line.listed && !line.in_clean_list);
  Line** link = &buckets_[bucket(line.key)];
  while (*link != &line) link = &(*link)->next_in_bucket;
  *link = line.next_in_bucket;
  line.device = nullptr;
  line.bytes = 0;
  line.hits = 0;
  line.unread.reset();
  line.read_ahead_for = nullptr;
  line.next_in_bucket = free_;
  free_ = &line;
  --size_;
}

}  // namespace sandbay::cache
