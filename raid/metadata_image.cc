// Sealing and opening images: the CRC covers every byte of the image, so that no damage to it goes
// unseen, and the length is checked before anything is read.
#include "raid/metadata_image.h"

#include <cassert>
#include <cstring>

#include <fmt/core.h>

#include "runtime/crc32c.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kCrcAt = 12;
constexpr std::size_t kByteCountAt = 16;
constexpr std::size_t kZerosAt = 20;
constexpr std::size_t kSequenceAt = 24;
constexpr std::size_t kUuidAt = 32;
static_assert(kUuidAt + sizeof(Uuid) == kImageFrameBytes);

}  // namespace

void seal_image(std::span<std::byte> image, const ImageFrame& frame) {
  assert(image.size() >= kImageFrameBytes);
  assert(frame.magic.size() == kMagicBytes);
  std::memcpy(image.data(), frame.magic.data(), kMagicBytes);
  put_little_endian(image, kVersionAt, frame.version);
  put_little_endian(image, kByteCountAt, static_cast<std::uint32_t>(image.size()));
  put_little_endian(image, kZerosAt, std::uint32_t{0});
  put_little_endian(image, kSequenceAt, frame.sequence);
  put_uuid(image, kUuidAt, frame.uuid);
  put_little_endian(image, kCrcAt, crc32c_around(image, kCrcAt));
}

bool has_magic(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::expected<OpenedImage, std::string> open_image(std::span<const std::byte> bytes,
                                                   std::string_view magic,
                                                   std::uint32_t newest_version) {
  if (bytes.size() < kImageFrameBytes) return std::unexpected("it is too short");
  if (!has_magic(bytes, magic)) {
    return std::unexpected(all_zeros(bytes) ? "there is none" : "it does not begin as one does");
  }
  const auto byte_count = little_endian<std::uint32_t>(bytes, kByteCountAt);
  if (byte_count < kImageFrameBytes || byte_count > bytes.size()) {
    return std::unexpected(fmt::format("its length of {} bytes is impossible", byte_count));
  }
  const std::span<const std::byte> image = bytes.first(byte_count);
  if (little_endian<std::uint32_t>(image, kCrcAt) != crc32c_around(image, kCrcAt)) {
    return std::unexpected("its checksum does not match");
  }
  const auto version = little_endian<std::uint32_t>(image, kVersionAt);
  if (version == 0 || version > newest_version) {
    return std::unexpected(
        fmt::format("it is of version {}; {} is known", version,
                    newest_version == 1 ? "1" : fmt::format("up to {}", newest_version)));
  }
  if (little_endian<std::uint32_t>(image, kZerosAt) != 0) {
    return std::unexpected("its reserved fields are not zero");
  }
  return OpenedImage{.bytes = image,
                     .version = version,
                     .sequence = little_endian<std::uint64_t>(image, kSequenceAt),
                     .uuid = get_uuid(image, kUuidAt)};
}

bool all_zeros(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

void put_uuid(std::span<std::byte> bytes, std::size_t offset, const Uuid& uuid) {
  assert(offset + uuid.size() <= bytes.size());
  std::memcpy(bytes.data() + offset, uuid.data(), uuid.size());
}

Uuid get_uuid(std::span<const std::byte> bytes, std::size_t offset) {
  assert(offset + sizeof(Uuid) <= bytes.size());
  Uuid uuid;
  std::memcpy(uuid.data(), bytes.data() + offset, uuid.size());
  return uuid;
}

}  // namespace sandbay::raid
