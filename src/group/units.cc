// Exact arithmetic: a fraction is multiplied out in integers, never through floating point.
#include "group/units.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

namespace sandbay::group {

namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

struct Unit {
  std::string_view name;
  std::uint64_t multiplier;
};

constexpr std::array<Unit, 11> kSizeUnits = {{
    {"B", 1},
    {"KiB", std::uint64_t{1} << 10},
    {"MiB", std::uint64_t{1} << 20},
    {"GiB", std::uint64_t{1} << 30},
    {"TiB", std::uint64_t{1} << 40},
    {"PiB", std::uint64_t{1} << 50},
    {"kB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"PB", 1'000'000'000'000'000},
}};

// In bits a second, so that both families are whole.
constexpr std::array<Unit, 13> kRateUnits = {{
    {"B/s", 8},
    {"KiB/s", 8 * (std::uint64_t{1} << 10)},
    {"MiB/s", 8 * (std::uint64_t{1} << 20)},
    {"GiB/s", 8 * (std::uint64_t{1} << 30)},
    {"kB/s", 8'000},
    {"MB/s", 8'000'000},
    {"GB/s", 8'000'000'000},
    {"TB/s", 8'000'000'000'000},
    {"bit/s", 1},
    {"kbit/s", 1'000},
    {"Mbit/s", 1'000'000},
    {"Gbit/s", 1'000'000'000},
    {"Tbit/s", 1'000'000'000'000},
}};

// In nanoseconds.
constexpr std::array<Unit, 7> kDurationUnits = {{
    {"ns", 1},
    {"us", 1'000},
    {"ms", 1'000'000},
    {"s", 1'000'000'000},
    {"min", 60'000'000'000},
    {"h", 3'600'000'000'000},
    {"d", 86'400'000'000'000},
}};

struct Number {
  std::uint64_t whole = 0;
  std::uint64_t fraction = 0;  // Of `scale`.
  std::uint64_t scale = 1;     // A power of ten.
  std::string_view unit;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits, perhaps a point and more digits, then the unit. Nothing if it is not of that form or
// has more than nine digits after the point.
std::optional<Number> split(std::string_view text) {
  Number number;
  std::size_t at = 0;
  while (at < text.size() && is_digit(text[at])) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    if (number.whole > (kLargest - digit) / 10) return std::nullopt;
    number.whole = number.whole * 10 + digit;
    ++at;
  }
  if (at == 0) return std::nullopt;
  if (at < text.size() && text[at] == '.') {
    const std::size_t first = ++at;
    while (at < text.size() && is_digit(text[at])) {
      if (at - first == 9) return std::nullopt;
      number.fraction = number.fraction * 10 + static_cast<std::uint64_t>(text[at] - '0');
      number.scale *= 10;
      ++at;
    }
    if (at == first) return std::nullopt;
  }
  number.unit = text.substr(at);
  return number;
}

std::optional<std::uint64_t> multiplier_of(std::string_view name, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.multiplier;
  }
  return std::nullopt;
}

// number * multiplier, if that is whole and fits.
std::optional<std::uint64_t> multiply(const Number& number, std::uint64_t multiplier) {
  if (number.whole > kLargest / multiplier) return std::nullopt;
  const std::uint64_t whole = number.whole * multiplier;
  const std::uint64_t divisor = std::gcd(multiplier, number.scale);
  const std::uint64_t scale = number.scale / divisor;
  if (number.fraction % scale != 0) return std::nullopt;
  const std::uint64_t part = number.fraction / scale * (multiplier / divisor);
  if (part > kLargest - whole) return std::nullopt;
  return whole + part;
}

// The shortest exact writing; of equally short ones the first in the table's order.
std::string shortest(std::uint64_t value, std::span<const Unit> units) {
  std::string best;
  for (const Unit& unit : units) {
    if (value % unit.multiplier != 0) continue;
    if (value == 0 && !best.empty()) continue;
    std::string text = fmt::format("{}{}", value / unit.multiplier, unit.name);
    if (best.empty() || text.size() < best.size()) best = std::move(text);
  }
  return best;
}

}  // namespace

Parsed<std::uint64_t> parse_size(std::string_view text) {
  const auto number = split(text);
  if (!number) {
    return std::unexpected(fmt::format(
        "\"{}\" is not a size; write a number and a unit, such as 512MiB, 100GiB or 1TB", text));
  }
  const auto multiplier = multiplier_of(number->unit, kSizeUnits);
  if (!multiplier) {
    if (number->unit.empty()) {
      return std::unexpected(
          fmt::format("\"{}\" has no unit; write {}B for bytes, or a size such as 512MiB, 100GiB "
                      "or 1TB",
                      text, text));
    }
    return std::unexpected(fmt::format(
        "\"{}\" has the unknown unit \"{}\"; units are B, KiB MiB GiB TiB PiB (of 1024) and kB MB "
        "GB TB PB (of 1000)",
        text, number->unit));
  }
  const auto bytes = multiply(*number, *multiplier);
  if (!bytes) {
    return std::unexpected(fmt::format(
        "\"{}\" is not a whole number of bytes below 16EiB; write a size such as 512MiB", text));
  }
  return *bytes;
}

Parsed<std::uint64_t> parse_rate(std::string_view text) {
  const auto number = split(text);
  const auto multiplier = number ? multiplier_of(number->unit, kRateUnits) : std::nullopt;
  if (!multiplier) {
    return std::unexpected(fmt::format(
        "\"{}\" is not a rate; write a number and a unit, such as 1Gbit/s, 40MB/s or 100MiB/s",
        text));
  }
  const auto bits = multiply(*number, *multiplier);
  if (!bits || *bits % 8 != 0) {
    return std::unexpected(fmt::format(
        "\"{}\" is not a whole number of bytes a second; write a rate such as 1Gbit/s or 40MB/s",
        text));
  }
  return *bits / 8;
}

Parsed<Duration> parse_duration(std::string_view text) {
  const auto number = split(text);
  const auto multiplier = number ? multiplier_of(number->unit, kDurationUnits) : std::nullopt;
  if (!multiplier) {
    return std::unexpected(
        fmt::format("\"{}\" is not a time; write a number and a unit (ns, us, ms, s, min, h or d), "
                    "such as 5ms or 2s",
                    text));
  }
  const auto nanoseconds = multiply(*number, *multiplier);
  if (!nanoseconds ||
      *nanoseconds > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::unexpected(fmt::format(
        "\"{}\" is not a whole number of nanoseconds below 292 years; write a time such as 5ms",
        text));
  }
  return Duration(static_cast<std::int64_t>(*nanoseconds));
}

std::string format_size(std::uint64_t byte_count) { return shortest(byte_count, kSizeUnits); }

std::string format_size_rounded(std::uint64_t byte_count) {
  const Unit* unit = &kSizeUnits[0];
  for (std::size_t i = 1; i <= 5 && byte_count >= kSizeUnits[i].multiplier; ++i) {
    unit = &kSizeUnits[i];
  }
  if (unit->multiplier == 1) return fmt::format("{} B", byte_count);
  const double value = static_cast<double>(byte_count) / static_cast<double>(unit->multiplier);
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, unit->name);
}

std::string format_rate(std::uint64_t bytes_per_second) {
  // Whole bits need not fit for the largest rates; those are written in bytes.
  if (bytes_per_second > kLargest / 8) return fmt::format("{}B/s", bytes_per_second);
  return shortest(bytes_per_second * 8, kRateUnits);
}

std::string format_duration(Duration duration) {
  const auto nanoseconds = static_cast<std::uint64_t>(duration.count() < 0 ? 0 : duration.count());
  if (nanoseconds == 0) return "0s";
  return shortest(nanoseconds, kDurationUnits);
}

}  // namespace sandbay::group
