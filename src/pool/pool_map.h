// PoolMap: the whole map of a pool in memory, as far as it is always there, and the door to the
// rest of it in the metadata store.
//
// Always in memory: branches, snapshots, stores, page maps (8 bytes a page), free pages (1 bit a
// page), counts of slots. Through bounded caches: chunk maps of mixed pages, kept versions, which
// slots of a reserve page are in use.
//
// It changes only by apply(), which the log calls when a group of records is durable, in order. A
// checkpoint is what has changed since the last one, in one batch with the sequence number of the
// last group in it. So what is in the store is always the map at one moment, and the log's groups
// after that number make it the newest.
//
// Keys, after the pool's prefix; numbers are big-endian, so that their order is the keys':
//   c                          the checkpoint itself
//   b BRANCH (8)               branches
//   s BRANCH (8) GENERATION (4)        snapshots
//   g BRANCH (8)               slots that are kept, by generation; counted anew if it is not there
//   d STORE (2)                stores
//   m BRANCH (8) LEAF (4)      page maps
//   v BRANCH (8) PAGE (4)      chunk maps of mixed pages
//   k BRANCH (8) PAGE (4) GENERATION (4)       kept versions
//   r STORE (2) PAGE (4)       slots in use of a reserve page
//   l SEQUENCE (8)             groups that were logged in the store (map_log.h)
//   e                          stamps that stores may bear (store_stamps.h)
//
// All values are sealed (sealed.h).
#pragma once

#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/store.h"
#include "pool/bounded_cache.h"
#include "pool/branch.h"
#include "pool/chunk_map.h"
#include "pool/free_pages.h"
#include "pool/kept_chunks.h"
#include "pool/map_records.h"
#include "pool/slots.h"

namespace sandbay::pool {

struct MapOptions {
  std::string prefix = "pool/";                        // Of its keys.
  std::uint32_t page_chunks = kDefaultPageChunks;      // Of a new pool.
  std::size_t chunk_map_bytes = std::size_t{8} << 20;  // Limits of the caches.
  std::size_t kept_bytes = std::size_t{16} << 20;
  std::size_t slot_map_bytes = std::size_t{4} << 20;
};

// A store as the map knows it.
struct StoreSpace {
  StoreRecord record;
  FreePages pages;
};

struct SlotMap : BitSet {
  using BitSet::BitSet;
  std::size_t byte_count() const noexcept { return sizeof *this + 8 * words().size(); }
};

// Sees each change of places while check_map() visits the map (check.h). Called inline, in the
// middle of a group.
class MapWatcher {
 public:
  virtual void placed(PageKey page, Place old, Place now) = 0;
  // `there`: kept from now on; otherwise forgotten.
  virtual void kept(PageKey page, Generation generation, const Kept& version, bool there) = 0;

 protected:
  ~MapWatcher() = default;
};

class PoolMap {
 public:
  using ChunkMaps = BoundedCache<PageKey, ChunkMap, PageKeyHash>;
  using KeptMaps = BoundedCache<PageKey, KeptChunks, PageKeyHash>;
  using SlotMaps = BoundedCache<Place, SlotMap, PlaceHash>;

  // `store` outlives the map.
  PoolMap(metadata::Store& store, MapOptions options);

  // Once, first: the checkpoint, or an empty map if there is none. What is wrong with it, in one
  // line, or an empty text.
  Task<std::string> load();
  // The next group, from a log: checked, then applied. What is wrong with it, or an empty text.
  Task<std::string> replay(RecordGroup group);
  // After the last one: gives branches of version 2 the end of what they read through their parent.
  void bound_old_branches();

  // Looking -------------------------------------------------------------------------------------

