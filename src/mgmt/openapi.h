// The OpenAPI 3 document: made from the table of routes and the schemas here, so that it cannot
// tell of a route that is not there or leave one out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sandbay::mgmt {

nlohmann::json openapi_document();
const std::string& openapi_text();  // Made once; may be called from any thread.

}  // namespace sandbay::mgmt
