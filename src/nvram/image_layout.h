// The image header, byte by byte (see docs/formats/nvram.md): two copies, one in each of the first
// two pages, written one after the other; the one with the higher generation of those whose
// checksum is right counts. Two pages with the seals of the regions' logs (log_seal.h) follow; then
// come the regions. Numbers are little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>

#include "nvram/log_seal.h"
#include "nvram/nvram.h"

namespace sandbay::nvram {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint64_t kImageMagic = 0x004d4152564e4253U;  // "SBNVRAM" and a zero.
inline constexpr std::uint32_t kImageVersion = 3;
inline constexpr std::uint32_t kOwnerlessVersion = 2;  // The same, but that it names no owner.
inline constexpr std::uint64_t kSealOffset = 2 * kPageBytes;   // Behind both copies of the header.
inline constexpr std::uint64_t kHeaderBytes = 4 * kPageBytes;  // All that is before the regions.
inline constexpr std::size_t kBootIdBytes = 40;

// What a region entry's flags say.
inline constexpr std::uint32_t kRegionSettled = 1;
inline constexpr std::uint32_t kRegionAfterHostCrash = 2;
inline constexpr std::uint32_t kRegionNew = 4;  // Never settled: it has no content yet.

static_assert(kMostRegions * kSealBytes <= kPageBytes);

// One without a name is free; the place in the table is also that of the seal.
struct RegionEntry {
  char name[kMostRegionNameBytes + 1];  // Filled up with zeros.
  std::uint64_t offset;
  std::uint64_t byte_count;
  std::uint32_t loss;
  std::uint32_t flags;
  std::uint64_t reserved[3];

  std::string_view name_view() const noexcept;
  bool is_free() const noexcept { return name[0] == '\0'; }
};
static_assert(sizeof(RegionEntry) == 96);

struct ImageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t checksum;  // CRC32C of the page with zeros here.
  ImageId uuid;
  std::uint64_t byte_count;  // Of the image.
  std::uint64_t generation;
  char boot_id[kBootIdBytes];  // Filled up with zeros.
  std::uint8_t durability;
  std::uint8_t clean;  // 1: closed in order and synced.
  std::uint8_t reserved_1[6];
  std::uint64_t open_count;
  std::uint32_t region_count;
  ImageId owner;  // Zeros: it has none.
  std::uint8_t reserved_2[4];
  RegionEntry regions[kMostRegions];
  char owner_name[kMostOwnerNameBytes + 1];  // For messages; filled up with zeros.
  std::uint8_t reserved_3[832];

  std::string_view boot_id_view() const noexcept;
  std::string_view owner_name_view() const noexcept;
};
static_assert(sizeof(ImageHeader) == kPageBytes);
static_assert(offsetof(ImageHeader, boot_id) == 48 && offsetof(ImageHeader, durability) == 88);
static_assert(offsetof(ImageHeader, open_count) == 96 && offsetof(ImageHeader, owner) == 108);
static_assert(offsetof(ImageHeader, regions) == 128 && offsetof(ImageHeader, owner_name) == 3200);

void seal(ImageHeader& header);  // Sets the checksum.

// The copy that counts, checked to the last field; or why there is none, to follow the image's
// path in a message.
std::expected<ImageHeader, std::string> read_header(std::span<const std::byte> image);

// Whether the region has anything that somebody may miss: live records, a loss that was not told,
// or memory that was used without a log. A region that was never settled has nothing.
bool holds_content(std::span<const std::byte> image, const ImageHeader& header, std::size_t region);

// Its place: copies take turns.
inline std::size_t header_offset(std::uint64_t generation) {
  return generation % 2 == 0 ? 0 : kPageBytes;
}

}  // namespace sandbay::nvram