  std::uint32_t page_chunks() const noexcept { return checkpoint_.page_chunks; }
  std::uint64_t page_bytes() const noexcept { return page_chunks() * kChunkBytes; }
  const CheckpointRecord& checkpoint() const noexcept { return checkpoint_; }
  Branch* find(BranchId branch) const noexcept {
    const auto found = branches_.find(branch);
    return found == branches_.end() ? nullptr : found->second.get();
  }
  const std::map<BranchId, std::unique_ptr<Branch>>& branches() const noexcept { return branches_; }
  const std::map<StoreIndex, StoreSpace>& stores() const noexcept { return stores_; }
  const Slots& slots() const noexcept { return slots_; }
  PageNumber page_count(std::uint64_t byte_count) const noexcept {
    return static_cast<PageNumber>((byte_count + page_bytes() - 1) / page_bytes());
  }
  PageNumber page_count_of(const Branch& branch) const noexcept {
    return page_count(branch.record.byte_count);
  }

  // What the chunks of a page are; from the page entry, the cache or the store.
  Task<Result<ChunkMaps::Pin>> chunk_map(PageKey key);
  ChunkMaps::Pin chunk_map_here(PageKey key);  // An empty pin if the store must be asked.
  ChunkMaps::Pin cached_chunks(PageKey key) { return chunk_maps_.find(key); }
  // The versions of generations from `from` on, at least.
  Task<Result<KeptMaps::Pin>> kept(PageKey key, Generation from);
  KeptMaps::Pin kept_here(PageKey key, Generation from);
  Task<Result<SlotMaps::Pin>> slot_map(Place place);

  // Claims: taken for an operation that will record them, or give them back -------------------

  BranchId claim_branch() noexcept { return ++checkpoint_.last_branch; }
  // Pages of that store, side by side, at most `most`.
  std::optional<FreePages::Run> claim_pages(StoreIndex store, std::uint32_t most);
  void unclaim_page(Place place);
  // A free page that its store is to unmap; given back by unclaim_clean().
  std::optional<Place> claim_stale(StoreIndex store);
  void unclaim_clean(Place place);
  // Slots of the open reserve page; kNotFound: another must be opened.
  Result<Slots::Run> claim_slots(std::uint32_t most);
  std::optional<Place> slot_page_candidate() { return slots_.candidate(); }
  void add_slot_page_candidate(Place place) { slots_.add_candidate(place); }
  void close_slot_page() { slots_.close_page(); }
  // `place`: a candidate, or a page that was claimed for this. Its slot map is pinned.
  void open_slot_page(Place place);
  void unclaim_slots(Slots::Run run);
  // While a failed change may still come back after a crash, what it had claimed is not given to
  // others: between the two calls, what is given back is set aside.
  void begin_doubt() noexcept { doubt_ = true; }
  void end_doubt();

  // Changing --------------------------------------------------------------------------------------

  // The branch from which a record takes, or of which it keeps, what may be written to it in place
  // now; 0: none.
  BranchId takes_from(const MapRecord& record) const;
  // Whether a record takes a page or a slot from its owner, so that others may get it.
  bool takes_place(const MapRecord& record) const;
  // A group that is durable. What its records concern is pinned by whoever commits it.
  void apply(const RecordGroup& group);
  // A group that has failed and must not come back: the next checkpoint contains its number.
  void skip(std::uint64_t sequence) noexcept { checkpoint_.sequence = sequence; }
  std::uint64_t sequence() const noexcept { return checkpoint_.sequence; }
  void set_log(const Uuid& log) noexcept { checkpoint_.log = log; }
  // Everything that has changed since the last checkpoint, and the checkpoint itself.
  metadata::Batch changes();
  // changes() of that sequence are durable.
  void changes_stored(std::uint64_t sequence);
  std::size_t changed_count() const noexcept;
  std::size_t byte_count() const noexcept;  // Of memory, the caches included.

  // One watcher at a time; null removes it.
  void watch(MapWatcher* watcher) noexcept {
    assert(watcher == nullptr || watcher_ == nullptr);
    watcher_ = watcher;
  }

  // A value of the store is not what was put there, or is not there: its key, readable. Called
  // inline; it only takes notice.
  std::function<void(const std::string& key)> on_damage;

  // Keys.
  std::string key(char kind) const { return options_.prefix + kind; }
  std::string group_key(std::uint64_t sequence) const;
  metadata::Store& store() const noexcept { return store_; }
  std::string key_of(char kind, std::uint64_t first, std::uint32_t second = 0) const;
  std::string key_of(PageKey page, Generation generation) const;

