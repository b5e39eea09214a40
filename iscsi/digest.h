// CRC32C header and data digests (RFC 7143 section 13.1). A digest is stored with its least
// significant byte first, which is the bit order that the RFC describes.
//
// Padding is part of a segment and counts as zero bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "iscsi/pdu.h"
#include "runtime/buffer.h"
#include "runtime/crc32c.h"

namespace sandbay::iscsi {

// The zeros behind a data segment: take as many as padding_of() says.
inline constexpr std::array<std::byte, 3> kPadding{};

// Over BHS and AHS.
std::uint32_t header_digest(BhsView bhs, std::span<const std::byte> ahs = {});
// Over data and its padding to a multiple of four.
std::uint32_t data_digest(const BufferList& data);

void store_digest(std::uint32_t digest, std::span<std::byte, kDigestBytes> target);
std::uint32_t load_digest(std::span<const std::byte, kDigestBytes> source);

}  // namespace sandbay::iscsi
