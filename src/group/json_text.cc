// Parser and serializer of the JSON library, compiled once.
#include "group/json_text.h"

#include <limits>
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

Value to_value(const json& source, Nulls nulls) {
  Value value;
  value.kind = Value::Kind::kOther;
  if (source.is_object()) {
    value.kind = Value::Kind::kTable;
    for (const auto& [key, member] : source.items()) {
      if (nulls == Nulls::kKept || !member.is_null())
        value.members.push_back({key, to_value(member, nulls)});
    }
  } else if (source.is_array()) {
    value.kind = Value::Kind::kArray;
    for (const json& element : source) value.elements.push_back(to_value(element, nulls));
  } else if (source.is_string()) {
    value.kind = Value::Kind::kString;
    value.text = source.get<std::string>();
  } else if (source.is_boolean()) {
    value.kind = Value::Kind::kBoolean;
    value.boolean = source.get<bool>();
  } else if (source.is_number_integer() &&
             (!source.is_number_unsigned() ||
              source.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max())) {
    value.kind = Value::Kind::kInteger;
    value.integer = source.get<std::int64_t>();
  } else if (source.is_number()) {
    value.kind = Value::Kind::kFloat;
    value.number = source.get<double>();
  }
  return value;
}

}  // namespace sandbay::group
