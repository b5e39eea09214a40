// MetadataImage: the frame around everything a set keeps about itself at the head of a drive.
//
// Little-endian. Every image begins with
//
//    0  8  magic                         16  4  bytes in the image, this frame included
//    8  4  version                       20  4  zeros
//   12  4  CRC32C of the whole image,    24  8  sequence: of two copies the higher one counts
//          this field taken as 0         32 16  UUID: of the drive, or of the set
//
// and open_image() hands out only what is whole, so a reader may take lengths that it has found
// within for consistent, but nothing else for sensible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/byte_order.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::size_t kImageFrameBytes = 48;
inline constexpr std::size_t kMagicBytes = 8;

struct ImageFrame {
  std::string_view magic;  // kMagicBytes long.
  std::uint32_t version = 1;
  std::uint64_t sequence = 0;
  Uuid uuid{};
};

// Fills in the frame of an image whose content stands behind it.
void seal_image(std::span<std::byte> image, const ImageFrame& frame);

struct OpenedImage {
  std::span<const std::byte> bytes;  // The image alone, frame included.
  std::uint32_t version = 1;
  std::uint64_t sequence = 0;
  Uuid uuid{};
};

// `bytes` may be longer than the image and have anything in it. Versions 1 to `newest_version` are
// accepted. The error is a half-sentence.
std::expected<OpenedImage, std::string> open_image(std::span<const std::byte> bytes,
                                                   std::string_view magic,
                                                   std::uint32_t newest_version = 1);
// Whether an image of this kind stands, or stood, here.
bool has_magic(std::span<const std::byte> bytes, std::string_view magic);
// Whether all the bytes are zeros.
bool all_zeros(std::span<const std::byte> bytes);

void put_uuid(std::span<std::byte> bytes, std::size_t offset, const Uuid& uuid);
Uuid get_uuid(std::span<const std::byte> bytes, std::size_t offset);
inline bool is_zero(const Uuid& uuid) { return uuid == Uuid{}; }

}  // namespace sandbay::raid
