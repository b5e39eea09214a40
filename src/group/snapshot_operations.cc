// Snapshots: taking, showing, restoring, cloning and deleting them. What the map says of one and
// its record change in one commit. One that is online is a volume behind a target of its own.
#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "group/log.h"
#include "group/running_group.h"
#include "group/units.h"
#include "pool/pool_volume.h"
#include "runtime/known.h"

namespace sandbay::group {

Refusal no_such_snapshot(const SnapshotName& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("volume \"{}\" has no snapshot \"{}\"; see its list of snapshots",
                                 name.volume, name.snapshot)};
}

namespace {

// Snapshots that are looked at in one turn.
constexpr std::size_t kSnapshotsInASlice = 256;
// Snapshots that one commit deletes, alone or with their volume. Each is at most two changes of the
// map.
constexpr std::size_t kMostDeletedAtOnce = 512;
static_assert(2 * kMostDeletedAtOnce < pool::Pool::kMostRemoved);

std::string words(const SnapshotName& name) {
  return fmt::format("snapshot \"{}\" of volume \"{}\"", name.snapshot, name.volume);
}

}  // namespace

// Looking ---------------------------------------------------------------------------------------

Snapshot* RunningGroup::find(const SnapshotName& name) {
  const auto volume = find(name.volume);
  if (volume == nullptr) return nullptr;
  for (Snapshot* const snapshot : snapshots_.of(volume->uuid())) {
    if (snapshot->record.name == name.snapshot) return snapshot;
  }
  return nullptr;
}

std::vector<Snapshot*> RunningGroup::snapshots_of(const Uuid& volume) {
  // The map knows which came first, whatever the clock was put to in between. Each snapshot is
  // looked up once, not in every comparison.
  struct Placed {
    pool::SnapshotKey key;
    WallTime time;
    Snapshot* snapshot = nullptr;
  };
  std::vector<Placed> order;
  for (Snapshot* const one : snapshots_.of(volume)) {
    const ServedPool* const pool = pools_->find(one->record.pool);
    const auto key = pool != nullptr ? pool->snapshot_of(one->record.uuid) : std::nullopt;
    order.push_back({key.value_or(pool::SnapshotKey{}), one->record.time, one});
  }
  std::ranges::sort(order, {}, [](const Placed& one) { return std::tie(one.key, one.time); });
  std::vector<Snapshot*> list;
  list.reserve(order.size());
  for (const Placed& one : order) list.push_back(one.snapshot);
  return list;
}

SnapshotInfo RunningGroup::info_of(const Snapshot& snapshot, const std::string& volume) const {
  const SnapshotRecord& record = snapshot.record;
  SnapshotInfo info{.name = record.name,
                    .volume = volume,
                    .uuid = format_uuid(record.uuid),
                    .time = record.time,
                    .schedule = record.schedule,
                    .online = record.online,
                    .writable = record.writable,
                    .target = record.target};
  const ServedPool* const pool = pools_->find(record.pool);
  const auto key = pool != nullptr ? pool->snapshot_of(record.uuid) : std::nullopt;
  if (pool != nullptr && pool->pool() != nullptr && key) {
    // Whoever deletes it may not know yet that the map has lost it.
    const pool::Branch* const branch = pool->pool()->map().find(key->branch);
    if (branch != nullptr && branch->snapshots.contains(key->generation)) {
      info.size_bytes = branch->snapshots.at(key->generation).byte_count;
    }
    info.kept_bytes = kept_by(pool, snapshot);
  } else {
    info.reason = pool == nullptr || pool->failure().empty()
                      ? "the map of its pool does not have it"
                      : pool->failure();
  }
  if (record.online && snapshot.volume != nullptr) info.reason = snapshot.volume->reason();
  return info;
}

