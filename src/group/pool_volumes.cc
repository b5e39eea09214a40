// Volumes on pools. What stands in the metadata about a volume and what the pool's map says of it
// change in one commit, so that there is nothing to be finished after a crash; see pool_records.h.
#include <fmt/format.h>

#include <algorithm>

#include "group/log.h"
#include "group/running_group.h"
#include "group/units.h"
#include "pool/pool_volume.h"
#include "raid/layout.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

constexpr std::string_view kDoesNotEnd =
    "something in it does not end; restart the daemon, and delete it then";

// Pages that a percentage of a volume's size is.
std::uint64_t pages_of(const ServedPool& pool, const VolumeSpecification& s,
                       std::uint32_t percent) {
  const std::uint64_t pages = pool.pages_for(s.size_bytes);
  return percent == 0 ? 0 : std::max<std::uint64_t>(1, pages * percent / 100);
}

// No limit is one that nothing can reach.
std::uint64_t page_limit(const ServedPool& pool, const VolumeSpecification& s) {
  return !s.thin || s.thin_limit >= 100 ? 0 : pages_of(pool, s, s.thin_limit);
}

std::uint64_t page_warning(const ServedPool& pool, const VolumeSpecification& s) {
  return s.thin ? pages_of(pool, s, s.thin_warning) : 0;
}

std::uint8_t placement_of(const VolumeSpecification& s) {
  const auto level = raid::parse_level(s.raid_level);
  return level ? static_cast<std::uint8_t>(*level) : std::uint8_t{0};
}

}  // namespace

std::optional<Refusal> RunningGroup::settle_choices(CreateVolumeRequest& request) const {
  VolumeSpecification& s = request.specification;
  const auto& pools = pools_->all();
  if (request.open.backing && pools.size() > 1) {
    std::vector<std::string> names;
    for (const auto& pool : pools) names.push_back(pool->name());
    return Refusal{.code = Refusal::Code::kInvalid,
                   .message = fmt::format("volume \"{}\": there are several pools; name one of {}",
                                          s.name, fmt::join(names, ", "))};
  }
  if (request.open.backing && pools.size() == 1) {
    s.backing = Backing::kPool;
    s.pool = pools.front()->name();
  }
  if (s.backing != Backing::kPool) {
    if (request.open.thin) s.thin = !s.preallocate;
    return std::nullopt;
  }
  if (request.open.thin) s.thin = false;
  const ServedPool* const pool = pools_->find(s.pool);
  if (pool != nullptr && request.open.block_bytes && pool->record().block_bytes != 0) {
    s.block_bytes = pool->record().block_bytes;
  }
  return std::nullopt;
}

std::string RunningGroup::shortage(const ServedPool& pool, const VolumeSpecification& s,
                                   std::uint64_t added_bytes) const {
  const auto on = s.on.empty() ? std::nullopt : members_->find_set(s.on);
  const auto fixed = on ? pool.store_of(*on) : std::nullopt;
  std::uint64_t free = 0;
  for (const auto& [index, store] : pool.pool()->map().stores()) {
    if (fixed && index != *fixed) continue;
    if (pool.pool()->may_allocate_on(index)) free += store.pages.free_count();
  }
  if (pool.pages_for(added_bytes) <= free) return {};
  return fmt::format("{} asked, {} \"{}\" has {} free; use --thin or add a member",
                     format_size_rounded(added_bytes), fixed ? "set" : "pool",
                     fixed ? s.on : pool.name(),
                     format_size_rounded(free * pool.record().page_bytes));
}

