// Integer fields in byte strings: big-endian, as every SCSI and iSCSI format has them, and
// little-endian, as what Sandbay itself keeps on drives has them.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace sandbay {

template <class Integer>
  requires std::is_unsigned_v<Integer>
constexpr Integer big_endian(std::span<const std::byte> bytes, std::size_t offset) {
  assert(offset + sizeof(Integer) <= bytes.size());
  Integer value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  if constexpr (std::endian::native == std::endian::little) value = std::byteswap(value);
  return value;
}

template <class Integer>
  requires std::is_unsigned_v<Integer>
constexpr void put_big_endian(std::span<std::byte> bytes, std::size_t offset, Integer value) {
  assert(offset + sizeof(Integer) <= bytes.size());
  if constexpr (std::endian::native == std::endian::little) value = std::byteswap(value);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

inline std::uint32_t big_endian_24(std::span<const std::byte> bytes, std::size_t offset) {
  assert(offset + 3 <= bytes.size());
  return std::to_integer<std::uint32_t>(bytes[offset]) << 16U |
         std::to_integer<std::uint32_t>(bytes[offset + 1]) << 8U |
         std::to_integer<std::uint32_t>(bytes[offset + 2]);
}

inline void put_big_endian_24(std::span<std::byte> bytes, std::size_t offset, std::uint32_t value) {
  assert(offset + 3 <= bytes.size() && value < (1U << 24U));
  bytes[offset] = static_cast<std::byte>(value >> 16U);
  bytes[offset + 1] = static_cast<std::byte>(value >> 8U);
  bytes[offset + 2] = static_cast<std::byte>(value);
}

template <class Integer>
  requires std::is_unsigned_v<Integer>
constexpr Integer little_endian(std::span<const std::byte> bytes, std::size_t offset) {
  assert(offset + sizeof(Integer) <= bytes.size());
  Integer value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  if constexpr (std::endian::native == std::endian::big) value = std::byteswap(value);
  return value;
}

template <class Integer>
  requires std::is_unsigned_v<Integer>
constexpr void put_little_endian(std::span<std::byte> bytes, std::size_t offset, Integer value) {
  assert(offset + sizeof(Integer) <= bytes.size());
  if constexpr (std::endian::native == std::endian::big) value = std::byteswap(value);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

}  // namespace sandbay
