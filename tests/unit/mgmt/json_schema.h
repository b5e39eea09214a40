// A checker for the part of JSON Schema that the OpenAPI document uses: type, enum, required,
// properties, items, additionalProperties, oneOf and $ref. An object may hold no property that its
// schema does not name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sandbay::mgmt {

// What does not fit, with its place; empty if everything does.
std::string schema_mismatch(const nlohmann::json& value, const nlohmann::json& schema,
                            const nlohmann::json& document, const std::string& where = "$");

}  // namespace sandbay::mgmt
