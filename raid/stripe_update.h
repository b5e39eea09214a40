// What one update of a stripe knows while it is planned, read for, computed and stored. Used by
// stripe_update.cc and refused_write.cc only; the stripe is held exclusively as long as it lives.
#pragma once

#include <algorithm>
#include <cassert>
#include <span>

#include "raid/raid_set.h"

namespace sandbay::raid {

// A run of rows of one member that is read for some bands.
struct OldRun {
  unsigned member = 0;
  std::uint32_t row = 0;
  std::uint32_t row_count = 0;
  BufferList data;
};

// Rows [row, row_end) of an update.
struct RaidSet::Update {
  std::uint64_t stripe = 0;
  std::span<WritePiece* const> pieces;
  std::uint32_t row = 0;
  std::uint32_t row_end = 0;
  bool force_unit_access = false;
  Origin origin = Origin::kHost;
  MemberSet avoid = 0;      // Could not be read here.
  bool ailing = false;      // ... also for another reason than a medium error.
  MemberSet corrupt = 0;    // Gave something else than was written.
  std::uint64_t drops = 0;  // How many drives had been lost when it was planned.
  BandList bands;
  FrameVector<OldRun> old;
  FrameVector<Segment> segments;

  // The new bytes of a member in these rows: pieces one after another.
  BufferList fresh(unsigned member, std::uint32_t first, std::uint32_t count,
                   std::uint32_t block_bytes) const {
    BufferList bytes;
    for (std::uint32_t at = first; at < first + count;) {
      const WritePiece* found = nullptr;
      for (const WritePiece* piece : pieces) {
        const Fragment& fragment = piece->fragment;
        if (fragment.member == member && fragment.row <= at &&
            at < fragment.row + fragment.row_count) {
          found = piece;
        }
      }
      assert(found != nullptr);
      const Fragment& fragment = found->fragment;
      const std::uint32_t end = std::min(first + count, fragment.row + fragment.row_count);
      bytes.append(found->data.share(std::size_t{at - fragment.row} * block_bytes,
                                     std::size_t{end - at} * block_bytes));
      at = end;
    }
    return bytes;
  }

  BufferList old_rows(unsigned member, std::uint32_t first, std::uint32_t count,
                      std::uint32_t block_bytes) const {
    for (const OldRun& run : old) {
      if (run.member != member || first < run.row || first >= run.row + run.row_count) continue;
      return run.data.share(std::size_t{first - run.row} * block_bytes,
                            std::size_t{count} * block_bytes);
    }
    assert(false);
    return {};
  }
};

}  // namespace sandbay::raid
