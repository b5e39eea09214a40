// Service: the management of a running group, as coroutines. REST, tests and simulations call the
// same functions; HTTP is an adaptor to them.
//
// Home: executor 0 of the group. Operations that change something run one after the other. A
// refusal is one plain sentence that names the object and says what would be accepted; no answer
// ever carries a secret.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group/audit_log.h"
#include "group/cache_info.h"
#include "group/configuration.h"
#include "group/event_log.h"
#include "group/export_info.h"
#include "group/hardware_info.h"
#include "group/member_info.h"
#include "group/pool_info.h"
#include "group/portal_info.h"
#include "group/records.h"
#include "group/reservation_info.h"
#include "group/snapshot_info.h"
#include "iscsi/target_server.h"
#include "runtime/clock.h"
#include "runtime/task.h"
#include "runtime/turn_watch.h"
#include "scsi/counters.h"
#include "scsi/sanitize.h"

namespace sandbay::group {

struct Refusal {
  enum class Code : std::uint8_t {
    kInvalid,      // The request itself can never be right.
    kForbidden,    // The configuration does not let management do it.
    kNotFound,     // No such object.
    kConflict,     // It is there already, or something stands against it now.
    kFailed,       // A device, file or the metadata failed; see the message.
    kUnavailable,  // The group is shutting down.
  };
  Code code = Code::kInvalid;
  std::string message;
};

template <class T>
using Answer = std::expected<T, Refusal>;

inline std::unexpected<Refusal> refuse(Refusal::Code code, std::string message) {
  return std::unexpected(Refusal{.code = code, .message = std::move(message)});
}

struct VolumeInfo {
  std::string name;
  std::string uuid;
  VolumeSpecification specification;  // Sizes, serial, naa, target and lun as they are in effect.
  std::string path;                   // The file or device; empty for memory and RAID sets.
  std::string health;                 // "good", "degraded" …
  std::string reason;                 // Why its device could not be opened; empty if it is open.
  bool declared = false;              // Stands in the configuration file.
  unsigned executor = 0;              // Its home.
  std::uint32_t sessions = 0;         // With its target.
  std::uint64_t uncleared_bytes = 0;  // Of a set: read as zeros, and are yet to be made that.
  bool online = true;
  std::uint64_t allocated_bytes = 0;  // Of a pool: its pages.
  std::uint32_t snapshots = 0;
  std::uint64_t reserve_bytes = 0;   // What its snapshots may take; 0: what there is.
  std::uint64_t snapshot_bytes = 0;  // What they take.
  // What became of them for being more than that, since the daemon was started.
  std::uint64_t reserve_deleted = 0;
  std::uint64_t reserve_taken_offline = 0;
  scsi::LogicalUnitCounters counters;
  std::optional<scsi::SanitizeProgress> sanitize;  // A host has all of it sanitized.
};

struct AccessInfo {
  std::string id;
  std::string initiator;
  std::string address;    // Empty: any.
  std::string chap_user;  // Empty: no CHAP demanded.
  bool declared = false;  // Stands in the configuration file and is removed only there.
};

struct TargetInfo {
  struct Unit {
    std::uint32_t lun = 0;
    std::string volume;
  };
  std::string name;
  std::string alias;
  std::vector<Unit> units;
  std::vector<AccessInfo> access;
  std::vector<std::uint16_t> portal_groups;  // Empty: every one.
  std::map<std::string, std::string> keys;
  std::string mutual_chap_user;
  std::string redirect;
  bool redirect_permanent = false;
  std::uint32_t queue_depth = 0;
  std::uint32_t maximum_sessions = 0;
  bool exclusive = false;
  bool declared = false;
  std::uint32_t sessions = 0;
};

struct GroupInfo {
  std::string name;
  std::string uuid;
  std::string version;
  std::string state;
  std::vector<PortalInfo> portals;
  unsigned reactors = 0;
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t provisioned_bytes = 0;
  std::uint32_t volumes = 0;
  std::uint32_t targets = 0;
  std::uint32_t sessions = 0;
  Duration uptime{};
};

struct ExecutorInfo {
  unsigned index = 0;
  std::uint64_t buffer_limit_bytes = 0;
  std::uint64_t buffer_used_bytes = 0;
  std::uint64_t buffer_reserved_bytes = 0;
  std::uint64_t buffer_waiters = 0;
  TurnFigures turns;
};

// Everything that is counted, at about one moment.
struct Measurements {
  GroupInfo group;
  std::vector<VolumeInfo> volumes;
  std::vector<TargetInfo> targets;
  std::vector<iscsi::SessionInfo> sessions;
  iscsi::ServerCounters server;
  std::vector<ExecutorInfo> executors;
  std::vector<DriveInfo> drives;
  std::vector<SetInfo> sets;
  CacheInfo cache;
  FaultsInfo faults;
  std::vector<PoolInfo> pools;
  std::uint64_t events = 0;
  std::uint64_t audited = 0;
};

struct AddedFault {
  fault::RuleView rule;
  bool created = true;  // Otherwise the same rule was there already.
};

struct ReleasedFault {
  fault::RuleView rule;
  std::uint64_t operations = 0;
};

struct CreateVolumeRequest {
  VolumeSpecification specification;
  OpenChoices open;                   // What it leaves to the group.
  std::optional<CloneSource> source;  // Set by the group alone, as is what follows.
  std::string origin;
  bool full_copy = false;
  std::vector<iscsi::AccessRecord> access;  // Given to its target if that is new.
};

struct CreatedVolume {
  VolumeInfo volume;
  bool created = false;  // False: it was there, just as it was asked for, and was left alone.
};

struct CreatedAccess {
  AccessInfo access;
  bool created = false;  // False: the target had this very record, and was left alone.
};

struct ChangeVolumeRequest {
  std::optional<std::uint64_t> size_bytes;  // Smaller than it is: on a pool, with `force`.
  bool force = false;                       // What lies behind the new end is lost.
  std::optional<std::string> name;          // Its target keeps its name.
  std::optional<cache::Mode> cache;         // Of one on a RAID set or a pool.
  std::optional<bool> online;
  std::optional<bool> read_only;
  std::optional<std::uint32_t> thin_warning;  // Of a thin one on a pool.
  std::optional<std::uint32_t> thin_limit;
  std::optional<SnapshotReserve> snapshot_reserve;  // Of one on a pool, as the others.
  std::optional<ReservePolicy> reserve_policy;
  std::optional<std::uint64_t> operations_limit;
  std::optional<std::uint64_t> bytes_limit;
};

struct CreatePoolRequest {
  std::string name;
  std::vector<std::string> members;
  std::uint64_t page_bytes = kDefaultPageBytes;
};

struct CreatedPool {
  PoolInfo pool;
  bool created = false;  // False: it was there, just as it was asked for.
};

// Never null.
template <class T>
using Shared = std::shared_ptr<const T>;

class Service {
 public:
  virtual ~Service() = default;

