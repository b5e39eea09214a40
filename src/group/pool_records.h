// Records of pools and snapshots, beside those of records.h:
//
//   pool/UUID       what a pool is; its map is under map/UUID/ (pool/pool_map.h)
//   snapshot/UUID   what a snapshot is called, of which volume, when it was taken
//   schedule/UUID   when snapshots of a volume are to be taken, and how many are kept
//
// Where a volume or a snapshot is in the map, the map itself says: a volume's branch is labelled
// with the volume's UUID, a snapshot with its own, and so is the branch that its writes go to. So
// there is nothing that could disagree, and both change in one commit.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "group/event_log.h"
#include "runtime/uuid.h"

namespace sandbay::group {

inline constexpr std::string_view kPoolPrefix = "pool/";
inline constexpr std::string_view kSnapshotPrefix = "snapshot/";
inline constexpr std::string_view kSchedulePrefix = "schedule/";

struct PoolRecord {
  Uuid uuid{};
  std::string name;
  std::vector<std::string> members;
  std::vector<std::string> leaving;  // Of them: those that are emptied, to be taken out then.
  std::uint64_t page_bytes = 0;
  std::uint32_t block_bytes = 512;  // Of all its volumes; 0: it has not been seen on any set yet.
  // Changes of its map are given up, and what it has and records say may disagree.
  bool disagrees = false;
};

struct SnapshotRecord {
  Uuid uuid{};
  Uuid volume{};
  Uuid pool{};
  std::string name;
  WallTime time{};
  std::string schedule;   // That took it; empty: somebody.
  bool online = false;    // It has a target of its own,
  std::string target;     // ... this one,
  bool writable = false;  // ... and takes writes, which go to a branch of its own.
};

struct ScheduleRecord {
  Uuid uuid{};
  Uuid volume{};
  std::string name;
  Duration every{};
  std::uint32_t keep = 1;
};

std::string schedule_key(const Uuid& uuid);
std::string encode(const ScheduleRecord& record);
std::expected<ScheduleRecord, std::string> decode_schedule(std::string_view text);

std::string pool_key(const Uuid& uuid);
std::string snapshot_key(const Uuid& uuid);
std::string map_prefix(const Uuid& pool);
bool is_checkpoint(std::string_view key);  // In a pool's map.

std::string encode(const PoolRecord& record);
std::string encode(const SnapshotRecord& record);
// The error is half a sentence.
std::expected<PoolRecord, std::string> decode_pool(std::string_view text);
std::expected<SnapshotRecord, std::string> decode_snapshot(std::string_view text);

}  // namespace sandbay::group
