// Pool: volumes, snapshots and clones on the pages of any number of stores.
//
// A store is a block device of a member: a RAID set below its cache, or a remote member's unit. All
// of them have this pool's home. The pool's map and log (pool_map.h, map_log.h) say what is where;
// a PoolVolume (pool_volume.h) is a branch, or a snapshot of one, as a block device.
//
// What happens in the background (sweeps of what was deleted, copies of clones, moves of pages) is
// started by the owner with the functions below that return how much is left, so that he decides
// the pace; all of it goes on where it stopped after a restart.
//
// An operation that makes hosts wait until their earlier requests have ended gives up with
// kTimedOut: after WriteDoor::kPatience, so that a drive that hangs holds up only requests that
// need it; where stores are slow without hanging, after up to WriteDoor::kMostPatience.
//
// Changes of the directory (branches, snapshots, stores) take turns, and each is one synced commit
// to the metadata store, together with `extra`: changes of the owner's own keys that happen with
// it or not at all. An error means that nothing has changed.
#pragma once

#include <cassert>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "block/block_device.h"
#include "metadata/store.h"
#include "pool/check.h"
#include "pool/doubtful_chunks.h"
#include "pool/map_log.h"
#include "pool/pool_map.h"
#include "pool/rate_limit.h"
#include "pool/store_load.h"
#include "pool/store_stamps.h"
#include "runtime/sync.h"

namespace sandbay::pool {

class PageChange;
class PoolVolume;

struct StoreConfig {
  StoreRecord record;
  BlockDevice* device = nullptr;  // Null: it is missing now.
};

struct PoolOptions {
  MapOptions map;
  MapLogOptions log;
  // Of all volumes. Blocks of stores are no larger.
  std::uint32_t block_bytes = 512;
  std::uint32_t physical_block_bytes = 4096;
  // For copies: what is kept, filled, moved.
  std::size_t copy_bytes = std::size_t{32} << 20;
  // The owner is told when no more than so much of the pages is free. 0: never.
  std::uint32_t free_warning_percent = 10;
  // Free pages that copies in the background leave to hosts. The default keeps such a copy from
  // causing the warning above.
  std::uint32_t reserve_percent = 10;
  // Pages that get or lose their places in one group of records: the map changes in one turn, and
  // the metadata store's values have a greatest length.
  std::uint32_t group_pages = 4096;
  Duration stamp_patience = StoreStamps::kPatience;
};

struct BranchOptions {
  std::uint64_t byte_count = 0;  // A positive multiple of the block.
  bool thick = false;
  std::uint8_t placement = 0;
  StoreIndex fixed_store = kNoStore;
  std::uint64_t page_limit = 0;
  std::uint64_t page_warning = 0;
  std::string label;
};

// A snapshot, wherever it stands.
struct SnapshotKey {
  BranchId branch = 0;
  Generation generation = 0;
  auto operator<=>(const SnapshotKey&) const = default;
};

// What the owner is told. Called inline; it only takes notice.
struct PoolEvent {
  enum class Kind : std::uint8_t {
    kPagesWarning,  // A thin branch has reached its page_warning.
    kPagesLimit,    // A write has failed for its page_limit.
    kPoolFull,      // A write has failed because there is no free page.
    kRoomAway,      // A write waits: only stores that are away have free pages.
    kMapFailure,    // The map cannot be changed: Error says why.
    kMapDamage,     // A part of the map is damaged: `key` says which. What needs it fails.
    kFreeWarning,   // Few pages are free: free_warning_percent. Again when there were more between.
    kVacated,       // A store that was kVacating is empty: remove_store() may follow.
    kVacateStuck,   // It cannot be emptied now: Error says why. Told once until pages move again.
    kFilled,        // A branch that was to be made independent is.
    kFillFailed,    // It cannot be now: Error says why. It goes on when it can.
    kCopyWaits,     // A copy of the branch needs `needed_pages`, and may use `room_pages` now.
    kWritesHang,    // A snapshot, restore, shrink or check gave up: I/O below takes too long.
    kStampLost,     // The store's stamp cannot be read, and is written anew.
  };
  Kind kind = Kind::kPagesWarning;
  BranchId branch = 0;
  StoreIndex store = kNoStore;
  Error error = Error::kNone;
  std::string key = {};
  std::uint64_t needed_pages = 0;
  std::uint64_t room_pages = 0;
};

// Whether a claim may use the free pages that copies in the background leave to hosts.
enum class Reserve : std::uint8_t { kMayUse, kMustLeave };

struct PoolCounters {
  std::uint64_t pages_allocated = 0;
  std::uint64_t pages_freed = 0;
  std::uint64_t chunks_kept = 0;    // Copied for snapshots.
  std::uint64_t chunks_filled = 0;  // Completed around a write that was smaller.
  std::uint64_t pages_moved = 0;
  std::uint64_t pages_adopted = 0;  // Taken over from a parent that had no other use for them.
  std::uint64_t pages_trimmed = 0;  // Free ones that were unmapped below.
  std::uint64_t trims_failed = 0;
  std::uint64_t bytes_copied = 0;  // In the background.
};

// A user in the background keeps a branch from being erased.
class BranchUse {
 public:
  explicit BranchUse(Branch& branch) noexcept : branch_(branch) {
    assert(!branch.erasing);
    ++branch_.users;
  }
  ~BranchUse() { --branch_.users; }
  BranchUse(const BranchUse&) = delete;
  BranchUse& operator=(const BranchUse&) = delete;

