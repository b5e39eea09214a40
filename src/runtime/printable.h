// Text that others chose, as a terminal and a log may show it. A control character (C0, DEL, C1)
// and a byte that is not UTF-8 become \xNN, so the result commands no terminal, forges no line and
// is always valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sandbay {

// The length of the UTF-8 sequence at the start of `text`, which is not empty; 0 if there is no
// valid one (RFC 3629, section 4) or if it is a control character.
inline std::size_t printable_sequence(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first < 0x20 || first == 0x7F ? 0 : 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return 0;
    code = code << 6U | (next & 0x3FU);
  }
  const bool control = code < 0xA0;
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return control || overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

// `kept` is a character that passes although it is a control character, such as '\n' of a text of
// several lines; no other one by default.
inline std::string printable(std::string_view text, char kept = ' ') {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = text[0] == kept ? 1 : printable_sequence(text);
    if (length != 0) {
      shown += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    // A control character of two bytes is shown by its number, as other ones are.
    const bool two = text.size() > 1 && text[0] == '\xc2' && (text[1] & '\xe0') == '\x80';
    const auto byte = static_cast<unsigned char>(text[two ? 1 : 0]);
    shown += "\\x";
    shown += kDigits[byte >> 4U];
    shown += kDigits[byte & 0xFU];
    text.remove_prefix(two ? 2 : 1);
  }
  return shown;
}

}  // namespace sandbay
