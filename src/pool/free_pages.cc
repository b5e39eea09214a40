// FreePages: first fit in ascending order, from a mark before which nothing is free.
#include "pool/free_pages.h"

#include <algorithm>
#include <cassert>

namespace sandbay::pool {

// Calls visit(group, pages of it) for the pages from `first` to `end`.
template <class Visit>
void FreePages::for_groups(PageNumber first, PageNumber end, Visit visit) {
  while (first < end) {
    const std::uint32_t pages = std::min(end - first, kGroupPages - first % kGroupPages);
    visit(first / kGroupPages, pages);
    first += pages;
  }
}

std::optional<FreePages::Run> FreePages::take(std::uint32_t most) {
  assert(most > 0);
  if (free_count_ == 0) return std::nullopt;
  const PageNumber first = first_free();
  const std::uint32_t end = first + std::min(most, owned_.size() - first);
  const std::uint32_t count = owned_.find(first, true, end) - first;
  use(first, count);
  lowest_ = first + count;
  return Run{.first = first, .count = count};
}

// Requires a free page.
PageNumber FreePages::first_free() const noexcept {
  std::uint32_t group = lowest_ / kGroupPages;
  PageNumber from = lowest_;
  while (true) {
    while (free_in_[group] == 0) from = ++group * kGroupPages;
    const PageNumber end = from + std::min(owned_.size() - from, kGroupPages - from % kGroupPages);
    const PageNumber page = owned_.find(from, false, end);
    if (page < end) return page;
    from = ++group * kGroupPages;
  }
}

bool FreePages::own(PageNumber page) {
  if (owned_.test(page)) return false;
  use(page, 1);
  return true;
}

void FreePages::use(PageNumber first, std::uint32_t count) {
  owned_.assign(first, count, true);
  free_count_ -= count;
  const PageNumber end = first + count;
  for_groups(first, end, [this](std::uint32_t group, std::uint32_t pages) {
    free_in_[group] = static_cast<std::uint16_t>(free_in_[group] - pages);
  });
  if (stale_count_ == 0) return;
  for (PageNumber page = stale_.find(first, true, end); page < end;
       page = stale_.find(page + 1, true, end)) {
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
  ++free_in_[page / kGroupPages];
  lowest_ = std::min(lowest_, page);
  if (!stale) return;
  stale_.set(page);
  ++stale_count_;
  lowest_stale_ = std::min(lowest_stale_, page);
}

void FreePages::grow(std::uint32_t page_count) {
  free_count_ += page_count - owned_.size();
  free_in_.resize((page_count + std::size_t{kGroupPages} - 1) / kGroupPages);
  for_groups(owned_.size(), page_count, [this](std::uint32_t group, std::uint32_t pages) {
    free_in_[group] = static_cast<std::uint16_t>(free_in_[group] + pages);
  });
  owned_.grow(page_count);
  stale_.grow(page_count);
}

}  // namespace sandbay::pool
