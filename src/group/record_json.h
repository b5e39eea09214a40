// What the encodings of all records have in common: JSON objects with a format number. Exceptions
// of the JSON library end in decode().
#pragma once

#include <fmt/format.h>

#include <expected>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/uuid.h"

namespace sandbay::group {

inline constexpr int kRecordFormat = 1;

inline std::string to_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Throws, for decode().
inline Uuid uuid_from(const nlohmann::json& value) {
  const auto uuid = parse_uuid(value.get<std::string>());
  if (!uuid) throw std::out_of_range(fmt::format("{} is not a UUID", value.dump()));
  return *uuid;
}

// Runs `take` on the parsed object and turns every complaint into half a sentence.
template <class Record, class Take>
std::expected<Record, std::string> decode(std::string_view text, Take take) {
  try {
    const auto value = nlohmann::json::parse(text);
    const int format = value.at("format").template get<int>();
    if (format != kRecordFormat) {
      return std::unexpected(
          fmt::format("has format {}; this version reads format {}", format, kRecordFormat));
    }
    return take(value);
  } catch (const std::exception& error) {
    return std::unexpected(fmt::format("is damaged: {}", error.what()));
  }
}

}  // namespace sandbay::group