 private:
  Branch& branch_;
};

struct PoolSpace {
  std::uint64_t pages = 0;
  std::uint64_t free_pages = 0;
  std::uint64_t reserve_pages = 0;  // That keep something for snapshots.
  std::uint64_t kept_slots = 0;
};

class Pool {
 public:
  using Observer = std::function<void(const PoolEvent& event)>;

  // Opens the pool of options.map.prefix, or makes it. `region` is the NVRAM's for the map's log;
  // null: there is none. Everything outlives the pool. One line says why not.
  static Task<std::expected<std::unique_ptr<Pool>, std::string>> open(
      Executor& home, metadata::Store& store, nvram::Region* region, PoolOptions options,
      std::vector<StoreConfig> stores);
  ~Pool();  // After close() or stop().
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Before the end: false if a flush that a snapshot gave up, or a stamp, still hangs at the
  // deadline. Then the pool stays until the process ends.
  Task<bool> end_flushes(TimePoint deadline);
  // No volume is in use. What is in the log is in the checkpoint afterwards.
  Task<Error> close();
  Task<void> stop();  // The same without the checkpoint, as after a kill.
  // With kNone the store has the whole map, whatever becomes of the NVRAM, and what changes it
  // waits until release().
  Task<Error> hold() { return log_.hold(); }
  void release() { log_.release(); }
  // Of what was listed while it was held: the checkpoint names no NVRAM any more, since none has
  // more than it has.
  void forget_log(std::span<metadata::Entry> entries) const;
  void observe(Observer observer) { observer_ = std::move(observer); }

  // Stores ----------------------------------------------------------------------------------------

  // A new store, or a known one that has grown or is called otherwise. kInvalid: it would shrink.
  // Errors as of admit() if it has a device.
  Task<Error> put_store(StoreConfig store, metadata::Batch extra);
  // A number for a new store: neither another store nor a branch's fixed_store has it.
  StoreIndex free_store_index() const;
  // No page of it is owned any more, or kNotReady.
  Task<Error> remove_store(StoreIndex store, metadata::Batch extra);
  // The device of a store has come, and nothing of it is used before its stamp was compared with
  // the map's. kMiscompare: the map is older than the store, of which pages may have other owners
  // now; unless `older` accepts that, and its owned pages are doubtful (doubtful_chunks.h).
  // kCancelled: set_device() was called meanwhile. kNotFound: the map has no such store.
  Task<Error> admit(StoreIndex store, BlockDevice* device, OlderMap older = OlderMap::kRefuse);
  // The device has gone (null), or is another with the content of the one before. What is in flight
  // ends on the old one.
  void set_device(StoreIndex store, BlockDevice* device);
  // For the choice of the store for new pages: less is better. 1 unless it was measured.
  void set_latency(StoreIndex store, double relative);
  double latency(StoreIndex store) const noexcept;
  // Sets them by what hosts' requests took lately. Stores that are hardly used keep what they have.
  void weigh_by_latency();
  // What went to a store so far.
  StoreLoad load(StoreIndex store) const noexcept;
  // Requests of hosts, to all of them.
  std::uint64_t host_requests() const noexcept { return host_requests_; }