std::expected<ServedPool*, Refusal> RunningGroup::pool_of(const std::string& name) const {
  const auto volume = find(name);
  if (volume == nullptr) return std::unexpected(no_such_volume(name));
  const auto& uuid = volume->record().pool;
  ServedPool* const pool = uuid ? pools_->find(*uuid) : nullptr;
  if (!uuid) {
    return refuse(Refusal::Code::kConflict,
                  fmt::format("volume \"{}\" is on {}; only volumes on pools have snapshots", name,
                              describe(volume->record().specification.backing)));
  }
  if (pool == nullptr || pool->pool() == nullptr || !volume->has_device()) {
    return refuse(Refusal::Code::kConflict,
                  fmt::format("volume \"{}\" is not served: {}", name, volume->reason()));
  }
  return pool;
}

Task<Answer<std::vector<SnapshotInfo>>> RunningGroup::snapshots_now(std::string volume) {
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  co_await snapshot_lists_.lock();
  const bool deleted = find(found->uuid()) == nullptr;
  std::vector<Uuid> uuids;
  for (const Snapshot* const one : snapshots_of(found->uuid())) uuids.push_back(one->record.uuid);
  std::vector<SnapshotInfo> list;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (i % kSnapshotsInASlice == kSnapshotsInASlice - 1) co_await Executor::current().turn_end();
    const auto one = snapshots_.find(uuids[i]);
    if (one != snapshots_.end()) list.push_back(info_of(one->second, volume));
  }
  snapshot_lists_.unlock();
  if (deleted) co_return std::unexpected(no_such_volume(volume));
  co_return list;
}

Task<Answer<std::vector<SnapshotInfo>>> RunningGroup::list_snapshots(std::string volume) {
  return looking(snapshots_now(std::move(volume)));
}

Task<Answer<SnapshotInfo>> RunningGroup::snapshot_now(SnapshotName name) {
  const Snapshot* const found = find(name);
  if (found == nullptr) co_return std::unexpected(no_such_snapshot(name));
  co_return info_of(*found, name.volume);
}

Task<Answer<SnapshotInfo>> RunningGroup::show_snapshot(SnapshotName snapshot) {
  return looking(snapshot_now(std::move(snapshot)));
}

// Taking ------------------------------------------------------------------------------------------

namespace {

// Sets that are away, and no other, have room for what is new.
bool has_room_away_alone(pool::Pool* pool) {
  bool away = false;
  for (const auto& [index, store] : pool->map().stores()) {
    if (store.pages.free_count() == 0) continue;
    if (pool->may_allocate_on(index)) return false;
    away = away || store.record.state == pool::StoreState::kActive;
  }
  return away;
}

}  // namespace

// What is to be shown must be on the drives first.
std::string RunningGroup::hindrance(const ServedPool& pool,
                                    const std::vector<pool::BranchId>& branches,
                                    Error error) const {
  const pool::PoolMap& map = pool.pool()->map();
  for (const auto& [index, store] : map.stores()) {
    if (error != Error::kNotReady || pool.pool()->device(index) != nullptr) continue;
    const auto concerned = [&, at = index](pool::BranchId branch) {
      return map.find(branch) != nullptr && map.find(branch)->pages.count_on(at) > 0;
    };
    if (std::ranges::none_of(branches, concerned)) continue;
    const Uuid& set = store.record.uuid;
    return fmt::format("a part of it is on set {}, which is offline: {}", members_->name_of(set),
                       pools_->refusal(pool, set));
  }
  if (error == Error::kNotReady && has_room_away_alone(pool.pool())) {
    return "only missing sets have room for it; bring them back, or add a member";
  }
  // It has said so before the pool was told.
  if (error == Error::kNotReady && !store_.in_doubt()) {
    return "a part of it is on a set that has just gone offline";
  }
  return unwritten(error);
}

