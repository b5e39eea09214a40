// Pools as management sees them: listing, making and deleting them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "group/place.h"
#include "group/running_group.h"
#include "group/units.h"
#include "model/model_clock.h"
#include "pool/pool_volume.h"
#include "runtime/known.h"

namespace sandbay::group {

Refusal role_refusal() {
  return {.code = Refusal::Code::kConflict,
          .message =
              "this daemon is a member of a group: pools and volumes are made at the "
              "group's lead"};
}

Refusal no_such_pool(const std::string& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no pool \"{}\"; see the list of pools", name)};
}

// What the pools ask the group ------------------------------------------------------------------

std::shared_ptr<Volume> RunningGroup::find(const Uuid& uuid) const { return volumes_.find(uuid); }

std::vector<std::string> RunningGroup::volumes_on(const Uuid& set, bool planned_too) const {
  std::vector<std::string> names;
  for (const auto& [name, volume] : volumes_) {
    const auto& placement = volume->record().placement;
    if (placement && placement->set == set) names.push_back(name);
  }
  for (const VolumeRecord& record : planned_) {
    const bool there = record.placement && record.placement->set == set;
    const bool to_be =
        planned_too && !record.placement && members_->find_set(record.specification.raid) == set;
    if (there || to_be) names.push_back(record.specification.name);
  }
  for (const auto& leaving : leaving_) {
    if (leaving->placement.set == set) names.push_back(leaving->name + " (deleted)");
  }
  return names;
}

Pools::Owner RunningGroup::pool_owner() {
  constexpr Duration kPatience = pool::StoreStamps::kPatience;
  constexpr Duration kMost = std::chrono::minutes(1);  // The start waits for a set that hangs.
  const model::ModelClock clock(configuration_.hardware.time_scale);
  return {.volumes_on = [this](const Uuid& set) { return volumes_on(set, true); },
          .volumes_placed_on = [this](const Uuid& set) { return volumes_on(set, false); },
          .name_of_volume =
              [this](const Uuid& uuid) {
                const auto volume = find(uuid);
                return volume == nullptr ? std::string() : volume->name();
              },
          .on_space_warning =
              [this](const Uuid& uuid) {
                if (gate_.enter()) spawn(warn_of_space(uuid));
              },
          .way_before_import = [this] { return way_before_import_; },
          .stamp_patience = std::clamp(clock.real(kPatience), kPatience, kMost)};
}

Task<void> RunningGroup::warn_of_space(Uuid volume) {
  const GateHold hold(gate_);
  co_await Executor::current().yield();  // The write that was the cause goes on first.
  const auto found = find(volume);
  if (found != nullptr) co_await found->warn_of_space();
}

// Looking ---------------------------------------------------------------------------------------

PoolInfo RunningGroup::info_of(const ServedPool& pool) const {
  PoolInfo info = pools_->show(pool);
  info.declared = std::ranges::any_of(
      configuration_.pools, [&](const PoolConfiguration& one) { return one.name == info.name; });
  for (const auto& [name, volume] : volumes_) {
    if (volume->record().pool != pool.uuid()) continue;
    ++info.volumes;
    info.provisioned_bytes += volume->record().specification.size_bytes;
  }
  info.snapshots = static_cast<std::uint32_t>(std::ranges::count_if(
      snapshots_, [&](const auto& entry) { return entry.second.record.pool == pool.uuid(); }));
  return info;
}

Task<std::vector<PoolInfo>> RunningGroup::pools_now() {
  std::vector<PoolInfo> list;
  for (const auto& pool : pools_->all()) list.push_back(info_of(*pool));
  co_return list;
}

Task<std::vector<PoolInfo>> RunningGroup::list_pools() { return looking(pools_now(), {}); }

Task<Answer<PoolInfo>> RunningGroup::pool_now(std::string name) {
  const ServedPool* const pool = pools_->find(name);
  if (pool == nullptr) co_return std::unexpected(no_such_pool(name));
  co_return info_of(*pool);
}

