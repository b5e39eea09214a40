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
#include "runtime/known.h"

namespace sandbay::pool {

// Chunks that are copied at once.
inline constexpr std::uint32_t kCopyChunks = 16;

class PageChange {
 public:
  PageChange(Pool& pool, Branch& branch, PageNumber page, Reserve reserve = Reserve::kMayUse);
  ~PageChange();
  PageChange(const PageChange&) = delete;
  PageChange& operator=(const PageChange&) = delete;

  Task<Error> load();
  // Looks whether the branch has data of the page through a parent. Its limit does not refuse it a
  // place for what it has already. The whole page is locked.
  Task<Error> find_inherited();
  // The same where that is known.
  void note_inherited() noexcept { inherited_ = true; }

  PageEntry entry() const noexcept { return branch_.pages.at(page_); }
  const ChunkMap& chunks() const noexcept { return *chunks_; }
  // What they were when load() ended.
  const ChunkMap& before() const noexcept { return known(before_); }
  // Whether the chunk must be kept before it changes.
  bool must_keep(ChunkIndex chunk) const noexcept {
    return newest_ != 0 && kept_->seen_by(newest_, chunk) == nullptr;
  }
  // Where the page is, or will be.
  Place place() const noexcept { return place_; }
  // Claims a place if it has none. Another one: also if it has.
  Error need_place(bool another = false);

  // No page was free for it, or for what it keeps.
  bool lacks_page() const noexcept { return lacks_page_; }

  // Keeps what must be kept of the range; data is copied, for `like`'s origin.
  Task<Error> keep(ChunkRange range, const Request* like);
  // The same but for chunks that are `target` already and stay so.
  Task<Error> keep_others(ChunkRange range, ChunkState target, const Request* like);
  // Keeps what must be kept of the range, in which all the page's data lies, where it is: the place
  // goes to the snapshots. Then the chunks become `target`, and the page gets another place or
  // none.
  Task<Error> surrender(ChunkRange range, ChunkState target);
  // surrender() has given data to the snapshots.
  bool surrendered() const noexcept { return surrendered_; }
  Place claimed() const noexcept { return claimed_; }
  void set(ChunkIndex first, std::uint32_t count, ChunkState state);
  // The page is in its new place from now on; recorded by need_place(), or of another.
  void put_place(Place place);
  // Copies chunks that lie side by side, durably.
  Task<Error> copy(Slot from, Slot to, std::uint32_t count);
  // A version gets another state or slot: one group forgets the old and keeps the new.
  Task<Error> replace_version(Generation generation, Kept old, ChunkState state, Slot slot);
  // The same in a slot that is claimed for it, to which `from` is copied.
  Task<Error> move_version(Generation generation, Kept old, Slot from);
  void add(MapRecord record) { records_.push_back(std::move(record)); }
  bool empty() const noexcept { return records_.empty(); }
  // What was chosen for something new, and is not committed, is on a store that does not serve: a
  // change of another choice may succeed.
  bool misplaced() const noexcept;
  Task<Error> commit();

 private:
  void record_kept(ChunkIndex first, std::uint32_t count, ChunkState state, Slot slot);
  Task<Error> copy_out(ChunkIndex first, std::uint32_t count, const Request* like);

  Pool& pool_;
  Branch& branch_;
  PageNumber page_;
  Reserve reserve_;
  Generation newest_ = 0;
  Place place_;
  Place claimed_;  // For the page, not recorded yet.
  bool surrendered_ = false;
  bool lacks_page_ = false;
  bool inherited_ = false;
  PoolMap::ChunkMaps::Pin chunks_;
  std::optional<ChunkMap> before_;
  PoolMap::KeptMaps::Pin kept_;
  std::vector<PoolMap::SlotMaps::Pin> slot_maps_;
  std::vector<Slots::Run> claims_;
  std::vector<MapRecord> records_;
};

}  // namespace sandbay::pool
