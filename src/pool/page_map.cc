// PageMap: leaves in memory and as they are stored.
//
// A stored leaf, little-endian: a bit for each of the 256 entries that is not empty (32 bytes), and
// for each of those store (2), page (4) and state (1).
#include "pool/page_map.h"

#include <bit>
#include <cstring>
#include <span>

#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kBitmapBytes = PageMap::kLeafPages / 8;
constexpr std::size_t kEntryBytes = 7;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

void PageMap::set(PageNumber page, const PageEntry& entry) {
  const std::uint32_t number = page / kLeafPages;
  if (find_leaf(number) == nullptr) {
    if (entry.empty()) return;
    if (number >= leaves_.size()) leaves_.resize(number + 1);
    leaves_[number] = std::make_unique<Leaf>();
  }
  Leaf& leaf = *leaves_[number];
  PageEntry& old = leaf.entries[page % kLeafPages];
  count(old.place(), false);
  count(entry.place(), true);
  leaf.used += static_cast<std::uint32_t>(old.empty()) - static_cast<std::uint32_t>(entry.empty());
  old = entry;
  if (leaf.used > 0) return;
  leaves_[number].reset();
  while (!leaves_.empty() && leaves_.back() == nullptr) leaves_.pop_back();
}

void PageMap::count(const Place& place, bool there) {
  if (place.none()) return;
  if (place.store >= by_store_.size()) by_store_.resize(place.store + 1U);
  if (there) {
    ++by_store_[place.store];
    ++placed_count_;
  } else {
    --by_store_[place.store];
    --placed_count_;
  }
}

PageNumber PageMap::next(PageNumber page, PageNumber end) const noexcept {
  while (page < end) {
    const Leaf* const leaf = find_leaf(page / kLeafPages);
    if (leaf == nullptr) {
      if (page / kLeafPages >= leaves_.size()) return end;
      page = (page / kLeafPages + 1) * kLeafPages;
      continue;
    }
    if (!leaf->entries[page % kLeafPages].empty()) return page;
    ++page;
  }
  return end;
}

void PageMap::note_use(PageNumber page) noexcept {
  Leaf* const leaf = find_leaf(page / kLeafPages);
  if (leaf == nullptr) return;
  std::uint8_t& heat = leaf->entries[page % kLeafPages].heat;
  if (heat < 0xff) ++heat;
}

void PageMap::cool(std::uint32_t number) noexcept {
  Leaf* const leaf = find_leaf(number);
  if (leaf == nullptr) return;
  for (PageEntry& entry : leaf->entries) entry.heat /= 2;
}

std::size_t PageMap::byte_count() const noexcept {
  std::size_t bytes = leaves_.capacity() * sizeof leaves_[0];
  for (const auto& leaf : leaves_) bytes += leaf != nullptr ? sizeof(Leaf) : 0;
  return bytes;
}

std::string PageMap::pack_leaf(std::uint32_t number) const {
  const Leaf* const leaf = find_leaf(number);
  if (leaf == nullptr) return {};
  std::string text(kBitmapBytes + leaf->used * kEntryBytes, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text));
  std::size_t at = kBitmapBytes;
  for (std::size_t i = 0; i < kLeafPages; ++i) {
    const PageEntry& entry = leaf->entries[i];
    if (entry.empty()) continue;
    bytes[i / 8] |= static_cast<std::byte>(1U << (i % 8));
    put_little_endian(bytes, at, entry.place_store);
    put_little_endian(bytes, at + 2, entry.place_page);
    bytes[at + 6] = static_cast<std::byte>(entry.state);
    at += kEntryBytes;
  }
  assert(at == text.size());
  return text;
}

Result<void, std::string_view> PageMap::unpack_leaf(std::uint32_t number, std::string_view text) {
  const std::span<const std::byte> bytes = bytes_of(text);
  if (bytes.size() < kBitmapBytes) return std::unexpected("a leaf that is too short");
  auto leaf = std::make_unique<Leaf>();
  std::size_t at = kBitmapBytes;
  for (std::size_t i = 0; i < kLeafPages; ++i) {
    if ((std::to_integer<unsigned>(bytes[i / 8]) >> (i % 8) & 1U) == 0) continue;
    if (bytes.size() - at < kEntryBytes) return std::unexpected("a leaf that is too short");
    PageEntry& entry = leaf->entries[i];
    entry.set_place({.store = little_endian<std::uint16_t>(bytes, at),
                     .page = little_endian<std::uint32_t>(bytes, at + 2)});
    if (bytes[at + 6] > std::byte{3}) return std::unexpected("a page in an unknown state");
    entry.state = static_cast<PageState>(bytes[at + 6]);
    if (entry.empty()) return std::unexpected("a leaf with an empty entry");
    if (entry.state == PageState::kData && entry.place().none()) {
      return std::unexpected("a page with data and without a place");
    }
    ++leaf->used;
    at += kEntryBytes;
  }
  if (at != bytes.size()) return std::unexpected("a leaf that is too long");
  if (leaf->used == 0) return std::unexpected("a leaf without entries");
  if (number >= leaves_.size()) leaves_.resize(number + 1);
  if (leaves_[number] != nullptr) return std::unexpected("a leaf that is there twice");
  leaves_[number] = std::move(leaf);
  for (const PageEntry& entry : leaves_[number]->entries) count(entry.place(), true);
  return {};
}

}  // namespace sandbay::pool
