// Checks of values on the command line. CLI11 reads "-1" as the largest number, and reduces larger
// numbers to that.
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

// An empty value, from a script's unset variable, is not the same as an option left out.
inline std::string wrong_if_empty(const std::string& text) {
  return text.empty() ? "the value is empty" : "";
}

}  // namespace sandbay::cli
