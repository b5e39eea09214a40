// Pool: opening, stores, making and removing branches.
#include "pool/pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "pool/log_name.h"
#include "pool/pool_volume.h"

namespace sandbay::pool {

namespace {

// Requests after which a store's latency is believed; what is faster than that is all the same; and
// how much worse than the fastest a store is taken for.
constexpr std::uint64_t kLeastMeasured = 256;
constexpr double kLeastLatency = 20'000;
constexpr double kMostRelativeLatency = 16;
// A step of the background takes less, unless a drive hangs.
constexpr Duration kBackgroundPatience = std::chrono::seconds(60);

}  // namespace

Pool::Pool(Executor& home, metadata::Store& store, nvram::Region* region, PoolOptions options)
    : home_(home),
      store_(store),
      options_(std::move(options)),
      copies_(home, options_.copy_bytes),
      zeros_(copies_.try_allocate_contiguous(kChunkBytes)),
      map_(store, options_.map),
      doubtful_(map_),
      stamps_(home, map_, copies_,
              {.device = [this](StoreIndex index) { return device(index); },
               .drop = [this](StoreIndex index) { set_device(index, nullptr); },
               .doubt =
                   [this](StoreIndex index, metadata::Batch batch) {
                     return doubtful_.add(index, std::move(batch));
                   },
               .tell_lost =
                   [this](StoreIndex index) {
                     tell({.kind = PoolEvent::Kind::kStampLost,
                           .store = index,
                           .error = Error::kMediumError});
                   },
               .patience = options_.stamp_patience}),
      log_(home, map_, store, region, options_.log) {
  log_.guard_places(stamps_);
  assert(!zeros_.empty());
  std::ranges::fill(zeros_.bytes(), std::byte{0});
  map_.on_damage = [this](const std::string& key) {
    tell({.kind = PoolEvent::Kind::kMapDamage, .error = Error::kDataCorrupt, .key = key});
  };
}

Pool::~Pool() { assert(volumes_.empty() && snapshot_volumes_.empty()); }

Task<std::expected<std::unique_ptr<Pool>, std::string>> Pool::open(
    Executor& home, metadata::Store& store, nvram::Region* region, PoolOptions options,
    std::vector<StoreConfig> stores) {
  assert(&store.home() == &home);
  std::unique_ptr<Pool> pool(new Pool(home, store, region, std::move(options)));
  for (const StoreConfig& one : stores) {
    const std::string wrong = pool->why_unfit(one);
    if (!wrong.empty()) co_return std::unexpected(wrong);
  }
  std::string wrong = co_await pool->map_.load();
  if (wrong.empty()) wrong = co_await pool->stamps_.load();
  if (wrong.empty()) wrong = co_await pool->doubtful_.load();
  if (wrong.empty()) wrong = co_await pool->log_.open();
  if (wrong.empty()) wrong = co_await pool->take_stores(std::move(stores));
  if (wrong.empty()) co_return std::move(pool);
  co_await pool->stop();
  co_return std::unexpected(wrong);
}

std::string Pool::why_unfit(const StoreConfig& store) const {
  if (store.record.index == kNoStore) return "a store without a number";
  if (store.device == nullptr) return {};
  if (&store.device->home() != &home_) {
    return fmt::format("store {} lives on another executor", store.record.index);
  }
  const Geometry& geometry = store.device->geometry();
  if (options_.block_bytes % geometry.block_bytes != 0) {
    return fmt::format("store {} has blocks of {} bytes; volumes of this pool have {}",
                       store.record.index, geometry.block_bytes, options_.block_bytes);
  }
  const std::uint64_t pages = geometry.block_count * geometry.block_bytes / map_.page_bytes();
  if (store.record.page_count > pages) {
    return fmt::format("store {} has room for {} pages, and should have {}", store.record.index,
                       pages, store.record.page_count);
  }
  return {};
}

Task<std::string> Pool::take_stores(std::vector<StoreConfig> stores) {
  for (StoreConfig& store : stores) {
    const auto known = map_.stores().find(store.record.index);
    if (known != map_.stores().end() && known->second.record.uuid != store.record.uuid) {
      co_return fmt::format("store {} is another one than the map knows", store.record.index);
    }
    // Its size depends on the pages, which only the map knows for certain.
    std::string wrong = why_unfit(store);
    if (!wrong.empty()) co_return wrong;
    const StoreIndex index = store.record.index;
    const Error error = co_await put_store(std::move(store), {});
    if (error != Error::kNone) {
      co_return fmt::format("store {}: {}", index,
                            error == Error::kMiscompare
                                ? "its pages may have other owners: the map is older than it"
                                : describe(error));
    }
  }
  co_return std::string();
}

Task<bool> Pool::end_flushes(TimePoint deadline) {
  const bool ended = co_await flushes_.close_until(deadline);
  const bool stamped = co_await stamps_.close_until(deadline);
  co_return (ended && stamped);
}

Task<Error> Pool::close() {
  (void)co_await end_flushes(kNever);
  co_return co_await log_.close();
}

Task<void> Pool::stop() {
  (void)co_await end_flushes(kNever);
  co_await log_.stop();
}

void Pool::tell(PoolEvent event) {
  if (observer_) observer_(event);
}

Task<Error> Pool::commit(std::vector<MapRecord> records, metadata::Batch extra) {
  // A group in the store is of no use without those before it.
  Error error = co_await log_.secure();
  if (error == Error::kNone) error = co_await log_.commit(std::move(records), std::move(extra));
  if (error != Error::kNone) tell({.kind = PoolEvent::Kind::kMapFailure, .error = error});
  co_return error;
}

// Stores ----------------------------------------------------------------------------------------

void Pool::place_device(StoreIndex store, BlockDevice* device) {
  if (store >= devices_.size()) devices_.resize(store + 1U);
  if (devices_[store] != device) silent_until_.erase(store);
  devices_[store] = device;
}

void Pool::set_device(StoreIndex store, BlockDevice* device) {
  arriving_.erase(store);
  place_device(store, device);
}

Task<Error> Pool::admit(StoreIndex store, BlockDevice* device, OlderMap older) {
  const auto known = map_.stores().find(store);
  if (known == map_.stores().end()) co_return Error::kNotFound;
  arriving_[store] = device;
  const StoreRecord record = known->second.record;
  bool placed = false;
  const Error error = co_await stamps_.admit(record, device, older, [&] {
    const auto arriving = arriving_.find(store);
    const auto now = map_.stores().find(store);
    placed = arriving != arriving_.end() && arriving->second == device &&
             now != map_.stores().end() && now->second.record.uuid == record.uuid;
    if (placed) place_device(store, device);
  });
  const auto arriving = arriving_.find(store);
  if (arriving != arriving_.end() && arriving->second == device) arriving_.erase(arriving);
  if (error == Error::kNone && !placed) co_return Error::kCancelled;
  co_return error;
}

void Pool::set_latency(StoreIndex store, double relative) {
  assert(relative > 0);
  weights_[store].latency = relative;
}

double Pool::latency(StoreIndex store) const noexcept {
  const auto known = weights_.find(store);
  return known == weights_.end() ? 1 : known->second.latency;
}

StoreLoad Pool::load(StoreIndex store) const noexcept {
  return store < loads_.size() ? loads_[store] : StoreLoad{};
}

void Pool::weigh_by_latency() {
  double fastest = 0;
  for (const auto& [index, store] : map_.stores()) {
    const StoreLoad load = this->load(index);
    if (load.requests < kLeastMeasured || !may_allocate_on(index)) continue;
    const double latency = std::max(load.latency_nanoseconds, kLeastLatency);
    fastest = fastest == 0 ? latency : std::min(fastest, latency);
  }
  for (const auto& [index, store] : map_.stores()) {
    const StoreLoad load = this->load(index);
    if (load.requests < kLeastMeasured || fastest == 0) continue;
    const double latency = std::max(load.latency_nanoseconds, kLeastLatency);
    set_latency(index, std::clamp(latency / fastest, 1.0, kMostRelativeLatency));
  }
}

Task<Error> Pool::put_store(StoreConfig store, metadata::Batch extra) {
  Error error = co_await compare_stamp(&store);
  if (error != Error::kNone) co_return error;
  co_await directory_.lock();
  error = co_await put_store_locked(std::move(store), std::move(extra));
  directory_.unlock();
  co_return error;
}

namespace {

// With as many pages.
bool knows(const PoolMap& map, const StoreRecord& store) {
  const auto known = map.stores().find(store.index);
  return known != map.stores().end() && known->second.record.uuid == store.uuid &&
         known->second.record.page_count == store.page_count;
}

}  // namespace

Task<Error> Pool::compare_stamp(const StoreConfig* store) {
  const StoreRecord& record = store->record;
  if (store->device == nullptr || !why_unfit(*store).empty()) co_return Error::kNone;
  if (knows(map_, record)) {
    if (device(record.index) == store->device) co_return Error::kNone;
    co_return co_await admit(record.index, store->device, OlderMap::kRefuse);
  }
  co_return co_await stamps_.admit(record, store->device, OlderMap::kRefuse, [] {});
}

// A known store without more pages may have lost its device since its stamp was compared.
Task<Error> Pool::put_store_locked(StoreConfig store, metadata::Batch extra) {
  const bool known_as_it_is = knows(map_, store.record);
  if (!why_unfit(store).empty()) co_return Error::kInvalid;
  const auto known = map_.stores().find(store.record.index);
  if (known != map_.stores().end()) {
    const StoreRecord& record = known->second.record;
    if (store.record.page_count < record.page_count) co_return Error::kInvalid;
    if (record == store.record && extra.empty()) co_return Error::kNone;
  }
  const Error error = co_await commit({store.record}, std::move(extra));
  if (error == Error::kNone && !known_as_it_is) place_device(store.record.index, store.device);
  co_return error;
}

StoreIndex Pool::free_store_index() const {
  std::set<StoreIndex> taken;
  for (const auto& [index, store] : map_.stores()) taken.insert(index);
  for (const auto& [id, branch] : map_.branches()) taken.insert(branch->record.fixed_store);
  StoreIndex index = 0;
  while (taken.contains(index)) ++index;
  return index;
}

Task<Error> Pool::remove_store(StoreIndex store, metadata::Batch extra) {
  co_await directory_.lock();
  Error error = Error::kNotFound;
  const auto known = map_.stores().find(store);
  if (known != map_.stores().end()) {
    const FreePages& pages = known->second.pages;
    // Nobody may claim a page of it meanwhile: it is vacating.
    const bool idle = pages.free_count() == pages.page_count() &&
                      known->second.record.state == StoreState::kVacating;
    error = Error::kNotReady;
    if (idle) {
      doubtful_.erase(store, &extra);
      error = co_await commit({EraseStore{.index = store}}, std::move(extra));
    }
    if (error == Error::kNone) forget_store(store);
  }
  directory_.unlock();
  co_return error;
}

// The next store of that number must not inherit its history.
void Pool::forget_store(StoreIndex store) {
  place_device(store, nullptr);
  doubtful_.forget(store);
  weights_.erase(store);
  silent_until_.erase(store);
  if (store < loads_.size()) loads_[store] = {};
}

void Pool::forget_log(std::span<metadata::Entry> entries) const {
  const auto entry = std::ranges::find(entries, map_.key('c'), &metadata::Entry::first);
  if (entry != entries.end()) (void)rename_log(&*entry, Uuid{});
}

namespace {

// After a check has begun to watch the map.
Task<void> release_later(Executor* home, MapLog* log) {
  co_await home->yield();
  log->release();
}

}  // namespace

// True: nothing goes on in the background until background_.open(). False: a step hangs.
Task<bool> Pool::close_background() {
  background_.close();
  const bool quiet = co_await background_.wait_until_empty(home_.now() + kBackgroundPatience);
  if (quiet) co_return true;
  background_.open();
  tell({.kind = PoolEvent::Kind::kWritesHang, .error = Error::kTimedOut});
  co_return false;
}

Task<CheckReport> Pool::check() {
  CheckReport report{.error = Error::kTimedOut};
  const bool quiet = co_await close_background();
  if (!quiet) co_return report;
  co_await directory_.lock();
  // The check lists kept versions in the store. Later changes must not escape its watch, so the log
  // is held until the check has begun.
  const Error error = co_await log_.hold();
  if (error == Error::kNone) {
    spawn(release_later(&home_, &log_));
    report = co_await check_map(&map_, &doubtful_);
  }
  report.error = error;
  directory_.unlock();
  background_.open();
  co_return report;
}

PoolSpace Pool::space() const {
  PoolSpace space;
  for (const auto& [index, store] : map_.stores()) {
    space.pages += store.pages.page_count();
    space.free_pages += store.pages.free_count();
  }
  space.reserve_pages = map_.slots().page_count();
  space.kept_slots = map_.slots().used_count();
  return space;
}

PoolSpace Pool::space(StoreIndex store) const {
  const auto known = map_.stores().find(store);
  if (known == map_.stores().end()) return {};
  return {.pages = known->second.pages.page_count(),
          .free_pages = known->second.pages.free_count()};
}

// Branches ----------------------------------------------------------------------------------------

Branch* Pool::find_live(BranchId id) const {
  Branch* const branch = map_.find(id);
  return branch != nullptr && !branch->record.dead ? branch : nullptr;
}

bool Pool::has(SnapshotKey snapshot) const noexcept {
  const Branch* const branch = map_.find(snapshot.branch);
  return branch != nullptr && std::ranges::binary_search(branch->living, snapshot.generation);
}

std::unique_ptr<PoolVolume> Pool::attach(BranchId id, Generation generation) {
  Branch* const branch = map_.find(id);
  if (branch == nullptr) return nullptr;
  if (generation == kLive) {
    if (branch->record.dead || volumes_.contains(id)) return nullptr;
    auto volume = std::make_unique<PoolVolume>(*this, *branch, generation);
    volumes_[id] = volume.get();
    return volume;
  }
  if (!branch->snapshots.contains(generation)) return nullptr;
  auto volume = std::make_unique<PoolVolume>(*this, *branch, generation);
  snapshot_volumes_.push_back(volume.get());
  return volume;
}

void Pool::detach(PoolVolume& volume) {
  if (volume.read_only()) {
    std::erase(snapshot_volumes_, &volume);
  } else {
    volumes_.erase(volume.branch().id());
  }
}

Task<Result<BranchId>> Pool::create(BranchOptions options, metadata::Batch extra) {
  co_await directory_.lock();
  const auto made = co_await create_locked(std::move(options), std::move(extra));
  directory_.unlock();
  co_return made;
}

Task<Result<BranchId>> Pool::create_locked(BranchOptions options, metadata::Batch extra) {
  if (options.byte_count == 0 || options.byte_count % options_.block_bytes != 0 ||
      options.byte_count > kMostBranchBytes || options.label.size() > kLongestLabel) {
    co_return std::unexpected(Error::kInvalid);
  }
  BranchRecord record{.id = map_.claim_branch(),
                      .byte_count = options.byte_count,
                      .thick = options.thick,
                      .placement = options.placement,
                      .fixed_store = options.fixed_store,
                      .page_limit = options.page_limit,
                      .page_warning = options.page_warning,
                      .label = std::move(options.label)};
  const BranchId id = record.id;
  const Error error = co_await provision(std::move(record), 0, std::move(extra));
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return id;
}

Task<Error> Pool::remove(BranchId branch, metadata::Batch extra) {
  return remove_all({.branches = {branch}, .snapshots = {}}, std::move(extra));
}

Task<Error> Pool::remove_snapshot(SnapshotKey snapshot, metadata::Batch extra) {
  return remove_all({.branches = {}, .snapshots = {snapshot}}, std::move(extra));
}

Task<Error> Pool::remove_all(Removal removal, metadata::Batch extra) {
  assert(removal.branches.size() + removal.snapshots.size() <= kMostRemoved);
  co_await directory_.lock();
  const Error error = co_await remove_locked(std::move(removal), std::move(extra));
  directory_.unlock();
  co_return error;
}

Error Pool::hindrance(const Removal& removal) const {
  for (const BranchId id : removal.branches) {
    if (map_.find(id) == nullptr) return Error::kNotFound;
    const bool shown = std::ranges::any_of(
        snapshot_volumes_, [id](const PoolVolume* volume) { return volume->branch().id() == id; });
    if (volumes_.contains(id) || shown) return Error::kNotReady;
  }
  for (const SnapshotKey& key : removal.snapshots) {
    const Branch* const branch = map_.find(key.branch);
    if (branch == nullptr || !branch->snapshots.contains(key.generation)) return Error::kNotFound;
    const bool shown = std::ranges::any_of(snapshot_volumes_, [&](const PoolVolume* volume) {
      return &volume->branch() == branch && volume->generation() == key.generation;
    });
    if (shown) return Error::kNotReady;
  }
  return Error::kNone;
}

Task<Error> Pool::remove_locked(Removal removal, metadata::Batch extra) {
  const Error hindered = hindrance(removal);
  if (hindered != Error::kNone) co_return hindered;
  std::set<SnapshotKey> snapshots(removal.snapshots.begin(), removal.snapshots.end());
  std::map<BranchId, BranchRecord> changed;
  for (const BranchId id : removal.branches) {
    const Branch& branch = *map_.find(id);
    for (const auto& [generation, snapshot] : branch.snapshots) {
      snapshots.insert({.branch = id, .generation = generation});
    }
    changed[id] = branch.record;
    changed[id].dead = true;
  }
  std::vector<MapRecord> records;
  for (const SnapshotKey& key : snapshots) {
    records.emplace_back(EraseSnapshot{.branch = key.branch, .generation = key.generation});
    if (!changed.contains(key.branch)) changed[key.branch] = map_.find(key.branch)->record;
  }
  for (auto& [id, record] : changed) {
    record.sweeping = true;
    records.emplace_back(std::move(record));
  }
  co_return co_await commit(std::move(records), std::move(extra));
}

Task<Error> Pool::expand(BranchId branch, std::uint64_t byte_count, metadata::Batch extra) {
  co_await directory_.lock();
  const Error error = co_await expand_locked(branch, byte_count, std::move(extra));
  directory_.unlock();
  co_return error;
}

Task<Error> Pool::expand_locked(BranchId id, std::uint64_t byte_count, metadata::Batch extra) {
  const Branch* const branch = find_live(id);
  if (branch == nullptr) co_return Error::kNotFound;
  if (byte_count < branch->record.byte_count || byte_count % options_.block_bytes != 0 ||
      byte_count > kMostBranchBytes) {
    co_return Error::kInvalid;
  }
  BranchRecord record = branch->record;
  const PageNumber first = map_.page_count_of(*branch);
  record.byte_count = byte_count;
  co_return co_await provision(std::move(record), first, std::move(extra));
}

Task<Error> Pool::shrink(BranchId branch, std::uint64_t byte_count, metadata::Batch extra) {
  // Nothing moves a page to another place behind the new end.
  const bool quiet = co_await close_background();
  if (!quiet) co_return Error::kTimedOut;
  co_await directory_.lock();
  const Error error = co_await shrink_locked(branch, byte_count, std::move(extra));
  directory_.unlock();
  background_.open();
  co_return error;
}

Task<Error> Pool::shrink_locked(BranchId id, std::uint64_t byte_count, metadata::Batch extra) {
  Branch* const branch = find_live(id);
  if (branch == nullptr) co_return Error::kNotFound;
  const std::uint64_t now = branch->record.byte_count;
  if (byte_count == 0 || byte_count > now || byte_count % options_.block_bytes != 0) {
    co_return Error::kInvalid;
  }
  // What lies behind the end goes first, as if it were unmapped.
  const auto attached = volumes_.find(id);
  std::unique_ptr<PoolVolume> own;
  if (attached == volumes_.end()) own = attach(id);
  PoolVolume* const volume = own != nullptr ? own.get() : attached->second;
  const std::uint32_t block = options_.block_bytes;
  const Extent tail{.first = byte_count / block, .block_count = (now - byte_count) / block};
  // No rate limit of a host holds up what the administrator wants.
  const Completion unmapped =
      co_await volume->perform({.operation = Operation::kUnmap, .extent = tail}, volume->content_);
  if (unmapped.error != Error::kNone) co_return unmapped.error;
  const Duration patience = co_await find_patience(branch);
  // Hosts wait at the door for the pages only, not for a store that is slow to be stamped.
  Error error = co_await stamps_.settle();
  if (error != Error::kNone) co_return error;
  branch->door.close();
  const bool empty = co_await branch->door.wait_until_empty(home_.now() + patience);
  error = Error::kTimedOut;
  if (empty) {
    // Hosts may have written there since. The zeros in the last chunk become durable before the new
    // size: a later expansion shows them.
    const Request again{.operation = Operation::kUnmap, .force_unit_access = true, .extent = tail};
    error = co_await volume->deallocate_inside(&again);
  } else {
    tell({.kind = PoolEvent::Kind::kWritesHang, .branch = id, .error = error});
  }
  BranchRecord record = branch->record;
  record.byte_count = byte_count;
  if (error == Error::kNone) {
    error = co_await cut_off(branch, std::move(record), std::move(extra));
  }
  branch->door.open();
  co_return error;
}

// The door is closed, and no page behind the new end has data. If a group can hold them, their
// places are free at once, otherwise when the branch is swept.
Task<Error> Pool::cut_off(Branch* branch, BranchRecord record, metadata::Batch extra) {
  PageNumber next = map_.page_count(record.byte_count);
  std::vector<MapRecord> records = tail_of(*branch, &next);
  if (next != kNoPage) {
    records.clear();
    record.sweeping = true;
  }
  records.emplace_back(std::move(record));
  co_return co_await commit(std::move(records), std::move(extra));
}

// A group of records that take their places from pages without data, from *next on. Afterwards
// *next is the page to go on with; kNoPage: no more. The state of a page stays: zeros do not become
// the parent's.
std::vector<MapRecord> Pool::tail_of(const Branch& branch, PageNumber* next) const {
  std::vector<MapRecord> records;
  PageNumber page = branch.pages.next(*next, kNoPage);
  for (std::uint32_t looked = 0; page != kNoPage && looked < options_.group_pages; ++looked) {
    const PageEntry entry = branch.pages.at(page);
    assert(entry.state != PageState::kData);
    auto* const last = records.empty() ? nullptr : std::get_if<PlacePages>(&records.back());
    if (entry.place().none()) {
      // Nothing to take.
    } else if (last != nullptr && last->page + last->count == page) {
      ++last->count;
    } else {
      records.emplace_back(PlacePages{.branch = branch.id(), .page = page, .place = {}});
    }
    page = branch.pages.next(page + 1, kNoPage);
  }
  *next = page;
  return records;
}

Task<Error> Pool::set_limits(BranchId id, std::uint64_t page_limit, std::uint64_t page_warning,
                             metadata::Batch extra) {
  co_await directory_.lock();
  Error error = Error::kNotFound;
  const Branch* const branch = find_live(id);
  if (branch != nullptr) {
    BranchRecord record = branch->record;
    record.page_limit = page_limit;
    record.page_warning = page_warning;
    error = co_await commit({std::move(record)}, std::move(extra));
  }
  directory_.unlock();
  co_return error;
}

}  // namespace sandbay::pool
