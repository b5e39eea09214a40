// The words of the pool's map: chunks, pages, places, slots, branches and generations.
//
// A page is the unit of allocation, a chunk (64 KiB) that of validity and of copying on the first
// overwrite. A place is a page of a store. A slot is a chunk of a page that belongs to no volume
// but keeps what snapshots need. A branch is the map of a volume, a clone or a writable snapshot;
// the snapshots of a branch are numbered by generations, from 1 on.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace sandbay::pool {

inline constexpr std::uint64_t kChunkBytes = 64 * 1024;
inline constexpr std::uint32_t kLeastPageChunks = 16;     // 1 MiB
inline constexpr std::uint32_t kMostPageChunks = 1024;    // 64 MiB
inline constexpr std::uint32_t kDefaultPageChunks = 240;  // 15 MiB

using BranchId = std::uint64_t;    // From 1 on; 0 is none. Never used twice.
using PageNumber = std::uint32_t;  // Of a branch, or of a store.
using ChunkIndex = std::uint32_t;  // Within a page.
using StoreIndex = std::uint16_t;  // Of a pool.
using Generation = std::uint32_t;  // Of a branch; grows with every snapshot.

inline constexpr Generation kLive = std::numeric_limits<Generation>::max();
inline constexpr StoreIndex kNoStore = std::numeric_limits<StoreIndex>::max();
// No branch has so many pages: 1 PiB of the smallest.
inline constexpr PageNumber kPageEnd = PageNumber{1} << 30U;
inline constexpr PageNumber kNoPage = std::numeric_limits<PageNumber>::max();

struct Place {
  StoreIndex store = kNoStore;
  PageNumber page = 0;

  bool none() const noexcept { return store == kNoStore; }
  auto operator<=>(const Place&) const = default;
};

struct Slot {
  Place place;
  std::uint16_t chunk = 0;

  auto operator<=>(const Slot&) const = default;
};

// A page of a branch.
struct PageKey {
  BranchId branch = 0;
  PageNumber page = 0;

  auto operator<=>(const PageKey&) const = default;
};

// A number that is well spread, for hash tables.
constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value ^= value >> 32U;
  value *= 0x9e3779b97f4a7c15U;
  return value ^ (value >> 29U);
}

struct PlaceHash {
  std::size_t operator()(const Place& place) const noexcept {
    return mix(std::uint64_t{place.store} << 32U | place.page);
  }
};
struct PageKeyHash {
  std::size_t operator()(const PageKey& key) const noexcept {
    return mix(mix(key.branch) + key.page);
  }
};

}  // namespace sandbay::pool
