// Buckets and slabs.
#include "cache/line_index.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>

namespace sandbay::cache {

LineIndex::LineIndex(std::size_t most_lines)
    : most_lines_(most_lines),
      slab_lines_(std::min(most_lines, kMostSlabLines)),
      mask_(std::bit_ceil(most_lines) - 1) {
  assert(most_lines > 0);
  buckets_ = reinterpret_cast<Line**>(map_huge_pages(bucket_bytes()));
  if (buckets_ == nullptr) throw std::bad_alloc();
}

LineIndex::~LineIndex() {
  assert(size_ == 0);
  for (std::byte* const slab : slabs_) {
    Line* const lines = reinterpret_cast<Line*>(slab);
    std::destroy_n(lines, slab == slabs_.back() ? made_ : slab_lines_);
    unmap_huge_pages(slab, slab_lines_ * sizeof(Line));
  }
  unmap_huge_pages(reinterpret_cast<std::byte*>(buckets_), bucket_bytes());
}

// A line that has never been one.
Line* LineIndex::make_line() {
  if (slabs_.empty() || made_ == slab_lines_) {
    std::byte* const slab = map_huge_pages(slab_lines_ * sizeof(Line));
    if (slab == nullptr) throw std::bad_alloc();
    slabs_.push_back(slab);
    made_ = 0;
  }
  return new (slabs_.back() + made_++ * sizeof(Line)) Line;
}

Line& LineIndex::add(CachedDevice& device, std::uint64_t key, std::uint64_t number) {
  assert(find(key) == nullptr);
  Line* const line = free_ != nullptr ? free_ : make_line();
  if (line == free_) free_ = line->next_in_bucket;
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
  line.main = false;
  line.unread.reset();
  line.read_ahead_for = nullptr;
  line.next_in_bucket = free_;
  free_ = &line;
  --size_;
}

}  // namespace sandbay::cache
