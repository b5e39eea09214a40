// ServedPool: a pool of the group: its record, its map's place in NVRAM, the sets that are its
// stores, and where its volumes and snapshots are in the map.
//
// A pool that cannot be opened is there all the same, and says why: its volumes have no device
// until open() has done it. Executor 0.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "block/block_device.h"
#include "group/event_log.h"
#include "group/pool_records.h"
#include "metadata/store.h"
#include "nvram/nvram.h"
#include "pool/housekeeper.h"
#include "pool/pool.h"
#include "runtime/sync.h"

namespace sandbay::group {

// Of UUIDs that were drawn.
struct UuidHash {
  std::size_t operator()(const Uuid& uuid) const noexcept {
    std::size_t bits = 0;
    std::memcpy(&bits, uuid.data(), sizeof bits);
    return bits;
  }
};

// Losses that the operator accepts, so that a pool can be opened.
struct GivenUp {
  bool lost_changes = false;  // Changes of its map that are lost with an NVRAM.
  bool newer_map = false;     // All that a newer map than this one says of its sets.
};

class ServedPool {
 public:
  // The store and the events outlive it. It is opened without the sets that do not show their stamp
  // in `stamp_patience`; they follow.
  ServedPool(Executor& home, metadata::Store& store, EventLog& events, PoolRecord record,
             Duration stamp_patience = pool::StoreStamps::kPatience);
  ~ServedPool();  // After close().
  ServedPool(const ServedPool&) = delete;
  ServedPool& operator=(const ServedPool&) = delete;

  // Opens the map, or makes it; failure() says why not, and it may be tried again. `nvram` may be
  // null, and outlives close(). `mirrored`: the configuration names a mirror of it, and new changes
  // of the map are then logged in the metadata.
  Task<void> open(nvram::Nvram* nvram, bool mirrored, GivenUp given_up);
  // The pool is open, and its map is older than sets that have come since: it uses them, and their
  // pages that it owns are in doubt.
  Task<void> accept_older_map();
  // `quiet`: none of its volumes has anything in flight. False: something has, or what goes on in
  // the background still waits for a set at the deadline; it stays until the process ends.
  Task<bool> close(bool quiet, TimePoint deadline);

  const PoolRecord& record() const noexcept { return record_; }
  const Uuid& uuid() const noexcept { return record_.uuid; }
  const std::string& name() const noexcept { return record_.name; }
  const std::string& failure() const noexcept { return failure_; }
  // Where changes of the map are that are not here, if that is why it is not open; or empty.
  const std::string& loss() const noexcept { return loss_; }
  // The set that is newer than the map, and why the pool or that set is not used; or empty.
  std::string older_map() const;
  // Null: it could not be opened.
  pool::Pool* pool() const noexcept { return ending_ ? nullptr : pool_.get(); }
  // It was not to be opened, and a set still holds what was begun; it is not opened before the end.
  bool is_ending() const noexcept { return ending_; }
  // What goes on in the background; null: the pool could not be opened.
  pool::Housekeeper* housekeeper() const noexcept { return ending_ ? nullptr : housekeeper_.get(); }
  bool map_in_nvram() const noexcept { return region_ != nullptr && !mirrored_; }
  // To be called now and then: tells when a map that could not be changed can be.
  Task<void> look_at_map();
  // Stores the record, which is the pool's from then on.
  Task<Error> keep(PoolRecord record);

  // Stores. -------------------------------------------------------------------------------------
  std::optional<pool::StoreIndex> store_of(const Uuid& set) const;
  // Makes the set a store, with `extra` in the same commit; half a sentence says why not.
  static constexpr std::string_view kSilent = "it does not answer; it is asked again";
  Task<std::string> take(Uuid set, BlockDevice* device, std::uint8_t placement,
                         metadata::Batch extra);
  // What a store stands on now; null: it is missing. A device that comes is used after the stamps
  // of store and map have been compared; a store that is newer than the map is not used at all.
  void set_device(pool::StoreIndex store, BlockDevice* device);
  // Why a present store is not used, or an empty text.
  std::string refusal_of(pool::StoreIndex store) const;
  // Its pages move elsewhere, or may come again; `extra` in the same commit.
  Task<Error> set_state(pool::StoreIndex store, pool::StoreState state, metadata::Batch extra);
  bool is_vacated(pool::StoreIndex store) const;
  // A vacated store is the pool's no more, and `record`, if there is one, is the pool's.
  Task<Error> let_go(pool::StoreIndex store, std::optional<PoolRecord> record);

