// Numbers, times, rates, ranges and names of rules.
#include "fault/rule_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/core.h>

namespace sandbay::fault {

namespace {

constexpr std::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array<Unit, 6> kTimes = {{{"h", 3'600'000'000'000},
                                         {"min", 60'000'000'000},
                                         {"s", 1'000'000'000},
                                         {"ms", 1'000'000},
                                         {"us", 1'000},
                                         {"ns", 1}}};
constexpr std::array<Unit, 7> kByteRates = {{{"GiB/s", std::uint64_t{1} << 30U},
                                             {"MiB/s", std::uint64_t{1} << 20U},
                                             {"KiB/s", std::uint64_t{1} << 10U},
                                             {"GB/s", 1'000'000'000},
                                             {"MB/s", 1'000'000},
                                             {"kB/s", 1'000},
                                             {"B/s", 1}}};
// An eighth of these; whole, because a thousand is a multiple of eight.
constexpr std::array<Unit, 3> kBitRates = {
    {{"Gbit/s", 125'000'000}, {"Mbit/s", 125'000}, {"kbit/s", 125}}};

std::optional<std::uint64_t> with_unit(std::string_view text, std::span<const Unit> units) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = to_number(text.substr(0, digits));
  if (!number.has_value()) return std::nullopt;
  for (const Unit& unit : units) {
    if (text.substr(digits) != unit.name) continue;
    if (*number > kLargest / unit.factor) return std::nullopt;
    return *number * unit.factor;
  }
  return std::nullopt;
}

std::string in_largest_unit(std::uint64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.factor == 0) return fmt::format("{}{}", value / unit.factor, unit.name);
  }
  return fmt::format("{}{}", value, units.back().name);
}

template <class T>
std::optional<T> whole(std::string_view text, int base) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string result(text.substr(0, kMost));
  for (char& letter : result) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return text.size() > kMost ? result + "..." : result;
}

std::string listing(const std::vector<std::string_view>& words) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) result += i + 1 == words.size() ? " and " : ", ";
    result += words[i];
  }
  return result;
}

std::optional<std::uint64_t> to_number(std::string_view text) {
  if (text.starts_with("0x")) return whole<std::uint64_t>(text.substr(2), 16);
  return whole<std::uint64_t>(text, 10);
}

std::optional<std::int64_t> to_signed(std::string_view text) {
  return whole<std::int64_t>(text, 10);
}

std::optional<double> to_real(std::string_view text) {
  if (text.empty() || text.front() == '-') return std::nullopt;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<Duration> to_time(std::string_view text) {
  const auto value = with_unit(text, kTimes);
  if (!value.has_value()) return std::nullopt;
  if (*value > static_cast<std::uint64_t>(kLongestTime.count())) return std::nullopt;
  return Duration(static_cast<std::int64_t>(*value));
}

std::optional<std::uint64_t> to_rate(std::string_view text) {
  const auto bytes = with_unit(text, kByteRates);
  return bytes.has_value() ? bytes : with_unit(text, kBitRates);
}

std::optional<Bounds> to_bounds(std::string_view text) {
  const Halves ends = halves(text, "..");
  Bounds bounds;
  if (!ends.second.has_value()) {
    const auto only = to_number(text);
    if (!only.has_value()) return std::nullopt;
    return Bounds{.least = *only, .most = *only};
  }
  if (ends.first.empty() && ends.second->empty()) return std::nullopt;
  if (!ends.first.empty()) {
    const auto least = to_number(ends.first);
    if (!least.has_value()) return std::nullopt;
    bounds.least = *least;
  }
  if (!ends.second->empty()) {
    const auto most = to_number(*ends.second);
    if (!most.has_value()) return std::nullopt;
    bounds.most = *most;
  }
  if (bounds.least > bounds.most) return std::nullopt;
  return bounds;
}

std::optional<Extent> to_extent(std::string_view text) {
  const Halves halved = halves(text, "+");
  const auto first = to_number(halved.first);
  const auto count = to_number(halved.second.value_or("1"));
  if (!first.has_value() || !count.has_value() || *count == 0) return std::nullopt;
  if (*count > kLargest - *first) return std::nullopt;
  return Extent{.first = *first, .block_count = *count};
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName &&
         text.find_first_not_of(kLetters) == std::string_view::npos;
}

bool is_pattern(std::string_view text) {
  constexpr std::size_t kLongestPattern = 223;
  return !text.empty() && text.size() <= kLongestPattern &&
         std::ranges::all_of(text, [](char letter) {
           constexpr std::string_view kOthers = ":*?[]";  // Brackets: of an address of IPv6.
           return kLetters.find(letter) != std::string_view::npos ||
                  kOthers.find(letter) != std::string_view::npos;
         });
}

std::string time_text(Duration time) {
  if (time == Duration::zero()) return "0s";
  return in_largest_unit(static_cast<std::uint64_t>(time.count()), kTimes);
}

std::string rate_text(std::uint64_t bytes_per_second) {
  return in_largest_unit(bytes_per_second, kByteRates);
}

std::string bounds_text(const Bounds& bounds) {
  if (bounds.least == bounds.most) return fmt::format("{}", bounds.least);
  const std::string least = bounds.least == 0 ? "" : fmt::format("{}", bounds.least);
  if (bounds.most == Bounds{}.most) {
    return fmt::format("{}..", bounds.least);
  }
  return fmt::format("{}..{}", least, bounds.most);
}

std::string extent_text(const Extent& extent) {
  return fmt::format("{:#x}+{}", extent.first, extent.block_count);
}

Halves halves(std::string_view text, std::string_view separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return {.first = text, .second = std::nullopt};
  return {.first = text.substr(0, at), .second = text.substr(at + separator.size())};
}

std::vector<std::string_view> parts(std::string_view text, char separator) {
  std::vector<std::string_view> result;
  for (;;) {
    const std::size_t at = text.find(separator);
    result.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return result;
    text.remove_prefix(at + 1);
  }
}

Duration draw(const Latency& latency, Random& random) {
  constexpr double kLongestExponential = 100;  // Means.
  Duration time = latency.least;
  if (latency.exponential) {
    const double factor = std::min(-std::log1p(-random.unit()), kLongestExponential);
    return Duration(static_cast<Duration::rep>(static_cast<double>(time.count()) * factor));
  }
  if (latency.most > latency.least) {
    const auto range = static_cast<std::uint64_t>((latency.most - latency.least).count());
    time += Duration(static_cast<Duration::rep>(random.between(0, range)));
  }
  return time;
}

}  // namespace sandbay::fault
