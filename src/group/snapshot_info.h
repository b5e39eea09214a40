// What management asks about snapshots, and is told of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group/event_log.h"

namespace sandbay::group {

// A snapshot's name is its volume's own affair.
struct SnapshotName {
  std::string volume;
  std::string snapshot;
};

struct SnapshotInfo {
  std::string name;
  std::string volume;
  std::string uuid;
  WallTime time{};
  std::uint64_t size_bytes = 0;  // Of the volume at that moment.
  // Of the pool: what only it, or older ones with it, need; and what was written to it.
  std::uint64_t kept_bytes = 0;
  std::string schedule;  // That took it; empty: somebody.
  bool online = false;
  bool writable = false;
  std::string target;  // While it is online.
  std::string reason;  // Why it cannot be shown; empty if it can.
};

struct CreateSnapshotsRequest {
  std::vector<std::string> volumes;  // All of one pool; at least one.
  std::string name;                  // Empty: the time.
};

struct CreatedSnapshots {
  std::vector<SnapshotInfo> snapshots;  // In the order of the volumes.
  bool created = false;                 // False: they were there already.
};

// Takes a snapshot of its volume every so often and keeps the newest of them.
struct ScheduleInfo {
  std::string name;
  std::string volume;
  Duration every{};
  std::uint32_t keep = 0;       // Of those that it has taken; older ones are deleted.
  std::uint32_t snapshots = 0;  // That it has taken and are there.
  WallTime last{};              // When it took the newest of them; the epoch: never.
};

struct CreatedSchedule {
  ScheduleInfo schedule;
  bool created = false;  // False: it was there, just as it was asked for.
};

}  // namespace sandbay::group
