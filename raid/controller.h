// Controller: the drives, RAID sets and spares of one controller. Assembles sets from the drives
// that are there, makes new ones, gives spares to sets that have lost a drive, and does what an
// operator asks for.
//
// A drive is a block device with a name that the configuration gives it; its superblock, not its
// name or its place, says which set it belongs to. A drive that belongs to nothing here is shown
// and never written.
//
// Used on the home executor only. Failures are one sentence that names the drive or the set and
// says what would be accepted.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "raid/assembly.h"
#include "raid/managed_set.h"

namespace sandbay::raid {

struct ControllerOptions {
  Uuid group_uuid{};
  ManagedSetOptions set;
  // How long a drive may be away before a spare takes its role. A drive that failed is replaced at
  // once.
  Duration absence_patience = std::chrono::seconds(60);
  // How often sets that do not run are tried again, and drives looked at.
  Duration look_every = std::chrono::seconds(2);
};

enum class DriveUse : std::uint8_t {
  kMember,       // Holds a role.
  kReplacement,  // Is being copied to.
  kSpare,
  kBlank,     // Nothing is on it.
  kFailed,    // Was in a set of ours and is not any more.
  kStranger,  // Holds something that is not of this group, or damaged: see `why`.
  kAbsent,    // Known by name, but not there.
};
std::string_view describe(DriveUse use);  // "member", "replacement", …

struct DriveInfo {
  std::string name;
  std::string description;
  DriveUse use = DriveUse::kBlank;
  bool attached = false;  // It has a device, whether that answers or not.
  Health health = Health::kGood;
  std::uint64_t byte_count = 0;
  std::uint32_t block_bytes = 512;
  std::string set;  // Of a member, a replacement, a dedicated spare.
  std::optional<unsigned> role;
  std::uint64_t stale_regions = 0;
  std::string why;  // Of a failed drive or a stranger.
  DriveCounters counters;
};

struct RoleInfo {
  std::string drive;  // Its name, or empty.
  std::string replacement;
  RoleState state = RoleState::kActive;
  std::uint64_t stale_regions = 0;
};

struct SetInfo {
  std::string name;
  Uuid uuid{};
  Level level = Level::kJbod;
  unsigned drive_count = 0;
  unsigned group_count = 1;
  std::uint32_t strip_bytes = 0;
  std::uint64_t byte_count = 0;
  bool integrity = false;
  bool blank =
      false;  // ... also of what was never written: its drives were zeros when it was made.
  bool running = false;
  Health health = Health::kGood;
  std::string refusal;  // Why it does not run.
  std::vector<RoleInfo> roles;
  std::vector<std::string> spares;  // Dedicated ones.
  std::uint64_t regions = 0;
  std::uint64_t unverified_regions = 0;
  std::vector<Extent> lost;
  std::vector<Extent> suspect;  // Nothing is computed from parity here, unless written since.
  MaintenanceProgress progress;
  SetCounters counters;
  std::uint64_t journal_used_bytes = 0;
  std::uint64_t journal_size_bytes = 0;
  std::uint64_t journal_written_bytes = 0;
};

struct ControllerEvent {
  TimePoint time;
  std::string set;  // Empty where none is concerned.
  std::string drive;
  SetEvent::Kind kind;
  std::string text;  // A sentence that names set and drive.
};

class Controller {
 public:
  using Outcome = std::expected<void, std::string>;

  Controller(Executor& home, ControllerOptions options);
  ~Controller();  // After stop().
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  void on_event(std::function<void(const ControllerEvent&)> sink);
  // Both before start().
  // Remembers the newest event of a set beside the drives; awaited before it is acted upon.
  void on_record(ManagedSet::Recorder recorder);

  // Looks at the drives and starts the sets that can start. What cannot is listed with its reason,
  // and tried again when drives come. The devices outlive stop(). `lines` are worth telling.
  Task<std::vector<std::string>> start(std::vector<NamedDevice> drives, Remembered remembered);

  // Makes a set of drives that are blank (or anything, with wanted.overwrite), in this order of
  // roles, and starts it.
  Task<std::expected<ManagedSet*, std::string>> create_set(NewSet wanted,
                                                           std::vector<std::string> drives);
  // A blank drive becomes a spare, of one set or (empty) of all. With `overwrite` whatever stands
  // on it goes first, as by erase_drive().
  Task<Outcome> add_spare(std::string drive, std::string set, bool overwrite = false);
  // A drive that no set counts on becomes blank: a spare, one that has failed, a stranger. Of a
  // member, or a drive that is away, nothing is erased.
  Task<Outcome> erase_drive(std::string drive);

  ManagedSet* find(std::string_view set_name) const;
  std::vector<ManagedSet*> sets() const;
  std::vector<DriveInfo> show_drives() const;
  std::vector<SetInfo> show_sets() const;

  // The operator says that the drive is no good: it leaves its role; refused beyond redundancy.
  Task<Outcome> fail_drive(std::string drive);
  // Its content is copied to `by` (a spare or blank drive; empty: the best spare), which then takes
  // its role. A role without a drive is rebuilt on it; `drive` may also be "SET:ROLE".
  Task<Outcome> replace_drive(std::string drive, std::string by);
  // A drive has come: one that was away, or another in its place. Refused while the name has a
  // device (DriveInfo::attached). If it cannot be read, the device is kept all the same, and tried
  // again. So whoever opens devices looks now and then for what is `absent`: without a device he
  // tries to open and inserts it; one with a device that has become another (the node was made
  // anew) he removes first.
  Task<Outcome> insert_drive(std::string name, BlockDevice* device);
  // A drive has been pulled; its device is not used after this ends. If this is refused for a drive
  // that has a device, that holds requests that do not end, and must be kept.
  Task<Outcome> remove_drive(std::string name);
  Outcome verify_set(std::string_view set);
  // Looks at all drives again and starts a set that does not run. With `accept_loss` it also starts
  // if its journal was lost while a drive is missing or not whole: nothing is computed from parity
  // then before it is verified, so what only that could give reads as medium errors.
  Task<Outcome> start_set(std::string set, bool accept_loss);
  // How the set of this name looks after itself, instead of as ControllerOptions say: at once if it
  // runs, and whenever it starts; it need not be there yet. With `verify_every` the set verifies
  // itself, from the moment on that this is first said or the set starts.
  void set_policy(std::string set, MaintenancePolicy policy);
  MaintenancePolicy policy(std::string_view set) const;

  // Stops all sets; false if some device holds requests that do not end: the controller must then
  // be kept for ever.
  Task<bool> stop(TimePoint deadline);

  struct Implementation;  // In a header of the controller's own.

 private:
  std::unique_ptr<Implementation> self_;
};

}  // namespace sandbay::raid