// The time, behind the name of the schedule if one takes the snapshot. A number follows where a
// snapshot has that name.
std::string RunningGroup::free_snapshot_name(const std::vector<std::string>& volumes,
                                             std::string_view schedule) {
  const std::string now = utc_text(wall_time());
  const std::string_view digits(now);
  const std::string first =
      fmt::format("{}{}{}-{}{}{}", schedule, schedule.empty() ? "" : "-", digits.substr(0, 10),
                  digits.substr(11, 2), digits.substr(14, 2), digits.substr(17, 2));
  std::string name = first;
  const auto taken = [&](const std::string& volume) {
    return find(SnapshotName{.volume = volume, .snapshot = name}) != nullptr;
  };
  for (int number = 2; std::ranges::any_of(volumes, taken); ++number) {
    name = fmt::format("{}-{}", first, number);
  }
  return name;
}

namespace {

Refusal torn(const std::string& volume) {
  return {.code = Refusal::Code::kConflict,
          .message = fmt::format("volume \"{}\": an atomic write has failed in the middle, and a "
                                 "snapshot would keep a part of it; mend what the volume stands on "
                                 "first",
                                 volume)};
}

}  // namespace

Task<Answer<CreatedSnapshots>> RunningGroup::create_snapshots_now(CreateSnapshotsRequest request,
                                                                  std::string schedule) {
  if (request.name.empty()) request.name = free_snapshot_name(request.volumes, schedule);
  if (const auto error = check_volume_name(request.name)) {
    co_return refuse(Refusal::Code::kInvalid, fmt::format("name: {}", *error));
  }
  ServedPool* pool = nullptr;
  CreatedSnapshots there;
  metadata::Batch batch;
  std::vector<SnapshotRecord> records;
  std::vector<pool::Pool::SnapshotOrder> orders;
  const WallTime now = wall_time();
  for (const std::string& name : request.volumes) {
    const auto of = pool_of(name);
    if (!of) co_return std::unexpected(of.error());
    if (pool != nullptr && *of != pool) {
      co_return refuse(Refusal::Code::kConflict,
                       fmt::format("volume \"{}\" is of pool \"{}\", the others of \"{}\"; volumes "
                                   "of one pool can be taken at one moment",
                                   name, (*of)->name(), pool->name()));
    }
    pool = *of;
    const Uuid volume = find(name)->uuid();
    if (const Snapshot* const old = find({.volume = name, .snapshot = request.name})) {
      there.snapshots.push_back(info_of(*old, name));
      continue;
    }
    if (auto refusal = refusal_of_reserve(*find(name))) co_return std::unexpected(*refusal);
    if (book_.has_torn(volume)) co_return std::unexpected(torn(name));
    SnapshotRecord record{.uuid = make_uuid(Executor::current().random()),
                          .volume = volume,
                          .pool = pool->uuid(),
                          .name = request.name,
                          .time = now,
                          .schedule = schedule};
    batch.put(snapshot_key(record.uuid), encode(record));
    orders.push_back({.branch = pool->branch_of(volume), .label = format_uuid(record.uuid)});
    records.push_back(std::move(record));
  }
  if (records.empty()) co_return there;
  if (!there.snapshots.empty()) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("snapshot \"{}\" of volume \"{}\" exists already, but those of "
                                 "the other volumes do not; choose another name",
                                 request.name, there.snapshots.front().volume));
  }
  const auto taken = co_await pool->pool()->snapshot(orders, std::move(batch));
  if (!taken.has_value()) {
    const bool twice = taken.error() == Error::kInvalid;
    std::vector<pool::BranchId> branches;
    for (const auto& order : orders) branches.push_back(order.branch);
    co_return refuse(
        twice ? Refusal::Code::kInvalid : Refusal::Code::kFailed,
        fmt::format("snapshot \"{}\" of volume \"{}\" cannot be taken: {}", request.name,
                    request.volumes.front(),
                    twice ? "a volume is named twice" : hindrance(*pool, branches, taken.error())));
  }
  CreatedSnapshots made{.snapshots = {}, .created = true};
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Uuid uuid = records[i].uuid;
    pool->note_snapshot(uuid, {.branch = orders[i].branch, .generation = taken->at(i)});
    const auto [entry, added] = snapshots_.emplace(uuid, Snapshot{.record = records[i]});
    identifiers_.take(shown_as(records[i]));
    made.snapshots.push_back(info_of(entry->second, request.volumes[i]));
    log_info("volume {}: snapshot {} taken", request.volumes[i], request.name);
  }
  co_return made;
}

