// What management is told of the controller's cache: as a whole, by RAID set and by volume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/counters.h"
#include "cache/mode.h"
#include "cache/stream_detector.h"

namespace sandbay::group {

// Acknowledged writes that the NVRAM has lost.
struct LostInfo {
  std::string volume;  // Empty: of a volume that is not there any more, or nobody knows of which.
  bool of_set = true;  // The blocks are the set's: where there is no volume, or it is on a pool.
  std::uint64_t first_block = 0;  // Of the volume, else of the set.
  std::uint64_t block_count = 0;  // 0: nobody knows which.
  std::string why;
};

struct CachedSetInfo {
  std::string name;
  std::string uuid;
  std::uint64_t dirty_bytes = 0;    // Not on its drives yet.
  std::uint64_t waiting_bytes = 0;  // Of a set that has not come yet.
  std::uint64_t stuck_bytes = 0;    // Of both: what cannot be brought there now.
  std::string failure;              // Why nothing can be destaged; empty: it can.
  std::string bar;                  // Why the set is not served; empty: the cache is no reason.
  std::vector<LostInfo> lost;
  cache::DeviceCounters counters;
};

// What an operator has given up.
struct DiscardedWrites {
  std::optional<std::uint64_t> byte_count;  // None: they are elsewhere, nobody knows how many.
  std::string nvram;                        // Which one those are in.
  std::vector<LostInfo> ranges;             // The first of them, and how many there are besides.
  std::uint64_t more_ranges = 0;
};

struct CachedVolumeInfo {
  std::string name;
  cache::Mode mode = cache::Mode::kWriteBack;
  cache::VolumeCounters counters;
  cache::StreamCounters streams;
};

struct CacheInfo {
  bool configured = false;
  cache::CacheCounters counters;
  double destage_bytes_per_second = 0;  // As it was lately.
  bool non_volatile = false;
  // With NVRAM.
  std::uint64_t nvram_bytes = 0;   // For data; 0: none.
  std::uint64_t writes = 0;        // That it holds.
  double fullness = 0;             // 0 to 1.
  std::string battery;             // "good", "low", "dead"
  std::string mirror = "none";     // "none", "good", "lost"
  std::vector<std::string> notes;  // What an operator has to see to, in sentences.
  std::vector<CachedSetInfo> sets;
  std::vector<CachedVolumeInfo> volumes;
};

// Adds a member's cache to what is told of all: fullness, battery and mirror are the worst of them,
// and a volume that is on several members is counted once.
// The name is for the notes; empty: there is no other member.
void add(const std::string& member, CacheInfo more, CacheInfo& sum);

}  // namespace sandbay::group
