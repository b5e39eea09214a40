// Reading an image's header: everything in it is checked before anything is believed.
#include "nvram/image_layout.h"

#include <fmt/core.h>

#include <cstring>
#include <optional>

#include "runtime/crc32c.h"

namespace sandbay::nvram {
namespace {

std::string_view up_to_zero(std::span<const char> text) {
  const std::string_view all(text.data(), text.size());
  return all.substr(0, all.find('\0'));
}

std::uint32_t checksum_of(ImageHeader header) {
  header.checksum = 0;
  return crc32c(std::as_bytes(std::span(&header, 1)));
}

ImageHeader copy_at(std::span<const std::byte> image, std::size_t offset) {
  ImageHeader header{};
  std::memcpy(&header, image.data() + offset, sizeof header);
  return header;
}

bool region_fits(const ImageHeader& header, const RegionEntry& entry) {
  return entry.offset >= kHeaderBytes && entry.offset <= header.byte_count &&
         entry.offset % kPageBytes == 0 && entry.byte_count != 0 &&
         entry.byte_count % kPageBytes == 0 && entry.byte_count <= header.byte_count - entry.offset;
}

bool overlap(const RegionEntry& one, const RegionEntry& other) {
  return one.offset < other.offset + other.byte_count && other.offset < one.offset + one.byte_count;
}

// Each has a place and a name of its own.
bool table_is_right(const ImageHeader& header) {
  if (header.region_count > kMostRegions) return false;
  for (std::uint32_t index = 0; index < header.region_count; ++index) {
    const RegionEntry& entry = header.regions[index];
    if (entry.is_free()) continue;
    if (!region_fits(header, entry)) return false;
    if (entry.loss > static_cast<std::uint32_t>(Loss::kStale)) return false;
    if (entry.name[kMostRegionNameBytes] != '\0') return false;
    for (const RegionEntry& other : std::span(header.regions).first(index)) {
      if (other.is_free()) continue;
      if (other.name_view() == entry.name_view() || overlap(other, entry)) return false;
    }
  }
  return true;
}

bool fields_are_right(const ImageHeader& header, std::uint64_t byte_count) {
  return header.byte_count == byte_count && header.boot_id[kBootIdBytes - 1] == '\0' &&
         header.durability <= static_cast<std::uint8_t>(Durability::kHost) && header.clean <= 1 &&
         header.owner_name[kMostOwnerNameBytes] == '\0' && table_is_right(header);
}

}  // namespace

std::string_view RegionEntry::name_view() const noexcept { return up_to_zero(name); }
std::string_view ImageHeader::boot_id_view() const noexcept { return up_to_zero(boot_id); }
std::string_view ImageHeader::owner_name_view() const noexcept { return up_to_zero(owner_name); }

void seal(ImageHeader& header) { header.checksum = checksum_of(header); }

std::expected<ImageHeader, std::string> read_header(std::span<const std::byte> image) {
  bool has_magic = false;
  std::optional<ImageHeader> best;
  std::optional<std::uint32_t> other_version;
  for (const std::size_t offset : {std::size_t{0}, std::size_t{kPageBytes}}) {
    const ImageHeader header = copy_at(image, offset);
    if (header.magic != kImageMagic) continue;
    has_magic = true;
    if (header.checksum != checksum_of(header)) continue;
    if (header.version != kImageVersion && header.version != kOwnerlessVersion) {
      other_version = header.version;
    } else if (!best.has_value() || header.generation > best->generation) {
      best = header;
    }
  }
  if (other_version.has_value()) {
    return std::unexpected(
        fmt::format("is an NVRAM image of version {}; versions {} and {} are accepted",
                    *other_version, kOwnerlessVersion, kImageVersion));
  }
  if (!has_magic) {
    return std::unexpected(
        "is not an NVRAM image; an image, or a path where nothing is yet, is accepted");
  }
  if (!best.has_value()) {
    return std::unexpected(
        "is an NVRAM image with both copies of its header damaged; one good copy is accepted "
        "(removing the file starts an empty one and gives up what it held)");
  }
  if (!fields_are_right(*best, image.size())) {
    return std::unexpected(
        "is an NVRAM image with a damaged region table or header field; one as "
        "it was written is accepted (removing the file starts an empty one and "
        "gives up what it held)");
  }
  return *best;
}

bool holds_content(std::span<const std::byte> image, const ImageHeader& header,
                   std::size_t region) {
  const RegionEntry& entry = header.regions[region];
  if (entry.is_free() || (entry.flags & kRegionNew) != 0) return false;
  return entry.loss != static_cast<std::uint32_t>(Loss::kNone) || !seal_is_empty(image, region);
}

}  // namespace sandbay::nvram
