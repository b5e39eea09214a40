// RunningGroup: the one implementation of Group. Its functions stand in several files: assembly.cc
// (start and shutdown), views.cc (what it tells), volume_operations.cc, target_operations.cc,
// hardware_operations.cc, cache_operations.cc, pool_operations.cc, pool_volumes.cc,
// snapshot_operations.cc and others (what it changes), returning_volumes.cc, portals.cc (how
// initiators get to it).
//
// Everything here lives on executor 0. What changes something holds `changing_` from its first
// check to its end, so that a check stays true across awaits.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "group/clearing.h"
#include "group/connection_faults.h"
#include "group/event_log.h"
#include "group/group.h"
#include "group/identifiers.h"
#include "group/members.h"
#include "group/pool_records.h"
#include "group/pools.h"
#include "group/records.h"
#include "group/set_exports.h"
#include "group/shared_answer.h"
#include "group/snapshot_table.h"
#include "group/unit_book.h"
#include "group/volume.h"
#include "group/volume_table.h"
#include "metadata/store.h"
#include "runtime/sync.h"
#include "scsi/task_router.h"

namespace sandbay::group {

// How long device and sessions may take to let go of a volume that goes away.
inline constexpr Duration kClosePatience = std::chrono::seconds(5);

// Of those added at run time to one target.
inline constexpr std::size_t kMostAccessRecords = 4096;

struct Target {
  std::string name;
  TargetConfiguration configured;  // What the file says; defaults if it says nothing.
  bool declared = false;           // Has a section of its own, so it stays without volumes.
  TargetRecord record;             // What was added at run time.
  std::unique_ptr<scsi::TaskRouter> router;
  std::map<std::uint32_t, std::shared_ptr<Volume>> units;
  std::optional<Uuid> snapshot_of;  // Shows a snapshot of this volume, to those who may use that.
};

class RunningGroup final : public Group {
 public:
  RunningGroup(Configuration configuration, metadata::Store& store);
  ~RunningGroup() override;

  using Outcome = Started;

  // assembly.cc
  Task<Outcome> assemble();
  Task<void> shutdown() override;
  bool lost_writes() const noexcept override { return lost_writes_; }
  bool left_behind() const noexcept override { return left_behind_; }

  // views.cc
  std::vector<PortalInfo> portals() const override;  // portals.cc
  Task<Answer<std::vector<PortalInfo>>> set_access_state(std::uint16_t group_tag,
                                                         std::string state) override;
  Task<Answer<PortalInfo>> advertise(std::string listen, std::string advertised) override;
  Task<GroupInfo> show_group() override;
  Task<Shared<Measurements>> measure() override;
  Task<Shared<std::vector<VolumeInfo>>> list_volumes() override;
  Task<Answer<VolumeInfo>> show_volume(std::string name) override;
  Task<Shared<std::vector<TargetInfo>>> list_targets() override;
  Task<Answer<TargetInfo>> show_target(std::string name) override;
  Task<Answer<std::vector<AccessInfo>>> list_access(std::string volume) override;
  Task<std::vector<iscsi::SessionInfo>> list_sessions() override;

  // volume_operations.cc
  Task<Answer<CreatedVolume>> create_volume(CreateVolumeRequest request) override;
  Task<Answer<VolumeInfo>> change_volume(std::string name, ChangeVolumeRequest request) override;
  Task<Answer<void>> delete_volume(std::string name, bool force) override;

  // target_operations.cc
  Task<Answer<CreatedAccess>> add_access(std::string volume, iscsi::AccessRecord record) override;
  Task<Answer<void>> remove_access(std::string volume, std::string id) override;
  Task<Answer<void>> drop_session(std::uint16_t tsih, iscsi::SessionDrop drop) override;
  Task<Answer<void>> request_negotiation(std::uint16_t tsih, Duration within) override;

  // cache_operations.cc
  Task<Answer<ReservationsInfo>> list_reservations(SnapshotName unit) override;
  Task<Answer<void>> clear_reservations(SnapshotName unit) override;
  Task<Answer<void>> lose_reservations(SnapshotName unit) override;
  Task<CacheInfo> show_cache() override;
  Task<Answer<void>> flush_cache(std::string set) override;
  Task<Answer<DiscardedWrites>> discard_writes(std::string set, std::string confirmed) override;
  Task<Answer<void>> adopt_writes(std::string set) override;
  Task<Answer<void>> acknowledge_lost_writes(std::string set) override;

