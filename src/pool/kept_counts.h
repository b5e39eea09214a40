// How many slots what is kept of a branch takes. Ascending by key, no zeros.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "pool/place.h"

namespace sandbay::pool {

template <class Key>
class SlotCounts {
 public:
  using Entry = std::pair<Key, std::uint64_t>;

  std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.second;
    return sum;
  }
  std::uint64_t on(Key key) const noexcept { return between(key, key); }
  // Of all keys from `first` to `last`.
  std::uint64_t between(Key first, Key last) const noexcept {
    std::uint64_t sum = 0;
    auto at = std::ranges::lower_bound(entries_, first, {}, &Entry::first);
    for (; at != entries_.end() && at->first <= last; ++at) sum += at->second;
    return sum;
  }
  void add(Key key, std::uint64_t count) {
    const auto at = std::ranges::lower_bound(entries_, key, {}, &Entry::first);
    if (at != entries_.end() && at->first == key) {
      at->second += count;
    } else if (count > 0) {
      entries_.insert(at, {key, count});
    }
  }
  void remove(Key key) {
    const auto at = std::ranges::lower_bound(entries_, key, {}, &Entry::first);
    assert(at != entries_.end() && at->first == key);
    if (--at->second == 0) entries_.erase(at);
  }
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  bool operator==(const SlotCounts&) const = default;

 private:
  std::vector<Entry> entries_;
};

// By store. So a store that goes missing is known to concern whoever reads through that branch.
using KeptCounts = SlotCounts<StoreIndex>;
// By the generation that the versions bear. So it is known what each snapshot takes.
using GenerationCounts = SlotCounts<Generation>;

}  // namespace sandbay::pool
