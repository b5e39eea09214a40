// Sets have few volumes, so lists are sorted anew each time.
#include "group/set_space.h"

#include <algorithm>
#include <cassert>

namespace sandbay::group {

std::optional<Extent> first_fit(std::vector<Extent> taken, std::uint64_t set_blocks,
                                std::uint64_t wanted_blocks, std::uint64_t alignment) {
  assert(wanted_blocks > 0);
  assert(alignment > 0);
  std::ranges::sort(taken, {}, &Extent::first);
  std::uint64_t at = 0;
  for (const Extent& extent : taken) {
    if (at <= extent.first && wanted_blocks <= extent.first - at) break;
    at = std::max(at, (extent.end() + alignment - 1) / alignment * alignment);
  }
  if (at > set_blocks || wanted_blocks > set_blocks - at) return std::nullopt;
  return Extent{.first = at, .block_count = wanted_blocks};
}

std::uint64_t most_blocks(const std::vector<Extent>& taken, std::uint64_t set_blocks,
                          const Extent& extent) {
  std::uint64_t end = set_blocks;
  for (const Extent& other : taken) {
    if (other.first > extent.first) end = std::min(end, other.first);
  }
  return end > extent.first ? end - extent.first : 0;
}

std::uint64_t free_blocks(const std::vector<Extent>& taken, std::uint64_t set_blocks) {
  std::uint64_t used = 0;
  for (const Extent& extent : taken) used += extent.block_count;
  return used < set_blocks ? set_blocks - used : 0;
}

}  // namespace sandbay::group
