// check_map(): verifies that a pool's map is one: every place owned once and within its store,
// every slot used once and counted, every kept version of a living branch and needed by some
// snapshot unless a sweep is due, every parent there, every count right.
//
// It reads the whole map, in memory and in the store, in slices. Meanwhile hosts may write, but the
// caller holds the directory (branches, snapshots, stores) and the background. It begins at once;
// until then the caller holds the log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/doubtful_chunks.h"
#include "pool/pool_map.h"
#include "runtime/task.h"

namespace sandbay::pool {

struct CheckReport {
  std::uint64_t branches = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t pages = 0;
  std::uint64_t kept_chunks = 0;
  std::uint64_t reserve_pages = 0;
  std::uint64_t useless_chunks = 0;   // That a sweep would free.
  std::uint64_t doubtful_chunks = 0;  // With data that cannot be read; see doubtful_chunks.h.
  std::vector<std::string> wrong;     // One line a finding; empty: all is well.
  Error error = Error::kNone;         // Otherwise nothing could be verified, and this is why.
};

// `doubtful` may be null.
Task<CheckReport> check_map(PoolMap* map, const DoubtfulChunks* doubtful = nullptr);

}  // namespace sandbay::pool