Task<Answer<CreatedSnapshots>> RunningGroup::create_snapshots(CreateSnapshotsRequest request) {
  return alone(lasting(create_snapshots_now(std::move(request), {})));
}

// Deleting ----------------------------------------------------------------------------------------

bool RunningGroup::has_sessions(const std::string& target,
                                const std::map<std::string, std::uint32_t>& counts) {
  const auto found = counts.find(target);
  return found != counts.end() && found->second != 0;
}

Task<Answer<void>> RunningGroup::delete_snapshot_now(SnapshotName name, bool force) {
  const Snapshot* const found = find(name);
  if (found == nullptr) co_return std::unexpected(no_such_snapshot(name));
  const Uuid uuid = found->record.uuid;
  if (found->record.online && !force) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("{} is online; take it offline first, or force it", words(name)));
  }
  auto dropped = co_await drop_snapshot(uuid);
  if (dropped) log_info("volume {}: snapshot {} deleted", name.volume, name.snapshot);
  co_return dropped;
}

// What the map has of these volumes and snapshots, one's own branch if it took writes among it,
// goes in one commit with their records.
Task<Error> RunningGroup::remove_from_map(const ServedPool* pool, std::vector<Uuid> uuids,
                                          metadata::Batch batch) {
  pool::Pool::Removal removal;
  for (const Uuid& uuid : uuids) {
    const pool::BranchId branch = pool != nullptr ? pool->branch_of(uuid) : 0;
    const auto key = pool != nullptr ? pool->snapshot_of(uuid) : std::nullopt;
    if (branch != 0) removal.branches.push_back(branch);
    if (key) removal.snapshots.push_back(*key);
  }
  Error error = Error::kNone;
  if (removal.branches.empty() && removal.snapshots.empty()) {
    error = co_await store_.commit(std::move(batch));
  } else {
    error = co_await pool->pool()->remove_all(std::move(removal), std::move(batch));
  }
  co_return error;
}

Task<Answer<void>> RunningGroup::drop_snapshot(Uuid uuid) {
  const SnapshotRecord record = snapshots_.at(uuid).record;
  const auto failed = [&](std::string why) {
    return refuse(Refusal::Code::kFailed,
                  fmt::format("snapshot \"{}\" stays: {}", record.name, why));
  };
  ServedPool* const pool = pools_->find(record.pool);
  if (pool != nullptr && pool->pool() == nullptr) co_return failed(pool->failure());
  if (record.online) {
    const auto offline = co_await take_offline(uuid);
    if (!offline) co_return offline;
  }
  metadata::Batch batch;
  batch.erase(snapshot_key(uuid));
  book_.erase(uuid, batch);
  const Error error = co_await remove_from_map(pool, {uuid}, std::move(batch));
  if (error != Error::kNone) co_return failed(unwritten(error));
  forget_snapshot(uuid, pool);
  co_return Answer<void>{};
}

void RunningGroup::forget_snapshot(const Uuid& uuid, ServedPool* pool) {
  if (pool != nullptr) pool->forget_branch(uuid);
  if (pool != nullptr) pool->forget_snapshot(uuid);
  identifiers_.release(uuid);
  book_.forget(uuid);
  snapshots_.erase(uuid);
}

// Deletes the oldest snapshots, many in one commit, until the rest fits into a commit with the
// volume.
Task<Error> RunningGroup::drop_oldest(Uuid volume, ServedPool* pool) {
  std::vector<Uuid> oldest;
  for (const Snapshot* const one : snapshots_of(volume)) oldest.push_back(one->record.uuid);
  oldest.resize(oldest.size() - std::min(oldest.size(), kMostDeletedAtOnce));
  for (std::size_t at = 0; at < oldest.size(); at += kMostDeletedAtOnce) {
    const std::size_t count = std::min(oldest.size() - at, kMostDeletedAtOnce);
    const std::vector<Uuid> part(oldest.begin() + static_cast<std::ptrdiff_t>(at),
                                 oldest.begin() + static_cast<std::ptrdiff_t>(at + count));
    metadata::Batch batch;
    for (const Uuid& uuid : part) erase_snapshot(batch, snapshots_.at(uuid).record);
    const Error error = co_await remove_from_map(pool, part, std::move(batch));
    if (error != Error::kNone) co_return error;
    for (const Uuid& uuid : part) forget_snapshot(uuid, pool);
    co_await Executor::current().turn_end();
  }
  co_return Error::kNone;
}