  // Branches --------------------------------------------------------------------------------------

  // kNoSpace: thick, and there are not enough free pages.
  Task<Result<BranchId>> create(BranchOptions options, metadata::Batch extra);
  // Gone at once; its pages are given back by sweeping. Its volume is detached.
  Task<Error> remove(BranchId branch, metadata::Batch extra);
  // What goes at once: branches with their snapshots, and single snapshots of any branches.
  struct Removal {
    std::vector<BranchId> branches;
    std::vector<SnapshotKey> snapshots;
  };
  // Of so many branches and snapshots at most.
  static constexpr std::size_t kMostRemoved = 4096;
  Task<Error> remove_all(Removal removal, metadata::Batch extra);
  Task<Error> expand(BranchId branch, std::uint64_t byte_count, metadata::Batch extra);
  // What lies behind the new end is lost, also when that fails on the way. Whoever writes there
  // meanwhile is late. kTimedOut: I/O below takes too long, of hosts or in the background.
  Task<Error> shrink(BranchId branch, std::uint64_t byte_count, metadata::Batch extra);
  Task<Error> set_limits(BranchId branch, std::uint64_t page_limit, std::uint64_t page_warning,
                         metadata::Batch extra);

  // Snapshots of all these branches at one moment; their generations, in the same order.
  struct SnapshotOrder {
    BranchId branch = 0;
    std::string label;
  };
  Task<Result<std::vector<Generation>>> snapshot(std::vector<SnapshotOrder> orders,
                                                 metadata::Batch extra);
  Task<Error> remove_snapshot(SnapshotKey snapshot, metadata::Batch extra);
  // A branch of its own that begins as that snapshot; generation kLive: as the branch is now.
  // byte_count 0: the snapshot's size. Thin; make_independent() copies.
  Task<Result<BranchId>> clone(SnapshotKey of, BranchOptions options, metadata::Batch extra);
  // The volume's content becomes the snapshot's: a new branch takes the place of the old one, which
  // is removed as far as no snapshot needs it. Nothing else of the volume is in flight meanwhile:
  // it waits. The new branch's number.
  // `switched` is called when the volume has the restored content and no request has seen it yet.
  Task<Result<BranchId>> restore(PoolVolume& volume, SnapshotKey to, metadata::Batch extra,
                                 std::move_only_function<void()> switched = {});

  // The volume of a branch, or of its snapshot `generation`, which is read-only. Null: there is no
  // such thing, or the branch's live end has a volume already. The pool outlives it.
  std::unique_ptr<PoolVolume> attach(BranchId branch, Generation generation = kLive);

  // A snapshot, or what a branch hangs on.
  bool has(SnapshotKey snapshot) const noexcept;

  // In the background ---------------------------------------------------------------------------

  // What follows ends at its next chunks from now on, with kCancelled if it copies.
  void hurry() noexcept { hurries_ = true; }
  // How fast what follows copies, together; 0: as fast as it can.
  void set_pace(std::uint64_t bytes_per_second);
  // Frees what nobody needs any more, at most so many pages' worth of work. True: there is more.
  // kDataCorrupt: there is, but only what hangs on damaged parts of the map.
  Task<Result<bool>> sweep(std::uint32_t pages);
  bool needs_sweep() const noexcept;
  // Copies what the branch has of its parent into it, at most so many pages, beginning with *next.
  // True: there is more. At the end it has no parent. kNoSpace: it would use pages that are
  // reserved for hosts; it begins when there is room for all that it needs.
  Task<Result<bool>> make_independent(BranchId branch, PageNumber* next, std::uint32_t pages);
  // Moves a page to that store, while it is used. kNotFound: it has no place or was changed
  // meanwhile. Nothing is lost by an error.
  Task<Error> move_page(BranchId branch, PageNumber page, StoreIndex target);
  // Empties a store that is kVacating, at most so many pages' worth of work: pages of branches,
  // then what is kept for snapshots. True: there is more. kNoSpace: the other stores are full. What
  // cannot be moved is passed over, and tried again when the rest has been; then its error is told.
  // kInvalid: the store is to stay.
  Task<Result<bool>> vacate(StoreIndex store, std::uint32_t pages);
  // Shortens rows of more than so many parents, so that reads need not walk far: a branch takes
  // over a parent that nobody else needs, page by page and without copies but of what was kept; if
  // there is none in the row, the branch is copied whole. True: there is more. `changed`, if given,
  // gets the number of the branch that the call works on; the caller awaits it at once.
  Task<Result<bool>> flatten(std::uint32_t most_parents, std::uint32_t pages,
                             BranchId* changed = nullptr);
  // Pages that a copy of this branch needs and may not claim yet, or 0.
  std::uint64_t pages_awaited(BranchId branch) const noexcept;
  // Free pages that copies for a branch with this fixed store may claim.
  std::uint64_t room_for_copies(StoreIndex fixed) const;
  std::uint32_t parent_count(const Branch& branch) const noexcept;
  // Unmaps pages that have become free, at most so many, on stores that can. True: there is more.
  Task<bool> trim(std::uint32_t pages);
  bool needs_trim() const noexcept;

