// LostSectors: blocks of a set that are lost beyond redundancy. A read of one ends in a medium
// error until it is rewritten.
//
// An ordered set of extents that neither overlap nor touch, at most kMostLostExtents of them. When
// there would be more, the two with the smallest gap become one, gap included: that more is
// reported lost than is, is honest, the opposite would not be. merged_blocks() counts such blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "raid/superblock.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::string_view kLostSectorsMagic = "SBRAIDLS";
inline constexpr std::size_t kMostLostExtents = 4090;  // What fits kLostSectorsBytes.

class LostSectors {
 public:
  // Of a set of so many blocks.
  LostSectors(const Uuid& set_uuid, std::uint64_t block_count)
      : set_uuid_(set_uuid), block_count_(block_count) {}

  const Uuid& set_uuid() const noexcept { return set_uuid_; }
  std::uint64_t set_block_count() const noexcept { return block_count_; }

  // Both tell whether anything changed. Extents lie within the set.
  bool add(Extent extent);
  bool remove(Extent extent);  // Has been rewritten.
  // The first lost block within the extent.
  std::optional<Lba> first_overlap(Extent extent) const;

  bool empty() const noexcept { return extents_.empty(); }
  std::size_t extent_count() const noexcept { return extents_.size(); }
  std::uint64_t lost_blocks() const noexcept { return lost_blocks_; }
  std::vector<Extent> extents() const;  // In order.
  // Blocks that were not lost when they were joined to their neighbours for want of room; since
  // the set was made. May be less by now: rewriting them heals them.
  std::uint64_t merged_blocks() const noexcept { return merged_blocks_; }

  bool changed() const noexcept { return changed_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  // The image, at most kLostSectorsBytes, with a sequence one higher than before.
  std::vector<std::byte> encode_next();
  // Any bytes may come; the error is a half-sentence.
  static std::expected<LostSectors, std::string> decode(std::span<const std::byte> bytes);

 private:
  bool put(Extent extent);
  void make_room(Extent keep);

  Uuid set_uuid_;
  std::uint64_t block_count_;
  std::uint64_t sequence_ = 0;
  std::uint64_t lost_blocks_ = 0;
  std::uint64_t merged_blocks_ = 0;
  bool changed_ = false;
  std::map<Lba, std::uint64_t> extents_;  // First block, block count.
};

}  // namespace sandbay::raid