  // pool_operations.cc
  Task<std::vector<PoolInfo>> list_pools() override;
  Task<Answer<PoolInfo>> show_pool(std::string name) override;
  Task<Answer<CreatedPool>> create_pool(CreatePoolRequest request) override;
  Task<Answer<void>> delete_pool(std::string name) override;
  Task<Answer<DiscardedMap>> discard_map(std::string pool, std::string confirmed) override;
  Task<Answer<DiscardedMap>> accept_older_map(std::string pool, std::string confirmed) override;
  Task<std::vector<PoolCheckInfo>> check_group() override;
  Task<std::vector<TaskInfo>> list_tasks() override;

  // snapshot_operations.cc
  Task<Answer<std::vector<SnapshotInfo>>> list_snapshots(std::string volume) override;
  Task<Answer<SnapshotInfo>> show_snapshot(SnapshotName snapshot) override;
  Task<Answer<CreatedSnapshots>> create_snapshots(CreateSnapshotsRequest request) override;
  Task<Answer<std::vector<ScheduleInfo>>> list_schedules(std::string volume) override;
  Task<Answer<CreatedSchedule>> create_schedule(ScheduleInfo schedule) override;
  Task<Answer<void>> delete_schedule(std::string volume, std::string name) override;
  Task<Answer<void>> delete_snapshot(SnapshotName snapshot, bool force) override;
  Task<Answer<VolumeInfo>> restore_snapshot(SnapshotName snapshot, bool force) override;
  Task<Answer<SnapshotInfo>> online_snapshot(SnapshotName snapshot, bool writable) override;
  Task<Answer<SnapshotInfo>> offline_snapshot(SnapshotName snapshot, bool force) override;
  Task<Answer<CreatedVolume>> clone_snapshot(SnapshotName snapshot, std::string name,
                                             bool full_copy) override;

  // hardware_operations.cc
  Task<std::vector<DriveInfo>> list_drives() override;
  Task<Answer<DriveInfo>> show_drive(std::string name) override;
  Task<Answer<DriveInfo>> fail_drive(std::string name) override;
  Task<Answer<DriveInfo>> replace_drive(std::string name, std::string by) override;
  Task<Answer<DriveInfo>> erase_drive(std::string name) override;
  Task<std::vector<SetInfo>> list_sets() override;
  Task<Answer<SetInfo>> show_set(std::string name) override;
  Task<Answer<SetInfo>> verify_set(std::string name) override;
  Task<Answer<SetInfo>> start_set(std::string name, bool accept_loss) override;
  Task<FaultsInfo> list_faults() override;
  Task<Answer<std::vector<AddedFault>>> add_faults(std::vector<std::string> rules) override;
  Task<Answer<fault::RuleView>> show_fault(std::string id) override;
  Task<Answer<fault::RuleView>> enable_fault(std::string id, bool enabled) override;
  Task<Answer<ReleasedFault>> release_fault(std::string id) override;
  Task<Answer<DriveInfo>> heal_drive(std::string drive) override;
  Task<Answer<std::vector<FiringInfo>>> list_firings(std::uint64_t since) override;
  Task<Answer<fault::Replay>> replay_faults() override;
  Task<Answer<std::vector<std::string>>> list_fault_places() override;
  Task<Answer<void>> clear_fault(std::string id) override;
  Task<std::vector<EventInfo>> list_events(std::uint64_t since) override;

  // member_operations.cc
  Task<std::vector<MemberInfo>> list_members() override;
  Task<Answer<MemberInfo>> show_member(std::string name) override;
  Task<Answer<MemberInfo>> add_member(std::string name, std::string pool) override;
  Task<Answer<MemberInfo>> remove_member(std::string name) override;

  // export_operations.cc
  Task<Answer<ExportedGroup>> export_group() override;
  Task<void> end_import() override;
  Task<Answer<void>> import_part(ImportPart part) override;

  // audit_operations.cc
  Task<std::string> begin_change(AuditEntry entry) override;
  Task<bool> note_change(AuditEntry entry) override;
  Task<std::vector<AuditEntry>> list_audit(std::uint64_t since) override;

 private:
  struct Loaded;

