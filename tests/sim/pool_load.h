// A load on a pool in a world: hosts that write, unmap, flush and read, an administrator who makes
// volumes, snapshots, clones, restores, members and takes them away, and everything that a pool
// does in the background, all at once, held against the model all the time.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "pool/housekeeper.h"
#include "pool_lab.h"
#include "pool_model.h"
#include "runtime/known.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::simtest {

struct LoadOptions {
  unsigned hosts = 3;
  unsigned host_steps = 70;
  unsigned administrator_steps = 45;
  // A Housekeeper works in the background, and empties members that are to go.
  bool keeps_house = false;
  // Meanwhile. With errors only ends and the map are judged, no contents.
  UnitFaults faults;
};

class PoolLoad {
 public:
  PoolLoad(PoolLab& lab, std::uint64_t seed, LoadOptions options)
      : lab_(lab), random_(seed), options_(options) {}

  // Until all have ended; what was wrong, or an empty text.
  Task<std::string> go();

  const PoolModel& model() const noexcept { return model_; }
  // Members that may be the pool's now; those not here are certainly not.
  const std::set<pool::StoreIndex>& members() const noexcept { return members_; }
  // Steps that ended with an error.
  std::uint64_t refusals() const noexcept { return refusals_; }
  // What the administrator does.
  const std::string& doing() const noexcept { return doing_; }
  // Deeds that began this long ago and have not ended, and the views of the housekeeper.
  std::string standing(Duration age) const;

 private:
  using Name = std::string;
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };

  void fail(const std::string& wrong) {
    if (wrong_.empty() && options_.faults.errors == 0) wrong_ = doing_ + ": " + wrong;
  }
  // kNoSpace is no failure.
  bool accept(const char* what, Error error);

  Task<void> run_host();
  Task<void> host_step();
  Task<void> change_or_read(Name name, Range range, std::uint64_t drawn);
  Task<void> write(Name name, Range range, bool forced);
  Task<void> unmap(Name name, Range range);
  Task<void> flush(Name name);
  Task<void> read(Name name, Range range);
  Range pick_range(const ModelVolume& volume);
  static bool is_free(const ModelVolume& volume, Range range);

  Task<void> run_administrator();
  Task<void> administrator_step();
  Task<void> create();
  Task<void> expand();
  Task<void> shrink();
  Task<void> remove_volume();
  Task<void> snapshot();
  Task<void> look_at(Name snapshot);
  Task<void> clone();
  Task<void> restore();
  Task<void> remove_snapshot();
  Task<void> add_member();
  Task<void> remove_member();
  Task<bool> empty_member(pool::StoreIndex member);
  Task<bool> wait_for_empty_member(pool::StoreIndex member);
  // Whether the pool has it no more.
  Task<bool> take_member(pool::StoreIndex member);
  Task<void> pause(Name volume);
  Name pick_volume();
  Name pick_snapshot(bool seen);
  void adopt(const Name& name, pool::BranchId branch);

  Task<void> run_background();
  Task<void> background_step();
  Task<void> keep_house();

  PoolLab& lab_;
  Random random_;
  LoadOptions options_;
  PoolModel model_;
  std::map<Name, std::shared_ptr<pool::PoolVolume>> volumes_;
  std::map<Name, pool::SnapshotKey> keys_;
  std::map<std::uint64_t, Moment> moments_;
  std::set<pool::StoreIndex> members_{0, 1, 2};
  unsigned names_ = 0;
  std::uint64_t groups_ = 0;
  std::uint64_t refusals_ = 0;
  unsigned running_ = 0;
  bool background_runs_ = false;
  std::string doing_ = "nothing";
  struct Deed {
    std::string what;
    TimePoint begun;
  };
  std::list<Deed> under_way_;  // The hosts' deeds.
  const pool::Housekeeper* housekeeper_ = nullptr;
  std::string wrong_;
};

}  // namespace sandbay::simtest
