// KeptCounts: how many slots what is kept of a branch takes, by store. So a store that goes missing
// is known to concern whoever reads through that branch. Ascending by store, no zeros.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "pool/place.h"

namespace sandbay::pool {

class KeptCounts {
 public:
  using Entry = std::pair<StoreIndex, std::uint64_t>;

  std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.second;
    return sum;
  }
  std::uint64_t on(StoreIndex store) const noexcept {
    const auto at = std::ranges::lower_bound(entries_, store, {}, &Entry::first);
    return at != entries_.end() && at->first == store ? at->second : 0;
  }
  void add(StoreIndex store, std::uint64_t count) {
    const auto at = std::ranges::lower_bound(entries_, store, {}, &Entry::first);
    if (at != entries_.end() && at->first == store) {
      at->second += count;
    } else if (count > 0) {
      entries_.insert(at, {store, count});
    }
  }
  void remove(StoreIndex store) {
    const auto at = std::ranges::lower_bound(entries_, store, {}, &Entry::first);
    assert(at != entries_.end() && at->first == store);
    if (--at->second == 0) entries_.erase(at);
  }
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  bool operator==(const KeptCounts&) const = default;

 private:
  std::vector<Entry> entries_;
};

}  // namespace sandbay::pool
