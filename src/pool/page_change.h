// PageChange: one change of the map of one page, with everything that it takes: pins of what it
// changes, claims of what it needs, data that must be durable before, and the records.
//
//   1. lock the chunks with kChange (the caller; the whole page where it gets or loses its place)
//   2. load(): pins
//   3. keep(): what is about to change and a snapshot needs. Data is copied to slots, or stays
//      where it is when the whole page is given up (surrender)
//   4. the caller writes new data to chunks that have none, durably
//   5. set(), place(): the records; commit()
//
// What was claimed and not committed is given back when it goes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pool/branch.h"
#include "pool/page_io.h"
#include "pool/pool.h"
#include "pool/pool_map.h"

namespace sandbay::pool {

class PageChange {
 public:
  PageChange(Pool& pool, Branch& branch, PageNumber page);
  ~PageChange();
  PageChange(const PageChange&) = delete;
  PageChange& operator=(const PageChange&) = delete;

  Task<Error> load();

  PageEntry entry() const noexcept { return branch_.pages.at(page_); }
  const ChunkMap& chunks() const noexcept { return *chunks_; }
  // Whether the chunk must be kept before it changes.
  bool must_keep(ChunkIndex chunk) const noexcept {
    return newest_ != 0 && kept_->seen_by(newest_, chunk) == nullptr;
  }
  // Where the page is, or will be.
  Place place() const noexcept { return place_; }
  // Claims a place if it has none.
  Error need_place();

  // Keeps what must be kept of the range; data is copied, for `like`'s origin.
  Task<Error> keep(ChunkRange range, const Request* like);
  // Keeps all that must be kept of the page by giving its place up to the snapshots, if it has
  // any such data; the page has no place then.
  void surrender();
  void set(ChunkIndex first, std::uint32_t count, ChunkState state);
  // The page has no place any more, without keeping anything of it.
  void drop_place();
  void add(MapRecord record) { records_.push_back(std::move(record)); }
  bool empty() const noexcept { return records_.empty(); }
  Task<Error> commit();

 private:
  Task<Error> copy_out(ChunkIndex first, std::uint32_t count, const Request* like);

  Pool& pool_;
  Branch& branch_;
  PageNumber page_;
  Generation newest_ = 0;
  Place place_;
  bool place_claimed_ = false;
  PoolMap::ChunkMaps::Pin chunks_;
  PoolMap::KeptMaps::Pin kept_;
  std::vector<PoolMap::SlotMaps::Pin> slot_maps_;
  std::vector<Slots::Run> claims_;
  std::vector<MapRecord> records_;
};

}  // namespace sandbay::pool