// The keys of a snapshot that is withdrawn.
void RunningGroup::erase_snapshot(metadata::Batch& batch, const SnapshotRecord& record) const {
  batch.erase(snapshot_key(record.uuid));
  book_.erase(record.uuid, batch);
  if (record.online && !stays(record.target)) batch.erase(target_key(record.target));
}

Task<Answer<void>> RunningGroup::delete_snapshot(SnapshotName snapshot, bool force) {
  return alone(lasting(delete_snapshot_now(std::move(snapshot), force)));
}

// Restoring ---------------------------------------------------------------------------------------

Task<Answer<VolumeInfo>> RunningGroup::restore_now(SnapshotName name, bool force) {
  const auto served = pool_of(name.volume);
  if (!served) co_return std::unexpected(served.error());
  ServedPool* const pool = *served;
  const Snapshot* const found = find(name);
  const auto key = found != nullptr ? pool->snapshot_of(found->record.uuid) : std::nullopt;
  if (!key) co_return std::unexpected(no_such_snapshot(name));
  const auto volume = find(name.volume);
  VolumeRecord record = volume->record();
  const auto counts = co_await sessions_by_target();
  if (record.online && !force && has_sessions(record.specification.target, counts)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is in use; take it offline, log out, or force it: "
                                 "its initiators get a unit attention",
                                 name.volume));
  }
  const pool::Branch* const source = pool->pool()->map().find(key->branch);
  const std::uint64_t before = record.specification.size_bytes;
  const std::uint64_t bytes = source->snapshots.at(key->generation).byte_count;
  record.specification.size_bytes = bytes;
  record.shrink_to = 0;
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  UnitBook::erase_blocks(record.uuid, batch);
  Volume* const content = volume.get();
  const auto restored = co_await pool->pool()->restore(
      *volume->pool_volume(), *key, std::move(batch), [content] { content->content_replaced(); });
  if (!restored.has_value()) {
    // A thin one takes no page for that.
    const VolumeSpecification& s = record.specification;
    const bool full =
        restored.error() == Error::kNoSpace && !s.thin && !shortage(*pool, s, bytes).empty();
    co_return refuse(full ? Refusal::Code::kConflict : Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" keeps its content: {}", name.volume,
                                 full ? fmt::format("pool \"{}\" has no room for a thick volume of "
                                                    "that size beside it",
                                                    pool->name())
                                      : unwritten(restored.error())));
  }
  book_.forget_blocks(record.uuid);
  // A copy that was under way goes on with the new branch.
  pool->housekeeper()->stop_filling(pool->branch_of(record.uuid));
  if (record.full_copy) (void)pool->housekeeper()->fill(*restored);
  pool->note_branch(record.uuid, *restored);
  volume->record() = std::move(record);
  if (bytes != before) {
    (void)co_await volume->grow(bytes);
    (void)co_await settle_limits(volume);
  }
  log_info("volume {}: restored from snapshot {}", name.volume, name.snapshot);
  co_return co_await volume_now(name.volume);
}

Task<Answer<VolumeInfo>> RunningGroup::restore_snapshot(SnapshotName snapshot, bool force) {
  return alone(lasting(restore_now(std::move(snapshot), force)));
}

// Online and offline ------------------------------------------------------------------------------