  // assembly.cc
  Task<Outcome> load(Loaded* loaded);
  Task<std::expected<std::vector<metadata::Entry>, std::string>> load_all(std::string prefix);
  Task<Outcome> adopt_identity(std::optional<std::string> stored);
  Task<Outcome> finish_intents(const Loaded* loaded);
  // What a commit that failed means for a change that was asked for; half a sentence.
  std::string unwritten(Error error) const;
  Outcome plan_volumes(Loaded* loaded);
  Task<Outcome> open_pools(Loaded* loaded);
  Task<Outcome> open_volumes(Loaded* loaded);
  Task<Outcome> open_volume(VolumeRecord record, std::string stored);
  const VolumeConfiguration* configured(const std::string& volume) const;
  Task<Outcome> keep_record(VolumeRecord record, std::string stored);
  Outcome reconcile(VolumeRecord& record, const VolumeConfiguration& configured) const;
  Outcome attach(const std::shared_ptr<Volume>& volume);
  Task<void> leave_all_behind();
  bool judge_flush(const Volume& volume, Error error);
  Task<Outcome> register_targets();
  std::string at(const VolumeConfiguration& configured) const;  // FILE:LINE: volume "NAME"

  // views.cc
  Task<VolumeInfo> info_of(std::shared_ptr<Volume> volume, std::uint32_t sessions);
  VolumeInfo info_of(const Volume& volume, const Volume::State& state,
                     std::uint32_t sessions) const;
  TargetInfo info_of(const Target& target, std::uint32_t sessions) const;
  std::vector<AccessInfo> access_of(const Target& target) const;
  std::vector<AccessInfo> own_access_of(const Target& target) const;
  Task<std::map<std::string, std::uint32_t>> sessions_by_target();
  GroupInfo group_info(std::uint32_t sessions) const;
  Task<Measurements> measure_now();
  Task<std::vector<VolumeInfo>> volumes_now();
  Task<Answer<VolumeInfo>> volume_now(std::string name);
  Task<std::vector<TargetInfo>> targets_now();
  Task<Answer<TargetInfo>> target_now(std::string name);
  bool declared(const std::string& volume) const;

  // volume_operations.cc
  // Makes the file and the record, with that of a new target; no target leads to the volume yet.
  Task<Volume::Opened> make_volume(VolumeRecord record, std::optional<TargetRecord> target);
  // Why a volume that is to be opened may not stand on what it names: that belongs to another
  // volume, or to the group itself. Half a sentence.
  Task<std::optional<StartRefusal>> claim_against(std::filesystem::path named) const;
  Task<void> unmake_file(VolumeRecord record);
  // Opens what the record says; on its set, if it is on one.
  Task<Volume::Opened> open_device(VolumeRecord record, Volume::Opening opening);
  // Finds a place on its set for a volume that is to be made.
  std::expected<void, std::string> place(VolumeRecord* record) const;
  // What clears a volume's place on its set of what was there before; see clearing.h.
  struct Place;
  // Of a volume that is opened; the error is half a sentence.
  Task<std::expected<Place*, std::string>> open_place(VolumeRecord record, Volume::Opening opening);
  // What is not known to read as zeros.
  Extent used_part(const Placement& placement) const;
  static void put_clearing(const Uuid& volume, const ClearedAreas::Record& record,
                           metadata::Batch& batch);
  Task<Error> store_growth(VolumeRecord record, ClearedAreas::Record uncleared);
  Task<Error> keep_clearing(Uuid volume, ClearedAreas::Record record);
  // Of volumes that are no more.
  Task<Outcome> forget_clearing();
  std::shared_ptr<ClearingLane> lane_of(const Uuid& set);
  // The volume's device has let go of it, or (not `idle`) not yet; until it has, nobody else gets
  // its place on the set. Its record stays as it is. The place is there until nobody has the volume
  // any more (null: nobody ever had).
  Task<void> leave_place(Uuid uuid, std::shared_ptr<Volume> volume, bool idle);
  Task<bool> leave_places();
  struct Leaving;
  Task<void> see_off(Leaving* leaving);
  std::vector<Extent> taken_on(const Uuid& set) const;
  Task<Answer<void>> grow_on_set(std::shared_ptr<Volume> volume, std::uint64_t byte_count);
  // For a volume, such that none of these follows from it.
  Uuid draw_uuid(const std::function<bool(const NaaIdentifier&)>& taken) const;
  std::string words_of_owner(const Uuid& uuid) const;
  Task<Answer<CreatedVolume>> create_now(CreateVolumeRequest request);
  // Why a volume that is there cannot be the one that is asked for; nothing if it is. Fills in the
  // target where none was named.
  std::optional<Refusal> refusal_to_repeat(const VolumeSpecification& old, bool own_target,
                                           CreateVolumeRequest& request) const;
  std::optional<Refusal> refusal_to_create(const CreateVolumeRequest& request) const;
  Task<Answer<VolumeInfo>> change_now(std::string name, ChangeVolumeRequest request);
  Task<Answer<void>> resize_now(std::shared_ptr<Volume> volume, std::uint64_t byte_count,
                                bool force);
  Task<Answer<void>> rename_now(std::shared_ptr<Volume> volume, std::string name);
  Task<Answer<void>> delete_now(std::string name, bool force);
  Task<Answer<void>> remove_now(std::shared_ptr<Volume> volume);
  Task<Error> begin_removal(VolumeRecord record);
  Task<void> take_out_of_service(std::shared_ptr<Volume> volume, std::string why);
  Task<void> abandon(std::shared_ptr<Volume> volume);
  std::optional<std::uint32_t> free_lun(const std::string& target) const;