  virtual Task<GroupInfo> show_group() = 0;
  // What discovery names for the portal that listens there, until the daemon ends: "auto", "none",
  // or an address.
  // The asymmetric access state of the target port group whose portals have this tag, for every
  // volume, until the daemon ends or a host sets another; these portals. Hosts hear it.
  virtual Task<Answer<std::vector<PortalInfo>>> set_access_state(std::uint16_t group_tag,
                                                                 std::string state) = 0;
  virtual Task<Answer<PortalInfo>> advertise(std::string listen, std::string advertised) = 0;
  // Callers that ask at the same time share one answer.
  virtual Task<Shared<Measurements>> measure() = 0;
  virtual Task<Shared<std::vector<VolumeInfo>>> list_volumes() = 0;

  virtual Task<Answer<VolumeInfo>> show_volume(std::string name) = 0;
  virtual Task<Answer<CreatedVolume>> create_volume(CreateVolumeRequest request) = 0;
  virtual Task<Answer<VolumeInfo>> change_volume(std::string name, ChangeVolumeRequest request) = 0;
  // Refused while a session is attached to its target, unless `force`, which ends them.
  virtual Task<Answer<void>> delete_volume(std::string name, bool force) = 0;

  virtual Task<Shared<std::vector<TargetInfo>>> list_targets() = 0;
  virtual Task<Answer<TargetInfo>> show_target(std::string name) = 0;

  // Access belongs to the target of the volume; these change it for logins to come.
  virtual Task<Answer<std::vector<AccessInfo>>> list_access(std::string volume) = 0;
  virtual Task<Answer<CreatedAccess>> add_access(std::string volume,
                                                 iscsi::AccessRecord record) = 0;
  virtual Task<Answer<void>> remove_access(std::string volume, std::string id) = 0;

