// The part of a host's read that lies in one strip, on its way through RaidSet.
#pragma once

#include <algorithm>
#include <cstdint>

#include "raid/raid_set.h"

namespace sandbay::raid {

struct RaidSet::ReadPiece {
  Lba lba = 0;
  Layout::Position position;
  std::uint32_t rows = 0;
  unsigned member = 0;
  std::uint32_t gap = 0;  // Blocks before it on its drive that are read with it, and dropped.
  BufferList data;
  Error error = Error::kNone;
  Lba bad = 0;
  bool again = false;   // From redundancy, or from the drive once more.
  bool failed = false;  // The drive could not give it; `error` says why.
  bool late = false;    // The drive is slow with it.
  Extent asked{};       // What the host wants; the piece may have a little more.

  Extent wanted() const {
    const Lba first = std::max(lba, asked.first);
    const Lba end = std::min(lba + rows, asked.end());
    return {.first = first, .block_count = end > first ? end - first : 0};
  }
  // Takes its part of the run, behind the gap; nothing, if the drive still has the run.
  void take_from(BufferList* run, std::size_t gap_bytes, std::size_t byte_count) {
    if (run->empty()) return;
    if (gap_bytes > 0) (void)run->take_front(gap_bytes);
    data = run->take_front(byte_count);
  }
};

}  // namespace sandbay::raid