  Task<Answer<void>> change_access_of(std::shared_ptr<Volume> volume,
                                      const ChangeVolumeRequest* request);
  // Commits a volume's record, which is its record from then on.
  Task<Error> keep_change(std::shared_ptr<Volume> volume, VolumeRecord record);

  // pool_operations.cc
  Task<std::vector<PoolInfo>> pools_now();
  Task<Answer<PoolInfo>> pool_now(std::string name);
  Task<Answer<CreatedPool>> create_pool_now(CreatePoolRequest request);
  Task<Answer<void>> delete_pool_now(std::string name);
  PoolInfo info_of(const ServedPool& pool) const;
  Task<std::vector<PoolCheckInfo>> check_now();
  Task<PoolCheckInfo> check_pool(const ServedPool* pool);
  Task<Answer<DiscardedMap>> discard_map_now(std::string name, std::string confirmed);
  Task<Answer<DiscardedMap>> accept_older_map_now(std::string name, std::string confirmed);
  Task<Error> forget_strays(ServedPool* pool, std::uint64_t* count);
  // The map's size of a volume becomes that of its record; or why not.
  Task<std::string> settle_size(const VolumeRecord* record);
  Task<void> settle_sizes(const ServedPool* pool, std::vector<std::string>* wrong);
  Task<std::uint64_t> settle_with_records(ServedPool* pool, std::vector<std::string>* wrong);
  Task<Answer<void>> settle_pools();
  std::vector<std::string> missing_of(const ServedPool& pool) const;
  Task<std::vector<TaskInfo>> tasks_now();
  TaskInfo info_of(const ServedPool& pool, const pool::HousekeepingView& view) const;
  Pools::Owner pool_owner();
  std::vector<std::string> volumes_on(const Uuid& set, bool planned_too) const;
  std::shared_ptr<Volume> find(const Uuid& uuid) const;
  Task<void> warn_of_space(Uuid volume);

  // snapshot_operations.cc
  Snapshot* find(const SnapshotName& name);
  std::vector<Snapshot*> snapshots_of(const Uuid& volume);
  SnapshotInfo info_of(const Snapshot& snapshot, const std::string& volume) const;
  // A volume on a pool that is open, or why there is none.
  std::expected<ServedPool*, Refusal> pool_of(const std::string& volume) const;
  Task<Answer<std::vector<SnapshotInfo>>> snapshots_now(std::string volume);
  Task<Answer<SnapshotInfo>> snapshot_now(SnapshotName name);
  Task<Answer<CreatedSnapshots>> create_snapshots_now(CreateSnapshotsRequest request,
                                                      std::string schedule);
  // Why what these branches are now cannot be kept; half a sentence.
  std::string hindrance(const ServedPool& pool, const std::vector<pool::BranchId>& branches,
                        Error error) const;
  // reserve_operations.cc
  // Of the pool: what a snapshot takes; and all those of a volume, and what they may.
  static std::uint64_t kept_by(const ServedPool* pool, const Snapshot& snapshot);
  std::uint64_t kept_for_snapshots(const Uuid& volume) const;
  static std::uint64_t reserve_of(const VolumeRecord& record);
  std::optional<Refusal> refusal_of_reserve(const Volume& volume) const;
  Task<void> watch_reserves();
  void tell_of_reserve(const Volume& volume, Severity severity, std::string what);
  void tell_full_reserve(const Volume& volume, std::string what);
  Task<Answer<void>> settle_reserve(Uuid uuid);
  Task<void> take_all_offline(std::shared_ptr<Volume> volume);
  // It has been online for writing, so that it may have content of its own.
  bool was_writable(const Snapshot& snapshot) const;
  Task<bool> delete_oldest(std::shared_ptr<Volume> volume);