Task<Answer<PoolInfo>> RunningGroup::show_pool(std::string name) {
  return looking(pool_now(std::move(name)));
}

// The background --------------------------------------------------------------------------------

TaskInfo RunningGroup::info_of(const ServedPool& pool, const pool::HousekeepingView& view) const {
  static constexpr std::string_view kKinds[] = {"vacate",  "sweep",   "copy",
                                                "flatten", "balance", "trim"};
  const std::uint64_t page_bytes = pool.record().page_bytes;
  TaskInfo info{.kind = std::string(kKinds[static_cast<std::size_t>(view.kind)]),
                .pool = pool.name(),
                .done_bytes = view.done_pages * page_bytes,
                .left_bytes = view.left_pages * page_bytes,
                .time_left = view.time_left,
                .stuck = view.stuck == Error::kNone ? "" : std::string(describe(view.stuck))};
  if (view.needed_pages > 0) info.stuck = pool.lacks_room(view.needed_pages, view.room_pages);
  const auto& map = pool.pool()->map();
  const auto store = map.stores().find(view.store);
  if (store != map.stores().end()) info.object = members_->name_of(store->second.record.uuid);
  const pool::Branch* const branch = view.branch != 0 ? map.find(view.branch) : nullptr;
  const auto uuid = branch != nullptr ? parse_uuid(branch->record.label) : std::nullopt;
  const auto volume = uuid ? find(*uuid) : nullptr;
  if (volume != nullptr) info.object = volume->name();
  return info;
}

Task<std::vector<TaskInfo>> RunningGroup::tasks_now() {
  std::vector<TaskInfo> list;
  for (const auto& pool : pools_->all()) {
    if (pool->housekeeper() == nullptr) continue;
    for (const auto& view : pool->housekeeper()->views()) list.push_back(info_of(*pool, view));
  }
  co_return list;
}

Task<std::vector<TaskInfo>> RunningGroup::list_tasks() { return looking(tasks_now(), {}); }

Task<PoolCheckInfo> RunningGroup::check_pool(const ServedPool* pool) {
  pool::CheckReport report = co_await pools_->check(pool);
  const bool verified = report.error == Error::kNone;
  if (!verified && report.wrong.empty()) report.wrong.push_back(unwritten(report.error));
  co_return PoolCheckInfo{.pool = pool->name(),
                          .branches = report.branches,
                          .snapshots = report.snapshots,
                          .pages = report.pages,
                          .kept_chunks = report.kept_chunks,
                          .doubtful_chunks = report.doubtful_chunks,
                          .wrong = std::move(report.wrong),
                          .verified = verified};
}

Task<std::vector<PoolCheckInfo>> RunningGroup::check_now() {
  std::vector<PoolCheckInfo> list;
  co_await changing_.lock();  // No pool comes or goes meanwhile.
  for (const auto& pool : pools_->all()) {
    PoolCheckInfo info = co_await check_pool(pool.get());
    list.push_back(std::move(info));
  }
  changing_.unlock();
  co_return list;
}

Task<std::vector<PoolCheckInfo>> RunningGroup::check_group() { return looking(check_now(), {}); }

// Making and deleting ---------------------------------------------------------------------------