  // Verifies the whole map while the pool is in use, in slices. Changes of the directory and
  // everything in the background wait meanwhile.
  Task<CheckReport> check();

  PoolSpace space() const;
  PoolSpace space(StoreIndex store) const;
  const PoolCounters& counters() const noexcept { return counters_; }
  PoolMap& map() noexcept { return map_; }
  MapLog& log() noexcept { return log_; }
  Executor& home() const noexcept { return home_; }
  const PoolOptions& options() const noexcept { return options_; }

  // For volumes and changes -----------------------------------------------------------------------

  BlockDevice* device(StoreIndex store) const noexcept {
    return store < devices_.size() ? devices_[store] : nullptr;
  }
  const std::vector<BlockDevice*>& devices() const noexcept { return devices_; }
  // Reads from a store or writes to it. The device is its device. Awaited at once.
  Task<Completion> submit_to(StoreIndex store, BlockDevice* device, Request request) {
    if (doubtful_.empty()) return device->submit(std::move(request));
    return doubtful_.submit(store, device, std::move(request));
  }
  // It is thin and has, or claims, all pages that its limit allows.
  static bool is_at_limit(const Branch& branch) noexcept;
  // A page for the branch: by its wishes, free capacity and latency.
  Result<Place> claim_page(const Branch& branch, Reserve reserve = Reserve::kMayUse);
  // For a host that found no page, on this store if it is fixed. True: there may be one now, since
  // the background has given back what it had claimed for a while. The caller holds no lock.
  static constexpr int kMostPageWaits = 4;
  Task<bool> wait_for_page(StoreIndex fixed);
  // At most `most` slots side by side, with the map of their page pinned.
  struct ClaimedSlots {
    Slots::Run run;
    PoolMap::SlotMaps::Pin pin;
  };
  Task<Result<ClaimedSlots>> claim_slots(std::uint32_t most, Reserve reserve = Reserve::kMayUse);
  void tell(PoolEvent event);
  PoolCounters& count() noexcept { return counters_; }
  void detach(PoolVolume& volume);
  BufferPool& copies() noexcept { return copies_; }
  // A host's request has ended that began then.
  void note_request(StoreIndex store, TimePoint begun, std::uint64_t byte_count) {
    if (store >= loads_.size()) loads_.resize(store + 1U);
    loads_[store].note(home_.now() - begun, byte_count);
    ++host_requests_;
  }
  // A chunk of zeros that everybody shares.
  const Buffer& zeros() const noexcept { return zeros_; }
  bool may_allocate_on(StoreIndex store) const;
  // The store has just said that it is not ready: for a second, or until it comes back, what is new
  // goes to others, if they have room.
  void note_silence(StoreIndex store);
  bool is_silent(StoreIndex store) const;

 private:
  friend class PoolVolume;
  Pool(Executor& home, metadata::Store& store, nvram::Region* region, PoolOptions options);

