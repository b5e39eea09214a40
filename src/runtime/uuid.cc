// The text form of a UUID: hexadecimal digits in the order of its bytes.
#include "runtime/uuid.h"

namespace sandbay {

namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

// The value of a hexadecimal digit, or nothing.
std::optional<std::uint8_t> digit_of(char c) {
  if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  const auto at = kDigits.find(c);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<std::uint8_t>(at);
}

}  // namespace

bool parse_hex(std::string_view text, std::span<std::uint8_t> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto high = digit_of(text[2 * i]);
    const auto low = digit_of(text[2 * i + 1]);
    if (!high || !low) return false;
    bytes[i] = static_cast<std::uint8_t>(*high << 4 | *low);
  }
  return true;
}

std::optional<std::array<std::uint8_t, 16>> parse_hex16(std::string_view text) {
  std::array<std::uint8_t, 16> bytes{};
  if (!parse_hex(text, bytes)) return std::nullopt;
  return bytes;
}

std::string format_hex(std::span<const std::uint8_t> bytes) {
  std::string text(bytes.size() * 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text[2 * i] = kDigits[bytes[i] >> 4];
    text[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return text;
}

Uuid make_uuid(Random& random) {
  Uuid uuid{};
  for (std::size_t i = 0; i < uuid.size(); i += 8) {
    std::uint64_t bits = random.next();
    for (std::size_t j = 0; j < 8; ++j, bits >>= 8) {
      uuid[i + j] = static_cast<std::uint8_t>(bits & 0xff);
    }
  }
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0f) | 0x40);  // Version 4: random.
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3f) | 0x80);  // The variant of RFC 4122.
  return uuid;
}

std::string format_uuid(const Uuid& uuid) {
  std::string text = format_hex(uuid);
  for (const std::size_t at : {20UZ, 16UZ, 12UZ, 8UZ}) text.insert(at, 1, '-');
  return text;
}

std::optional<Uuid> parse_uuid(std::string_view text) {
  constexpr std::size_t kLength = 36;
  if (text.size() != kLength) return std::nullopt;
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash != (text[i] == '-')) return std::nullopt;
    if (!dash) digits += text[i];
  }
  return parse_hex16(digits);
}

}  // namespace sandbay
