// StoreLoad: what hosts' requests to a store came to, and how long they take lately.
//
// The latency is a moving average over some dozens of requests, by the executor's clock, which
// stands still within a turn: a store that answers at once takes nothing.
#pragma once

#include <cstdint>

#include "runtime/clock.h"

namespace sandbay::pool {

struct StoreLoad {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;
  double latency_nanoseconds = 0;

  void note(Duration took, std::uint64_t byte_count) noexcept {
    constexpr double kWeight = 1.0 / 32;
    ++requests;
    bytes += byte_count;
    latency_nanoseconds += (static_cast<double>(took.count()) - latency_nanoseconds) * kWeight;
  }
};

}  // namespace sandbay::pool
