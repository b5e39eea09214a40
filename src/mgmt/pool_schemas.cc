// The schemas of pools and snapshots.
#include "mgmt/openapi_schemas.h"

namespace sandbay::mgmt {

const std::string_view kPoolSchemas = R"json({
"PoolStore": {"type": "object", "description": "A RAID set of which the pool has the pages.",
  "required": ["set", "uuid", "member", "level", "size", "free", "state", "reason"],
  "properties": {
  "set": {"type": "string"},
  "uuid": {"type": "string", "format": "uuid"},
  "member": {"type": "string"},
  "level": {"type": "string"},
  "size": {"type": "integer", "description": "Bytes."},
  "free": {"type": "integer", "description": "Bytes."},
  "state": {"type": "string", "enum": ["active", "vacating"]},
  "reason": {"type": "string", "description": "Why it does not serve; empty if it does."}}},
"Pool": {"type": "object", "required": ["name", "uuid", "members", "leaving", "page", "block_size",
  "reason", "size", "free", "snapshot_reserve", "provisioned", "volumes", "snapshots",
  "map_in_nvram", "declared", "stores", "outside", "counters"], "properties": {
  "name": {"type": "string"},
  "uuid": {"type": "string", "format": "uuid"},
  "members": {"type": "array", "items": {"type": "string"}},
  "leaving": {"type": "array", "items": {"type": "string"},
    "description": "Of its members, those whose sets are emptied."},
  "page": {"type": "integer", "description": "Bytes."},
  "block_size": {"type": "integer",
    "description": "Of all its volumes; 0: it has no set yet that says."},
  "reason": {"type": "string", "description": "Why it is not open; empty if it is."},
  "size": {"type": "integer", "description": "Bytes."},
  "free": {"type": "integer", "description": "Bytes in pages that nobody has."},
  "snapshot_reserve": {"type": "integer",
    "description": "Bytes in pages that keep something for snapshots."},
  "provisioned": {"type": "integer", "description": "Sum of the sizes of its volumes."},
  "volumes": {"type": "integer"},
  "snapshots": {"type": "integer"},
  "declared": {"type": "boolean", "description": "In the configuration file."},
  "map_in_nvram": {"type": "boolean",
    "description": "Changes of its map are logged in NVRAM, otherwise in the metadata."},
  "stores": {"type": "array", "items": {"$ref": "#/components/schemas/PoolStore"}},
  "outside": {"type": "array", "description": "Sets of its members that are no part of it.",
    "items": {"type": "object", "required": ["set", "reason"], "properties": {
    "set": {"type": "string"}, "reason": {"type": "string"}}}},
  "counters": {"type": "object", "description": "Since the daemon was started.",
    "required": ["pages_allocated", "pages_freed", "pages_moved", "chunks_kept", "chunks_filled"],
    "properties": {
    "pages_allocated": {"type": "integer"},
    "pages_freed": {"type": "integer"},
    "pages_moved": {"type": "integer"},
    "chunks_kept": {"type": "integer", "description": "Copied for snapshots."},
    "chunks_filled": {"type": "integer", "description": "Completed around smaller writes."}}}}},
"PoolList": {"type": "object", "required": ["pools"], "properties": {
  "pools": {"type": "array", "items": {"$ref": "#/components/schemas/Pool"}}}},
"PoolCreate": {"type": "object", "required": ["name"], "additionalProperties": false,
  "properties": {
  "name": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"},
  "members": {"type": "array", "items": {"type": "string"},
    "description": "The one whose hardware stands at the top of the file if left out."},
  "page": {"$ref": "#/components/schemas/Size"}}},
"Snapshot": {"type": "object", "required": ["name", "volume", "uuid", "time", "size", "kept",
  "schedule", "online", "writable", "target", "reason"], "properties": {
  "name": {"type": "string"},
  "volume": {"type": "string"},
  "uuid": {"type": "string", "format": "uuid"},
  "time": {"type": "string", "format": "date-time"},
  "size": {"type": "integer", "description": "Of the volume at that moment, in bytes."},
  "kept": {"type": "integer", "description":
    "Bytes of the pool that only it, or older ones with it, need; and what was written to it."},
  "schedule": {"type": "string", "description": "That took it; empty: somebody."},
  "online": {"type": "boolean", "description": "It has a target of its own."},
  "writable": {"type": "boolean"},
  "target": {"type": "string", "description": "iSCSI name; empty: it is offline."},
  "reason": {"type": "string", "description": "Why it cannot be shown; empty if it can."}}},
"SnapshotList": {"type": "object", "required": ["snapshots"], "properties": {
  "snapshots": {"type": "array", "items": {"$ref": "#/components/schemas/Snapshot"}}}},
"SnapshotCreate": {"type": "object", "additionalProperties": false, "properties": {
  "name": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$",
    "description": "The time if left out."},
  "with": {"type": "array", "items": {"type": "string"},
    "description": "Other volumes of the pool, of which one is taken at the same moment."}}},
