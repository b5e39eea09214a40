// UUIDs (RFC 4122, version 4) and the identities that are made from them.
//
// A volume's UUID is drawn once and kept in the metadata; its serial number and NAA identifier
// follow from it, so initiators see the same disk after every restart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/random.h"

namespace sandbay::group {

using Uuid = std::array<std::uint8_t, 16>;

Uuid make_uuid(Random& random);
std::string format_uuid(const Uuid& uuid);              // Lower case, with dashes.
std::optional<Uuid> parse_uuid(std::string_view text);  // Either case.

// NAA 6h, IEEE Registered Extended (SPC-4 clause 7.8.6.6.5), as 16 bytes.
using NaaIdentifier = std::array<std::uint8_t, 16>;

// The company identifier has the locally administered bit set, so it clashes with no
// manufacturer's; 100 bits of the UUID follow.
NaaIdentifier naa_of(const Uuid& uuid);
// The first sixteen hexadecimal digits of the UUID.
std::string serial_of(const Uuid& uuid);

std::string format_naa(const NaaIdentifier& naa);  // "naa.6…"
// 32 hexadecimal digits of which the first is 6, with or without "naa." before them.
std::optional<NaaIdentifier> parse_naa(std::string_view text);

}  // namespace sandbay::group
