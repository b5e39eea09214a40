// LostSectors: blocks of a set that are lost beyond redundancy. A read of one ends in a medium
// error until it is rewritten. With them stands, in one image, what else is known of regions whose
// redundancy is suspect (docs/design/raid-journal-loss.md): rows that match, the regions in
// which a role keeps, and the roles that are blank.
//
// An image has room for 16,000 to 32,000 lost runs that lie anywhere, and for a quarter of that
// beside rows that match and roles that keep. When more are lost, the two with the smallest gap
// become one, gap included: that more is reported lost than is, is honest, the opposite would not
// be. merged_blocks() counts such blocks. Rows that match and roles that keep are taken in only as
// far as nothing must be joined for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/extent_set.h"
#include "raid/layout.h"
#include "raid/superblock.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::string_view kLostSectorsMagic = "SBRAIDLS";
// The version that is written. Versions 1 and 2 are read, too; in 2 all roles of a region keep and
// none is blank, 1 has its runs as two numbers of 8 bytes each.
inline constexpr std::uint32_t kLostSectorsVersion = 3;

class LostSectors {
 public:
  LostSectors(const Uuid& set_uuid, std::uint64_t block_count)
      : set_uuid_(set_uuid), block_count_(block_count) {}
  // From the next change on the image has no more than these bytes, of kLostSectorsBytes.
  void limit(std::size_t most_bytes) noexcept { most_bytes_ = most_bytes; }

  const Uuid& set_uuid() const noexcept { return set_uuid_; }
  std::uint64_t set_block_count() const noexcept { return block_count_; }

  // Both tell whether anything changed. Extents lie within the set.
  bool add(Extent extent);
  bool remove(Extent extent);  // Has been rewritten.
  // The first lost block within the extent.
  std::optional<Lba> first_overlap(Extent extent) const { return lost_.first_in(extent); }

  bool covers(Extent extent) const { return lost_.covers(extent); }

  bool empty() const noexcept { return lost_.empty(); }
  std::uint64_t lost_blocks() const noexcept { return lost_.block_count(); }
  std::vector<Extent> extents() const { return lost_.runs(); }  // In order; none touches the next.
  // Blocks that were not lost when they were joined to their neighbours for want of room; since
  // the set was made. May be less by now: rewriting them heals them.
  std::uint64_t merged_blocks() const noexcept { return merged_blocks_; }

  // Rows, counted through all stripes: written since redundancy became suspect, with parity that
  // fits. At most half of the image; false: no room.
  bool add_matched(Extent rows);
  bool forget_matched(Extent rows);  // Whether anything changed.
  const ExtentSet& matched() const noexcept { return matched_; }
  // Regions in which the content of the role's drive counts, when it returns, wherever no row
  // matches: at most a quarter of the image. What finds no room does not keep, and regions next to
  // one that does not keep any more may have to give way. The changes tell whether anything
  // changed.
  bool set_keeping(unsigned role, std::uint64_t region, bool keeps);
  bool keeps(unsigned role, std::uint64_t region) const {
    return keeping_.covers({.first = keeping_at(role, region), .block_count = 1});
  }
  bool stop_keeping(unsigned role);  // In every region.
  // The role's drive had nothing when it took the role, or has lost writes of doubted rows: where
  // it does not keep its content means nothing, even if it matches. Whether anything changed.
  bool set_blank(unsigned role, bool blank);
  bool blank(unsigned role) const noexcept { return (blank_roles_ >> role & 1) != 0; }
  // False: it was decoded from a version that does not say which roles are blank.
  bool tells_blank() const noexcept { return tells_blank_; }
  // The set has no roles and no regions behind these.
  void cut(unsigned roles, std::uint64_t regions);

  bool changed() const noexcept { return changed_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  // The image, with a sequence one higher than before.
  std::vector<std::byte> encode_next();
  // Any bytes may come; the error is a half-sentence.
  static std::expected<LostSectors, std::string> decode(std::span<const std::byte> bytes);

 private:
  // Where a role's regions stand among those that keep: there are no more regions than blocks.
  std::uint64_t most_regions() const {
    return std::min(block_count_, ~std::uint64_t{0} / kMostDrives);
  }
  std::uint64_t keeping_at(unsigned role, std::uint64_t region) const {
    return role * most_regions() + region;
  }
  bool change_keeping(Extent extent, bool keeps);
  bool keeping_fits() const noexcept;
  void stop_keeping_beside(Extent extent);
  std::size_t image_bytes() const noexcept;
  void make_room(Extent keep);

  Uuid set_uuid_;
  std::uint64_t block_count_;
  std::size_t most_bytes_ = kLostSectorsBytes;
  std::uint64_t sequence_ = 0;
  std::uint64_t blank_roles_ = 0;
  std::uint64_t merged_blocks_ = 0;
  bool changed_ = false;
  bool tells_blank_ = true;
  ExtentSet lost_;
  ExtentSet matched_;
  ExtentSet keeping_;
};

}  // namespace sandbay::raid