std::optional<Refusal> RunningGroup::refusal_of_pool(const VolumeSpecification& s) const {
  if (s.backing != Backing::kPool) return std::nullopt;
  const auto about = [&](Refusal::Code code, std::string what) {
    return Refusal{.code = code, .message = fmt::format("volume \"{}\": {}", s.name, what)};
  };
  const ServedPool* const pool = pools_->find(s.pool);
  if (pool == nullptr) {
    return about(Refusal::Code::kNotFound,
                 fmt::format("there is no pool \"{}\"; see the list of pools", s.pool));
  }
  if (pool->pool() == nullptr) {
    return about(Refusal::Code::kFailed,
                 fmt::format("pool \"{}\" is not open: {}", s.pool, pool->failure()));
  }
  const std::uint32_t blocks = pool->record().block_bytes;
  if (blocks == 0) {
    return about(Refusal::Code::kConflict,
                 fmt::format("pool \"{}\" has no set yet; see what stands against it: sandbay pool "
                             "show {}",
                             s.pool, s.pool));
  }
  if (blocks != s.block_bytes) {
    return about(Refusal::Code::kInvalid,
                 fmt::format("block_size {} is not that of pool \"{}\"; write {}, or leave it out",
                             s.block_bytes, s.pool, blocks));
  }
  const auto set = s.on.empty() ? std::nullopt : members_->find_set(s.on);
  if (!s.on.empty() && !(set && pool->store_of(*set))) {
    return about(Refusal::Code::kNotFound,
                 fmt::format("pool \"{}\" has no set \"{}\"; see sandbay pool show {}", s.pool,
                             s.on, s.pool));
  }
  const auto on = set ? pool->store_of(*set) : std::nullopt;
  if (on && pool->pool()->map().stores().at(*on).record.state == pool::StoreState::kVacating) {
    return about(Refusal::Code::kConflict,
                 fmt::format("set \"{}\" is being emptied: its member is to leave pool \"{}\"; "
                             "name another set",
                             s.on, s.pool));
  }
  if (s.thin) return std::nullopt;
  std::string lack = shortage(*pool, s, s.size_bytes);
  if (lack.empty()) return std::nullopt;
  return about(Refusal::Code::kConflict, std::move(lack));
}

// Making ------------------------------------------------------------------------------------------

Task<Volume::Opened> RunningGroup::make_on_pool(VolumeRecord record,
                                                std::optional<TargetRecord> target) {
  VolumeSpecification& s = record.specification;
  ServedPool* const pool = pools_->find(s.pool);
  if (record.open_block_bytes && pool != nullptr && pool->record().block_bytes != 0) {
    s.block_bytes = pool->record().block_bytes;
  }
  // A volume that is declared comes here without having been looked at.
  if (const auto refusal = refusal_of_pool(s)) {
    const std::string about = fmt::format("volume \"{}\": ", s.name);
    co_return std::unexpected(OpenFailure{.reason = refusal->message.substr(about.size())});
  }
  if (auto error = check_presentation(s)) {
    co_return std::unexpected(OpenFailure{.reason = std::move(*error)});
  }
  record.pool = pool->uuid();
  pool::BranchOptions options{.byte_count = s.size_bytes,
                              .thick = !s.thin,
                              .placement = placement_of(s),
                              .page_limit = page_limit(*pool, s),
                              .page_warning = page_warning(*pool, s),
                              .label = format_uuid(record.uuid)};
  if (!s.on.empty()) options.fixed_store = known(pool->store_of(known(members_->find_set(s.on))));
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  if (target && target->access.empty()) batch.erase(target_key(target->name));
  if (target && !target->access.empty()) batch.put(target_key(target->name), encode(*target));
  Result<pool::BranchId> made = pool::BranchId{0};
  if (const auto& source = record.source) {
    options.byte_count = 0;  // The source's.
    const pool::SnapshotKey key{.branch = source->branch, .generation = source->generation};
    made = co_await pool->pool()->clone(key, std::move(options), std::move(batch));
  } else {
    made = co_await pool->pool()->create(std::move(options), std::move(batch));
  }
  if (!made.has_value()) {
    // A thin one takes no page for that.
    const bool full = made.error() == Error::kNoSpace && !s.thin;
    std::string why = full ? shortage(*pool, s, s.size_bytes) : std::string();
    const pool::BranchId source = record.source ? record.source->branch : 0;
    if (why.empty()) why = hindrance(*pool, {source}, made.error());
    co_return std::unexpected(OpenFailure{.reason = std::move(why), .stops_start = !full});
  }
  pool->note_branch(record.uuid, *made);
  co_return open_on_pool(std::move(record));
}

