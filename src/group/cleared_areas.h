// ClearedAreas: which parts of a volume's place on a set still hold what was there before it. Those
// read as zeros, and are made zeros before they are first written, and by and by in any case.
//
// An area is a run of blocks, cut into chunks. A chunk is old; then zeroed on the drives; then
// kept: that it is zeroed is durable on the drives and in the metadata, and only then may it hold
// data. After a crash a chunk that was not kept is old again. What is in no area is the volume's
// own.
//
// Pure: no I/O, no clock.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"

namespace sandbay::group {

class ClearedAreas {
 public:
  // An area that is old, overlapping no other.
  void add(Extent extent, std::uint32_t block_bytes);
  bool empty() const noexcept { return areas_.empty(); }

  // From `first` on, before `limit`: blocks that are all kept, or of which none is.
  struct Run {
    std::uint64_t block_count = 0;
    bool kept = true;
  };
  Run run_at(Lba first, Lba limit) const;
  bool kept(Extent extent) const;
  // The first chunk that is old, within its area; of those that hold any of these blocks.
  std::optional<Extent> first_old(Extent within) const;
  std::optional<Extent> first_old() const;
  void mark_zeroed(Extent chunk);
  // Chunks that are zeroed and not kept.
  std::uint64_t zeroed_count() const noexcept { return zeroed_; }
  // Whatever is zeroed is kept from now on. Areas that are kept as a whole are forgotten.
  void keep_zeroed();
  std::uint64_t unkept_blocks() const noexcept;

  // What is zeroed counts as cleared, for that is what is made durable by it.
  std::string encode() const;
  static std::expected<ClearedAreas, std::string> decode(std::string_view text);

 private:
  enum class State : std::uint8_t { kOld, kZeroed, kKept };
  struct Area {
    Extent extent;
    std::uint64_t chunk_blocks = 1;
    std::vector<State> chunks;
    std::uint64_t next_old = 0;  // No chunk before it is old.

    Extent chunk(std::uint64_t index) const;
  };
  const Area* area_of(Lba lba) const;

  std::vector<Area> areas_;
  std::uint64_t zeroed_ = 0;
};

}  // namespace sandbay::group
