// Lost sectors in a map by first block; their bytes:
//
//   48  8  blocks of the set       64     extents in order, none touching the next:
//   56  8  blocks joined for want         8 first block, 8 block count
//          of room
#include "raid/lost_sectors.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include <fmt/format.h>

#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kBlockCountAt = 48;
constexpr std::size_t kMergedAt = 56;
constexpr std::size_t kExtentsAt = 64;
constexpr std::size_t kExtentBytes = 16;
static_assert(kExtentsAt + kMostLostExtents * kExtentBytes <= kLostSectorsBytes);

}  // namespace

// Joins with whatever it overlaps or touches. False if all of it was there.
bool LostSectors::put(Extent extent) {
  auto at = extents_.upper_bound(extent.first);
  if (at != extents_.begin()) {
    const auto before = std::prev(at);
    const Lba end = before->first + before->second;
    if (end >= extent.end()) return false;
    if (end >= extent.first) {
      extent = {.first = before->first, .block_count = extent.end() - before->first};
      lost_blocks_ -= before->second;
      at = extents_.erase(before);
    }
  }
  while (at != extents_.end() && at->first <= extent.end()) {
    const Lba end = std::max(extent.end(), at->first + at->second);
    extent.block_count = end - extent.first;
    lost_blocks_ -= at->second;
    at = extents_.erase(at);
  }
  extents_.emplace_hint(at, extent.first, extent.block_count);
  lost_blocks_ += extent.block_count;
  return true;
}

// Closes the smallest gap that has none of the blocks to keep: they have just been rewritten.
void LostSectors::make_room(Extent keep) {
  auto best = extents_.begin();
  std::uint64_t best_gap = ~std::uint64_t{0};
  for (auto at = extents_.begin(); std::next(at) != extents_.end(); ++at) {
    const Lba end = at->first + at->second;
    const std::uint64_t gap = std::next(at)->first - end;
    if (gap >= best_gap || keep.overlaps({.first = end, .block_count = gap})) continue;
    best = at;
    best_gap = gap;
  }
  const auto after = std::next(best);
  best->second = after->first + after->second - best->first;
  extents_.erase(after);
  lost_blocks_ += best_gap;
  merged_blocks_ += best_gap;
}

bool LostSectors::add(Extent extent) {
  assert(extent.block_count <= block_count_ && extent.first <= block_count_ - extent.block_count);
  if (extent.block_count == 0) return false;
  if (!put(extent)) return false;
  while (extents_.size() > kMostLostExtents) make_room({});
  changed_ = true;
  return true;
}

bool LostSectors::remove(Extent extent) {
  const Extent rewritten = extent;
  bool removed = false;
  while (extent.block_count > 0) {
    const auto hit = first_overlap(extent);
    if (!hit.has_value()) break;
    const auto at = std::prev(extents_.upper_bound(*hit));
    const Extent old{.first = at->first, .block_count = at->second};
    extents_.erase(at);
    lost_blocks_ -= old.block_count;
    if (old.first < extent.first) {
      put({.first = old.first, .block_count = extent.first - old.first});
    }
    if (old.end() > extent.end()) {
      put({.first = extent.end(), .block_count = old.end() - extent.end()});
    }
    removed = true;
  }
  if (!removed) return false;
  while (extents_.size() > kMostLostExtents) make_room(rewritten);
  changed_ = true;
  return true;
}

std::optional<Lba> LostSectors::first_overlap(Extent extent) const {
  if (extent.block_count == 0) return std::nullopt;
  const auto after = extents_.upper_bound(extent.first);
  if (after != extents_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second > extent.first) return extent.first;
  }
  if (after == extents_.end() || after->first >= extent.end()) return std::nullopt;
  return after->first;
}

std::vector<Extent> LostSectors::extents() const {
  std::vector<Extent> all;
  all.reserve(extents_.size());
  for (const auto& [first, count] : extents_) all.push_back({.first = first, .block_count = count});
  return all;
}

std::vector<std::byte> LostSectors::encode_next() {
  ++sequence_;
  changed_ = false;
  std::vector<std::byte> image(kExtentsAt + extents_.size() * kExtentBytes);
  put_little_endian(std::span(image), kBlockCountAt, block_count_);
  put_little_endian(std::span(image), kMergedAt, merged_blocks_);
  std::size_t at = kExtentsAt;
  for (const auto& [first, count] : extents_) {
    put_little_endian(std::span(image), at, first);
    put_little_endian(std::span(image), at + sizeof first, count);
    at += kExtentBytes;
  }
  seal_image(image, {.magic = kLostSectorsMagic, .sequence = sequence_, .uuid = set_uuid_});
  return image;
}

std::expected<LostSectors, std::string> LostSectors::decode(std::span<const std::byte> bytes) {
  const auto opened =
      open_image(bytes.first(std::min(bytes.size(), kLostSectorsBytes)), kLostSectorsMagic);
  if (!opened.has_value()) return std::unexpected(opened.error());
  const std::span<const std::byte> image = opened->bytes;
  if (image.size() < kExtentsAt || (image.size() - kExtentsAt) % kExtentBytes != 0 ||
      (image.size() - kExtentsAt) / kExtentBytes > kMostLostExtents) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  LostSectors lost(opened->uuid, little_endian<std::uint64_t>(image, kBlockCountAt));
  lost.merged_blocks_ = little_endian<std::uint64_t>(image, kMergedAt);
  lost.sequence_ = opened->sequence;
  for (std::size_t at = kExtentsAt; at < image.size(); at += kExtentBytes) {
    const Extent extent{.first = little_endian<std::uint64_t>(image, at),
                        .block_count = little_endian<std::uint64_t>(image, at + 8)};
    if (extent.block_count == 0 || extent.block_count > lost.block_count_ ||
        extent.first > lost.block_count_ - extent.block_count) {
      return std::unexpected("an extent lies outside the set");
    }
    if (!lost.extents_.empty()) {
      const auto& [first, count] = *lost.extents_.rbegin();
      if (extent.first <= first + count) return std::unexpected("its extents are not in order");
    }
    lost.extents_.emplace_hint(lost.extents_.end(), extent.first, extent.block_count);
    lost.lost_blocks_ += extent.block_count;
  }
  return lost;
}

}  // namespace sandbay::raid
