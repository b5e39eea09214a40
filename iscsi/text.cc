// RFC 7143 section 6.1: the grammar of keys and values.
#include "iscsi/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace sandbay::iscsi {
namespace {

constexpr std::string_view kBase64Alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool has_prefix(std::string_view value, char letter) {
  return value.size() > 2 && value[0] == '0' && (value[1] | 0x20) == letter;
}

int hexadecimal_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::vector<std::byte>> decode_hexadecimal(std::string_view digits,
                                                         std::size_t maximum) {
  if ((digits.size() + 1) / 2 > maximum) return std::nullopt;
  std::vector<std::byte> bytes((digits.size() + 1) / 2);
  // Counted in half bytes from the left; an odd number of digits starts with a zero.
  std::size_t nibble = digits.size() % 2;
  for (const char c : digits) {
    const int digit = hexadecimal_digit(c);
    if (digit < 0) return std::nullopt;
    bytes[nibble / 2] |= static_cast<std::byte>(nibble % 2 == 0 ? digit << 4 : digit);
    ++nibble;
  }
  return bytes;
}

std::optional<std::vector<std::byte>> decode_base64(std::string_view digits, std::size_t maximum) {
  std::size_t padding = 0;
  while (padding < 2 && !digits.empty() && digits.back() == '=') {
    digits.remove_suffix(1);
    ++padding;
  }
  // RFC 4648 section 4; padding may be left out, but what there is has to fit.
  if (digits.empty() || digits.size() % 4 == 1) return std::nullopt;
  if (padding != 0 && (digits.size() + padding) % 4 != 0) return std::nullopt;
  if (digits.size() * 3 / 4 > maximum) return std::nullopt;
  std::vector<std::byte> bytes;
  bytes.reserve(digits.size() * 3 / 4);
  std::uint32_t bits = 0;
  unsigned bit_count = 0;
  for (const char c : digits) {
    const std::size_t digit = kBase64Alphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6U | static_cast<std::uint32_t>(digit)) & 0xffffU;
    bit_count += 6;
    if (bit_count < 8) continue;
    bit_count -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> bit_count));
  }
  return bytes;
}

}  // namespace

std::string_view describe(TextError error) {
  switch (error) {
    case TextError::kTooLong:
      return "too much text";
    case TextError::kNoDelimiter:
      return "the last pair does not end in a null byte";
    case TextError::kNoEqualsSign:
      return "a pair without an equals sign";
    case TextError::kBadKey:
      return "a key that is not a standard-label of at most 63 bytes";
    case TextError::kValueTooLong:
      return "a value that is too long";
  }
  return "bad text";
}

std::expected<std::vector<KeyValue>, TextError> parse_text(std::string_view text) {
  if (text.size() > kMaximumTextBytes) return std::unexpected(TextError::kTooLong);
  if (!text.empty() && text.back() != '\0') return std::unexpected(TextError::kNoDelimiter);
  std::vector<KeyValue> pairs;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('\0'));
    text.remove_prefix(pair.size() + 1);
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return std::unexpected(TextError::kNoEqualsSign);
    const std::string_view key = pair.substr(0, equals);
    const std::string_view value = pair.substr(equals + 1);
    if (!is_key_name(key)) return std::unexpected(TextError::kBadKey);
    if (value.size() > kMaximumValueBytes) return std::unexpected(TextError::kValueTooLong);
    if (pairs.size() == kMaximumPairs) return std::unexpected(TextError::kTooLong);
    pairs.push_back({.key = std::string(key), .value = std::string(value)});
  }
  return pairs;
}

void append_pair(std::string& text, std::string_view key, std::string_view value) {
  text.append(key).append(1, '=').append(value).append(1, '\0');
}

std::string format_text(std::span<const KeyValue> pairs) {
  std::string text;
  for (const KeyValue& pair : pairs) append_pair(text, pair.key, pair.value);
  return text;
}

bool is_key_name(std::string_view name) {
  if (name.empty() || name.size() > kMaximumKeyBytes) return false;
  if (name[0] < 'A' || name[0] > 'Z') return false;
  return std::ranges::all_of(
      name, [](char c) { return is_letter_or_digit(c) || std::string_view(".-+@_#").contains(c); });
}

bool is_reserved_answer(std::string_view value) {
  return value == kRejectValue || value == kIrrelevant || value == kNotUnderstood;
}

std::optional<std::uint64_t> parse_number(std::string_view value) {
  int base = 10;
  if (has_prefix(value, 'x')) {
    base = 16;
    value.remove_prefix(2);
  } else if (value.size() > 1 && value[0] == '0') {
    return std::nullopt;  // A decimal-constant is "0" or starts with another digit.
  }
  std::uint64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stopped, error] = std::from_chars(value.data(), end, number, base);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return number;
}

std::optional<bool> parse_boolean(std::string_view value) {
  if (value == "Yes") return true;
  if (value == "No") return false;
  return std::nullopt;
}

std::vector<std::string_view> split_list(std::string_view value) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t comma = value.find(',');
    parts.push_back(value.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    value.remove_prefix(comma + 1);
  }
}

std::optional<std::vector<std::byte>> parse_binary(std::string_view value, std::size_t maximum) {
  if (has_prefix(value, 'x')) return decode_hexadecimal(value.substr(2), maximum);
  if (has_prefix(value, 'b')) return decode_base64(value.substr(2), maximum);
  return std::nullopt;
}

std::string format_hexadecimal(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4U)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{0x0f})];
  }
  return text;
}

bool TextAssembler::append(std::span<const std::byte> segment) {
  if (segment.size() > limit_ - text_.size()) {
    text_.clear();
    return false;
  }
  text_.append(reinterpret_cast<const char*>(segment.data()), segment.size());
  return true;
}

std::string TextAssembler::take() { return std::exchange(text_, {}); }

std::string TextSplitter::take(std::size_t segment_bytes) {
  std::string piece = text_.substr(position_, segment_bytes);
  position_ += piece.size();
  return piece;
}

}  // namespace sandbay::iscsi