Volume::Opened RunningGroup::open_on_pool(VolumeRecord record) {
  auto ground = ground_on_pool(record);
  if (!ground) return std::unexpected(std::move(ground.error()));
  return Volume::open_on_pool(std::move(record), std::move(*ground), array_facts());
}

std::expected<PoolGround, OpenFailure> RunningGroup::ground_on_pool(const VolumeRecord& record) {
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool == nullptr || pool->pool() == nullptr) {
    return std::unexpected(absence_of(pool, record.specification.pool));
  }
  const pool::BranchId branch = pool->branch_of(record.uuid);
  auto attached = pool->pool()->attach(branch);
  if (attached != nullptr && record.full_copy && attached->branch().has_parent()) {
    (void)pool->housekeeper()->fill(branch);
  }
  if (attached == nullptr) {
    return std::unexpected(OpenFailure{
        .reason = fmt::format("the map of pool \"{}\" does not have it", pool->name())});
  }
  return ground_of(std::move(attached));
}

PoolGround RunningGroup::ground_of(std::unique_ptr<pool::PoolVolume> volume) const {
  PoolGround ground{.volume = std::move(volume)};
  ground.caches = members_->caches();
  ground.streams = members_->streams();
  return ground;
}

// Changing ----------------------------------------------------------------------------------------

std::optional<Refusal> RunningGroup::refusal_to_resize(const Volume& volume,
                                                       std::uint64_t byte_count, bool force) const {
  const VolumeSpecification& s = volume.record().specification;
  const auto conflict = [&](std::string why) {
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("volume \"{}\"{}", s.name, why)};
  };
  if (byte_count < s.size_bytes && !force) {
    return conflict(fmt::format(
        " has {}; data behind {} would be lost: sandbay volume shrink {} --size {} --force, or "
        "give a larger size",
        format_size(s.size_bytes), format_size(byte_count), s.name, format_size(byte_count)));
  }
  if (byte_count < s.size_bytes && !volume.pool_volume()->serves()) {
    return conflict(" has pages on a missing member; shrink it when the member is back");
  }
  if (byte_count < s.size_bytes || s.thin) return std::nullopt;
  const ServedPool& pool = *pools_->find(known(volume.record().pool));
  const std::uint64_t added =
      (pool.pages_for(byte_count) - pool.pages_for(s.size_bytes)) * pool.record().page_bytes;
  const std::string lack = shortage(pool, s, added);
  if (lack.empty()) return std::nullopt;
  return conflict(": " + lack);
}

Task<Answer<void>> RunningGroup::resize_on_pool(std::shared_ptr<Volume> volume,
                                                std::uint64_t byte_count, bool force) {
  if (auto refusal = refusal_to_resize(*volume, byte_count, force)) {
    co_return std::unexpected(std::move(*refusal));
  }
  const std::string name = volume->name();
  const std::uint64_t before = volume->record().specification.size_bytes;
  Answer<void> resized;
  if (byte_count > before) {
    resized = co_await expand_on_pool(volume, byte_count);
  } else {
    resized = co_await shrink_on_pool(volume, byte_count);
  }
  if (!resized) co_return resized;
  (void)co_await volume->grow(byte_count);
  (void)co_await settle_limits(volume);
  log_info("volume {}: had {}, has {}", name, format_size(before), format_size(byte_count));
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::expand_on_pool(std::shared_ptr<Volume> volume,
                                                std::uint64_t byte_count) {
  VolumeRecord record = volume->record();
  record.specification.size_bytes = byte_count;
  record.shrink_to = 0;
  const ServedPool* const pool = pools_->find(known(record.pool));
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  const Error error =
      co_await pool->pool()->expand(pool->branch_of(record.uuid), byte_count, std::move(batch));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("volume \"{}\" keeps its size: {}",
                                                         volume->name(), unwritten(error)));
  }
  volume->record() = std::move(record);
  co_return Answer<void>{};
}