  std::string why_unfit(const StoreConfig& store) const;
  void place_device(StoreIndex store, BlockDevice* device);
  Task<Error> compare_stamp(const StoreConfig* store);  // Awaited at once.
  void forget_store(StoreIndex store);
  Task<std::string> take_stores(std::vector<StoreConfig> stores);
  // placement.cc
  bool may_trim(StoreIndex store) const noexcept;
  std::optional<StoreIndex> choose_store(std::uint8_t placement, StoreIndex fixed);
  std::optional<StoreIndex> choose_among(std::uint8_t placement, StoreIndex fixed, bool silent_too);
  // Why there is no page, or none on that store; tells it if the pool is full.
  Error no_page(BranchId branch, StoreIndex fixed);
  std::optional<Place> take_slot_page_candidate(bool silent_too);
  Task<Error> open_slot_page(Reserve reserve);
  // `others` come with the last group.
  Task<Error> provision(BranchRecord record, PageNumber first, metadata::Batch extra,
                        std::vector<MapRecord> others = {});
  std::uint64_t lacking(const BranchRecord& record, PageNumber first) const;
  std::uint64_t free_pages_for(StoreIndex fixed) const;
  bool has_room_for(const BranchRecord& record, PageNumber first) const;
  // Awaited at once.
  Task<Error> place_in_groups(const BranchRecord* record, PageNumber* next,
                              std::vector<PlacePages>* places);
  Task<Error> claim_places(const BranchRecord* record, PageNumber* next,
                           std::vector<PlacePages>* places);
  void unclaim(const std::vector<PlacePages>& places);
  // pool.cc, snapshot.cc: the same with the directory locked.
  Task<Error> commit(std::vector<MapRecord> records, metadata::Batch extra);
  Task<Error> put_store_locked(StoreConfig store, metadata::Batch extra);
  Task<Result<BranchId>> create_locked(BranchOptions options, metadata::Batch extra);
  Task<Error> remove_locked(Removal removal, metadata::Batch extra);
  // Why it cannot be removed now, or kNone.
  Error hindrance(const Removal& removal) const;
  Task<Error> expand_locked(BranchId branch, std::uint64_t byte_count, metadata::Batch extra);
  Task<bool> close_background();
  Task<Error> shrink_locked(BranchId branch, std::uint64_t byte_count, metadata::Batch extra);
  Task<Error> cut_off(Branch* branch, BranchRecord record, metadata::Batch extra);
  std::vector<MapRecord> tail_of(const Branch& branch, PageNumber* next) const;
  Task<Result<std::vector<Generation>>> snapshot_locked(std::vector<SnapshotOrder> orders,
                                                        metadata::Batch extra);
  Task<Error> settle(std::vector<Branch*> branches);
  // The time of the last flush of several.
  Task<Result<Duration>> flush_early(std::vector<Branch*> branches, Duration limit);
  Task<Duration> find_patience(Branch* branch);
  Duration patience(const std::vector<Branch*>& branches, Duration flush) const;
  Task<Error> flush_behind(std::vector<Branch*> branches);
  Task<Result<BranchId>> clone_locked(SnapshotKey of, BranchOptions options, metadata::Batch extra);
  Task<Result<BranchId>> restore_locked(PoolVolume* volume, SnapshotKey to, metadata::Batch extra);
  Branch* find_live(BranchId branch) const;
  // independence.cc. The caller has locked the whole page.
  enum class Independence : std::uint8_t { kOfAll, kOfParent };
  // Nobody waits for a row to become shorter; but an heir that takes its parent over frees pages.
  static Reserve reserve_for(Independence of) noexcept {
    return of == Independence::kOfParent ? Reserve::kMayUse : Reserve::kMustLeave;
  }
  // What stays "through" on the pages before `next` means something else for each of them.
  struct Flattening {
    Independence of = Independence::kOfAll;
    PageNumber next = 0;
  };
  Task<Result<bool>> copy_pages(Branch* branch, PageNumber* next, std::uint32_t pages,
                                Independence of);
  // The pages that a copy in the background needs. A copy that does not fit waits for room.
  struct CopyNeed {
    std::uint64_t pages = 0;
    TimePoint count_again{};
    bool fits = false;
  };
  Task<Error> find_room(const Branch* branch, PageNumber from);
  Task<std::uint64_t> pages_to_copy(const Branch* branch, PageNumber from);
  Branch* next_long_row(std::uint32_t most_parents);
  bool is_heir(const Branch& branch) const noexcept;
  static bool is_useless(const Branch& branch) noexcept;
  void forget_passes_over(const Branch& parent);
  Task<Error> pace(std::uint64_t copied_before);
  Task<Error> adopt_page(Branch* branch, PageNumber page);
  Task<Error> copy_from_parent(Branch* branch, PageNumber page, Independence of);
  Task<Error> cut_parent(Branch* branch, Independence of);
  // kept_moves.cc. Versions in slots of the store `from`, or that are "through" if it is kNoStore.
  Task<Error> rewrite_kept(Branch* branch, PageNumber page, StoreIndex from, Reserve reserve);
  Task<Error> rewrite_one(Branch* branch, PageNumber page, const KeptChunks::Useless* version,
                          PageChange* change);
  // move.cc
  Task<Error> copy_chunks(Branch* branch, ChunkRange range, Place to);
  Task<Error> copy_rounds(Branch* branch, Place to);
  Task<Error> finish_move(Branch* branch, Place from, Place to);
  std::optional<PageKey> next_on(StoreIndex store, PageKey from) const;
  Task<Error> move_locked(BranchId branch, PageNumber page, StoreIndex target);
  bool is_vacating(StoreIndex store) const;
  Task<Result<bool>> vacate_pages(StoreIndex store, std::uint32_t* pages);
  Task<Result<bool>> vacate_kept(StoreIndex store, std::uint32_t* pages);
  // sweep.cc
  struct Sweep {
    bool began = false;
    PageNumber next = 0;
    std::uint64_t living = 0;  // What Branch::living_changes was when it began.
    bool damaged = false;      // Something was passed over.
    TimePoint again{};         // Not before.
  };
  bool may_sweep(BranchId id) const;
  std::vector<BranchId> due_for_sweep() const;
  void watch_free();
  Task<Result<bool>> sweep_branch(BranchId id, std::uint32_t* pages);
  Task<Result<PageNumber>> next_to_sweep(const Branch* branch, PageNumber from);
  Task<Result<PageNumber>> next_kept(BranchId branch, PageNumber from);
  Task<Error> sweep_page(Branch* branch, PageNumber page);
  Task<Error> forget_useless(Branch* branch, PageNumber page);
  Task<Error> free_dead_page(Branch* branch, PageNumber page);
  Task<Error> free_tail(Branch* branch);
  Task<Error> end_sweep(Branch* branch);

