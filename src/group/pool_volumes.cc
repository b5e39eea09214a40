// Volumes on pools. What stands in the metadata about a volume and what the pool's map says of it
// change in one commit, so that there is nothing to be finished after a crash; see pool_records.h.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "group/running_group.h"
#include "group/units.h"
#include "pool/pool_volume.h"
#include "raid/layout.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

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
    const bool full = made.error() == Error::kNoSpace;
    const std::string lack = full ? shortage(*pool, s, s.size_bytes) : std::string();
    co_return std::unexpected(OpenFailure{
        .reason = full && !lack.empty() ? lack : unwritten(made.error()), .stops_start = !full});
  }
  pool->note_branch(record.uuid, *made);
  co_return open_on_pool(std::move(record));
}

Volume::Opened RunningGroup::open_on_pool(VolumeRecord record) {
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool == nullptr) {
    return std::unexpected(
        OpenFailure{.reason = fmt::format("pool \"{}\" is not there", record.specification.pool),
                    .health = Health::kMissing});
  }
  if (pool->pool() == nullptr) {
    return std::unexpected(OpenFailure{
        .reason = fmt::format("pool \"{}\" is not open: {}", pool->name(), pool->failure())});
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
  return Volume::open_on_pool(std::move(record), ground_of(std::move(attached)));
}

PoolGround RunningGroup::ground_of(std::unique_ptr<pool::PoolVolume> volume) const {
  PoolGround ground{.volume = std::move(volume)};
  ground.caches = members_->caches();
  ground.streams = members_->streams();
  return ground;
}

// Changing ----------------------------------------------------------------------------------------

Task<Answer<void>> RunningGroup::resize_on_pool(std::shared_ptr<Volume> volume,
                                                std::uint64_t byte_count, bool force) {
  VolumeRecord record = volume->record();
  const std::uint64_t before = record.specification.size_bytes;
  const std::string name = volume->name();
  record.specification.size_bytes = byte_count;
  const ServedPool* const pool = pools_->find(known(record.pool));
  if (byte_count < before && !force) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\" has {}; what lies behind {} would be lost: force it, "
                    "or give a larger size",
                    name, format_size(before), format_size(byte_count)));
  }
  if (byte_count > before && !record.specification.thin) {
    const std::uint64_t added =
        (pool->pages_for(byte_count) - pool->pages_for(before)) * pool->record().page_bytes;
    const std::string lack = shortage(*pool, record.specification, added);
    if (!lack.empty()) {
      co_return refuse(Refusal::Code::kConflict, fmt::format("volume \"{}\": {}", name, lack));
    }
  }
  const pool::BranchId branch = pool->branch_of(record.uuid);
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  Error error = Error::kNone;
  if (byte_count > before) {
    error = co_await pool->pool()->expand(branch, byte_count, std::move(batch));
  } else {
    error = co_await pool->pool()->shrink(branch, byte_count, std::move(batch));
  }
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" keeps its size: {}", name, unwritten(error)));
  }
  volume->record() = std::move(record);
  (void)co_await volume->grow(byte_count);
  (void)co_await settle_limits(volume);
  spdlog::info("volume {}: had {}, has {}", name, format_size(before), format_size(byte_count));
  co_return Answer<void>{};
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
    volume = Volume::without_device(std::move(record), configuration_.state, Executor::current(),
                                    std::move(opened.error()));
  }
  Target& target = *targets_.at(s.target);
  target.units[lun] = volume;
  volumes_[s.name] = volume;
  if (volume->has_device()) (void)co_await target.router->add(lun, &volume->unit());
}

// First its device is let go of, then record and map go in one commit.
Task<Answer<void>> RunningGroup::remove_from_pool(std::shared_ptr<Volume> volume) {
  const VolumeRecord record = volume->record();
  const VolumeSpecification& s = record.specification;
  ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool != nullptr && pool->pool() == nullptr) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\": pool \"{}\" is not open: {}", s.name, s.pool, pool->failure()));
  }
  Target& target = *targets_.at(s.target);
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  const bool last = !target.declared && target.units.size() <= 1;
  co_await target.router->remove(lun);
  const Error closed = co_await volume->close(Executor::current().now() + kClosePatience);
  if (closed == Error::kTimedOut) {
    pools_quiet_ = false;
    const std::string why = "something in it does not end; restart the daemon, and delete it then";
    co_await put_back(record, why);
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" cannot be deleted: {}", s.name, why));
  }
  metadata::Batch batch;
  batch.erase(volume_key(record.uuid));
  if (last) batch.erase(target_key(s.target));
  const pool::BranchId branch = pool != nullptr ? pool->branch_of(record.uuid) : 0;
  Error removed = Error::kNone;
  if (branch != 0) {
    removed = co_await pool->pool()->remove(branch, std::move(batch));
  } else {
    removed = co_await store_.commit(std::move(batch));
  }
  if (removed != Error::kNone) {
    const std::string why =
        store_.in_doubt() ? "whether it is deleted shows when the metadata can be written; delete "
                            "it again, or restart the daemon"
                          : "";
    co_await put_back(record, why);
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("volume \"{}\" stays: {}", s.name, unwritten(removed)));
  }
  if (branch != 0) pool->forget_branch(record.uuid);
  volumes_.erase(s.name);
  if (last) {
    co_await server_->remove_target(s.target);
    co_await target.router->close();
    targets_.erase(s.target);
  } else {
    target.units.erase(lun);
  }
  co_return Answer<void>{};
}

void RunningGroup::add_pool_part(const Volume& volume, VolumeInfo& info) const {
  const VolumeRecord& record = volume.record();
  const ServedPool* const pool = record.pool ? pools_->find(*record.pool) : nullptr;
  if (pool == nullptr || pool->pool() == nullptr) return;
  pool::PoolMap& map = pool->pool()->map();
  const pool::Branch* const branch = map.find(pool->branch_of(record.uuid));
  if (branch == nullptr) return;
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.record.volume != record.uuid) continue;
    ++info.snapshots;
    info.snapshot_bytes += kept_by(snapshot);
  }
  info.reserve_bytes = reserve_of(record);
  info.allocated_bytes = branch->pages.placed_count() * pool->record().page_bytes;
  if (!info.reason.empty()) return;
  for (const auto& [index, store] : map.stores()) {
    if (branch->pages.count_on(index) == 0 || pool->pool()->device(index) != nullptr) continue;
    info.reason = members_->refusal(store.record.uuid);
    return;
  }
}

}  // namespace sandbay::group