// Its end is unmapped in many steps, and it is shorter with the last one: what is noted before the
// first sees to it that a start finishes them.
Task<Answer<void>> RunningGroup::shrink_on_pool(std::shared_ptr<Volume> volume,
                                                std::uint64_t byte_count) {
  const auto failed = [&](std::string why) {
    return refuse(Refusal::Code::kFailed,
                  fmt::format("volume \"{}\" keeps its size: {}", volume->name(), why));
  };
  VolumeRecord record = volume->record();
  record.shrink_to = byte_count;
  const Error noted = co_await keep_change(volume, std::move(record));
  if (noted != Error::kNone) co_return failed(unwritten(noted));
  const Error error = co_await finish_shrinking(&volume->record());
  if (error == Error::kNone) co_return Answer<void>{};
  const ServedPool* const pool = pools_->find(known(volume->record().pool));
  const std::string why = hindrance(*pool, {pool->branch_of(volume->uuid())}, error);
  VolumeRecord as_before = volume->record();
  as_before.shrink_to = 0;
  const Error withdrawn = co_await keep_change(volume, std::move(as_before));
  co_return failed(fmt::format("{}; {}", why,
                               withdrawn == Error::kNone
                                   ? "data behind the smaller size may be lost"
                                   : "the next start goes on with it"));
}

Task<Error> RunningGroup::finish_shrinking(VolumeRecord* record) {
  VolumeRecord smaller = *record;
  const ServedPool* const pool = pools_->find(known(smaller.pool));
  smaller.specification.size_bytes = std::exchange(smaller.shrink_to, 0);
  metadata::Batch batch;
  batch.put(volume_key(smaller.uuid), encode(smaller));
  const Error error = co_await pool->pool()->shrink(
      pool->branch_of(smaller.uuid), smaller.specification.size_bytes, std::move(batch));
  if (error == Error::kNone) *record = std::move(smaller);
  co_return error;
}

Task<Answer<void>> RunningGroup::change_limits(std::shared_ptr<Volume> volume,
                                               const ChangeVolumeRequest* request) {
  VolumeRecord record = volume->record();
  VolumeSpecification& s = record.specification;
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  const bool of_space = request->thin_warning || request->thin_limit;
  if (pool == nullptr || (of_space && !s.thin)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\" is no {}volume of a pool, and has no such limits",
                                 volume->name(), of_space ? "thin " : ""));
  }
  s.operations_limit = request->operations_limit.value_or(s.operations_limit);
  s.bytes_limit = request->bytes_limit.value_or(s.bytes_limit);
  s.thin_warning = request->thin_warning.value_or(s.thin_warning);
  s.thin_limit = request->thin_limit.value_or(s.thin_limit);
  s.snapshot_reserve = request->snapshot_reserve.value_or(s.snapshot_reserve);
  s.reserve_policy = request->reserve_policy.value_or(s.reserve_policy);
  if (const auto error = check_specification(s)) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("volume \"{}\": {}", volume->name(), *error));
  }
  if (!volume->has_device()) {
    co_return refuse(Refusal::Code::kConflict, fmt::format("volume \"{}\" is not served: {}",
                                                           volume->name(), volume->reason()));
  }
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  Error error = Error::kNone;
  if (of_space) {
    error = co_await pool->pool()->set_limits(pool->branch_of(record.uuid), page_limit(*pool, s),
                                              page_warning(*pool, s), std::move(batch));
  } else {
    error = co_await store_.commit(std::move(batch));
  }
  if (error == Error::kNone) {
    volume->record() = std::move(record);
    volume->apply_rates();
    co_return Answer<void>{};
  }
  co_return refuse(Refusal::Code::kFailed,
                   fmt::format("volume \"{}\": its limits cannot be changed: {}", volume->name(),
                               unwritten(error)));
}

Task<Error> RunningGroup::settle_limits(std::shared_ptr<Volume> volume) {
  const VolumeRecord& record = volume->record();
  const VolumeSpecification& s = record.specification;
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool == nullptr || pool->pool() == nullptr || !volume->has_device()) co_return Error::kNone;
  const pool::BranchId id = pool->branch_of(record.uuid);
  const pool::BranchRecord& branch = pool->pool()->map().find(id)->record;
  const std::uint64_t limit = page_limit(*pool, s);
  const std::uint64_t warning = page_warning(*pool, s);
  if (branch.page_limit == limit && branch.page_warning == warning) co_return Error::kNone;
  co_return co_await pool->pool()->set_limits(id, limit, warning, {});
}

