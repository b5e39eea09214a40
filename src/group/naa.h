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

// The company identifier has the locally administered bit set, so it clashes with no
// manufacturer's; 100 bits of the UUID follow.
NaaIdentifier naa_of(const Uuid& uuid);
// The first sixteen hexadecimal digits of the UUID.
std::string serial_of(const Uuid& uuid);

std::string format_naa(const NaaIdentifier& naa);  // "naa.6…"
// 32 hexadecimal digits of which the first is 6, with or without "naa." before them.
std::optional<NaaIdentifier> parse_naa(std::string_view text);

}  // namespace sandbay::group
