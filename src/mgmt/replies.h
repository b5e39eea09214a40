// What handlers of routes have in common: replies made of values and refusals, and numbers in
// paths.
#pragma once

#include <fmt/core.h>

#include <charconv>
#include <expected>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "group/json_text.h"
#include "mgmt/json.h"
#include "mgmt/route.h"

namespace sandbay::mgmt {

inline int status_of(group::Refusal::Code code) {
  switch (code) {
    case group::Refusal::Code::kInvalid:
      return 400;
    case group::Refusal::Code::kForbidden:
      return 403;
    case group::Refusal::Code::kNotFound:
      return 404;
    case group::Refusal::Code::kConflict:
      return 409;
    case group::Refusal::Code::kFailed:
      return 500;
    case group::Refusal::Code::kUnavailable:
      return 503;
  }
  return 500;
}

inline Reply refused(const group::Refusal& refusal) {
  return error_reply(status_of(refusal.code), refusal.message);
}

inline Reply ok(const nlohmann::json& value, int status = 200) {
  return {.status = status, .body = group::to_text(value)};
}

// 201 with its place; 200: it existed already.
inline Reply made(const nlohmann::json& value, bool created, std::string place) {
  return {.status = created ? 201 : 200,
          .body = group::to_text(value),
          .location = created ? std::move(place) : std::string()};
}

template <class T>
Reply list(std::string_view name, const std::vector<T>& items) {
  nlohmann::json array = nlohmann::json::array();
  for (const T& item : items) array.push_back(to_json(item));
  return ok({{std::string(name), std::move(array)}});
}

template <class T>
Reply list(std::string_view name, const group::Answer<std::vector<T>>& items) {
  return items ? list(name, *items) : refused(items.error());
}

// The value; 204 without one.
template <class T>
Reply answer(const group::Answer<T>& given) {
  if (!given) return refused(given.error());
  if constexpr (std::is_void_v<T>) {
    return {.status = 204};
  } else {
    return ok(to_json(*given));
  }
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// since=NUMBER of a list, 0 without it; the error names `what` has numbers.
inline std::expected<std::uint64_t, std::string> since_of(const Call& call, std::string_view what) {
  const auto since = call.query.find("since");
  if (since == call.query.end()) return 0;
  if (const auto number = number_of<std::uint64_t>(since->second)) return *number;
  return std::unexpected(
      fmt::format("since is \"{}\"; write the number of {}", since->second, what));
}

}  // namespace sandbay::mgmt
