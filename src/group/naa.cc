// NAA identifiers, EUI-64 identifiers and serial numbers: which bits of a UUID they are, and their
// text forms.
#include "group/naa.h"

#include <algorithm>
#include <span>

namespace sandbay::group {

NaaIdentifier naa_of(const Uuid& uuid) {
  // Four bits of type, 24 of company (02-5B-A7), then 100 bits of the UUID.
  NaaIdentifier naa = {0x60, 0x25, 0xba, 0x70};
  naa[3] = static_cast<std::uint8_t>(naa[3] | (uuid[3] & 0x0f));
  std::copy(uuid.begin() + 4, uuid.end(), naa.begin() + 4);
  return naa;
}

std::string serial_of(const Uuid& uuid) {
  return format_hex(std::span<const std::uint8_t>(uuid).first<8>());
}

std::string format_naa(const NaaIdentifier& naa) { return "naa." + format_hex(naa); }

std::optional<NaaIdentifier> parse_naa(std::string_view text) {
  if (text.starts_with("naa.")) text.remove_prefix(4);
  const auto bytes = parse_hex16(text);
  if (!bytes || (*bytes)[0] >> 4 != 6) return std::nullopt;
  return bytes;
}

std::string format_eui64(const Eui64& eui64) { return "eui." + format_hex(eui64); }

std::optional<Eui64> parse_eui64(std::string_view text) {
  if (text.starts_with("eui.")) text.remove_prefix(4);
  Eui64 bytes{};
  if (!parse_hex(text, bytes) || bytes == Eui64{}) return std::nullopt;
  return bytes;
}

}  // namespace sandbay::group
