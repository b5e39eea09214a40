// CRC32C (the Castagnoli polynomial, reflected, as in RFC 7143 section 13.1) by ISA-L, with the
// processor's instruction: iSCSI's digests, and the checksum of everything that we keep on a
// medium.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/buffer.h"

namespace sandbay {

// A running CRC: feed it the bytes in any number of pieces.
class Crc32c {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  void update(const BufferList& bytes) noexcept;
  std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = 0xffffffffU;
};

std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept;
// The CRC of bytes that contain it themselves: the four bytes at `at` count as zeros.
std::uint32_t crc32c_around(std::span<const std::byte> bytes, std::size_t at) noexcept;

}  // namespace sandbay