// The volume as which it is shown.
VolumeRecord RunningGroup::shown_as(const SnapshotRecord& record) const {
  const auto volume = find(record.volume);
  VolumeRecord shown{.uuid = record.uuid, .specification = {}, .pool = record.pool};
  VolumeSpecification& s = shown.specification;
  if (volume != nullptr) {
    s = volume->record().specification;
    s.serial.clear();
    s.naa.reset();
    s.eui64.reset();
  }
  configuration_.identity.settle(s, record.uuid);
  s.name = fmt::format("{}-{}", volume != nullptr ? volume->name() : "", record.name);
  s.backing = Backing::kPool;
  s.thin = true;
  s.read_only = !record.writable;
  s.target = record.target;
  s.lun = 0;
  return shown;
}

Volume::Opened RunningGroup::open_snapshot(const SnapshotRecord& record) {
  auto ground = ground_of_snapshot(record);
  if (!ground) return std::unexpected(std::move(ground.error()));
  return Volume::open_on_pool(shown_as(record), std::move(*ground), array_facts());
}

std::expected<PoolGround, OpenFailure> RunningGroup::ground_of_snapshot(
    const SnapshotRecord& record) {
  const ServedPool* const pool = pools_->find(record.pool);
  if (pool == nullptr || pool->pool() == nullptr) {
    return std::unexpected(absence_of(pool, pool != nullptr ? pool->name() : ""));
  }
  const auto key = pool->snapshot_of(record.uuid);
  std::unique_ptr<pool::PoolVolume> attached;
  if (key && record.writable) attached = pool->pool()->attach(pool->branch_of(record.uuid));
  if (key && !record.writable) attached = pool->pool()->attach(key->branch, key->generation);
  if (attached == nullptr) {
    return std::unexpected(OpenFailure{.reason = "the map of its pool does not have it"});
  }
  return ground_of(std::move(attached));
}

// Those that were online when the daemon ended.
Task<RunningGroup::Outcome> RunningGroup::open_snapshots() {
  for (auto& [uuid, snapshot] : snapshots_) {
    if (!snapshot.record.online) continue;
    auto opened = open_snapshot(snapshot.record);
    if (opened) {
      snapshot.volume = std::move(*opened);
    } else {
      log_warning("snapshot {}: not served: {}", snapshot.record.name, opened.error().reason);
      snapshot.volume = without_device(shown_as(snapshot.record), std::move(opened.error()));
    }
    auto attached = attach(snapshot.volume);
    if (!attached) co_return attached;
    target_for(snapshot.record.target).snapshot_of = snapshot.record.volume;
  }
  co_return Outcome{};
}

Task<Answer<SnapshotInfo>> RunningGroup::online_now(SnapshotName name, bool writable) {
  const auto served = pool_of(name.volume);
  if (!served) co_return std::unexpected(served.error());
  ServedPool* const pool = *served;
  const Snapshot* const found = find(name);
  const auto key = found != nullptr ? pool->snapshot_of(found->record.uuid) : std::nullopt;
  if (!key) co_return std::unexpected(no_such_snapshot(name));
  SnapshotRecord record = found->record;
  if (record.online && record.writable == writable) co_return info_of(*found, name.volume);
  if (record.online) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("{} is online already, {}; take it offline first", words(name),
                                 record.writable ? "and takes writes" : "read-only"));
  }
  if (auto refusal = refusal_of_reserve(*find(name.volume))) co_return std::unexpected(*refusal);
  record.online = true;
  record.writable = writable;
  const IdentityConfiguration& identity = configuration_.identity;
  record.target = identity.own_target_for(fmt::format("{}-{}", name.volume, name.snapshot),
                                          identity.naa_for(record.uuid));
  if (targets_.contains(record.target)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("{}: there is a target {} already", words(name), record.target));
  }
  const TargetRecord target{.name = record.target};
  metadata::Batch batch;
  batch.put(snapshot_key(record.uuid), encode(record));
  batch.erase(target_key(target.name));
  Error error = Error::kNone;
  if (writable && pool->branch_of(record.uuid) == 0) {
    const auto branch =
        co_await pool->pool()->clone(*key, {.label = format_uuid(record.uuid)}, std::move(batch));
    error = branch.has_value() ? Error::kNone : branch.error();
    if (branch.has_value()) pool->note_branch(record.uuid, *branch);
  } else {
    error = co_await store_.commit(std::move(batch));
  }
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("{} stays offline: {}", words(name), unwritten(error)));
  }
  const Uuid uuid = record.uuid;
  Snapshot& snapshot = snapshots_.at(uuid);
  snapshot.record = std::move(record);
  show_behind(target, snapshot.record.volume);
  auto opened = open_snapshot(snapshot.record);
  std::string why = opened ? "" : opened.error().reason;
  if (opened) {
    snapshot.volume = std::move(*opened);
    tell_places();
    const Outcome served_now = co_await serve(snapshot.volume);
    if (!served_now) why = served_now.error().text;
  }
  if (!why.empty()) {
    (void)co_await take_offline(uuid);
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("{} cannot be served: {}", words(name), why));
  }
  log_info("volume {}: snapshot {} is online", name.volume, name.snapshot);
  co_return info_of(snapshots_.at(uuid), name.volume);
}

