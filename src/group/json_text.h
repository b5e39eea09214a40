// JSON as text. The library's parser and serializer take a second to compile wherever they are
// used: json_text.cc alone pays for them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "group/document.h"

namespace sandbay::group {

// Throws the library's parse_error.
nlohmann::json parse_json(std::string_view text);
// A discarded value where `text` is not JSON. The parser leaves out values nested deeper than
// `deepest`: their destruction would recurse as deep.
nlohmann::json parse_json(std::string_view text, int deepest);
// On one line. U+FFFD replaces bytes that are not UTF-8.
std::string to_text(const nlohmann::json& value);
// As the readers of documents take it; members that are null are left out, or of another kind than
// any reader wants. Recurses as deep as `source` is: bound that first. A number beyond 64 bits with
// a sign is a fraction.
enum class Nulls : std::uint8_t { kLeftOut, kKept };
Value to_value(const nlohmann::json& source, Nulls nulls = Nulls::kLeftOut);

}  // namespace sandbay::group
