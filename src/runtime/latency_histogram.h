// LatencyHistogram: what a layer counts of its latencies: one increment and one addition each, 26
// buckets, a plain value to copy out. Belongs to one executor.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/clock.h"

namespace sandbay {

// Latencies by powers of two: bucket i counts those below 2^i microseconds that no lower bucket
// counts; the last one counts everything longer.
struct LatencyHistogram {
  static constexpr std::size_t kBuckets = 26;
  std::array<std::uint64_t, kBuckets> count{};
  std::uint64_t total_nanoseconds = 0;

  void add(Duration latency) noexcept {
    const auto nanoseconds = static_cast<std::uint64_t>(latency.count() < 0 ? 0 : latency.count());
    const auto bucket = static_cast<std::size_t>(std::bit_width(nanoseconds / 1000));
    ++count[bucket < kBuckets ? bucket : kBuckets - 1];
    total_nanoseconds += nanoseconds;
  }
};

}  // namespace sandbay
