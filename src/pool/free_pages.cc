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
  use(first, count);
  lowest_ = first + count;
  return Run{.first = first, .count = count};
}

bool FreePages::own(PageNumber page) {
  if (owned_.test(page)) return false;
  use(page, 1);
  return true;
}

void FreePages::use(PageNumber first, std::uint32_t count) {
  owned_.assign(first, count, true);
  free_count_ -= count;
  if (stale_count_ == 0) return;
  for (PageNumber page = stale_.find(first, true); page < first + count;
       page = stale_.find(page + 1, true)) {
    stale_.reset(page);
    --stale_count_;
  }
}

std::optional<PageNumber> FreePages::take_stale() {
  if (stale_count_ == 0) return std::nullopt;
  const PageNumber page = stale_.find(lowest_stale_, true);
  assert(page < stale_.size());
  use(page, 1);
  lowest_stale_ = page;
  return page;
}

void FreePages::give_back(PageNumber page, bool stale) {
  assert(owned_.test(page));
  owned_.reset(page);
  ++free_count_;
  lowest_ = std::min(lowest_, page);
  if (!stale) return;
  stale_.set(page);
  ++stale_count_;
  lowest_stale_ = std::min(lowest_stale_, page);
}

void FreePages::grow(std::uint32_t page_count) {
  free_count_ += page_count - owned_.size();
  owned_.grow(page_count);
  stale_.grow(page_count);
}

}  // namespace sandbay::pool
