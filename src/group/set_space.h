// Where on a RAID set a volume finds its place: first fit, in ascending order. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "block/block_device.h"

namespace sandbay::group {

// The first place for so many blocks that overlaps none of `taken` (in any order) and begins at a
// multiple of `alignment`; nothing if there is none.
std::optional<Extent> first_fit(std::vector<Extent> taken, std::uint64_t set_blocks,
                                std::uint64_t wanted_blocks, std::uint64_t alignment);

// How long `extent` could be at most without overlapping another of `taken`, which holds it too.
std::uint64_t most_blocks(const std::vector<Extent>& taken, std::uint64_t set_blocks,
                          const Extent& extent);

// How many blocks belong to nobody.
std::uint64_t free_blocks(const std::vector<Extent>& taken, std::uint64_t set_blocks);

}  // namespace sandbay::group
