// UUIDs (RFC 4122, version 4): what names groups, volumes, drives, RAID sets and images for good.
// Drawn from an executor's generator, so that a simulation repeats them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/random.h"

namespace sandbay {

using Uuid = std::array<std::uint8_t, 16>;

Uuid make_uuid(Random& random);
std::string format_uuid(const Uuid& uuid);              // Lower case, with dashes.
std::optional<Uuid> parse_uuid(std::string_view text);  // Either case.

// Two lower-case hexadecimal digits a byte.
std::string format_hex(std::span<const std::uint8_t> bytes);
// Reads exactly two hexadecimal digits, either case, for each byte. False: `text` is not that, and
// some of `bytes` may have changed.
bool parse_hex(std::string_view text, std::span<std::uint8_t> bytes);
// 32 hexadecimal digits, either case, as 16 bytes.
std::optional<std::array<std::uint8_t, 16>> parse_hex16(std::string_view text);

}  // namespace sandbay
