// The schemas of the controller's cache.
#include "mgmt/openapi_schemas.h"

namespace sandbay::mgmt {

const std::string_view kCacheSchemas = R"json({
"CacheMode": {"type": "string", "enum": ["write-back", "write-through", "none"],
  "description": "What the controller's cache does with a volume on a RAID set."},
"Latency": {"type": "object", "description": "Seconds.", "required": ["count", "mean", "p50",
  "p99"], "properties": {
  "count": {"type": "integer"},
  "mean": {"type": "number"},
  "p50": {"type": "number"},
  "p99": {"type": "number"}}},
"CachedVolumeCounters": {"type": "object", "description": "Since the daemon was started.",
  "required": ["reads", "read_bytes", "hits", "partial_hits", "misses", "late_hits",
  "pass_throughs", "read_ahead_bytes", "read_ahead_used_bytes", "read_ahead_wasted_bytes",
  "read_ahead_errors", "advice_dropped_bytes", "writes", "written_bytes", "absorbed_bytes",
  "write_throughs", "throttled_seconds", "flushes"], "properties": {
  "reads": {"type": "integer"},
  "read_bytes": {"type": "integer"},
  "hits": {"type": "integer", "description": "Everything was there."},
  "partial_hits": {"type": "integer"},
  "misses": {"type": "integer"},
  "late_hits": {"type": "integer",
    "description": "Of misses and partial hits: it was being read ahead."},
  "pass_throughs": {"type": "integer", "description": "Reads that passed the cache by."},
  "read_ahead_bytes": {"type": "integer"},
  "read_ahead_used_bytes": {"type": "integer"},
  "read_ahead_wasted_bytes": {"type": "integer",
    "description": "Went before anybody asked for them."},
  "read_ahead_errors": {"type": "integer"},
  "advice_dropped_bytes": {"type": "integer"},
  "writes": {"type": "integer"},
  "written_bytes": {"type": "integer"},
  "absorbed_bytes": {"type": "integer",
    "description": "Overwritten before they went to the drives."},
  "write_throughs": {"type": "integer",
    "description": "Writes that were on the drives before they were acknowledged."},
  "throttled_seconds": {"type": "number"},
  "flushes": {"type": "integer"}}},
"CachedVolume": {"type": "object", "required": ["name", "cache", "hit_ratio", "counters",
  "streams_found", "reads_in_streams", "hit_latency", "miss_latency", "write_latency"],
  "properties": {
  "name": {"type": "string"},
  "cache": {"$ref": "#/components/schemas/CacheMode"},
  "hit_ratio": {"type": "number", "description": "0 to 1."},
  "counters": {"$ref": "#/components/schemas/CachedVolumeCounters"},
  "streams_found": {"type": "integer"},
  "reads_in_streams": {"type": "integer"},
  "hit_latency": {"$ref": "#/components/schemas/Latency"},
  "miss_latency": {"$ref": "#/components/schemas/Latency"},
  "write_latency": {"$ref": "#/components/schemas/Latency"}}},
"CachedSet": {"type": "object", "required": ["name", "uuid", "dirty", "waiting", "failure",
  "barred", "lost", "counters"], "properties": {
  "name": {"type": "string"},
  "uuid": {"type": "string", "format": "uuid"},
  "dirty": {"type": "integer", "description": "Bytes that are not on its drives yet."},
  "waiting": {"type": "integer", "description": "Bytes that wait for the set to come."},
  "failure": {"type": "string",
    "description": "Why nothing can be brought to its drives; empty: it can."},
  "barred": {"type": "string",
    "description": "Why it is not served: its newest writes are elsewhere. Empty if it is."},
  "lost": {"type": "array", "description": "Acknowledged writes that the NVRAM has lost.",
    "items": {"type": "object", "required": ["volume", "first_block", "blocks", "why"],
    "properties": {
    "volume": {"type": "string",
      "description": "Empty: of none that is there, or nobody knows of which."},
    "first_block": {"type": "integer",
      "description": "Of the volume; of the set where there is no volume."},
    "blocks": {"type": "integer", "description": "0: nobody knows which."},
    "why": {"type": "string"}}}},
  "counters": {"type": "object", "required": ["destages", "destage_bytes", "full_stripes",
    "partial_stripes", "destage_errors", "rounds", "discarded_bytes"], "properties": {
    "destages": {"type": "integer", "description": "Writes to the set."},
    "destage_bytes": {"type": "integer"},
    "full_stripes": {"type": "integer"},
    "partial_stripes": {"type": "integer"},
    "destage_errors": {"type": "integer"},
    "rounds": {"type": "integer", "description": "Flushes of the set."},
    "discarded_bytes": {"type": "integer"}}}}},
"Cache": {"type": "object", "required": ["configured", "memory", "dirty", "read_ahead", "nvram",
  "non_volatile", "notes", "sets", "volumes"], "properties": {
  "configured": {"type": "boolean", "description": "There is a section [cache]."},
  "memory": {"type": "object", "required": ["size", "used", "lines", "evictions"], "properties": {
    "size": {"type": "integer", "description": "Bytes."},
    "used": {"type": "integer", "description": "Bytes."},
    "lines": {"type": "integer"},
    "evictions": {"type": "integer"}}},
  "dirty": {"type": "object", "required": ["limit", "used", "stuck", "destage_rate"],
    "properties": {
    "limit": {"type": "integer", "description": "Bytes."},
    "used": {"type": "integer", "description": "Bytes that are not on the drives yet."},
    "stuck": {"type": "integer", "description": "Of them, those of sets that fail."},
    "destage_rate": {"type": "number", "description": "Bytes a second, lately."}}},
  "read_ahead": {"type": "object", "required": ["in_flight", "unread"], "properties": {
    "in_flight": {"type": "integer", "description": "Bytes."},
    "unread": {"type": "integer", "description": "Bytes that nobody has asked for yet."}}},
  "nvram": {"type": "object", "required": ["size", "writes", "fullness", "battery", "mirror"],
    "properties": {
    "size": {"type": "integer", "description": "Bytes for data; 0: it has none."},
    "writes": {"type": "integer", "description": "That it holds."},
    "fullness": {"type": "number", "description": "0 to 1."},
    "battery": {"type": "string", "enum": ["", "good", "low", "dead"]},
    "mirror": {"type": "string", "enum": ["none", "good", "lost"]}}},
  "non_volatile": {"type": "boolean",
    "description": "What is acknowledged survives as on a drive."},
  "notes": {"type": "array", "items": {"type": "string"},
    "description": "What an operator has to see to, in sentences."},
  "sets": {"type": "array", "items": {"$ref": "#/components/schemas/CachedSet"}},
  "volumes": {"type": "array", "items": {"$ref": "#/components/schemas/CachedVolume"}}}},
"CacheFlush": {"type": "object", "additionalProperties": false, "properties": {
  "set": {"type": "string", "description": "Its name or UUID; all if left out."}}},
"CacheDiscard": {"type": "object", "required": ["confirm"], "additionalProperties": false,
  "properties": {
  "confirm": {"type": "string", "description": "The set once more, as it stands in the path."}}},
"CacheDiscarded": {"type": "object", "required": ["discarded"], "properties": {
  "discarded": {"type": "integer", "nullable": true,
    "description": "Bytes; null: nobody knows how many."}}}
})json";

}  // namespace sandbay::mgmt