Task<Answer<SnapshotInfo>> RunningGroup::online_snapshot(SnapshotName snapshot, bool writable) {
  return alone(lasting(online_now(std::move(snapshot), writable)));
}

// Those may use a snapshot who may use its volume, as that is at each login.
void RunningGroup::show_behind(const TargetRecord& record, const Uuid& volume) {
  Target& target = target_for(record.name);
  target.record = record;
  target.snapshot_of = volume;
}

// The file may have put a volume behind a snapshot's target, or declare that.
bool RunningGroup::stays(const std::string& target) const {
  const auto found = targets_.find(target);
  if (found == targets_.end()) return false;
  const auto& units = found->second->units;
  return found->second->declared || units.size() > units.count(0);
}

// What was written to it stays, and is there when it is online and takes writes again.
Task<Answer<void>> RunningGroup::take_offline(Uuid uuid) {
  SnapshotRecord record = snapshots_.at(uuid).record;
  const std::string target = record.target;
  record.online = false;
  record.target.clear();
  metadata::Batch batch;
  batch.put(snapshot_key(uuid), encode(record));
  if (!stays(target)) batch.erase(target_key(target));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("snapshot \"{}\" stays online: {}",
                                                         record.name, unwritten(error)));
  }
  snapshots_.at(uuid).record = std::move(record);
  (void)co_await withdraw(uuid, target);
  tell_places();
  co_return Answer<void>{};
}

// False: something in it does not end.
Task<bool> RunningGroup::withdraw(Uuid uuid, std::string target) {
  const auto found = targets_.find(target);
  if (found != targets_.end()) {
    const bool stays_there = stays(target);
    const bool shown = found->second->units.contains(0) && !stays_there;
    if (shown) co_await server_->remove_target(target);
    co_await found->second->router->remove(0);
    found->second->units.erase(0);
    found->second->snapshot_of.reset();
    if (!stays_there) co_await found->second->router->close();
    if (!stays_there) targets_.erase(target);
    // Those who may use the volume behind the snapshot have nothing there any more.
    if (stays_there) (void)co_await server_->update_target(options_of(*found->second), nullptr);
  }
  const std::shared_ptr<Volume> volume = std::exchange(snapshots_.at(uuid).volume, nullptr);
  if (volume == nullptr) co_return true;
  const Error closed = co_await volume->close(Executor::current().now() + kClosePatience);
  if (closed == Error::kTimedOut) pools_quiet_ = false;
  co_return closed != Error::kTimedOut;
}

// One that was withdrawn for what has not come to be. `why`: it is not served any more.
Task<void> RunningGroup::put_back(Uuid uuid, TargetRecord target, std::string why) {
  Snapshot& snapshot = snapshots_.at(uuid);
  Volume::Opened opened = std::unexpected(OpenFailure{.reason = why});
  if (why.empty()) opened = open_snapshot(snapshot.record);
  if (opened) {
    snapshot.volume = std::move(*opened);
  } else {
    snapshot.volume = without_device(shown_as(snapshot.record), std::move(opened.error()));
  }
  show_behind(target, snapshot.record.volume);
  const Outcome served = co_await serve(snapshot.volume);
  if (!served) log_warning("snapshot {}: {}", snapshot.record.name, served.error().text);
}

