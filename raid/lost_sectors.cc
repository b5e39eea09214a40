// The bytes of an image, behind its frame:
//
//   48  8  blocks of the set           64  4  lost runs
//   56  8  blocks joined for want      68  4  runs of rows that match
//          of room                     72  4  runs of regions in which a role
//                                             keeps; those of role r begin at
//                                             r times the blocks of the set
//                                      76  4  zeros
//   80  8  roles that are blank, a     88     the runs, as ExtentSet packs them
//          bit each
//
// In version 2 the runs begin at 80, and a region keeps for all roles. In version 1 the lost runs
// begin at 64: first block (8) and block count (8) of each.
#include "raid/lost_sectors.h"

#include <algorithm>
#include <cassert>
#include <map>

#include <fmt/core.h>

#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kBlockCountAt = 48;
constexpr std::size_t kMergedAt = 56;
constexpr std::size_t kLostCountAt = 64;
constexpr std::size_t kMatchedCountAt = 68;
constexpr std::size_t kKeepingCountAt = 72;
constexpr std::size_t kReservedAt = 76;
constexpr std::size_t kBlankRolesAt = 80;
constexpr std::size_t kRunsAt = 88;
// Versions 2 and 1.
constexpr std::size_t kRunsAtBefore = 80;
constexpr std::size_t kOldRunsAt = 64;
constexpr std::size_t kOldRunBytes = 16;

// Most bytes that a change of one run adds: one run becomes two, with three numbers of ten bytes.
constexpr std::size_t kMostGrowth = 30;
// The parts of an image that matching rows and keeping regions may take.
constexpr std::size_t kMatchedPart = 2;
constexpr std::size_t kKeepingPart = 4;
// New runs of keeping regions leave an eighth of their part to those that grow.
constexpr std::size_t kGrowingPart = 8;

constexpr const char* kNotInOrder = "its runs are not in order, or lie outside the set";

std::expected<ExtentSet, std::string> old_runs(std::span<const std::byte> image,
                                               std::uint64_t block_count) {
  if (image.size() < kOldRunsAt || (image.size() - kOldRunsAt) % kOldRunBytes != 0) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  ExtentSet runs;
  std::optional<Lba> end;
  for (std::size_t at = kOldRunsAt; at < image.size(); at += kOldRunBytes) {
    const Extent extent{.first = little_endian<std::uint64_t>(image, at),
                        .block_count = little_endian<std::uint64_t>(image, at + 8)};
    const bool inside = extent.block_count > 0 && extent.block_count <= block_count &&
                        extent.first <= block_count - extent.block_count;
    if (!inside || (end.has_value() && extent.first <= *end)) return std::unexpected(kNotInOrder);
    end = extent.end();
    runs.add(extent);
  }
  return runs;
}

// The packed sets, by the place of their count.
std::expected<std::map<std::size_t, ExtentSet>, std::string> packed_runs(
    std::span<const std::byte> image, std::uint64_t block_count, std::uint64_t keeping_end,
    std::size_t runs_at) {
  if (image.size() < runs_at) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  if (!all_zeros(image.subspan(kReservedAt, kBlankRolesAt - kReservedAt))) {
    return std::unexpected("its reserved fields are not zero");
  }
  std::map<std::size_t, ExtentSet> sets;
  auto packed = image.subspan(runs_at);
  // There are no more rows than blocks.
  for (const std::size_t count_at : {kLostCountAt, kMatchedCountAt, kKeepingCountAt}) {
    const std::uint64_t end = count_at == kKeepingCountAt ? keeping_end : block_count;
    auto runs = ExtentSet::unpack(&packed, little_endian<std::uint32_t>(image, count_at), end);
    if (!runs.has_value()) return std::unexpected(kNotInOrder);
    sets.emplace(count_at, *std::move(runs));
  }
  if (!packed.empty()) return std::unexpected(kNotInOrder);
  return sets;
}

}  // namespace

std::size_t LostSectors::image_bytes() const noexcept {
  return kRunsAt + lost_.packed_bytes() + matched_.packed_bytes() + keeping_.packed_bytes();
}

// Closes small gaps that have none of the blocks to keep: they have just been rewritten.
void LostSectors::make_room(Extent keep) {
  while (image_bytes() > most_bytes_) {
    const std::optional<Extent> gap = lost_.smallest_gap(keep);
    if (!gap.has_value()) {  // Then regions are all that can be given up.
      keeping_.clear();
      return;
    }
    lost_.add(*gap);
    merged_blocks_ += gap->block_count;
  }
}

bool LostSectors::add(Extent extent) {
  assert(extent.block_count <= block_count_ && extent.first <= block_count_ - extent.block_count);
  if (!lost_.add(extent)) return false;
  make_room({});
  changed_ = true;
  return true;
}

bool LostSectors::remove(Extent extent) {
  if (!lost_.remove(extent)) return false;
  make_room(extent);
  changed_ = true;
  return true;
}

bool LostSectors::add_matched(Extent rows) {
  if (matched_.covers(rows)) return true;
  if (matched_.packed_bytes() + kMostGrowth > most_bytes_ / kMatchedPart) return false;
  if (image_bytes() + kMostGrowth > most_bytes_) return false;
  changed_ |= matched_.add(rows);
  return true;
}

bool LostSectors::forget_matched(Extent rows) {
  if (!matched_.remove(rows)) return false;
  make_room({});
  changed_ = true;
  return true;
}

bool LostSectors::keeping_fits() const noexcept {
  return keeping_.packed_bytes() <= most_bytes_ / kKeepingPart && image_bytes() <= most_bytes_;
}