  // schedule_operations.cc
  Task<Answer<std::vector<ScheduleInfo>>> schedules_now(std::string volume);
  Task<Answer<CreatedSchedule>> create_schedule_now(ScheduleInfo schedule);
  Task<Answer<void>> delete_schedule_now(std::string volume, std::string name);
  ScheduleRecord* find_schedule(const Uuid& volume, const std::string& name);
  ScheduleInfo info_of(const ScheduleRecord& record);
  // Those that a schedule has taken, oldest first.
  std::vector<Snapshot*> taken_by(const ScheduleRecord& record);
  Task<void> run_schedules();
  Duration first_wait(const ScheduleRecord& record);
  Task<void> run_due();
  Task<Answer<void>> run_schedule(Uuid uuid);
  std::string free_snapshot_name(const std::vector<std::string>& volumes,
                                 std::string_view schedule);
  Task<Answer<void>> delete_snapshot_now(SnapshotName name, bool force);
  Task<Answer<void>> drop_snapshot(Uuid uuid);
  Task<Answer<VolumeInfo>> restore_now(SnapshotName name, bool force);
  Task<Answer<SnapshotInfo>> online_now(SnapshotName name, bool writable);
  Task<Answer<SnapshotInfo>> offline_now(SnapshotName name, bool force);
  Task<Answer<void>> take_offline(Uuid uuid);
  Task<bool> withdraw(Uuid uuid, std::string target);
  Task<void> put_back(Uuid uuid, TargetRecord target, std::string why);
  void show_behind(const TargetRecord& record, const Uuid& volume);
  Task<Error> remove_from_map(const ServedPool* pool, std::vector<Uuid> uuids,
                              metadata::Batch batch);
  void forget_snapshot(const Uuid& uuid, ServedPool* pool);
  Task<Error> drop_oldest(Uuid volume, ServedPool* pool);
  void erase_snapshot(metadata::Batch& batch, const SnapshotRecord& record) const;
  Task<Answer<CreatedVolume>> repeat_clone(std::shared_ptr<Volume> there, std::string origin,
                                           bool full_copy);
  Task<Answer<CreatedVolume>> clone_now(SnapshotName name, std::string clone, bool full_copy);
  VolumeRecord shown_as(const SnapshotRecord& record) const;
  Volume::Opened open_snapshot(const SnapshotRecord& record);
  std::expected<PoolGround, OpenFailure> ground_of_snapshot(const SnapshotRecord& record);
  Task<Outcome> open_snapshots();
  bool has_sessions(const std::string& target, const std::map<std::string, std::uint32_t>& counts);
  // Whether a target is there also when the snapshot that it shows is offline.
  bool stays(const std::string& target) const;

  // pool_volumes.cc
  // What a volume's caches and streams are.
  ArrayFacts array_facts();
  PoolGround ground_of(std::unique_ptr<pool::PoolVolume> volume) const;
  // Decides what the request leaves open; why that cannot be.
  std::optional<Refusal> settle_choices(CreateVolumeRequest& request) const;
  std::optional<Refusal> refusal_of_pool(const VolumeSpecification& specification) const;
  std::string shortage(const ServedPool& pool, const VolumeSpecification& specification,
                       std::uint64_t added_bytes) const;
  Task<Volume::Opened> make_on_pool(VolumeRecord record, std::optional<TargetRecord> target);
  Volume::Opened open_on_pool(VolumeRecord record);
  std::expected<PoolGround, OpenFailure> ground_on_pool(const VolumeRecord& record);
  std::optional<Refusal> refusal_to_resize(const Volume& volume, std::uint64_t byte_count,
                                           bool force) const;
  Task<Answer<void>> resize_on_pool(std::shared_ptr<Volume> volume, std::uint64_t byte_count,
                                    bool force);
  Task<Answer<void>> expand_on_pool(std::shared_ptr<Volume> volume, std::uint64_t byte_count);
  Task<Answer<void>> shrink_on_pool(std::shared_ptr<Volume> volume, std::uint64_t byte_count);
  // As its record intends it.
  Task<Error> finish_shrinking(VolumeRecord* record);
  Task<Answer<void>> remove_from_pool(std::shared_ptr<Volume> volume);
  Task<void> put_back(VolumeRecord record, std::string why);
  struct Withdrawn;
  Task<Withdrawn> withdraw_all(std::shared_ptr<Volume> volume);
  Task<void> put_back_all(VolumeRecord record, Withdrawn withdrawn, std::string why);
  metadata::Batch forgetting(const VolumeRecord& record);
  void forget(const VolumeRecord& record, ServedPool* pool);
  Task<Error> commit_removal(VolumeRecord record, const ServedPool* pool);
  Task<Answer<void>> change_limits(std::shared_ptr<Volume> volume,
                                   const ChangeVolumeRequest* request);
  // Of space, as the volume's size and record have them now.
  Task<Error> settle_limits(std::shared_ptr<Volume> volume);
  void add_pool_part(const Volume& volume, VolumeInfo& info) const;

