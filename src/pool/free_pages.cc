// FreePages: first fit in ascending order, from a mark before which nothing is free.
#include "pool/free_pages.h"

#include <algorithm>
#include <cassert>

namespace sandbay::pool {

std::optional<FreePages::Run> FreePages::take(std::uint32_t most) {
  assert(most > 0);
  if (free_count_ == 0) return std::nullopt;
  const PageNumber first = owned_.find(lowest_, false);
  assert(first < owned_.size());
  const std::uint32_t count = std::min(most, owned_.find(first, true) - first);
  owned_.assign(first, count, true);
  free_count_ -= count;
  lowest_ = first + count;
  return Run{.first = first, .count = count};
}

bool FreePages::own(PageNumber page) {
  if (owned_.test(page)) return false;
  owned_.set(page);
  --free_count_;
  return true;
}

void FreePages::give_back(PageNumber page) {
  assert(owned_.test(page));
  owned_.reset(page);
  ++free_count_;
  lowest_ = std::min(lowest_, page);
}

void FreePages::grow(std::uint32_t page_count) {
  free_count_ += page_count - owned_.size();
  owned_.grow(page_count);
}

}  // namespace sandbay::pool
