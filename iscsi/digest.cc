// What the digests of a PDU cover, and the order of their bytes.
#include "iscsi/digest.h"

namespace sandbay::iscsi {

std::uint32_t header_digest(BhsView bhs, std::span<const std::byte> ahs) {
  Crc32c crc;
  crc.update(bhs);
  crc.update(ahs);
  return crc.value();
}

std::uint32_t data_digest(const BufferList& data) {
  Crc32c crc;
  crc.update(data);
  crc.update(std::span(kPadding).first(padding_of(static_cast<std::uint32_t>(data.byte_count()))));
  return crc.value();
}

void store_digest(std::uint32_t digest, std::span<std::byte, kDigestBytes> target) {
  for (std::size_t index = 0; index < kDigestBytes; ++index) {
    target[index] = static_cast<std::byte>(digest >> (8 * index));
  }
}

std::uint32_t load_digest(std::span<const std::byte, kDigestBytes> source) {
  std::uint32_t digest = 0;
  for (std::size_t index = 0; index < kDigestBytes; ++index) {
    digest |= std::to_integer<std::uint32_t>(source[index]) << (8 * index);
  }
  return digest;
}

}  // namespace sandbay::iscsi