// Deleting ----------------------------------------------------------------------------------------

// A volume that was to be deleted, and stays.
Task<void> RunningGroup::put_back(VolumeRecord record, std::string why) {
  const VolumeSpecification s = record.specification;
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  Volume::Opened opened = std::unexpected(OpenFailure{.reason = why});
  if (why.empty()) opened = open_on_pool(record);
  std::shared_ptr<Volume> volume;
  if (opened) {
    volume = std::move(*opened);
  } else {
    volume = without_device(std::move(record), std::move(opened.error()));
  }
  Target& target = *targets_.at(s.target);
  target.units[lun] = volume;
  volumes_.put(s.name, volume);
  if (volume->has_unit()) (void)co_await target.router->add(lun, &volume->unit());
}

// What of a volume's snapshots was online, to be there again if it stays.
struct RunningGroup::Withdrawn {
  struct Shown {
    Uuid snapshot{};
    TargetRecord target;
    bool closed = true;
  };
  std::vector<Shown> snapshots;
  bool volume_closed = true;
  bool quiet = true;  // All of them are closed.
};

// Its device and those of its snapshots are let go of.
Task<RunningGroup::Withdrawn> RunningGroup::withdraw_all(std::shared_ptr<Volume> volume) {
  Withdrawn withdrawn;
  for (const Snapshot* const one : snapshots_.of(volume->uuid())) {
    if (!one->record.online) continue;
    const auto target = targets_.find(one->record.target);
    Withdrawn::Shown shown{
        .snapshot = one->record.uuid,
        .target = target == targets_.end() ? TargetRecord{} : target->second->record};
    withdrawn.snapshots.push_back(std::move(shown));
  }
  for (Withdrawn::Shown& one : withdrawn.snapshots) {
    one.closed = co_await withdraw(one.snapshot, snapshots_.at(one.snapshot).record.target);
    withdrawn.quiet = withdrawn.quiet && one.closed;
  }
  const VolumeSpecification& s = volume->record().specification;
  co_await targets_.at(s.target)->router->remove(s.lun.value_or(0));
  const Error closed = co_await volume->close(Executor::current().now() + kClosePatience);
  withdrawn.volume_closed = closed != Error::kTimedOut;
  withdrawn.quiet = withdrawn.quiet && withdrawn.volume_closed;
  pools_quiet_ = pools_quiet_ && withdrawn.quiet;
  co_return withdrawn;
}

// A volume that was to be deleted, and stays with the snapshots that it still has. `why`: they are
// not served.
Task<void> RunningGroup::put_back_all(VolumeRecord record, Withdrawn withdrawn, std::string why) {
  co_await put_back(std::move(record), withdrawn.volume_closed ? why : std::string(kDoesNotEnd));
  for (Withdrawn::Shown& one : withdrawn.snapshots) {
    if (snapshots_.find(one.snapshot) == snapshots_.end()) continue;
    co_await put_back(one.snapshot, std::move(one.target),
                      one.closed ? why : std::string(kDoesNotEnd));
  }
  tell_places();
}

// Everything that the metadata have of a volume, its snapshots and its schedules.
metadata::Batch RunningGroup::forgetting(const VolumeRecord& record) {
  metadata::Batch batch;
  const VolumeSpecification& s = record.specification;
  const Target& target = *targets_.at(s.target);
  batch.erase(volume_key(record.uuid));
  book_.erase(record.uuid, batch);
  if (!target.declared && target.units.size() <= 1) batch.erase(target_key(s.target));
  for (const Snapshot* const one : snapshots_.of(record.uuid)) erase_snapshot(batch, one->record);
  for (const auto& [uuid, schedule] : schedules_) {
    if (schedule.volume == record.uuid) batch.erase(schedule_key(uuid));
  }
  return batch;
}

