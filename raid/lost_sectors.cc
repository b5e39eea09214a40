// The bytes of an image, behind its frame:
//
//   48  8  blocks of the set           64  4  runs
//   56  8  blocks joined for want      68 12  zeros
//          of room                     80     the runs, as ExtentSet packs them
//
// In version 1 the runs begin at 64: first block (8) and block count (8) of each.
#include "raid/lost_sectors.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kBlockCountAt = 48;
constexpr std::size_t kMergedAt = 56;
constexpr std::size_t kRunCountAt = 64;
constexpr std::size_t kReservedAt = 68;
constexpr std::size_t kRunsAt = 80;
// Version 1.
constexpr std::size_t kOldRunsAt = 64;
constexpr std::size_t kOldRunBytes = 16;

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

std::expected<ExtentSet, std::string> packed_runs(std::span<const std::byte> image,
                                                  std::uint64_t block_count) {
  if (image.size() < kRunsAt) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  if (!all_zeros(image.subspan(kReservedAt, kRunsAt - kReservedAt))) {
    return std::unexpected("its reserved fields are not zero");
  }
  auto packed = image.subspan(kRunsAt);
  auto runs =
      ExtentSet::unpack(&packed, little_endian<std::uint32_t>(image, kRunCountAt), block_count);
  if (!runs.has_value() || !packed.empty()) return std::unexpected(kNotInOrder);
  return *std::move(runs);
}

}  // namespace

// Closes small gaps that have none of the blocks to keep: they have just been rewritten.
void LostSectors::make_room(Extent keep) {
  while (kRunsAt + lost_.packed_bytes() > most_bytes_) {
    const std::optional<Extent> gap = lost_.smallest_gap(keep);
    assert(gap.has_value());
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

std::vector<std::byte> LostSectors::encode_next() {
  ++sequence_;
  changed_ = false;
  std::vector<std::byte> image(kRunsAt);
  put_little_endian(std::span(image), kBlockCountAt, block_count_);
  put_little_endian(std::span(image), kMergedAt, merged_blocks_);
  put_little_endian(std::span(image), kRunCountAt, static_cast<std::uint32_t>(lost_.run_count()));
  lost_.pack(&image);
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
  if (image.size() < kRunCountAt) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", image.size()));
  }
  LostSectors lost(opened->uuid, little_endian<std::uint64_t>(image, kBlockCountAt));
  auto runs = opened->version == 1 ? old_runs(image, lost.block_count_)
                                   : packed_runs(image, lost.block_count_);
  if (!runs.has_value()) return std::unexpected(std::move(runs.error()));
  lost.lost_ = *std::move(runs);
  lost.merged_blocks_ = little_endian<std::uint64_t>(image, kMergedAt);
  lost.sequence_ = opened->sequence;
  return lost;
}

}  // namespace sandbay::raid
