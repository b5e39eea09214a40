// PageMap: where the pages of a branch are. Always in memory whole: 8 bytes a page, in leaves of
// 256 entries that exist only where some entry is not empty.
//
// Entries also say what the page's chunks are, where all are the same; only a page whose state is
// kMixed has a ChunkMap (chunk_map.h).
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pool/place.h"
#include "runtime/error.h"

namespace sandbay::pool {

enum class PageState : std::uint8_t {
  kThrough = 0,  // As ChunkState, for all chunks.
  kZero = 1,
  kData = 2,
  kMixed = 3,
};

struct PageEntry {
  PageNumber place_page = 0;
  StoreIndex place_store = kNoStore;
  PageState state = PageState::kThrough;
  std::uint8_t heat = 0;  // Not stored: how often it was used lately.

  Place place() const noexcept { return {.store = place_store, .page = place_page}; }
  void set_place(Place place) noexcept {
    place_store = place.store;
    place_page = place.none() ? 0 : place.page;
  }
  bool empty() const noexcept { return place_store == kNoStore && state == PageState::kThrough; }
};
static_assert(sizeof(PageEntry) == 8);

class PageMap {
 public:
  static constexpr std::uint32_t kLeafPages = 256;

  // Entries beyond what was ever set are empty.
  PageEntry at(PageNumber page) const noexcept {
    const Leaf* leaf = find_leaf(page / kLeafPages);
    return leaf != nullptr ? leaf->entries[page % kLeafPages] : PageEntry{};
  }
  bool any_in_leaf(std::uint32_t leaf) const noexcept { return find_leaf(leaf) != nullptr; }
  // Behind the last leaf that has entries.
  std::uint32_t leaf_end() const noexcept { return static_cast<std::uint32_t>(leaves_.size()); }
  void set(PageNumber page, const PageEntry& entry);
  void note_use(PageNumber page) noexcept;
  // Halves the heat of a leaf's pages.
  void cool(std::uint32_t leaf) noexcept;
  // Pages with a place.
  std::uint64_t placed_count() const noexcept { return placed_count_; }
  // Pages that are in that store.
  std::uint32_t count_on(StoreIndex store) const noexcept {
    return store < by_store_.size() ? by_store_[store] : 0;
  }
  // The first page at or behind `page` whose entry is not empty, or `end`.
  PageNumber next(PageNumber page, PageNumber end) const noexcept;
  std::size_t byte_count() const noexcept;

  // A leaf as it is stored; empty if it has no entries. The error is half a sentence, and then
  // nothing has changed.
  std::string pack_leaf(std::uint32_t leaf) const;
  Result<void, std::string_view> unpack_leaf(std::uint32_t leaf, std::string_view text);

 private:
  struct Leaf {
    std::array<PageEntry, kLeafPages> entries{};
    std::uint32_t used = 0;  // Entries that are not empty.
  };
  Leaf* find_leaf(std::uint32_t leaf) const noexcept {
    return leaf < leaves_.size() ? leaves_[leaf].get() : nullptr;
  }

  void count(const Place& place, bool there);

  std::vector<std::unique_ptr<Leaf>> leaves_;
  std::uint64_t placed_count_ = 0;
  std::vector<std::uint32_t> by_store_;
};

}  // namespace sandbay::pool