Task<Answer<CreatedPool>> RunningGroup::create_pool_now(CreatePoolRequest request) {
  if (configuration_.lead) co_return std::unexpected(role_refusal());
  if (const auto error = check_volume_name(request.name)) {
    co_return refuse(Refusal::Code::kInvalid, fmt::format("name: {}", *error));
  }
  if (const auto error = check_page_bytes(request.page_bytes)) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("pool \"{}\": page: {}", request.name, *error));
  }
  if (const auto twice = named_twice(request.members)) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("pool \"{}\": members: \"{}\" occurs twice; write it once",
                                 request.name, *twice));
  }
  const std::string& first = configuration_.member;
  const ServedPool* const same = pools_->find(request.name);
  const bool first_is_free = pools_->pool_of_member(first) == nullptr ||
                             (same != nullptr && pools_->pool_of_member(first) == same);
  if (request.members.empty() && first_is_free) request.members.push_back(first);
  if (const ServedPool* const there = pools_->find(request.name)) {
    const PoolRecord& record = there->record();
    if (record.page_bytes == request.page_bytes && record.members == request.members) {
      co_return CreatedPool{.pool = info_of(*there), .created = false};
    }
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("pool \"{}\" exists already, with pages of {} and members {}; choose another "
                    "name, or ask for the same",
                    request.name, format_size(record.page_bytes), fmt::join(record.members, ", ")));
  }
  for (const std::string& member : request.members) {
    if (members_->find(member) == nullptr) {
      co_return refuse(
          Refusal::Code::kNotFound,
          fmt::format("pool \"{}\": there is no member \"{}\"; see the list of members",
                      request.name, member));
    }
    if (const ServedPool* const other = pools_->pool_of_member(member)) {
      co_return refuse(Refusal::Code::kConflict,
                       fmt::format("pool \"{}\": member \"{}\" is of pool \"{}\"; a member belongs "
                                   "to one pool",
                                   request.name, member, other->name()));
    }
  }
  if (pools_->all().size() >= kMostPools) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("pool \"{}\": there are {} pools already", request.name, pools_->all().size()));
  }
  const auto made = co_await pools_->create({.uuid = make_uuid(Executor::current().random()),
                                             .name = request.name,
                                             .members = std::move(request.members),
                                             .leaving = {},
                                             .page_bytes = request.page_bytes,
                                             .block_bytes = 0});
  if (!made) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("pool \"{}\" cannot be made: {}", request.name, made.error()));
  }
  co_return CreatedPool{.pool = info_of(**made), .created = true};
}

Task<Answer<CreatedPool>> RunningGroup::create_pool(CreatePoolRequest request) {
  return alone(lasting(create_pool_now(std::move(request))));
}

Task<Answer<void>> RunningGroup::delete_pool_now(std::string name) {
  ServedPool* const pool = pools_->find(name);
  if (pool == nullptr) co_return std::unexpected(no_such_pool(name));
  const bool in_file = std::ranges::any_of(
      configuration_.pools, [&](const PoolConfiguration& one) { return one.name == name; });
  if (in_file) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("pool \"{}\" is declared in {}, which would make it again; take it "
                    "out there and restart first",
                    name, configuration_.file));
  }
  const PoolInfo info = info_of(*pool);
  if (info.volumes != 0 || info.snapshots != 0) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("pool \"{}\" has {} volume{}; delete {} first", name, info.volumes,
                                 info.volumes == 1 ? "" : "s", info.volumes == 1 ? "it" : "them"));
  }
  const auto removed = co_await pools_->remove(pool);
  if (!removed) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("pool \"{}\" stays: {}", name, removed.error()));
  }
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::delete_pool(std::string name) {
  return alone(lasting(delete_pool_now(std::move(name))));
}

// Giving up what is lost of a map -----------------------------------------------------------------

// What was deleted since the map's checkpoint is in it again.
Task<Error> RunningGroup::forget_strays(ServedPool* pool, std::uint64_t* count) {
  std::set<Uuid> strays;
  const auto look_at = [&](const std::string& label) {
    const auto uuid = parse_uuid(label);
    const bool there =
        !uuid || find(*uuid) != nullptr || snapshots_.find(*uuid) != snapshots_.end();
    if (!there) strays.insert(known(uuid));
  };
  for (const auto& [id, branch] : pool->pool()->map().branches()) {
    if (!branch->record.dead) look_at(branch->record.label);
    for (const auto& [generation, snapshot] : branch->snapshots) look_at(snapshot.label);
  }
  for (const Uuid& uuid : strays) {
    const Error error = co_await remove_from_map(pool, {uuid}, {});
    // A snapshot may have gone with its volume.
    if (error != Error::kNone && error != Error::kNotFound) co_return error;
    pool->forget_branch(uuid);
    pool->forget_snapshot(uuid);
    ++*count;
  }
  co_return Error::kNone;
}

