// A load on a group in a world: hosts that write, unmap, flush and read through their sessions, and
// an administrator who makes volumes, snapshots, clones, restores, schedules, has members come and
// go, and takes everything away, all held against the model all the time. By shape it restores one
// volume again and again, and a part of the NVRAM fails.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "group_lab.h"
#include "pool_model.h"
#include "runtime/known.h"
#include "runtime/random.h"

namespace sandbay::simtest {

// The pool's part of the model, and what the group knows beside it. Snapshots are called
// VOLUME/NAME; what one that takes writes has become is a volume of that name, which no list has.
struct GroupModel : PoolModel {
  enum class Membership : std::uint8_t { kOutside, kComing, kInside, kAsked, kLeaving };
  std::map<std::string, std::size_t> shrinking;       // Volumes: cells that they may have.
  std::map<std::string, std::optional<bool>> online;  // None: it is being changed.
  std::map<std::string, Presence> schedules;          // By volume.
  std::map<std::string, Membership> members;
  std::map<std::string, std::string> targets;  // Of volumes that were called otherwise.
  std::optional<std::string> renamed, name;    // A volume that is about to be; as what.
  std::optional<Presence> second_pool;         // "q".
  // The battery is low and no cache has writes in the NVRAM; a flush was answered after that.
  bool nvram_needless = false;
  bool mirror_failed = false;
  // On which a volume lies, and all that it reads from; empty: anywhere in the pool.
  std::map<std::string, std::string> set;

  std::string target(const std::string& volume) const;
  // The one that is about to be called otherwise is.
  void rename();
};

struct GroupLoadOptions {
  unsigned hosts = 2;
  unsigned host_steps = 60;  // Quick ones; slow ones as long as the administrator is at work.
  unsigned administrator_steps = 16;
};

class GroupLoad {
 public:
  GroupLoad(GroupLab& lab, std::uint64_t seed, GroupLoadOptions options)
      : lab_(lab), random_(seed), options_(options) {}

  // Until all have ended; what was wrong, or an empty text.
  Task<std::string> go();

  const GroupModel& model() const noexcept { return model_; }
  // What the administrator does, and how many things were done before.
  const std::string& doing() const noexcept { return doing_; }
  unsigned steps() const noexcept { return steps_; }
  // The number of parents in the longest row that restores made.
  unsigned longest_row() const noexcept { return longest_row_; }

  // Called when a shrink is answered, and, after a part of the NVRAM has failed, a flush or a
  // forced write: a cut now is likely to find a mistake.
  std::function<void()> on_answer;

 private:
  using Name = std::string;
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };

  void fail(const std::string& wrong) {
    if (wrong_.empty()) wrong_ = doing_ + ": " + wrong;
  }
  bool accept(const char* what, Error error);
  // What a volume that may lie on a member that is away may answer.
  bool accept(const char* what, const Name& volume, Error error);
  // A conflict is no failure: there is no room, say.
  template <class T>
  bool accept(const char* what, const group::Answer<T>& answer);
  // The same of a change that needs all of these volumes.
  template <class T>
  bool accept(const char* what, const std::vector<Name>& volumes, const group::Answer<T>& answer);
  bool may_be_away(const Name& volume) const;
  bool is_image_failing();

  Task<void> run_host();
  Task<void> host_step();
  Task<void> write(Name name, Range range, bool forced);
  Task<void> unmap(Name name, Range range);
  Task<void> flush(Name name);
  Task<void> read(Name name, Range range);
  Range pick_range(const ModelVolume& volume);
  static bool is_free(const ModelVolume& volume, Range range);

  struct Choice {
    unsigned weight;
    const char* name;
    Task<void> (GroupLoad::*step)();
  };
  Task<void> administrator_step();
  Task<void> create();
  Task<void> expand();
  Task<void> expand_one(Name name);
  Task<void> shrink();
  Task<void> shrink_one(Name name);
  Task<void> remove_volume();
  Task<void> snapshot();
  Task<void> take_snapshots(std::vector<Name> volumes, Name called);
  Task<void> look_at(Name snapshot);
  Task<void> clone();
  Task<void> restore();
  Task<bool> restore_to(Name snapshot);
  Task<void> restore_again();
  Task<void> resize(Name volume);
  Task<void> remove_snapshot();
  Task<void> add_member();
  Task<void> remove_member();
  Task<void> take_offline();
  Task<void> schedule();
  Task<void> rename();
  Task<void> write_snapshot();
  Task<void> make_pool();
  Task<void> lose_member();
  Task<void> wait_for_member(Name member);
  Task<std::size_t> times_offline(Name set);
  Task<void> wait_for_volumes();
  Task<void> remove_scheduled(Name volume);
  Task<void> weaken_nvram();
  Task<void> change_battery();
  void promised(const Name& volume);

  Task<void> pause(Name volume);
  Task<void> adopt(Name volume);
  Name pick_volume(bool of_pool);
  Name pick_snapshot(bool seen);
  group::SnapshotName named(const Name& snapshot) const;

  GroupLab& lab_;
  Random random_;
  GroupLoadOptions options_;
  GroupModel model_;
  std::map<Name, std::shared_ptr<Disk>> disks_;
  std::map<std::uint64_t, Moment> moments_;
  unsigned names_ = 0;
  std::uint64_t groups_ = 0;
  unsigned hosts_running_ = 0;
  bool administered_ = true;
  unsigned steps_ = 0;
  std::set<Name> lost_;  // Members that are away, or were and may not have noticed it yet.
  Name row_;             // The volume that is restored again and again.
  unsigned row_length_ = 0;
  unsigned longest_row_ = 0;
  bool weak_ = false;                       // A part of the NVRAM has failed.
  std::optional<TimePoint> image_noticed_;  // The first request failed.
  bool nvram_empty_ = true;                 // No cache has writes in it.
  std::string doing_ = "nothing";
  std::string wrong_;
};

}  // namespace sandbay::simtest
