// Hardware: what is bolted into the rack: drives, NVRAM, the RAID controller with its sets and
// spares, and the faults that strike them. Built from the configuration; what the drives' own
// superblocks say wins over the file, and every disagreement is told.
//
// Start: NVRAM, cache, drives, rules, sets that are there, sets that are declared and not there (of
// blank drives only), spares. A set's newest event is kept in the metadata before it is acted upon.
// A set that was begun to be made when the daemon was killed is made anew: an intent names it, and
// every UUID that is written for it. Nothing that bears none of them is ever erased at a start.
//
// Home: executor 0, where drives and sets live, too.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fault/engine.h"
#include "fault/fault_layer.h"
#include "group/cache_info.h"
#include "group/claims.h"
#include "group/configuration.h"
#include "group/controller_cache.h"
#include "group/door.h"
#include "group/drive_bay.h"
#include "group/event_log.h"
#include "group/hardware_info.h"
#include "group/hardware_repeats.h"
#include "group/member_events.h"
#include "group/power.h"
#include "group/records.h"
#include "metadata/store.h"
#include "model/modelled_controller.h"
#include "nvram/nvram.h"
#include "raid/controller.h"
#include "runtime/probe.h"
#include "runtime/start_refusal.h"
#include "runtime/sync.h"

namespace sandbay::group {

class NvramFaults;

class Hardware {
 public:
  using Outcome = std::expected<void, std::string>;

  // One of several members': what it shares with the first of them, which outlives it.
  struct Part {
    std::string member;      // For events and for rules that strike its NVRAM.
    std::string key_prefix;  // Where `store` stands in the group's.
    Hardware* first = nullptr;
  };

  // All outlive it.
  Hardware(Executor& home, const Configuration& configuration, metadata::Store& store,
           EventLog& events, Uuid group);
  Hardware(Executor& home, const Configuration& configuration, metadata::Store& store,
           EventLog& events, Uuid group, Part part);
  ~Hardware();  // After stop().
  Hardware(const Hardware&) = delete;
  Hardware& operator=(const Hardware&) = delete;

  // Only what no daemon should start with is an error, in one line: metadata that cannot be read or
  // written, NVRAM that cannot be opened, a drive that another daemon has, a rule that is wrong.
  Task<Started> start();
  // The same in steps, each for all members before the next: rules name drives of any of them, and
  // are there before a set is.
  Task<Started> open();
  Started add_rules();  // The first member's.
  Task<Outcome> assemble();
  // `quiet`: no request of a volume is in flight. The deadline is put off as long as what caches
  // hold goes to the drives.
  Task<void> stop(TimePoint deadline, bool quiet = true);
  // After stop(): acknowledged writes were left behind in a cache that loses them.
  bool lost_writes() const noexcept { return lost_writes_; }
  // After stop(): something below did not end, and stays until the process ends, with all it needs.
  bool left_behind() const noexcept { return left_behind_; }

  // Before start(): for messages about writes that were lost.
  void know_volumes(ControllerCache::VolumePlaces places) {
    cache_->know_volumes(std::move(places));
  }
  // Brings to the drives what can be by the deadline, put off likewise.
  Task<void> settle(TimePoint deadline) { return cache_->settle(deadline); }

  Executor& home() const noexcept { return home_; }

  // Sets, for volumes. --------------------------------------------------------------------------
  // What a volume stands on, by the set's UUID or name; null if the group knows no such set.
  Door* door(const Uuid& set) const;
  std::optional<Uuid> find_set(const std::string& name) const;
  // Why it does not serve now; empty if it does.
  std::string refusal(const Uuid& set) const;
  // Why none of its sets serves, where a fault rule keeps them all away; otherwise empty.
  std::string absence() const;
  std::string name_of(const Uuid& set) const;
  // From this block on the set is known to read as zeros but for what volumes that are there have
  // written: the set's end or more unless its drives were proven blank when it was made. Raised in
  // `batch`, which the caller commits.
  std::uint64_t used_end(const Uuid& set) const;
  void raise_used_end(const Uuid& set, std::uint64_t end, metadata::Batch& batch);

  // Called inline whenever a set may have come or gone; it only takes notice.
  void on_sets_changed(std::function<void()> callback) { sets_changed_ = std::move(callback); }
  // For the map of a pool; null: the member has none. Whatever is claimed of it goes before stop().
  nvram::Nvram* nvram() const noexcept { return nvram_.get(); }
  bool has_mirror() const;  // By its configuration.
  // The set's door, if it leads to a set that serves.
  Door* serving(const Uuid& set) const;

  // Management. ---------------------------------------------------------------------------------
  ControllerCache& cache() noexcept { return *cache_; }
  const ControllerCache& cache() const noexcept { return *cache_; }
  Task<std::expected<DiscardedWrites, std::string>> discard_writes(Uuid set);
  Task<Outcome> adopt_writes(Uuid set);  // See ControllerCache::adopt().
  std::vector<DriveInfo> show_drives() const;
  // The time of the controller's processors; none: it is as fast as the host allows.
  std::optional<Duration> modelled_busy() const;
  std::vector<SetInfo> show_sets() const;
  Task<Outcome> fail_drive(std::string drive);
  Task<Outcome> replace_drive(std::string drive, std::string by);
  Task<Outcome> erase_drive(std::string drive);
  Outcome verify_set(const std::string& set);
  Task<Outcome> start_set(std::string set, bool accept_loss);
  bool has_drive(const std::string& drive) const;
  bool has_set(const std::string& set) const;
  fault::FaultEngine* faults() const noexcept { return engine_; }
  // The files and devices of drives and of the NVRAM.
  void list_claims(std::vector<Claim>& claims) const;

