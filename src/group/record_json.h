// What the encodings of all records have in common: JSON objects with a format number. Exceptions
// of the JSON library end in decode().
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <expected>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "group/json_text.h"
#include "runtime/clock.h"
#include "runtime/uuid.h"

namespace sandbay::group {

// A record that older daemons must not read without knowing all of it has a greater one.
inline constexpr int kRecordFormat = 1;

// Throws, for decode().
inline Uuid uuid_from(const nlohmann::json& value) {
  const auto uuid = parse_uuid(value.get<std::string>());
  if (!uuid) throw std::out_of_range(fmt::format("{} is not a UUID", to_text(value)));
  return *uuid;
}

// A whole number that Number holds, from `least` on. Throws, for decode().
template <class Number>
Number number_from(const nlohmann::json& value, Number least = 0) {
  const auto number = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
  if (!value.is_number_unsigned() || !std::in_range<Number>(number) || number < least) {
    throw std::out_of_range(fmt::format("{} is not a whole number from {} to {}", to_text(value),
                                        least, std::numeric_limits<Number>::max()));
  }
  return static_cast<Number>(number);
}

// Bytes of a block, which others are divided by. Throws, for decode().
inline std::uint32_t block_bytes_from(const nlohmann::json& value) {
  return number_from<std::uint32_t>(value, 512);
}

// In milliseconds since 1970, before the year 10000. Throws, for decode().
inline WallTime time_from(const nlohmann::json& value) {
  constexpr std::uint64_t kEnd = 253402300800000;
  const auto time = number_from<std::uint64_t>(value);
  if (time >= kEnd) throw std::out_of_range(fmt::format("{} is not a time", time));
  return WallTime(std::chrono::milliseconds(static_cast<std::int64_t>(time)));
}

// Runs `take` on the parsed object and turns every complaint into half a sentence. Formats up to
// `newest` are accepted.
template <class Record, class Take>
std::expected<Record, std::string> decode(std::string_view text, Take take,
                                          int newest = kRecordFormat) {
  try {
    const auto value = parse_json(text);
    const int format = value.at("format").template get<int>();
    if (format < kRecordFormat || format > newest) {
      return std::unexpected(fmt::format(
          "has format {}; this version reads {}", format,
          newest == kRecordFormat ? fmt::format("format {}", newest)
                                  : fmt::format("formats {} to {}", kRecordFormat, newest)));
    }
    return take(value);
  } catch (const std::exception& error) {
    return std::unexpected(fmt::format("is damaged: {}", error.what()));
  }
}

}  // namespace sandbay::group