  virtual Task<std::vector<DriveInfo>> list_drives() = 0;
  virtual Task<Answer<DriveInfo>> show_drive(std::string name) = 0;
  // The drive leaves its set for good; refused beyond redundancy.
  virtual Task<Answer<DriveInfo>> fail_drive(std::string name) = 0;
  // Its content moves to `by`, or to the best spare if that is empty. SET:ROLE names a role that
  // has no drive.
  virtual Task<Answer<DriveInfo>> replace_drive(std::string name, std::string by) = 0;
  // Whatever stands on it goes, and it is blank, or the spare that the file says. Refused for a
  // drive that a set counts on.
  virtual Task<Answer<DriveInfo>> erase_drive(std::string name) = 0;
  virtual Task<std::vector<SetInfo>> list_sets() = 0;
  virtual Task<Answer<SetInfo>> show_set(std::string name) = 0;
  virtual Task<Answer<SetInfo>> verify_set(std::string name) = 0;
  // Starts a set that does not run. With `accept_loss` also without a journal that was lost while
  // drives are missing: what only they have reads as medium errors.
  virtual Task<Answer<SetInfo>> start_set(std::string name, bool accept_loss) = 0;

  virtual Task<std::vector<PoolInfo>> list_pools() = 0;
  virtual Task<Answer<PoolInfo>> show_pool(std::string name) = 0;
  virtual Task<Answer<CreatedPool>> create_pool(CreatePoolRequest request) = 0;
  // Refused while it has volumes.
  virtual Task<Answer<void>> delete_pool(std::string name) = 0;
  // Opens a pool without the changes of its map that are lost with an NVRAM, for good. `confirmed`
  // is its name once more. Refused where none are.
  virtual Task<Answer<DiscardedMap>> discard_map(std::string pool, std::string confirmed) = 0;
  // Uses the map of a pool that is older than its sets, for good: the pool's data on those sets are
  // medium errors until they are written anew. Refused where it is not older.
  virtual Task<Answer<DiscardedMap>> accept_older_map(std::string pool, std::string confirmed) = 0;

  virtual Task<std::vector<MemberInfo>> list_members() = 0;
  virtual Task<Answer<MemberInfo>> show_member(std::string name) = 0;
  // Its free sets are the pool's; without a name of the one pool that there is.
  virtual Task<Answer<MemberInfo>> add_member(std::string name, std::string pool) = 0;
  // Its sets are emptied in the background, and go then. Refused where there is no room.
  virtual Task<Answer<MemberInfo>> remove_member(std::string name) = 0;

  // Verifies the maps of all pools; hosts read and write meanwhile, other changes wait.
  virtual Task<std::vector<PoolCheckInfo>> check_group() = 0;
  virtual Task<std::vector<TaskInfo>> list_tasks() = 0;

  // Of one volume, oldest first.
  virtual Task<Answer<std::vector<SnapshotInfo>>> list_snapshots(std::string volume) = 0;
  virtual Task<Answer<SnapshotInfo>> show_snapshot(SnapshotName snapshot) = 0;
  virtual Task<Answer<std::vector<ScheduleInfo>>> list_schedules(std::string volume) = 0;
  // Its name, volume, interval and how many are kept count.
  virtual Task<Answer<CreatedSchedule>> create_schedule(ScheduleInfo schedule) = 0;
  virtual Task<Answer<void>> delete_schedule(std::string volume, std::string name) = 0;
  // Of all the volumes that it names at one moment.
  virtual Task<Answer<CreatedSnapshots>> create_snapshots(CreateSnapshotsRequest request) = 0;
  virtual Task<Answer<void>> delete_snapshot(SnapshotName snapshot, bool force) = 0;
  // The volume's content becomes the snapshot's. Refused while it is online and used, unless
  // `force`: its initiators are told.
  virtual Task<Answer<VolumeInfo>> restore_snapshot(SnapshotName snapshot, bool force) = 0;
  // Gives it a target of its own, which those may use who may use the volume; or takes it away.
  virtual Task<Answer<SnapshotInfo>> online_snapshot(SnapshotName snapshot, bool writable) = 0;
  virtual Task<Answer<SnapshotInfo>> offline_snapshot(SnapshotName snapshot, bool force) = 0;
  // A thin volume that begins as the snapshot, or without its name as the volume is now; with
  // `full_copy` everything is copied in the background.
  virtual Task<Answer<CreatedVolume>> clone_snapshot(SnapshotName snapshot, std::string name,
                                                     bool full_copy) = 0;