  // returning_volumes.cc
  static OpenFailure absence_of(const ServedPool* pool, const std::string& name);
  std::shared_ptr<Volume> without_device(VolumeRecord record, OpenFailure failure);
  Task<std::optional<OpenFailure>> finish_volume(VolumeRecord* record);
  Task<Volume::Opened> reopen_on_pool(VolumeRecord record);
  Task<void> look_for_volumes();
  Task<Answer<void>> bring_back(Uuid uuid);

  // member_operations.cc
  MemberInfo info_of(const Member& member) const;
  void add_leaving(const ServedPool& pool, const Member& member, MemberInfo& info) const;
  Task<std::vector<MemberInfo>> members_now();
  Task<Answer<MemberInfo>> member_now(std::string name);
  Task<Answer<MemberInfo>> add_member_now(std::string name, std::string pool_name);
  std::optional<Refusal> refusal_to_leave(const ServedPool& pool, const Member& member) const;
  Task<Answer<MemberInfo>> remove_member_now(std::string name);

  // portals.cc
  Outcome open_portals();
  // Has connections of a portal pass its port, if that is timed.
  std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)> through(
      const PortalConfiguration& portal) const;
  std::vector<PortalInfo> portals_of(const std::string& member) const;
  bool takes_logins(const std::string& member) const;
  void send_away_from(const std::string& member);
  Task<void> see_portals_left(std::string member);

  // cache_operations.cc
  // The cache names volumes and online snapshots by them: after each change of either.
  void tell_places();
  Answer<std::shared_ptr<Volume>> with_unit(const SnapshotName& name);
  Task<Answer<ReservationsInfo>> reservations_now(SnapshotName name);
  Task<Answer<void>> end_reservations_now(SnapshotName name, bool lose);
  void note_sanitize(const Uuid& uuid, const std::optional<scsi::SanitizeOperation>& before,
                     const std::optional<scsi::SanitizeOperation>& now);
  Task<Answer<std::vector<PortalInfo>>> set_access_state_now(std::uint16_t group_tag,
                                                             std::string state);
  Task<CacheInfo> cache_now();
  Task<Answer<void>> flush_cache_now(std::string set);
  Task<Answer<DiscardedWrites>> discard_writes_now(std::string set, std::string confirmed);
  Task<Answer<void>> adopt_writes_now(std::string set);
  Task<Answer<void>> acknowledge_now(std::string set);
  // By its name, or by its UUID.
  std::optional<Uuid> cached_set(const std::string& set) const;
  Task<Answer<void>> change_cache_now(std::shared_ptr<Volume> volume, cache::Mode mode);

  // export_operations.cc
  Task<Answer<ExportedGroup>> export_now();
  Task<std::optional<Refusal>> hold_pools(std::vector<pool::Pool*>* held);
  std::optional<Refusal> refusal_to_export(const std::vector<metadata::Entry>& entries) const;
  Task<Answer<void>> import_now(ImportPart part);
  Task<std::optional<Refusal>> announce_checked(std::uint64_t byte_count, std::string sha256);
  // Of changing something while an import waits for the next start, which would forget it.
  std::optional<Refusal> refusal_while_importing() const;
  // Runs a change of what metadata hold, or refuses it because it would be forgotten.
  template <class T>
  Task<Answer<T>> lasting(Task<Answer<T>> operation);
  std::optional<Refusal> refusal_to_import(const ImportPart& part) const;

  // audit_operations.cc
  Task<bool> note_change_now(AuditEntry entry);
  Task<std::vector<AuditEntry>> audit_now(std::uint64_t since);

