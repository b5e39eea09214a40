// What a controller knows of its drives and sets, and the steps of which its operations consist.
// Private to the controller's files.
//
// `busy` is held by whoever changes which drive is in which set, or starts or stops a set: one at a
// time. Sets lose drives at any moment; an entry learns of it in settle_entry(), which is called
// whenever entries are looked at.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "raid/bounded_device.h"
#include "raid/controller.h"
#include "runtime/sync.h"

namespace sandbay::raid {

struct Controller::Implementation {
  static constexpr Duration kLookForIdleEvery = std::chrono::milliseconds(10);

  struct SetState {
    std::unique_ptr<ManagedSet> set;
    std::map<unsigned, TimePoint> absent_since;  // By role.
    std::uint64_t no_spare_told = 0;             // By role.
    std::uint64_t waiting_told = 0;              // The same.
    std::string told;                            // The refusal that was told last.
    bool accept_loss = false;                    // At the start that is being tried.
  };
  struct Entry {
    std::string name;
    BlockDevice* device = nullptr;         // Null: not there.
    std::unique_ptr<BoundedDevice> probe;  // While there is a device.
    DriveUse use = DriveUse::kAbsent;
    std::string why;
    Uuid uuid{};      // Of its superblock; zero if it has none.
    Uuid set_uuid{};  // Of a member, or of the set that a spare is dedicated to.
    SetState* user = nullptr;
    bool condemned = false;  // By the operator: not used until another is inserted.
    bool prediction_told = false;
    bool no_copy_told = false;
  };
  struct Holding {
    SetState* state = nullptr;
    unsigned role = 0;
    bool replacement = false;
  };

  Implementation(Executor& executor, ControllerOptions its_options)
      : home(executor), options(std::move(its_options)) {}

  // controller.cc -------------------------------------------------------------------------------
  Entry* find_entry(std::string_view name) const;
  SetState* find_set(std::string_view name) const;
  SetState* find_set(const Uuid& uuid) const;
  // Which role of a set the drive holds just now.
  std::optional<Holding> holding(const Entry& entry) const;
  void settle_entry(Entry& entry) const;
  void settle_entries() const;
  Entry* holder(const SetState& state, unsigned role) const;
  void on_set_event(SetState& state, const SetEvent& event);
  void tell(SetState& state, Entry* entry, SetEvent::Kind kind, const std::string& text);
  void wake();
  MaintenancePolicy policy_of(const std::string& set) const;
  Duration patience() const { return options.set.drive_policy.timeout * 2; }
  Task<Error> record(Uuid set, raid::Event event);
  DriveInfo show(Entry& entry) const;
  SetInfo show(const SetState& state) const;
  void show_absent(const Superblock& superblock, SetInfo& info) const;

  // controller_start.cc -------------------------------------------------------------------------
  Entry& add_entry(const NamedDevice& drive);
  SetState& add_set(const Superblock& superblock);
  struct Gathering;
  Task<std::vector<Candidate>> gather(std::vector<Entry*> wanted);
  static Task<void> gather_one(Gathering* gathering, std::size_t at, Entry* entry);
  // Stops what has failed, looks at the drives that no running set uses (all, or those with which
  // something can have changed) and starts what can be started. Gives lines worth telling.
  Task<std::vector<std::string>> assemble_again(bool all);
  Task<void> take_down_failed();
  void refuse_unseen(const Assembly& assembly);  // Sets of which no drive is there.
  Task<void> put_set_back_aside(AssembledSet* set, const std::vector<Entry*>* drives,
                                std::vector<std::string>* lines);
  void classify(const Assembly& assembly, const std::vector<Entry*>& drives);
  Task<void> start_set(SetState* state, AssembledSet* found, std::vector<Entry*> drives);
  Task<void> consider_return(Entry* entry, Superblock own);
  void refuse(SetState& state, std::string why);

  // controller_create.cc ------------------------------------------------------------------------
  Task<std::expected<ManagedSet*, std::string>> create_set(NewSet wanted,
                                                           std::vector<std::string> names);
  std::string choose_drives(const NewSet& wanted, const std::vector<std::string>& names,
                            std::vector<Entry*>* chosen) const;
  // The data areas that the set is to have.
  Task<bool> all_zero(std::vector<Entry*> drives, Superblock superblock);
  Task<Error> reserve(Entry* entry, Extent area);
  Task<Error> reserve_areas(Entry* entry, Superblock superblock);
  Task<std::string> write_set(PlannedSet* planned, std::vector<Entry*> drives);
  Task<Outcome> add_spare(std::string name, std::string set, bool overwrite);

  // controller_drives.cc ------------------------------------------------------------------------
  Task<Outcome> fail_drive(std::string name);
  Task<Outcome> replace_drive(std::string name, std::string by);
  Task<Outcome> insert_drive(std::string name, BlockDevice* device);
  Task<Outcome> remove_drive(std::string name);
  Task<Outcome> start_set(std::string name, bool accept_loss);
  Task<Outcome> erase_drive(std::string name);
  // Why the drive must not be erased; empty if it may.
  std::string counted_on(const Entry& entry) const;
  std::optional<Holding> find_role(const std::string& name) const;
  Task<bool> let_go(Entry* entry, SetState* user);

  // controller_watch.cc -------------------------------------------------------------------------
  Task<void> watch();
  Task<void> look();
  void tell_waiting(SetState* state, unsigned role);
  Task<void> fill_roles(SetState* state);
  Task<void> replace_failing(SetState* state);
  // Whether it can hold the role: why not, or an empty text.
  // Why the drive does not suit the role, or an empty text; a drive that comes back may be ailing.
  std::string too_small(const Entry& entry, const SetState& state, unsigned role) const;
  std::string misfit(const Entry& entry, const SetState& state, unsigned role) const;
  Entry* best_spare(const SetState& state, unsigned role) const;
  // True when the drive has the role durably; false if it failed at once, or the set did.
  Task<bool> give_role(SetState* state, unsigned role, Entry* entry);
  Task<bool> begin_copy(SetState* state, unsigned role, Entry* entry);

  Executor& home;
  ControllerOptions options;
  Remembered remembered;
  std::map<std::string, MaintenancePolicy> policies;  // By set.
  std::function<void(const ControllerEvent&)> sink;
  ManagedSet::Recorder recorder;
  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<std::unique_ptr<SetState>> sets;
  std::vector<std::unique_ptr<BoundedDevice>> leaving;  // Their devices still hold requests.
  Mutex busy;
  Condition changed;
  bool woken = false;
  bool stopping = false;
  Gate gate;  // Operations, and watch().
};

inline std::unexpected<std::string> refusal(std::string text) {
  return std::unexpected(std::move(text));
}

}  // namespace sandbay::raid
