// CRC32C by ISA-L, in pieces that its length, an int, can say.
#include "runtime/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
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

std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  Crc32c crc;
  crc.update(bytes);
  return crc.value();
}

}  // namespace sandbay
