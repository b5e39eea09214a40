// The descriptor of a write in the cache's log, byte by byte: a header and a slice for every piece
// of memory. Numbers are little-endian; what lies in a reserved field is zero. The log's own
// checksum covers it, so what is read here was once written here, by this version or another.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/uuid.h"

namespace sandbay::cache {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint16_t kWriteVersion = 1;

struct WriteHeader {
  std::uint16_t version = kWriteVersion;
  std::uint16_t slice_count = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t order = 0;  // Of two writes of one place, the one with the higher order counts.
  Uuid device{};
  std::uint64_t volume = 0;
  std::uint64_t first_block = 0;
  std::uint64_t block_count = 0;
};
static_assert(sizeof(WriteHeader) == 56);

struct WriteSlice {
  std::uint64_t offset = 0;  // In the data area.
  std::uint32_t byte_count = 0;
  std::uint32_t checksum = 0;  // CRC32C of the bytes.
};
static_assert(sizeof(WriteSlice) == 16);

constexpr std::size_t descriptor_bytes(std::size_t slice_count) {
  return sizeof(WriteHeader) + slice_count * sizeof(WriteSlice);
}

}  // namespace sandbay::cache
