// CRC32C by ISA-L, in pieces that its length, an int, can say.
#include "runtime/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <limits>

namespace sandbay {

void Crc32c::update(std::span<const std::byte> bytes) noexcept {
  constexpr std::size_t kLargest = std::size_t{1} << 30U;
  static_assert(kLargest <= std::numeric_limits<int>::max());
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kLargest);
    // ISA-L does not write through its pointer.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state_ = crc32_iscsi(data, static_cast<int>(count), state_);
    bytes = bytes.subspan(count);
  }
}

void Crc32c::update(const BufferList& bytes) noexcept {
  for (std::size_t i = 0; i < bytes.slice_count(); ++i) update(bytes[i].bytes());
}

std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  Crc32c crc;
  crc.update(bytes);
  return crc.value();
}

std::uint32_t crc32c_around(std::span<const std::byte> bytes, std::size_t at) noexcept {
  constexpr std::array<std::byte, sizeof(std::uint32_t)> kZeros{};
  Crc32c crc;
  crc.update(bytes.first(at));
  crc.update(kZeros);
  crc.update(bytes.subspan(at + kZeros.size()));
  return crc.value();
}

}  // namespace sandbay