 private:
  // pool_map_load.cc
  Task<std::string> load_all(char kind, std::string (PoolMap::*take)(std::string_view key,
                                                                     std::string_view value));
  std::string take_branch(std::string_view key, std::string_view value);
  std::string take_snapshot(std::string_view key, std::string_view value);
  std::string take_kept_for(std::string_view key, std::string_view value);
  std::string take_store(std::string_view key, std::string_view value);
  std::string take_leaf(std::string_view key, std::string_view value);
  std::string take_slot_map(std::string_view key, std::string_view value);
  std::string finish_load();
  std::string own_place(Place place);
  Task<Result<std::string>> load_value(std::string key);
  Error damaged(std::string_view key);
  Task<Result<ChunkMap>> load_chunk_map(PageKey key);
  Task<Result<KeptChunks>> load_kept(PageKey key);
  Task<Result<SlotMap>> load_slot_map(Place place);
  Task<Result<std::vector<std::pair<Generation, KeptLeaf>>>> list_kept(PageKey key, Generation from,
                                                                       Generation end);
  // pool_map_replay.cc
  struct Pins;
  Task<std::string> check(const MapRecord& record, Pins& pins);  // Both outlive it.
  Task<std::string> check_record(PlacePages record, Pins* pins);
  Task<std::string> check_record(SetChunks record, Pins* pins);
  Task<std::string> check_record(KeepChunks record, Pins* pins);
  Task<std::string> check_record(ForgetChunk record, Pins* pins);
  Task<std::string> check_slots(Place owner, Slot slot, std::uint32_t count, bool used, Pins* pins);
  std::string check_plain(const BranchRecord& record) const;
  std::string check_plain(const EraseBranch& record) const;
  std::string check_plain(const SnapshotRecord& record) const;
  std::string check_plain(const EraseSnapshot& record) const;
  std::string check_plain(const StoreRecord& record) const;
  std::string check_plain(const EraseStore& record) const;
  static Task<std::string> at_once(std::string text);
  Task<Result<KeptMaps::Pin>> kept_of(BranchId branch, PageNumber page, Generation from);
  std::string check_page(BranchId branch, PageNumber page, std::uint32_t count) const;
  std::string check_place(Place place, std::uint32_t count) const;

  // pool_map.cc
  void apply(const PlacePages& record);
  void apply(const SetChunks& record);
  void apply(const KeepChunks& record);
  void apply(const ForgetChunk& record);
  void apply(const BranchRecord& record);
  void apply(const EraseBranch& record);
  void apply(const SnapshotRecord& record);
  void apply(const EraseSnapshot& record);
  void apply(const StoreRecord& record);
  void apply(const EraseStore& record);
  void set_entry(Branch& branch, PageNumber page, const PageEntry& entry);
  void free_page(Place place);
  void use_slot(Slot slot);
  void free_slot(Slot slot);
  void link_child(const BranchRecord& child, bool there);
  void note_changed(char kind, std::uint64_t first, std::uint32_t second = 0);

  metadata::Store& store_;
  MapOptions options_;
  CheckpointRecord checkpoint_;
  std::map<BranchId, std::unique_ptr<Branch>> branches_;
  std::map<StoreIndex, StoreSpace> stores_;
  Slots slots_;
  ChunkMaps chunk_maps_;
  KeptMaps kept_maps_;
  SlotMaps slot_maps_;
  // Values that are in memory whole: of which one, and the sequence of the last change.
  struct Changed {
    char kind = 0;
    std::uint64_t first = 0;
    std::uint32_t second = 0;
    auto operator<=>(const Changed&) const = default;
  };
  std::map<Changed, std::uint64_t> changed_;
  std::map<BranchId, std::uint64_t> erased_;  // Branches, and the sequence.
  MapWatcher* watcher_ = nullptr;
  bool doubt_ = false;
  std::vector<Place> doubtful_pages_;
  std::vector<Slots::Run> doubtful_slots_;
};

}  // namespace sandbay::pool