void RunningGroup::forget(const VolumeRecord& record, ServedPool* pool) {
  const std::vector<Snapshot*> all = snapshots_.of(record.uuid);
  for (const Snapshot* const one : all) forget_snapshot(Uuid(one->record.uuid), pool);
  std::erase_if(schedules_, [&](const auto& entry) { return entry.second.volume == record.uuid; });
  if (pool != nullptr) pool->forget_branch(record.uuid);
  reserve_actions_.erase(record.uuid);
  identifiers_.release(record.uuid);
  book_.forget(record.uuid);
  volumes_.erase(record.specification.name);
}

// First the devices are let go of: nothing is deleted of a volume that cannot go. Then the oldest
// snapshots go, if there are many, in commits of their own. At last the records of the volume, of
// its snapshots and schedules, and what the map has of them go in one commit.
Task<Answer<void>> RunningGroup::remove_from_pool(std::shared_ptr<Volume> volume) {
  const VolumeRecord record = volume->record();
  const VolumeSpecification& s = record.specification;
  ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool != nullptr && pool->pool() == nullptr) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\": pool \"{}\" is not open: {}", s.name, s.pool, pool->failure()));
  }
  Withdrawn withdrawn = co_await withdraw_all(volume);
  if (!withdrawn.quiet) {
    co_await put_back_all(record, std::move(withdrawn), "");
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" cannot be deleted: {}", s.name, kDoesNotEnd));
  }
  const std::size_t snapshots = snapshots_.of(record.uuid).size();
  Error removed = co_await drop_oldest(record.uuid, pool);
  if (removed == Error::kNone) removed = co_await commit_removal(record, pool);
  if (removed != Error::kNone) {
    const std::string why =
        store_.in_doubt() ? "whether it is deleted shows when the metadata can be written; delete "
                            "it again, or restart the daemon"
                          : "";
    co_await put_back_all(record, std::move(withdrawn), why);
    const std::size_t dropped = snapshots - snapshots_.of(record.uuid).size();
    const std::string without = dropped == 0 ? ""
                                : dropped == 1
                                    ? ", without its oldest snapshot"
                                    : fmt::format(", without its {} oldest snapshots", dropped);
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" stays{}: {}", s.name, without, unwritten(removed)));
  }
  forget(record, pool);
  Target& target = *targets_.at(s.target);
  target.units.erase(s.lun.value_or(0));
  if (target.declared || !target.units.empty()) co_return Answer<void>{};
  co_await server_->remove_target(s.target);
  co_await target.router->close();
  targets_.erase(s.target);
  co_return Answer<void>{};
}

Task<Error> RunningGroup::commit_removal(VolumeRecord record, const ServedPool* pool) {
  std::vector<Uuid> uuids{record.uuid};
  for (const Snapshot* const one : snapshots_.of(record.uuid)) uuids.push_back(one->record.uuid);
  co_return co_await remove_from_map(pool, std::move(uuids), forgetting(record));
}

void RunningGroup::add_pool_part(const Volume& volume, VolumeInfo& info) const {
  const VolumeRecord& record = volume.record();
  const auto actions = reserve_actions_.find(record.uuid);
  if (actions != reserve_actions_.end()) {
    info.reserve_deleted = actions->second.deleted;
    info.reserve_taken_offline = actions->second.taken_offline;
  }
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool == nullptr || pool->pool() == nullptr) return;
  pool::PoolMap& map = pool->pool()->map();
  const pool::Branch* const branch = map.find(pool->branch_of(record.uuid));
  if (branch == nullptr) return;
  info.snapshots = static_cast<std::uint32_t>(snapshots_.of(record.uuid).size());
  info.snapshot_bytes = kept_for_snapshots(record.uuid);
  info.reserve_bytes = reserve_of(record);
  info.allocated_bytes = branch->pages.placed_count() * pool->record().page_bytes;
  if (!info.reason.empty()) return;
  for (const auto& [index, store] : map.stores()) {
    if (branch->pages.count_on(index) == 0 || pool->pool()->device(index) != nullptr) continue;
    info.reason = pools_->refusal(*pool, store.record.uuid);
    return;
  }
}

}  // namespace sandbay::group
