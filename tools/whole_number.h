// Values as they may stand on the command line: a number of an event or an entry. The library that
// reads options takes "-1" for the largest number and cuts one that is too large down to it.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace sandbay::cli {

// What is wrong with it; empty: nothing.
inline std::string wrong_number(const std::string& text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  constexpr std::uint64_t kMost = INT64_MAX;
  if (!text.empty() && error == std::errc{} && rest == end && number <= kMost) return {};
  return "\"" + text + "\" is no number; write a whole number from 0 on";
}

// The same of a text that a script's variable may have left empty: not as the option left out.
inline std::string wrong_if_empty(const std::string& text) {
  return text.empty() ? "the value is empty" : "";
}

}  // namespace sandbay::cli