Task<Answer<SnapshotInfo>> RunningGroup::offline_now(SnapshotName name, bool force) {
  const Snapshot* const found = find(name);
  if (found == nullptr) co_return std::unexpected(no_such_snapshot(name));
  const Uuid uuid = found->record.uuid;
  if (!found->record.online) co_return info_of(*found, name.volume);
  const std::string target = found->record.target;
  const auto counts = co_await sessions_by_target();
  if (!force && has_sessions(target, counts)) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("{} is in use: log out of {} first, or force it", words(name), target));
  }
  const auto offline = co_await take_offline(uuid);
  if (!offline) co_return std::unexpected(offline.error());
  co_return info_of(snapshots_.at(uuid), name.volume);
}

Task<Answer<SnapshotInfo>> RunningGroup::offline_snapshot(SnapshotName snapshot, bool force) {
  return alone(lasting(offline_now(std::move(snapshot), force)));
}

// Cloning -----------------------------------------------------------------------------------------

// The same request twice has the same answer, also when the clone has changed since.
Task<Answer<CreatedVolume>> RunningGroup::repeat_clone(std::shared_ptr<Volume> there,
                                                       std::string origin, bool full_copy) {
  const VolumeRecord& record = there->record();
  if (record.origin != origin || record.full_copy != full_copy) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\" exists already, and {}; choose another name", there->name(),
                    record.origin.empty()     ? "is not a clone"
                    : record.origin != origin ? "is a clone of something else"
                    : record.full_copy        ? "is a full copy"
                                              : "is not a full copy"));
  }
  auto info = co_await volume_now(there->name());
  if (!info) co_return std::unexpected(info.error());
  co_return CreatedVolume{.volume = std::move(*info), .created = false};
}

Task<Answer<CreatedVolume>> RunningGroup::clone_now(SnapshotName name, std::string clone,
                                                    bool full_copy) {
  const auto served = pool_of(name.volume);
  if (!served) co_return std::unexpected(served.error());
  const auto volume = find(name.volume);
  pool::SnapshotKey key{.branch = (*served)->branch_of(volume->uuid()), .generation = pool::kLive};
  std::uint64_t bytes = volume->record().specification.size_bytes;
  std::string origin = format_uuid(volume->uuid());
  if (!name.snapshot.empty()) {
    const Snapshot* const found = find(name);
    const auto at = found != nullptr ? (*served)->snapshot_of(found->record.uuid) : std::nullopt;
    if (!at) co_return std::unexpected(no_such_snapshot(name));
    key = *at;
    origin = format_uuid(found->record.uuid);
    bytes = (*served)->pool()->map().find(key.branch)->snapshots.at(key.generation).byte_count;
  }
  if (const auto there = find(clone)) {
    co_return co_await repeat_clone(there, std::move(origin), full_copy);
  }
  CreateVolumeRequest request;
  VolumeSpecification& s = request.specification;
  s = volume->record().specification;
  s.name = std::move(clone);
  s.size_bytes = bytes;
  s.thin = true;
  s.read_only = false;
  s.serial.clear();
  s.naa.reset();
  s.eui64.reset();
  s.target.clear();
  s.lun.reset();
  request.full_copy = full_copy;
  request.origin = std::move(origin);
  request.source = CloneSource{.branch = key.branch, .generation = key.generation};
  co_return co_await create_now(std::move(request));
}

Task<Answer<CreatedVolume>> RunningGroup::clone_snapshot(SnapshotName snapshot, std::string name,
                                                         bool full_copy) {
  return alone(lasting(clone_now(std::move(snapshot), std::move(name), full_copy)));
}

}  // namespace sandbay::group
