// The schemas of members.
#include "mgmt/openapi_schemas.h"

namespace sandbay::mgmt {

const std::string_view kMemberSchemas = R"json({
"Member": {"type": "object", "required": ["name", "place", "pool", "state", "health", "reason",
  "drives", "size", "free", "leaving", "modelled_busy", "sets", "portals"], "properties": {
  "name": {"type": "string"},
  "place": {"type": "string", "description": "\"local\", or where it is."},
  "pool": {"type": "string", "description": "That has its sets; empty: none."},
  "state": {"type": "string", "enum": ["present", "member", "leaving"]},
  "health": {"type": "string", "enum": ["good", "degraded", "missing"]},
  "reason": {"type": "string", "description": "Why all of it is away; empty: it is not."},
  "drives": {"type": "integer"},
  "size": {"type": "integer", "description": "Bytes."},
  "free": {"type": "integer", "description": "Bytes in pages that nobody has."},
  "leaving": {"type": "object", "required": ["moved", "left", "seconds_left"],
    "description": "How far a member that is to leave its pool is emptied.", "properties": {
    "moved": {"type": "integer", "description": "Bytes."},
    "left": {"type": "integer", "description": "Bytes."},
    "seconds_left": {"type": "number", "nullable": true}}},
  "modelled_busy": {"type": "number", "nullable": true, "description":
    "Seconds for which its controller's processors were at work; null: they are not modelled."},
  "sets": {"type": "array", "items": {"type": "object",
    "required": ["set", "level", "size", "free", "state", "reason"], "properties": {
    "set": {"type": "string"},
    "level": {"type": "string"},
    "size": {"type": "integer", "description": "Bytes."},
    "free": {"type": "integer", "description": "Bytes."},
    "state": {"type": "string", "enum": ["active", "vacating", "unused"]},
    "reason": {"type": "string", "description": "Why it does not serve; empty if it does."}}}},
  "portals": {"type": "array", "items": {"$ref": "#/components/schemas/Portal"}}}},
"MemberList": {"type": "object", "required": ["members"], "properties": {
  "members": {"type": "array", "items": {"$ref": "#/components/schemas/Member"}}}},
"PoolChoice": {"type": "object", "additionalProperties": false, "properties": {
  "pool": {"type": "string", "description": "May be left out where there is one pool."}}}
})json";

}  // namespace sandbay::mgmt
