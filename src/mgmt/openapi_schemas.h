// The schemas of the OpenAPI document, as JSON text. Sizes are bytes.
#pragma once

#include <string_view>

namespace sandbay::mgmt {

extern const std::string_view kSchemas;
extern const std::string_view kHardwareSchemas;  // hardware_schemas.cc
extern const std::string_view kCacheSchemas;     // cache_schemas.cc
extern const std::string_view kPoolSchemas;      // pool_schemas.cc
extern const std::string_view kMemberSchemas;    // member_schemas.cc

}  // namespace sandbay::mgmt