Task<std::string> RunningGroup::settle_size(const VolumeRecord* record) {
  const ServedPool* const pool = pools_->find(known(record->pool));
  const pool::BranchId id = pool->branch_of(record->uuid);
  if (id == 0) co_return std::string();
  const std::uint64_t wanted = record->specification.size_bytes;
  const std::uint64_t there = pool->pool()->map().find(id)->record.byte_count;
  Error error = Error::kNone;
  if (there < wanted) error = co_await pool->pool()->expand(id, wanted, {});
  if (there > wanted) error = co_await pool->pool()->shrink(id, wanted, {});
  if (error == Error::kNone) co_return std::string();
  std::string why(describe(error));
  if (error == Error::kNotReady) why = hindrance(*pool, {id}, error);
  co_return fmt::format("has {} in the map, and should have {}; it is not served until it has: {}",
                        format_size(there), format_size(wanted), why);
}

// What is not served yet: before a volume is, its size is that of its record.
Task<void> RunningGroup::settle_sizes(const ServedPool* pool, std::vector<std::string>* wrong) {
  const auto volumes = volumes_;
  for (const auto& [name, volume] : volumes) {
    if (volume->record().pool != pool->uuid() || volume->has_device()) continue;
    const std::string failed = co_await settle_size(&volume->record());
    if (!failed.empty()) wrong->push_back(fmt::format("volume {}: {}", name, failed));
  }
}

// The records are newer than the map. How many of what was deleted it had.
Task<std::uint64_t> RunningGroup::settle_with_records(ServedPool* pool,
                                                      std::vector<std::string>* wrong) {
  std::uint64_t forgotten = 0;
  std::vector<std::string> notes;
  Error error = co_await forget_strays(pool, &forgotten);
  if (error == Error::kNone) error = co_await pools_->settle_stores(pool, &notes);
  if (error != Error::kNone && error != Error::kNotReady) {
    wrong->push_back("deleted objects have come back: " + unwritten(error));
  }
  co_await settle_sizes(pool, wrong);
  if (wrong->empty() && error == Error::kNone) {
    error = co_await pools_->note_disagreement(pool, false);
    if (error != Error::kNone) wrong->push_back(unwritten(error));
  }
  std::ranges::move(notes, std::back_inserter(*wrong));
  co_return forgotten;
}

// What the daemon ended in the middle of, or could not do: at the start, and every second.
Task<Answer<void>> RunningGroup::settle_pools() {
  for (const auto& pool : pools_->all()) {
    if (!pool->record().disagrees || pool->pool() == nullptr) continue;
    std::vector<std::string> wrong;
    (void)co_await settle_with_records(pool.get(), &wrong);
    const bool settled = !pool->record().disagrees;
    if (settled) {
      wrong.insert(wrong.begin(),
                   "what was lost of its map is given up, and the rest agrees with the records: "
                   "what is on its volumes may be older, or another's");
    }
    const std::string found = fmt::format("{}", fmt::join(wrong, "; "));
    std::string& told = unsettled_[pool->uuid()];
    if (told == found) continue;
    events_.add({.severity = Severity::kWarning,
                 .kind = "pool map",
                 .text = fmt::format("pool {}: {}", pool->name(), found)});
    told = settled ? std::string() : found;
  }
  co_return Answer<void>{};
}