"Schedule": {"type": "object", "required": ["name", "volume", "every", "keep", "snapshots",
  "last"], "properties": {
  "name": {"type": "string"},
  "volume": {"type": "string"},
  "every": {"type": "number", "description": "Seconds."},
  "keep": {"type": "integer", "description": "Of those that it has taken; older ones go."},
  "snapshots": {"type": "integer", "description": "That it has taken and are there."},
  "last": {"type": "string", "format": "date-time", "nullable": true}}},
"ScheduleList": {"type": "object", "required": ["schedules"], "properties": {
  "schedules": {"type": "array", "items": {"$ref": "#/components/schemas/Schedule"}}}},
"ScheduleCreate": {"type": "object", "required": ["name", "every", "keep"],
  "additionalProperties": false, "properties": {
  "name": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"},
  "every": {"type": "string", "description": "Such as 1h or 30min."},
  "keep": {"type": "integer", "minimum": 1, "maximum": 1024}}},
"SnapshotForce": {"type": "object", "additionalProperties": false, "properties": {
  "force": {"type": "boolean", "default": false}}},
"SnapshotOnline": {"type": "object", "additionalProperties": false, "properties": {
  "writable": {"type": "boolean", "default": false}}},
"Task": {"type": "object", "required": ["kind", "pool", "object", "done", "left", "seconds_left",
  "stuck"], "properties": {
  "kind": {"type": "string", "enum": ["vacate", "sweep", "copy", "flatten", "balance", "trim"]},
  "pool": {"type": "string"},
  "object": {"type": "string", "description": "The set or volume that is concerned."},
  "done": {"type": "integer", "description": "Bytes, since it began or the daemon was started."},
  "left": {"type": "integer", "description": "Bytes, about; 0: it does not know."},
  "seconds_left": {"type": "number", "nullable": true},
  "stuck": {"type": "string", "description": "Why it does not go on now; empty if it does."}}},
"TaskList": {"type": "object", "required": ["tasks"], "properties": {
  "tasks": {"type": "array", "items": {"$ref": "#/components/schemas/Task"}}}},
"PoolDiscard": {"type": "object", "required": ["confirm"], "additionalProperties": false,
  "properties": {
  "confirm": {"type": "string", "description": "The pool once more, as it stands in the path."}}},
"PoolDiscarded": {"type": "object", "required": ["reason", "missing", "forgotten", "check"],
  "properties": {
  "reason": {"type": "string",
    "description": "Where the changes were that are given up, or which set is newer than the map."},
  "missing": {"type": "array", "items": {"type": "string"},
    "description": "Of which the map knows nothing any more: volumes, and VOLUME/SNAPSHOT."},
  "forgotten": {"type": "integer",
    "description": "Volumes and snapshots that were in the map, and had been deleted."},
  "check": {"$ref": "#/components/schemas/PoolCheck"}}},
"PoolCheck": {"type": "object", "required": ["pool", "branches", "snapshots", "pages",
  "kept_chunks", "doubtful_chunks", "wrong", "verified"], "properties": {
  "pool": {"type": "string"},
  "branches": {"type": "integer"},
  "snapshots": {"type": "integer"},
  "pages": {"type": "integer"},
  "kept_chunks": {"type": "integer"},
  "doubtful_chunks": {"type": "integer",
    "description": "Chunks of 64 KiB that are medium errors, since an older map was accepted."},
  "wrong": {"type": "array", "items": {"type": "string"},
    "description": "Findings; empty: all is well."},
  "verified": {"type": "boolean",
    "description": "False: the map could not be looked at, and a finding says why."}}},
"GroupCheck": {"type": "object", "required": ["pools"], "properties": {
  "pools": {"type": "array", "items": {"$ref": "#/components/schemas/PoolCheck"}}}},
"Clone": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
  "name": {"type": "string", "description": "Of the new volume."},
  "full_copy": {"type": "boolean", "default": false,
    "description": "Everything is copied in the background, until it needs its source no more."}}},
"GroupExport": {"type": "object", "required": ["sandbay_export", "version", "time", "group", "name",
  "records", "count", "sha256"], "properties": {
  "sandbay_export": {"type": "integer"},
  "version": {"type": "string"},
  "time": {"type": "string", "format": "date-time"},
  "group": {"type": "string", "format": "uuid"},
  "name": {"type": "string"},
  "records": {"type": "array", "items": {"type": "object"}},
  "count": {"type": "integer"},
  "sha256": {"type": "string", "description": "Of all keys and values."}}},
"ImportPart": {"type": "object", "required": ["text"], "properties": {
  "text": {"type": "string", "description": "A piece of an export."},
  "offset": {"type": "integer", "description": "Where it stands in the whole; 0 if left out."},
  "last": {"type": "boolean"},
  "sha256": {"type": "string", "description": "With the last: of the whole text, hexadecimal."},
  "force": {"type": "boolean", "description": "Also while something is provisioned."}}}
})json";

}  // namespace sandbay::mgmt
