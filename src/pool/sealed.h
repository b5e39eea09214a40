// Seals: what the map keeps in the metadata store bears a checksum over its key and its value, so
// that a value that was damaged anywhere on its way, or is another key's, is found before anything
// of it is believed.
//
// What reads and writes sealed values passes the probes "map.read" and "map.write" (the object is
// the key, the bytes are the sealed value), which obey the action kFlipBit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sandbay::pool {

// One bit of the value is inverted: `argument` modulo their number.
inline constexpr std::uint32_t kFlipBit = 1;

inline constexpr std::size_t kSealBytes = sizeof(std::uint32_t);

// As it is stored: the value, and its CRC32C (4 bytes, little-endian).
std::string sealed(std::string_view key, std::string value);
// What was sealed, or nothing if that is not what was read.
std::optional<std::string> unsealed(std::string_view key, std::string stored);

}  // namespace sandbay::pool
