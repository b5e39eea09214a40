// Destager::Unit: the stripes of one destage, from begin() to settle().
#pragma once

#include "cache/destage.h"
#include "runtime/frame_pool.h"

namespace sandbay::cache {

struct Destager::Unit : FramePooled {
  Extent extent;               // Whole stripes.
  std::uint64_t sequence = 0;  // Records up to it had taken effect when it began.
  std::uint64_t bytes = 0;     // Dirty.
  unsigned pending = 0;        // Writes.
  bool whole = false;          // Its stripes are written as a whole.
  Error error = Error::kNone;
  Condition written;
  Unit* next = nullptr;  // Among those that wait for a round.
};

}  // namespace sandbay::cache
