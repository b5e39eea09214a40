// CacheConfiguration: the section [cache] of a configuration file, checked, as plain values: how
// large the controller's cache is, where acknowledged writes lie, and when they are destaged.
//
// With `nvram` they lie in the controller's NVRAM and survive what it survives; without, in the
// memory, and hosts are told that the cache is volatile.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cache/cache.h"
#include "cache/stream_detector.h"
#include "runtime/clock.h"

namespace sandbay::group {

class Mistakes;
class TableReader;

// "write-back", "write-through", "none"
std::string_view describe(cache::Mode mode);
std::optional<cache::Mode> parse_cache_mode(std::string_view word);
inline constexpr std::string_view kCacheModes = "\"write-back\", \"write-through\" or \"none\"";

struct CacheConfiguration {
  cache::CacheOptions options;
  std::uint64_t nvram_bytes = 0;  // NVRAM for descriptors and data; 0: the cache has no NVRAM.
  std::uint64_t drive_write_bytes = 0;  // For each drive in one destage; 0: one stripe.
  bool read_ahead = true;
  std::uint64_t window_bytes = cache::StreamBudget{}.largest_window_bytes;  // For one stream.
  std::uint32_t line = 0;                                                   // The section's,
  std::uint32_t memory_line = 0;  // ... that of its key memory
  std::uint32_t nvram_line = 0;   // ... and that of its key nvram.
};

// How a region of so many bytes is divided; no data: it is too small.
struct NvramShares {
  std::uint64_t data_bytes = 0;
  std::uint64_t log_bytes = 0;
};
NvramShares shares_of(std::uint64_t nvram_bytes);

// Reads the section [cache] if there is one; every mistake is noted.
std::optional<CacheConfiguration> read_cache(TableReader& root, Mistakes& mistakes);

}  // namespace sandbay::group
