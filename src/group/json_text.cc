// Parser and serializer of the JSON library, compiled once.
#include "group/json_text.h"

#include <nlohmann/json.hpp>

namespace sandbay::group {

using nlohmann::json;

json parse_json(std::string_view text) { return json::parse(text); }

json parse_json(std::string_view text, int deepest) {
  const auto watch = [deepest](int depth, json::parse_event_t, json&) { return depth <= deepest; };
  return json::parse(text, watch, /*allow_exceptions=*/false);
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace sandbay::group