bool LostSectors::change_keeping(Extent extent, bool keeps) {
  if (keeps) {
    const std::size_t runs = keeping_.run_count();
    if (!keeping_.add(extent)) return false;
    const std::size_t part = most_bytes_ / kKeepingPart;
    const bool grew = keeping_.run_count() <= runs;
    if (!keeping_fits() || (!grew && keeping_.packed_bytes() > part - part / kGrowingPart)) {
      keeping_.remove(extent);
      return false;
    }
  } else {
    if (!keeping_.remove(extent)) return false;
    if (!keeping_fits()) stop_keeping_beside(extent);
  }
  changed_ = true;
  return true;
}

// The gap made two runs of one, which needs room. The shorter of them gives way.
void LostSectors::stop_keeping_beside(Extent extent) {
  Extent before{.first = extent.first};
  Extent behind{.first = extent.end()};
  for (const Extent& run : keeping_.runs()) {
    if (run.end() == extent.first) before = run;
    if (run.first == extent.end()) behind = run;
  }
  const bool first_gives = behind.block_count == 0 ||
                           (before.block_count != 0 && before.block_count < behind.block_count);
  keeping_.remove(first_gives ? before : behind);
  if (image_bytes() > most_bytes_) keeping_.clear();  // The number of a gap may have grown.
}

bool LostSectors::set_keeping(unsigned role, std::uint64_t region, bool keeps) {
  return change_keeping({.first = keeping_at(role, region), .block_count = 1}, keeps);
}

bool LostSectors::stop_keeping(unsigned role) {
  return change_keeping({.first = keeping_at(role, 0), .block_count = most_regions()}, false);
}

void LostSectors::cut(unsigned roles, std::uint64_t regions) {
  const std::uint64_t before = keeping_.block_count();
  for (unsigned role = 0; role < kMostDrives; ++role) {
    const std::uint64_t first = role < roles ? std::min(regions, most_regions()) : 0;
    keeping_.remove({.first = keeping_at(role, first), .block_count = most_regions() - first});
    if (role >= roles) changed_ |= set_blank(role, false);
  }
  changed_ |= keeping_.block_count() != before;
}

bool LostSectors::set_blank(unsigned role, bool blank) {
  const std::uint64_t bit = std::uint64_t{1} << role;
  if (((blank_roles_ & bit) != 0) == blank) return false;
  blank_roles_ ^= bit;
  changed_ = true;
  return true;
}

std::vector<std::byte> LostSectors::encode_next() {
  ++sequence_;
  changed_ = false;
  std::vector<std::byte> image(kRunsAt);
  put_little_endian(std::span(image), kBlockCountAt, block_count_);
  put_little_endian(std::span(image), kMergedAt, merged_blocks_);
  put_little_endian(std::span(image), kBlankRolesAt, blank_roles_);
  const auto put = [&image](const ExtentSet& runs, std::size_t count_at) {
    put_little_endian(std::span(image), count_at, static_cast<std::uint32_t>(runs.run_count()));
    runs.pack(&image);
  };
  put(lost_, kLostCountAt);
  put(matched_, kMatchedCountAt);
  put(keeping_, kKeepingCountAt);
  assert(image.size() <= kLostSectorsBytes);
  seal_image(image, {.magic = kLostSectorsMagic,
                     .version = kLostSectorsVersion,
                     .sequence = sequence_,
                     .uuid = set_uuid_});
  return image;
}

std::expected<LostSectors, std::string> LostSectors::decode(std::span<const std::byte> bytes) {
  const auto opened = open_image(bytes.first(std::min(bytes.size(), kLostSectorsBytes)),
                                 kLostSectorsMagic, kLostSectorsVersion);
  if (!opened.has_value()) return std::unexpected(opened.error());
  const std::span<const std::byte> image = opened->bytes;
  if (image.size() < kLostCountAt) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  LostSectors lost(opened->uuid, little_endian<std::uint64_t>(image, kBlockCountAt));
  if (opened->version == 1) {
    auto runs = old_runs(image, lost.block_count_);
    if (!runs.has_value()) return std::unexpected(std::move(runs.error()));
    lost.lost_ = *std::move(runs);
  } else {
    const bool by_role = opened->version >= 3;
    const std::uint64_t keeping_end = by_role ? lost.keeping_at(kMostDrives, 0) : lost.block_count_;
    auto sets =
        packed_runs(image, lost.block_count_, keeping_end, by_role ? kRunsAt : kRunsAtBefore);
    if (!sets.has_value()) return std::unexpected(std::move(sets.error()));
    lost.lost_ = std::move((*sets)[kLostCountAt]);
    lost.matched_ = std::move((*sets)[kMatchedCountAt]);
    const ExtentSet& keeping = (*sets)[kKeepingCountAt];
    if (by_role) {
      lost.keeping_ = keeping;
      lost.blank_roles_ = little_endian<std::uint64_t>(image, kBlankRolesAt);
    }
    for (unsigned role = 0; !by_role && role < kMostDrives; ++role) {
      for (const Extent& run : keeping.runs()) {
        (void)lost.change_keeping(
            {.first = lost.keeping_at(role, run.first), .block_count = run.block_count}, true);
      }
    }
  }
  lost.tells_blank_ = opened->version >= 3;
  lost.merged_blocks_ = little_endian<std::uint64_t>(image, kMergedAt);
  lost.make_room({});  // An older version takes less room for the same.
  lost.changed_ = false;
  lost.sequence_ = opened->sequence;
  return lost;
}

}  // namespace sandbay::raid