// Volumes and snapshots that have a record and nothing else.
std::vector<std::string> RunningGroup::missing_of(const ServedPool& pool) const {
  std::vector<std::string> missing;
  for (const auto& [name, volume] : volumes_) {
    if (volume->record().pool != pool.uuid()) continue;
    if (pool.branch_of(volume->uuid()) == 0) {
      missing.push_back(name);
      continue;
    }
    for (const Snapshot* const one : snapshots_.of(volume->uuid())) {
      if (pool.snapshot_of(one->record.uuid)) continue;
      missing.push_back(fmt::format("{}/{}", name, one->record.name));
    }
  }
  return missing;
}

Task<Answer<DiscardedMap>> RunningGroup::discard_map_now(std::string name, std::string confirmed) {
  ServedPool* const pool = pools_->find(name);
  if (pool == nullptr) co_return std::unexpected(no_such_pool(name));
  if (confirmed != name) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("changes of the map of pool {} would be lost for good; to confirm "
                                 "it write its name once more",
                                 name));
  }
  if (pool->loss().empty()) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("pool \"{}\" {}; there is nothing to give up", name,
                                 pool->pool() != nullptr
                                     ? "is open, with its whole map"
                                     : "is not open for another reason: " + pool->failure()));
  }
  DiscardedMap given{.reason = pool->loss(), .missing = {}, .forgotten = 0, .check = {}};
  const Error noted = co_await pools_->note_disagreement(pool, true);
  if (noted != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("pool \"{}\" stays as it is: {}", name, unwritten(noted)));
  }
  co_await pools_->open_without(pool, {.lost_changes = true});
  if (pool->pool() == nullptr) {
    co_return refuse(
        Refusal::Code::kFailed,
        fmt::format("pool \"{}\" cannot be opened without them: {}", name, pool->failure()));
  }
  events_.add({.severity = Severity::kWarning,
               .kind = "pool map",
               .text = fmt::format("pool {}: {}; they are given up, as somebody has asked for: "
                                   "what is on its volumes may be older, or another's",
                                   name, given.reason)});
  std::vector<std::string> wrong;
  given.forgotten = co_await settle_with_records(pool, &wrong);
  given.check = co_await check_pool(pool);
  std::ranges::move(wrong, std::back_inserter(given.check.wrong));
  given.missing = missing_of(*pool);
  co_return given;
}

Task<Answer<DiscardedMap>> RunningGroup::discard_map(std::string pool, std::string confirmed) {
  return alone(lasting(discard_map_now(std::move(pool), std::move(confirmed))));
}

Task<Answer<DiscardedMap>> RunningGroup::accept_older_map_now(std::string name,
                                                              std::string confirmed) {
  ServedPool* const pool = pools_->find(name);
  if (pool == nullptr) co_return std::unexpected(no_such_pool(name));
  if (confirmed != name) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("pool {}: its data on sets that are newer than its map would be "
                                 "lost for good; repeat the pool's name to confirm",
                                 name));
  }
  DiscardedMap given{.reason = pool->older_map(), .missing = {}, .forgotten = 0, .check = {}};
  if (given.reason.empty()) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("pool {}: its map is not older than its sets; there is nothing to "
                                 "accept{}",
                                 name, pool->failure().empty() ? "" : ": " + pool->failure()));
  }
  co_await pools_->open_without(pool, {.newer_map = true});
  const std::string left = pool->pool() == nullptr ? pool->failure() : pool->older_map();
  if (!left.empty()) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("pool {}: its older map cannot be used: {}", name, left));
  }
  given.check = co_await check_pool(pool);
  events_.add({.severity = Severity::kWarning,
               .kind = "pool map",
               .text = fmt::format("pool {}: its older map is used, as the operator asked: {} "
                                   "chunks are in doubt, and are medium errors until they are "
                                   "written as a whole or unmapped",
                                   name, given.check.doubtful_chunks)});
  co_return given;
}

Task<Answer<DiscardedMap>> RunningGroup::accept_older_map(std::string pool, std::string confirmed) {
  return alone(lasting(accept_older_map_now(std::move(pool), std::move(confirmed))));
}

}  // namespace sandbay::group
