// DamagedBlocks: blocks of a device whose newest write was damaged in the write memory beyond
// repair. They read as medium errors until they are rewritten. Extents in order of address that
// neither overlap nor touch.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "block/block_device.h"

namespace sandbay::cache {

class DamagedBlocks {
 public:
  bool empty() const noexcept { return extents_.empty(); }

  void add(Extent extent) {
    auto at = from(extent.first);
    if (at != extents_.begin() && std::prev(at)->second == extent.first) --at;
    Lba first = extent.first;
    Lba end = extent.end();
    while (at != extents_.end() && at->first <= end) {
      first = std::min(first, at->first);
      end = std::max(end, at->second);
      at = extents_.erase(at);
    }
    extents_.emplace(first, end);
  }
  // They have been rewritten.
  void remove(const Extent& extent) {
    auto at = from(extent.first);
    while (at != extents_.end() && at->first < extent.end()) {
      const auto [first, end] = *at;
      at = extents_.erase(at);
      if (first < extent.first) extents_.emplace(first, extent.first);
      if (end > extent.end()) extents_.emplace(extent.end(), end);
    }
  }
  // The first one within the extent.
  std::optional<Lba> first_in(const Extent& extent) const {
    const auto at = from(extent.first);
    if (at == extents_.end() || at->first >= extent.end()) return std::nullopt;
    return std::max(at->first, extent.first);
  }

 private:
  using Extents = std::map<Lba, Lba>;  // First and end.

  // The first that ends behind `lba`.
  Extents::const_iterator from(Lba lba) const {
    auto at = extents_.upper_bound(lba);
    if (at != extents_.begin() && std::prev(at)->second > lba) --at;
    return at;
  }

  Extents extents_;
};

}  // namespace sandbay::cache
