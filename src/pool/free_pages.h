// FreePages: which pages of a store are owned: by a branch, by what snapshots keep, or by an
// operation that is about to. One bit a page. It is not stored: it is the complement of the maps.
//
// Pages are given in ascending order of their number, so that a volume made on an empty store lies
// in one run (as GigaStor's extents do), and what is given back is used again first. The
// search skips full groups of pages by their counts, so its cost hardly grows with the store.
//
// A free page that was owned since the start is stale: its store still keeps what was in it. Stale
// pages are taken one by one by whoever unmaps them there, and are clean then.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pool/bit_set.h"
#include "pool/place.h"

namespace sandbay::pool {

class FreePages {
 public:
  FreePages() = default;
  explicit FreePages(std::uint32_t page_count) { grow(page_count); }

  std::uint32_t page_count() const noexcept { return owned_.size(); }
  std::uint32_t free_count() const noexcept { return free_count_; }
  bool owned(PageNumber page) const noexcept { return owned_.test(page); }

  struct Run {
    PageNumber first = 0;
    std::uint32_t count = 0;
  };
  // The first free page and those free behind it, at most `most` (positive); owned from now on.
  std::optional<Run> take(std::uint32_t most);
  // False if it was owned already.
  bool own(PageNumber page);
  // It is owned. `stale`: it may have been written.
  void give_back(PageNumber page, bool stale = true);
  std::uint32_t stale_count() const noexcept { return stale_count_; }
  // A stale page; owned from now on, and to be given back.
  std::optional<PageNumber> take_stale();
  void grow(std::uint32_t page_count);

 private:
  static constexpr std::uint32_t kGroupPages = 4096;

  void use(PageNumber first, std::uint32_t count);
  PageNumber first_free() const noexcept;
  template <class Visit>
  static void for_groups(PageNumber first, PageNumber end, Visit visit);

  BitSet owned_;
  BitSet stale_;
  std::vector<std::uint16_t> free_in_;  // By group of kGroupPages pages.
  std::uint32_t free_count_ = 0;
  std::uint32_t stale_count_ = 0;
  PageNumber lowest_ = 0;        // No page before it is free.
  PageNumber lowest_stale_ = 0;  // No page before it is stale.
};

}  // namespace sandbay::pool
