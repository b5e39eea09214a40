// Pools: the pools of the group, and which RAID sets they have.
//
// A pool has the sets of its members on which no volume stands by itself. A set joins when it is
// seen for the first time in a run of the daemon and is free; it stays until its member leaves the
// pool. While a set does not serve, the pool has no device for it: exactly the volumes with pages
// on it answer NOT READY, and they come back by themselves when it does.
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

#include "group/hardware.h"
#include "group/pool_configuration.h"
#include "group/pool_info.h"
#include "group/pool_records.h"
#include "group/served_pool.h"
#include "runtime/sync.h"

namespace sandbay::group {

class Pools {
 public:
  using Outcome = std::expected<void, std::string>;

  struct Owner {  // What the group knows and the pools ask. Called inline.
    // Names of the volumes that stand on a set by themselves.
    std::function<std::vector<std::string>(const Uuid& set)> volumes_on;
    std::function<std::string(const Uuid& volume)> name_of_volume;
    std::function<void(const Uuid& volume)> on_space_warning;
  };

  // All outlive it. The hardware has started. `member` is its name.
  Pools(Executor& home, metadata::Store& store, EventLog& events, Hardware& hardware,
        std::string member, Owner owner);
  ~Pools();  // After stop().
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Opens those that are stored and makes those that are declared. Only metadata that cannot be
  // written are an error.
  Task<Outcome> start(std::vector<PoolRecord> stored, std::vector<PoolConfiguration> declared);
  // No volume of any pool is attached, or else not `quiet`.
  Task<void> stop(bool quiet);

  // Makes a pool and takes in what is free of its members. The error is half a sentence.
  Task<std::expected<ServedPool*, std::string>> create(PoolRecord record);
  // It has neither volumes nor snapshots.
  Task<Outcome> remove(ServedPool* pool);

  ServedPool* find(const std::string& name) const;
  ServedPool* find(const Uuid& uuid) const;
  const std::vector<std::unique_ptr<ServedPool>>& all() const noexcept { return pools_; }
  // The pool that has the set; null: none.
  ServedPool* owner_of(const Uuid& set) const;
  ServedPool* pool_of_member(const std::string& member) const;
  const std::string& member() const noexcept { return member_; }
  PoolInfo show(const ServedPool& pool) const;

 private:
  Task<void> add(PoolRecord record);
  Task<void> take_sets();
  Task<void> take_set(SetInfo set);
  void set_devices();
  Task<void> watch();
  std::string reason_of(const Uuid& set) const;

  Executor& home_;
  metadata::Store& store_;
  EventLog& events_;
  Hardware& hardware_;
  std::string member_;
  Owner owner_;
  std::vector<std::unique_ptr<ServedPool>> pools_;
  std::map<Uuid, std::string> outside_;  // Sets that are not taken in, and why.
  Mutex taking_;
  Condition wake_;
  bool stopping_ = false;
  Gate gate_;
};

}  // namespace sandbay::group
