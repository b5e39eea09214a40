// Pools: the pools of the group, and which RAID sets they have.
//
// A pool has the sets of its members on which no volume stands by itself. A set joins when it is
// seen for the first time in a run of the daemon and is free; it stays until its member leaves the
// pool. A member that is to leave is noted in the pool's record until its last set is vacated and
// goes, together with the note; so a restart goes on with it. While a set does not serve, the pool
// has no device for it: exactly the volumes with pages on it answer NOT READY, and they come back
// by themselves when it does.
//
// Executor 0.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "group/members.h"
#include "group/pool_configuration.h"
#include "group/pool_info.h"
#include "group/pool_records.h"
#include "group/served_pool.h"
#include "runtime/start_refusal.h"
#include "runtime/sync.h"

namespace sandbay::group {

class Pools {
 public:
  using Outcome = std::expected<void, std::string>;

  struct Owner {  // What the group knows and the pools ask. Called inline.
    // Names of the volumes that stand on a set by themselves.
    std::function<std::vector<std::string>(const Uuid& set)> volumes_on;
    // Of them: those that have a place there already, not those that are to get one.
    std::function<std::vector<std::string>(const Uuid& set)> volumes_placed_on;
    std::function<std::string(const Uuid& volume)> name_of_volume;
    std::function<void(const Uuid& volume)> on_space_warning;
    // How to go back to the records from before an import, as the rest of a line; or empty.
    std::function<std::string()> way_before_import;
    Duration stamp_patience = pool::StoreStamps::kPatience;  // See ServedPool.
  };

  // All outlive it. The members have started.
  Pools(Executor& home, metadata::Store& store, EventLog& events, Members& members, Owner owner);
  ~Pools();  // After stop() was true.
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Opens those that are stored and makes those that are declared. Only metadata that cannot be
  // written are an error.
  Task<Started> start(std::vector<PoolRecord> stored, std::vector<PoolConfiguration> declared);
  // No volume of any pool is attached, or else not `quiet`. False: something still hangs below some
  // pool at the deadline and is left behind, and so must this object be.
  Task<bool> stop(bool quiet, TimePoint deadline);

  // Makes a pool and takes in what is free of its members. The error is half a sentence.
  Task<std::expected<ServedPool*, std::string>> create(PoolRecord record);
  // It has neither volumes nor snapshots.
  Task<Outcome> remove(ServedPool* pool);
  // Opens one without what is given up (ServedPool::loss(), ServedPool::older_map()).
  Task<void> open_without(ServedPool* pool, GivenUp given_up);
  // Whether it may disagree with the records since: noted in its own.
  Task<Error> note_disagreement(ServedPool* pool, bool disagrees);
  // Sets that such a map counts, and whose member is the pool's no more, are emptied and go; a line
  // of `notes` for each that is not empty. kNotReady: whose some are, only a pool knows that is not
  // open. Another error: not all of it is noted yet.
  Task<Error> settle_stores(ServedPool* pool, std::vector<std::string>* notes);

  // Which pool is not open, or does not use one of its sets; or empty.
  std::string unsettled() const;

  ServedPool* find(const std::string& name) const;
  ServedPool* find(const Uuid& uuid) const;
  const std::vector<std::unique_ptr<ServedPool>>& all() const noexcept { return pools_; }
  // The pool that has the set, or takes it in just now; null: none.
  ServedPool* owner_of(const Uuid& set) const;
  // Why a set that the pool's map has does not serve it; empty if it does.
  std::string refusal(const ServedPool& pool, const Uuid& set) const;
  ServedPool* pool_of_member(const std::string& member) const;
  PoolInfo show(const ServedPool& pool) const;
  // Verifies the map of one that is open, while no set comes or goes.
  Task<pool::CheckReport> check(const ServedPool* pool);

  // Members of pools: pool_members.cc. ------------------------------------------------------------
  // The member's free sets are the pool's from now on; one that was about to leave stays.
  Task<Outcome> add_member(ServedPool* pool, std::string member);
  // What is on its sets moves to others, and then they go: watch() sees to it. The caller knows
  // that there is room.
  Task<Outcome> remove_member(ServedPool* pool, std::string member);
  // The sets of a member that its pool has.
  static bool is_leaving(const ServedPool& pool, const std::string& member);
  std::vector<pool::StoreIndex> stores_of(const ServedPool& pool, const Member& member) const;

 private:
  Task<void> add(PoolRecord record);
  Task<void> open(ServedPool* pool, GivenUp given_up = {});
  Task<void> release_strays(std::vector<std::string> wanted);
  BlockDevice* device_for(const ServedPool& pool, const Uuid& set) const;
  bool is_strange(const ServedPool& pool, const Uuid& set) const;
  Task<void> see_off_strangers(ServedPool* pool);
  Task<void> look_at_maps();
  Task<void> open_again();
  Task<void> take_sets();
  bool stays_outside(const Uuid& set);
  Task<void> take_set(Member* member, MemberSet set);
  Task<void> see_off_members();
  Task<void> see_off_member(ServedPool* pool, std::string name);
  Task<void> keep_members(ServedPool* pool);
  void set_devices();
  void set_devices(ServedPool* pool);
  Task<void> watch();
  Executor& home_;
  metadata::Store& store_;
  EventLog& events_;
  Members& members_;
  Owner owner_;
  std::vector<std::unique_ptr<ServedPool>> pools_;
  std::map<Uuid, ServedPool*> joining_;  // Sets that are being taken in: no volume goes on them.
  std::map<Uuid, std::string> outside_;  // Sets that are not taken in, and why.
  std::map<Uuid, TimePoint> ask_again_;  // Those of them that did not answer.
  Mutex taking_;
  TimePoint look_again_{};  // At pools that could not be opened.
  Condition wake_;
  bool stopping_ = false;
  Gate gate_;
};

}  // namespace sandbay::group
