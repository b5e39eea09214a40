// CRC32C by ISA-L, and by a table for comparison (RFC 7143 section 13.1).
#include "iscsi/digest.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <limits>

namespace sandbay::iscsi {
namespace {

constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78U;  // 0x1edc6f41, bits reversed.

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t index = 0; index < table.size(); ++index) {
    std::uint32_t remainder = index;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1U) ^ ((remainder & 1U) != 0 ? kReflectedPolynomial : 0U);
    }
    table[index] = remainder;
  }
  return table;
}

constexpr auto kTable = make_table();
constexpr std::array<std::byte, 64> kZeros{};

}  // namespace

void Crc32c::update(std::span<const std::byte> bytes) {
  // ISA-L takes its length as an int and a pointer that it does not write through.
  constexpr std::size_t kLargest = std::size_t{1} << 30U;
  static_assert(kLargest <= std::numeric_limits<int>::max());
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kLargest);
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state_ = crc32_iscsi(data, static_cast<int>(count), state_);
    bytes = bytes.subspan(count);
  }
}

void Crc32c::update_zeros(std::size_t byte_count) {
  while (byte_count != 0) {
    const std::size_t count = std::min(byte_count, kZeros.size());
    update(std::span(kZeros).first(count));
    byte_count -= count;
  }
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  Crc32c crc;
  crc.update(bytes);
  return crc.value();
}

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  std::uint32_t state = 0xffffffffU;
  for (const std::byte byte : bytes) {
    state = (state >> 8U) ^ kTable[(state ^ std::to_integer<std::uint32_t>(byte)) & 0xffU];
  }
  return ~state;
}

std::uint32_t header_digest(BhsView bhs, std::span<const std::byte> ahs) {
  Crc32c crc;
  crc.update(bhs);
  crc.update(ahs);
  return crc.value();
}

std::uint32_t data_digest(std::span<const std::byte> data) {
  Crc32c crc;
  crc.update(data);
  crc.update_zeros(padding_of(static_cast<std::uint32_t>(data.size())));
  return crc.value();
}

std::uint32_t data_digest(std::span<const IoSlice> data) {
  Crc32c crc;
  std::size_t byte_count = 0;
  for (const IoSlice& slice : data) {
    crc.update({slice.data, slice.byte_count});
    byte_count += slice.byte_count;
  }
  crc.update_zeros(padding_of(static_cast<std::uint32_t>(byte_count)));
  return crc.value();
}

std::uint32_t data_digest(const BufferList& data) {
  Crc32c crc;
  for (std::size_t index = 0; index < data.slice_count(); ++index) crc.update(data[index].bytes());
  crc.update_zeros(padding_of(static_cast<std::uint32_t>(data.byte_count())));
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
