// The values that words of a rule have: numbers, times, rates, ranges and names; from text and
// back. What is printed parses to the same value. Used by the words' table only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fault/rule.h"
#include "runtime/clock.h"

namespace sandbay::fault {

inline constexpr Duration kLongestTime = std::chrono::hours(24 * 3660);

// A word of the user's as a message may show it: short and printable.
std::string shown(std::string_view text);
// "a, b and c".
std::string listing(const std::vector<std::string_view>& words);

std::optional<std::uint64_t> to_number(std::string_view text);  // 4096, 0x1000
std::optional<std::int64_t> to_signed(std::string_view text);
std::optional<double> to_real(std::string_view text);         // 0.25; never negative, finite.
std::optional<Duration> to_time(std::string_view text);       // 5ms; up to kLongestTime.
std::optional<std::uint64_t> to_rate(std::string_view text);  // 40MB/s, 1Gbit/s; bytes a second.
std::optional<Bounds> to_bounds(std::string_view text);       // 8, 8.., ..8, 8..16
std::optional<Extent> to_extent(std::string_view text);       // 0x1000, 0x1000+64
bool is_name(std::string_view text);  // Letters, digits and . _ - ; 1 to kLongestName of them.

bool is_pattern(std::string_view text);  // Also with : * ? [ ] ; up to 223, as iSCSI names.

std::string time_text(Duration time);
std::string rate_text(std::uint64_t bytes_per_second);
std::string bounds_text(const Bounds& bounds);
std::string extent_text(const Extent& extent);

// Cuts `text` at the first `separator`; the second part is empty and absent without one.
struct Halves {
  std::string_view first;
  std::optional<std::string_view> second;
};
Halves halves(std::string_view text, std::string_view separator);
std::vector<std::string_view> parts(std::string_view text, char separator);

}  // namespace sandbay::fault
