// Hands reads to the detector and sends its advice after them, each piece as a request of its own.
//
// What comes of advice is nobody's concern: it always succeeds.
#include "cache/read_ahead.h"

#include <algorithm>
#include <utility>

namespace sandbay::cache {

ReadAhead::ReadAhead(BlockDevice& below, StreamBudget& budget)
    : Layer(below),
      detector_({.block_bytes = below.geometry().block_bytes,
                 .block_count = below.geometry().block_count,
                 .stripe_blocks =
                     std::max(below.geometry().unit_blocks, below.geometry().optimal_io_blocks),
                 .largest_window_bytes = budget.largest_window_bytes},
                budget) {}

Task<Completion> ReadAhead::read(Request request) {
  if (request.origin == Origin::kHost && !request.force_unit_access) {
    const StreamAdvice advice = detector_.on_read(request.extent, home().now());
    for (std::size_t i = 0; i < advice.count; ++i) {
      spawn(send(advice.extents[i], request.volume));
    }
  }
  return below().submit(std::move(request));
}

// After the read itself, which is submitted in this turn.
Task<void> ReadAhead::send(Extent extent, std::uint64_t volume) {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  co_await home().yield();
  Request request{.operation = Operation::kAdvise, .origin = Origin::kReadAhead};
  request.extent = extent;
  request.volume = volume;
  co_await below().submit(std::move(request));
}

}  // namespace sandbay::cache
