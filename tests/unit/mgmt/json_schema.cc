// Recursive descent over schema and value together.
#include "tests/unit/mgmt/json_schema.h"

#include <algorithm>

namespace sandbay::mgmt {

namespace {

using nlohmann::json;

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return false;
}

std::string object_mismatch(const json& value, const json& schema, const json& document,
                            const std::string& where) {
  for (const json& key : schema.value("required", json::array())) {
    if (!value.contains(key.get<std::string>())) return where + " lacks " + key.dump();
  }
  if (!schema.contains("properties") && !schema.contains("additionalProperties")) return "";
  const json properties = schema.value("properties", json::object());
  for (const auto& [key, member] : value.items()) {
    const std::string place = where + "." + key;
    if (properties.contains(key)) {
      const auto error = schema_mismatch(member, properties.at(key), document, place);
      if (!error.empty()) return error;
    } else if (schema.contains("additionalProperties") &&
               schema.at("additionalProperties").is_object()) {
      const auto error =
          schema_mismatch(member, schema.at("additionalProperties"), document, place);
      if (!error.empty()) return error;
    } else {
      return place + " is not in the schema";
    }
  }
  return "";
}

}  // namespace

std::string schema_mismatch(const json& value, const json& schema, const json& document,
                            const std::string& where) {
  if (schema.contains("$ref")) {
    const std::string pointer = schema.at("$ref").get<std::string>().substr(1);
    return schema_mismatch(value, document.at(json::json_pointer(pointer)), document, where);
  }
  if (value.is_null() && schema.value("nullable", false)) return "";
  if (schema.contains("oneOf")) {
    const auto& choices = schema.at("oneOf");
    const bool fits = std::ranges::any_of(choices, [&](const json& choice) {
      return schema_mismatch(value, choice, document, where).empty();
    });
    return fits ? "" : where + " fits no choice: " + value.dump();
  }
  if (schema.contains("type") && !has_type(value, schema.at("type").get<std::string>())) {
    return where + " is no " + schema.at("type").dump() + ": " + value.dump();
  }
  if (schema.contains("enum") && !std::ranges::any_of(schema.at("enum"), [&](const json& choice) {
        return choice == value;
      })) {
    return where + " is none of " + schema.at("enum").dump() + ": " + value.dump();
  }
  if (value.is_object()) return object_mismatch(value, schema, document, where);
  if (value.is_array() && schema.contains("items")) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      const auto error = schema_mismatch(value[i], schema.at("items"), document,
                                         where + "[" + std::to_string(i) + "]");
      if (!error.empty()) return error;
    }
  }
  return "";
}

}  // namespace sandbay::mgmt