  // hardware_operations.cc
  SetInfo with_space(SetInfo set) const;
  Task<std::vector<DriveInfo>> drives_now();
  Task<std::vector<SetInfo>> sets_now();
  Task<Answer<DriveInfo>> drive_now(std::string name);
  Task<Answer<SetInfo>> set_now(std::string name);
  Task<Answer<DriveInfo>> fail_drive_now(std::string name);
  Task<Answer<DriveInfo>> replace_drive_now(std::string name, std::string by);
  Task<Answer<DriveInfo>> erase_drive_now(std::string name);
  Task<Answer<SetInfo>> verify_set_now(std::string name);
  Task<Answer<SetInfo>> start_set_now(std::string name, bool accept_loss);
  Task<FaultsInfo> faults_now();
  Task<std::vector<EventInfo>> events_now(std::uint64_t since);
  Task<Answer<std::vector<AddedFault>>> add_faults_now(std::vector<std::string> texts);
  Task<Answer<fault::RuleView>> fault_now(std::string id);
  Task<Answer<fault::RuleView>> enable_fault_now(std::string id, bool enabled);
  Task<Answer<ReleasedFault>> release_fault_now(std::string id);
  Task<Answer<DriveInfo>> heal_drive_now(std::string drive);
  Task<Answer<std::vector<FiringInfo>>> firings_now(std::uint64_t since);
  Task<Answer<fault::Replay>> replay_now();
  Task<Answer<std::vector<std::string>>> fault_places_now();
  Task<Answer<void>> clear_fault_now(std::string id);
  Task<std::set<std::string>> path_places();  // As rules write them.
  static std::optional<std::string> place_error(const fault::Rule& rule,
                                                const std::set<std::string>& places);
  Answer<fault::FaultEngine*> engine() const;  // Refused if faults are not enabled.

  // target_operations.cc
  Target& target_for(const std::string& name);  // Makes it if it is not there.
  iscsi::TargetOptions options_of(const Target& target) const;
  bool has_own_access(const Target& target) const;
  const Target* parent_of(const Target& target) const;  // A snapshot's volume; or null.
  std::vector<const Target*> followers_of(const Target& target) const;
  // Puts a volume that is there behind its target, and the target on the server.
  Task<Outcome> serve(std::shared_ptr<Volume> volume);
  Task<Answer<CreatedAccess>> add_access_now(std::string volume, iscsi::AccessRecord record);
  Task<Answer<void>> remove_access_now(std::string volume, std::string id);
  // Stores the record and tells the server.
  Task<Answer<void>> change_access(Target* target, TargetRecord record);

  std::shared_ptr<Volume> find(const std::string& name) const;
  Executor& next_home();

  // Where operations of management began, which are called as the functions there.
  struct Operation {
    std::source_location at;
    TimePoint begun;
  };
  // Inside the gate; for as long as one is under way.
  class Under {
   public:
    Under(RunningGroup& group, std::source_location at)
        : group_(group),
          entry_(group.operations_.insert(group.operations_.end(),
                                          {.at = at, .begun = Executor::current().now()})) {}
    ~Under() {
      group_.operations_.erase(entry_);
      group_.gate_.leave();
    }
    Under(const Under&) = delete;
    Under& operator=(const Under&) = delete;

   private:
    RunningGroup& group_;
    std::list<Operation>::iterator entry_;
  };
  // Runs a changing operation alone, or refuses it during shutdown.
  template <class T>
  Task<Answer<T>> alone(Task<Answer<T>> operation,
                        std::source_location at = std::source_location::current());
  // Runs one that only looks.
  template <class T>
  Task<T> looking(Task<T> operation, T otherwise,
                  std::source_location at = std::source_location::current());
  template <class T>
  Task<Answer<T>> looking(Task<Answer<T>> operation,
                          std::source_location at = std::source_location::current());