 private:
  Task<Outcome> load();
  Task<Started> open_nvram();
  void make_engine();
  Task<Started> start_cache();
  Task<Error> lose_blocks(Uuid set, std::vector<Extent> extents);
  Task<Started> open_drives();
  Task<Outcome> erase_unfinished();
  Task<Outcome> erase_remains(std::string set, MakingRecord making);
  Task<Outcome> start_controller();
  Task<Outcome> make_sets();
  std::string why_not_blank(const SetConfiguration& wanted) const;  // Empty: they are.
  Task<Outcome> make_set(SetConfiguration wanted);
  Task<Outcome> keep_made(SetConfiguration wanted, raid::ManagedSet* made, bool blank);
  Task<void> make_spares();
  Task<void> make_spare(std::string drive, std::string set);
  void tell_disagreements();
  std::vector<std::string> disagreements(const raid::SetInfo& set) const;
  void judge_writes(SetInfo& info) const;

  static Task<Error> record(Hardware* self, Uuid set, raid::Event event);
  void leave_behind();
  Task<void> close_nvram(TimePoint deadline);
  void learn_sets();  // Names and geometries, for the records and the doors.
  void learn_door(raid::ManagedSet* set);
  BlockDevice& timed(const Uuid& set, BlockDevice& below);
  Task<Error> keep_record(Uuid set);
  void on_event(const raid::ControllerEvent& event);
  void tell_engine(const raid::ControllerEvent& event);
  // States for fault rules, from the sets of all members; of `ended` what it says has ended.
  struct States {
    bool degraded = false;
    std::set<raid::MaintenanceProgress::Kind> under_way;
  };
  void add_states(const raid::ControllerEvent* ended, States& states) const;
  void say_states(const raid::ControllerEvent* ended);
  std::vector<Hardware*> all_members();
  // "A", or "MEMBER.A"
  std::string name_for_rules(std::string_view nvram) const;
  bool may_fail(const std::string& drive) const;
  void power_lost();
  Task<void> end_by_power_cut();
  void battery_changed(nvram::BatteryState state);
  Task<void> flush_sets();
  void say_policies();
  Task<void> look_for_drives();
  Task<void> reopen(DriveBay* bay);
  Task<void> watch();  // Drives that come, sets that come; until stop().
  DriveBay* bay(const std::string& name) const;
  Task<void> release_journals();
  std::string at(const SetConfiguration& set) const;  // FILE:LINE: set "NAME"

  Executor& home_;
  const Configuration& configuration_;
  metadata::Store& store_;
  MemberEvents events_;
  Uuid group_;
  Part part_;
  std::vector<Hardware*> others_;  // The first has them.
  std::map<Uuid, SetRecord> records_;
  // Sets whose record is on its way to the store; a store that hangs may outlast this object.
  std::shared_ptr<std::set<Uuid>> recording_ = std::make_shared<std::set<Uuid>>();
  std::map<Uuid, std::uint64_t> used_ends_;
  std::map<std::string, MakingRecord> unfinished_;  // By the set's name.
  std::map<std::string, std::string> not_made_;     // Sets, and why.
  std::unique_ptr<Power> own_power_;                // The first member's.
  Power* power_ = nullptr;                          // Null where it cannot be cut.
  std::map<Uuid, std::unique_ptr<Door>> doors_;
  std::unique_ptr<ControllerCache> cache_;  // There from the beginning to the end.
  std::unique_ptr<nvram::Nvram> nvram_;
  std::unique_ptr<NvramFaults> nvram_faults_;
  std::unique_ptr<NvramFaults> mirror_faults_;
  std::unique_ptr<nvram::Battery::Observer> battery_;
  std::unique_ptr<fault::FaultEngine> own_engine_;  // The first member's.
  fault::FaultEngine* engine_ = nullptr;
  std::optional<Probe::Installation> probes_;  // The first member's.
  // What rules at=member: strike, each below its set's door. Only where faults are enabled.
  std::map<Uuid, std::unique_ptr<fault::FaultLayer>> member_faults_;
  // The controller's time, above each set's cache; null and empty where it is as fast as the host
  // allows.
  std::shared_ptr<model::Controller> timing_;
  std::map<Uuid, std::unique_ptr<model::ModelledController>> timed_sets_;
  model::ModelClock clock_;
  std::vector<std::unique_ptr<DriveBay>> bays_;
  std::unique_ptr<raid::Controller> controller_;
  RepeatedEvents repeated_;
  std::function<void()> sets_changed_;
  bool started_ = false;  // Volumes may stand on doors.
  bool stopping_ = false;
  bool lost_writes_ = false;
  bool left_behind_ = false;
  bool shared_is_left_ = false;  // Some other member was left behind, with what it shares.
  Condition wake_;
  Gate gate_;
};

std::string not_written(Error error);  // "the metadata cannot be written: …"

}  // namespace sandbay::group