  // Registrations and reservations of a volume (without the snapshot's name), or of a snapshot that
  // is online. Clearing ends all of them; hosts hear it. Losing makes the unit forget those that
  // outlive the daemon, as a failed memory would.
  virtual Task<Answer<ReservationsInfo>> list_reservations(SnapshotName unit) = 0;
  virtual Task<Answer<void>> clear_reservations(SnapshotName unit) = 0;
  virtual Task<Answer<void>> lose_reservations(SnapshotName unit) = 0;

  virtual Task<CacheInfo> show_cache() = 0;
  // Brings everything that was acknowledged to the drives of a set, or with an empty name of all.
  virtual Task<Answer<void>> flush_cache(std::string set) = 0;
  // Gives up what was acknowledged and cannot be brought to the set's drives. `confirmed` is the
  // set's name once more. Refused where nothing has failed.
  virtual Task<Answer<DiscardedWrites>> discard_writes(std::string set, std::string confirmed) = 0;
  // After an import: writes in NVRAM, of which the imported metadata do not know, count. Refused
  // if there are none.
  virtual Task<Answer<void>> adopt_writes(std::string set) = 0;
  // What the NVRAM has lost of the set is known, and need not be shown any more.
  virtual Task<Answer<void>> acknowledge_lost_writes(std::string set) = 0;

  virtual Task<FaultsInfo> list_faults() = 0;
  // Adds all rules or none; keeps rules that exist with the same id and text. The refusal of a rule
  // begins with its number: "rule 2: …".
  virtual Task<Answer<std::vector<AddedFault>>> add_faults(std::vector<std::string> rules) = 0;
  virtual Task<Answer<fault::RuleView>> show_fault(std::string id) = 0;
  // Disabling ends what the rule does.
  virtual Task<Answer<fault::RuleView>> enable_fault(std::string id, bool enabled) = 0;
  // The operations that a rule of do=hold holds go on.
  virtual Task<Answer<ReleasedFault>> release_fault(std::string id) = 0;
  // Takes the damage away that rules have done to the drive's data.
  virtual Task<Answer<DriveInfo>> heal_drive(std::string drive) = 0;
  virtual Task<Answer<void>> clear_fault(std::string id) = 0;  // Empty: all of them.
  // The latest effects of rules whose number is greater, oldest first.
  virtual Task<Answer<std::vector<FiringInfo>>> list_firings(std::uint64_t since) = 0;
  virtual Task<Answer<fault::Replay>> replay_faults() = 0;
  // Accepted values of at=.
  virtual Task<Answer<std::vector<std::string>>> list_fault_places() = 0;
  virtual Task<std::vector<EventInfo>> list_events(std::uint64_t since) = 0;

  // The caller of a change notes it before it begins, and when it has ended, with the answer of
  // begin_change(); see audit_log.h.
  virtual Task<std::string> begin_change(AuditEntry entry) = 0;
  virtual Task<bool> note_change(AuditEntry entry) = 0;  // False: shutting down.
  virtual Task<std::vector<AuditEntry>> list_audit(std::uint64_t since) = 0;

  // Everything that stands in the metadata at one moment, with its secrets; export_document.h makes
  // text of it.
  virtual Task<Answer<ExportedGroup>> export_group() = 0;
  // Takes a piece of an exported text. With the last one it is there whole, and takes the place of
  // everything in the metadata at the next start. Refused unless the group is empty, or by force.
  virtual Task<Answer<void>> import_part(ImportPart part) = 0;

  virtual Task<std::vector<iscsi::SessionInfo>> list_sessions() = 0;
  // Ends a session, or one connection of it; may wait as long as `drop` lets the initiator log out.
  virtual Task<Answer<void>> drop_session(std::uint16_t tsih, iscsi::SessionDrop drop = {}) = 0;
  // Asks its initiator to negotiate its text parameters anew.
  virtual Task<Answer<void>> request_negotiation(std::uint16_t tsih, Duration within) = 0;
};

}  // namespace sandbay::group
