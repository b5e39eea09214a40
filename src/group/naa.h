// The identities by which initiators know a volume; made from its UUID, which is drawn once and
// kept in the metadata, so that initiators see the same disk after every restart.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/uuid.h"

namespace sandbay::group {

// NAA 6h, IEEE Registered Extended (SPC-4 clause 7.8.6.6.5), as 16 bytes.
using NaaIdentifier = std::array<std::uint8_t, 16>;

// EUI-64 (SPC-4 clause 7.8.6.5.2). A volume has such a designator only if somebody gives it one.
using Eui64 = std::array<std::uint8_t, 8>;

// The company identifier has the locally administered bit set, so it clashes with no
// manufacturer's; 100 bits of the UUID follow.
NaaIdentifier naa_of(const Uuid& uuid);
// The first sixteen hexadecimal digits of the UUID.
std::string serial_of(const Uuid& uuid);

std::string format_naa(const NaaIdentifier& naa);  // "naa.6…"
// 32 hexadecimal digits of which the first is 6, with or without "naa." before them.
std::optional<NaaIdentifier> parse_naa(std::string_view text);

std::string format_eui64(const Eui64& eui64);  // "eui.0123456789abcdef"
// 16 hexadecimal digits, not all of them 0, with or without "eui." before them.
std::optional<Eui64> parse_eui64(std::string_view text);

}  // namespace sandbay::group
