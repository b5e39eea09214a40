// What the cache counts: plain integers on its home executor, copied out as values. Each volume has
// VolumeCounters, each device DeviceCounters; bytes are payload.
#pragma once

#include <cstdint>

#include "runtime/latency_histogram.h"

namespace sandbay::cache {

struct VolumeCounters {
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t hits = 0;           // Everything was there.
  std::uint64_t partial_hits = 0;   // A part was there.
  std::uint64_t misses = 0;         // Nothing was there, and it was fetched.
  std::uint64_t late_hits = 0;      // Of the misses and partial hits: on its way, read ahead.
  std::uint64_t pass_throughs = 0;  // None of these: went below by themselves.
  std::uint64_t read_ahead_bytes = 0;
  std::uint64_t read_ahead_used_bytes = 0;
  std::uint64_t read_ahead_wasted_bytes = 0;  // Went before anybody asked for them.
  std::uint64_t read_ahead_errors = 0;
  std::uint64_t advice_dropped_bytes = 0;  // Too much was on its way.
  std::uint64_t writes = 0;
  std::uint64_t write_bytes = 0;
  std::uint64_t absorbed_bytes = 0;  // Overwritten before they were destaged.
  std::uint64_t write_throughs = 0;  // Of all writes: were below before they were acknowledged.
  std::uint64_t throttled_nanoseconds = 0;
  std::uint64_t flushes = 0;
  LatencyHistogram miss_latency;  // Of all other reads than hits, which wait for nothing.
  LatencyHistogram write_latency;
};

struct DeviceCounters {
  std::uint64_t destages = 0;  // Writes.
  std::uint64_t destage_bytes = 0;
  std::uint64_t full_stripes = 0;     // Of the stripes destaged: written as a whole.
  std::uint64_t partial_stripes = 0;  // ... and in part.
  std::uint64_t destage_errors = 0;
  std::uint64_t rounds = 0;  // Flushes below.
  std::uint64_t discarded_bytes = 0;
  std::uint64_t damaged_bytes = 0;  // Lost: damaged in the write memory, and no mirror had them.
};

struct CacheCounters {
  std::uint64_t evictions = 0;
  std::uint64_t lines = 0;
  std::uint64_t memory_bytes = 0;  // In blocks of the pool.
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t dirty_bytes = 0;  // Not released yet.
  std::uint64_t dirty_limit_bytes = 0;
  std::uint64_t stuck_bytes = 0;  // Of them on devices that fail.
  std::uint64_t read_ahead_in_flight_bytes = 0;
  std::uint64_t read_ahead_unread_bytes = 0;
};

}  // namespace sandbay::cache