  Configuration configuration_;
  metadata::Store& store_;
  GroupRecord identity_;
  TimePoint started_;
  std::vector<PortalInfo> portals_;                           // As they were opened.
  std::map<std::uint16_t, scsi::AccessState> access_states_;  // By portal group.
  UnitBook book_{store_, [this](const Uuid& uuid, const auto& before, const auto& now) {
                   note_sanitize(uuid, before, now);
                 }};
  EventLog events_;
  AuditLog audit_;
  std::uint64_t import_bytes_ = 0;    // Of an import that has begun: what is there.
  std::string way_before_import_;     // For messages; empty: no records from before an import.
  bool import_announced_ = false;     // One takes the place of everything at the next start.
  std::unique_ptr<Members> members_;  // What volumes on sets stand on.
  std::unique_ptr<Pools> pools_;      // And those on pools.
  bool pools_quiet_ = true;           // Nothing hangs in a volume of theirs that is gone.
  // Volumes that are about to be opened at the start, or made: no pool takes their sets.
  std::vector<VolumeRecord> planned_;
  std::map<Uuid, std::unique_ptr<Place>> places_;  // Of volumes on sets.
  std::vector<std::pair<std::weak_ptr<Volume>, std::unique_ptr<Place>>> left_places_;
  std::vector<std::unique_ptr<Leaving>> leaving_;  // Volumes that are gone, with requests below.
  Condition leaving_ends_;
  Gate see_offs_;
  bool ending_ = false;
  bool lost_writes_ = false;
  bool left_behind_ = false;
  std::list<Operation> operations_;                      // Of management, under way.
  std::map<Uuid, std::shared_ptr<ClearingLane>> lanes_;  // Of sets.
  VolumeTable volumes_;
  SnapshotTable snapshots_;
  Identifiers identifiers_{configuration_.identity};  // Those of volumes_ and snapshots_.
  SharedAnswer<std::vector<VolumeInfo>> volume_lists_{[this] { return volumes_now(); }};
  SharedAnswer<std::vector<TargetInfo>> target_lists_{[this] { return targets_now(); }};
  SharedAnswer<Measurements> measurements_{[this] { return measure_now(); }};
  Mutex snapshot_lists_;  // Lists of snapshots take turns.
  std::map<Uuid, ScheduleRecord> schedules_;
  std::map<Uuid, TimePoint> next_turns_;  // Of schedules, since they were looked at first.
  std::map<Uuid, std::string> overfull_schedules_;  // What was told of them; empty: nothing.
  // Volumes whose snapshots take more than they may, and what was told of that.
  std::map<Uuid, std::string> full_reserves_;
  // What their policies have done.
  struct ReserveActions {
    std::uint64_t deleted = 0;
    std::uint64_t taken_offline = 0;
  };
  std::map<Uuid, ReserveActions> reserve_actions_;
  std::map<Uuid, std::string> unsettled_;  // Of pools: what keeps them from it, as it was told.
  Event stopping_;
  Gate schedule_gate_;
  std::map<std::string, std::unique_ptr<Target>> targets_;  // By name.
  std::vector<TargetRecord> stored_targets_;  // Of the metadata, until their targets are made.
  std::unique_ptr<SetExports> exports_;       // In the role of a member.
  std::unique_ptr<ConnectionFaults> connection_faults_;  // Null: faults are not enabled.
  std::unique_ptr<iscsi::TargetServer> server_;
  std::size_t homes_given_ = 0;
  Mutex changing_;
  Gate gate_;
  Gate dropping_;  // Sessions; an initiator may take its time, which shutdown() does not grant.
};

// Why a volume cannot have its cache mode; half a sentence.
std::optional<std::string> cache_error(const VolumeSpecification& specification, bool has_cache);
// Where a volume on a set or a pool lies, for its counters and for messages about its cached
// writes; nothing for others.
void note_place(const VolumeRecord& record, ControllerCache::VolumePlaces& places);
// "good", "degraded", "missing"
std::string health_of(const Member& member);
Refusal shutting_down();
Refusal no_such_drive(const std::string& name);
Refusal no_such_set(const std::string& name);
Refusal no_such_volume(const std::string& name);
Refusal no_such_snapshot(const SnapshotName& name);
Refusal no_such_pool(const std::string& name);
// Of a record that is too long to be kept.
std::optional<Refusal> refusal_of_size(const TargetRecord& record);
Refusal role_refusal();  // This daemon is a member, and what is asked for is its lead's affair.

template <class T>
Task<Answer<T>> RunningGroup::alone(Task<Answer<T>> operation, std::source_location at) {
  if (!gate_.enter()) co_return std::unexpected(shutting_down());
  const Under under(*this, at);
  co_await changing_.lock();
  Answer<T> answer = std::unexpected(shutting_down());
  // Behind one that was not waited for nothing begins any more.
  if (!left_behind_) answer = co_await std::move(operation);
  changing_.unlock();
  co_return answer;
}

template <class T>
Task<T> RunningGroup::looking(Task<T> operation, T otherwise, std::source_location at) {
  if (!gate_.enter()) co_return otherwise;
  const Under under(*this, at);
  co_return co_await std::move(operation);
}

template <class T>
Task<Answer<T>> RunningGroup::looking(Task<Answer<T>> operation, std::source_location at) {
  return looking<Answer<T>>(std::move(operation), std::unexpected(shutting_down()), at);
}

template <class T>
Task<Answer<T>> RunningGroup::lasting(Task<Answer<T>> operation) {
  if (auto refusal = refusal_while_importing()) co_return std::unexpected(std::move(*refusal));
  co_return co_await std::move(operation);
}

}  // namespace sandbay::group
