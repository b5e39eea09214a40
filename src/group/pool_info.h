// What management is told of pools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pool/pool.h"

namespace sandbay::group {

// A RAID set of which the pool has the pages.
struct PoolStoreInfo {
  std::string set;
  std::string uuid;
  std::string member;
  std::string level;
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::string state;   // "active", "vacating"
  std::string reason;  // Why it does not serve; empty if it does.
};

// A set of the pool's members that is not part of it.
struct PoolOutsideInfo {
  std::string set;
  std::string reason;
};

struct PoolInfo {
  std::string name;
  std::string uuid;
  std::vector<std::string> members;
  std::vector<std::string> leaving;  // Of them: those whose sets are emptied.
  std::uint64_t page_bytes = 0;
  std::uint32_t block_bytes = 0;
  std::string reason;  // Why it could not be opened; empty if it is open.
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t snapshot_bytes = 0;     // Pages that keep something for snapshots.
  std::uint64_t provisioned_bytes = 0;  // Sum of the sizes of its volumes.
  std::uint32_t volumes = 0;
  std::uint32_t snapshots = 0;
  bool declared = false;      // Stands in the configuration file.
  bool map_in_nvram = false;  // Changes of the map are logged in NVRAM.
  std::vector<PoolStoreInfo> stores;
  std::vector<PoolOutsideInfo> outside;
  pool::PoolCounters counters;
};

// Something that goes on in the background.
struct TaskInfo {
  std::string kind;  // "vacate", "sweep", "copy", "flatten", "balance", "trim"
  std::string pool;
  std::string object;  // The set or the volume that is concerned; empty: none in particular.
  std::uint64_t done_bytes = 0;
  std::uint64_t left_bytes = 0;  // An estimate; 0: it does not know.
  std::optional<Duration> time_left;
  std::string stuck;  // Why it does not go on now; empty if it does.
};

// What a verification of a pool's whole map found.
struct PoolCheckInfo {
  std::string pool;
  std::uint64_t branches = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t pages = 0;
  std::uint64_t kept_chunks = 0;
  std::uint64_t doubtful_chunks = 0;  // Medium errors, since an older map was accepted.
  std::vector<std::string> wrong;     // One line a finding; empty: all is well.
  bool verified = true;               // Otherwise it was not looked at: what is wrong says why.
};

// What became of a pool whose map was lost in part with an NVRAM and given up in that part, or is
// older than its sets and was accepted.
struct DiscardedMap {
  std::string reason;                // Where those changes were, or which set is newer.
  std::vector<std::string> missing;  // Volumes of which the map knows nothing any more.
  std::uint64_t forgotten = 0;       // Volumes and snapshots that were deleted before.
  PoolCheckInfo check;
};

}  // namespace sandbay::group