  struct StoreWeight {
    double latency = 1;
    double credit = 0;
  };

  Executor& home_;
  metadata::Store& store_;
  PoolOptions options_;
  BufferPool copies_;
  Buffer zeros_;
  PoolMap map_;
  DoubtfulChunks doubtful_;
  StoreStamps stamps_;
  MapLog log_;
  std::map<StoreIndex, BlockDevice*> arriving_;  // admit() is on its way.
  std::vector<BlockDevice*> devices_;            // By store.
  std::map<StoreIndex, StoreWeight> weights_;
  std::map<StoreIndex, TimePoint> silent_until_;
  std::map<BranchId, PoolVolume*> volumes_;  // Of live ends.
  std::vector<PoolVolume*> snapshot_volumes_;
  std::map<BranchId, Sweep> sweeps_;
  // Where the passes over pages and over what is kept stand, and what could not be moved first.
  struct Vacating {
    PageKey page;
    PageKey kept;
    Error error = Error::kNone;
  };
  std::map<StoreIndex, Vacating> vacating_;
  std::map<BranchId, Flattening> flattening_;
  std::map<BranchId, CopyNeed> needs_;
  std::set<BranchId> not_flattened_;  // Could not be, lately.
  std::set<BranchId> making_;         // In several groups: dead until the last one, and not swept.
  std::vector<StoreLoad> loads_;      // By store.
  std::uint64_t host_requests_ = 0;
  RateLimit pace_;
  WriteDoor background_;  // What is between the lines above; a check or a shrink closes it.
  // The background is inside while it has claimed a page that it gives back soon. A host that needs
  // a page closes it.
  WriteDoor brief_claims_;
  bool few_free_ = false;
  bool hurries_ = false;
  Mutex directory_;       // Changes of branches, snapshots and stores.
  Gate flushes_;          // For snapshots, which may have given up.
  Mutex slot_page_turn_;  // Of whoever opens a page for slots.
  PoolCounters counters_;
  Observer observer_;
};

}  // namespace sandbay::pool