  // Where things are in the map. ----------------------------------------------------------------
  // The branch that bears the label of a volume, or of a snapshot that takes writes; 0: none.
  pool::BranchId branch_of(const Uuid& uuid) const;
  std::optional<pool::SnapshotKey> snapshot_of(const Uuid& uuid) const;
  void note_branch(const Uuid& uuid, pool::BranchId branch) { branches_[uuid] = branch; }
  void note_snapshot(const Uuid& uuid, pool::SnapshotKey key) { snapshots_[uuid] = key; }
  void forget_branch(const Uuid& uuid) { branches_.erase(uuid); }
  void forget_snapshot(const Uuid& uuid) { snapshots_.erase(uuid); }

  std::uint64_t pages_for(std::uint64_t byte_count) const noexcept {
    return (byte_count + record_.page_bytes - 1) / record_.page_bytes;
  }

  // A clause on a copy that waits for free pages.
  std::string lacks_room(std::uint64_t needed_pages, std::uint64_t room_pages) const;

  // A thin volume has as many pages as was to be told. Called inline.
  std::function<void(const Uuid& volume)> on_space_warning;
  // A set that is to leave is empty. Called inline.
  std::function<void()> on_vacated;
  std::function<std::string(const Uuid& set)> name_of_set;  // For events.
  // Calls set_device() for each store. Called inline when the map is open.
  std::function<void()> find_devices;
  // How to go back to the records from before an import, as the rest of a line; or empty.
  std::function<std::string()> way_before_import;
  // What a volume is called, for events; empty: there is no such volume.
  std::function<std::string(const Uuid& volume)> name_of_volume;

 private:
  Task<std::string> claim_region(nvram::Nvram* nvram);
  Task<Error> settle_block_bytes(std::uint32_t block_bytes);
  Task<std::string> open_map(bool accept_loss);
  Task<std::string> compare_stamps();
  Task<bool> find_and_compare(TimePoint deadline);
  Task<void> end_unused();
  Task<bool> wait_for_end(TimePoint deadline);
  Task<bool> end(bool quiet, TimePoint deadline);
  std::optional<pool::StoreIndex> newer_store() const;
  std::string words_on_older_map() const;
  Task<void> admit(pool::StoreIndex store, BlockDevice* device, pool::OlderMap older);
  void learn_labels();
  void on_event(const pool::PoolEvent& event);
  std::string words_of(pool::BranchId branch) const;
  std::string words_of_store(pool::StoreIndex store) const;
  std::string words_on_copy(const pool::PoolEvent& event) const;
  EventInfo told_of(const pool::PoolEvent& event) const;
  EventInfo told_of_set(const pool::PoolEvent& event) const;

  Executor& home_;
  metadata::Store& store_;
  EventLog& events_;
  PoolRecord record_;
  Duration stamp_patience_;
  std::string failure_;
  std::string loss_;
  std::string older_map_;  // While it is not open.
  bool ending_ = false;
  bool map_failing_ = false;
  TimePoint look_at_map_{};
  bool mirrored_ = false;
  std::unique_ptr<nvram::Region> region_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<pool::Housekeeper> housekeeper_;
  // Stores whose stamps are being compared, and those that are not used.
  std::set<pool::StoreIndex> arriving_;
  std::map<pool::StoreIndex, Error> refused_;
  std::map<pool::StoreIndex, Error> refusals_told_;  // Also by attempts to open the pool before.
  pool::OlderMap older_ = pool::OlderMap::kRefuse;   // For stores that arrive now.
  Condition arrived_;
  std::unordered_map<Uuid, pool::BranchId, UuidHash> branches_;
  std::unordered_map<Uuid, pool::SnapshotKey, UuidHash> snapshots_;
  std::map<std::pair<pool::PoolEvent::Kind, pool::BranchId>, TimePoint> told_;
};

// The region of the NVRAM that a pool's map has.
inline constexpr std::string_view kRegionPrefix = "map ";
std::string region_name(const Uuid& pool);

}  // namespace sandbay::group
