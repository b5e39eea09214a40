// CRC32C header and data digests (RFC 7143 section 13.1): the Castagnoli polynomial, computed by
// ISA-L with the processor's instruction. A digest is stored with its least significant byte
// first, which is the bit order that the RFC describes.
//
// Padding is part of a segment and counts as zero bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "iscsi/pdu.h"
#include "runtime/buffer.h"

namespace sandbay::iscsi {

// A running CRC: feed it the bytes of one segment in any number of pieces.
class Crc32c {
 public:
  void update(std::span<const std::byte> bytes);
  void update_zeros(std::size_t byte_count);  // For padding.
  std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = 0xffffffffU;
};

std::uint32_t crc32c(std::span<const std::byte> bytes);
// The same from a table, a byte at a time: the reference in tests.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

// Over BHS and AHS.
std::uint32_t header_digest(BhsView bhs, std::span<const std::byte> ahs = {});
// Over data and its padding to a multiple of four.
std::uint32_t data_digest(std::span<const std::byte> data);
std::uint32_t data_digest(std::span<const IoSlice> data);
std::uint32_t data_digest(const BufferList& data);

void store_digest(std::uint32_t digest, std::span<std::byte, kDigestBytes> target);
std::uint32_t load_digest(std::span<const std::byte, kDigestBytes> source);

}  // namespace sandbay::iscsi
