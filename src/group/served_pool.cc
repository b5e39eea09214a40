// Opening a pool, its stores, and what it tells.
#include "group/served_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "group/units.h"
#include "pool/pool_volume.h"

namespace sandbay::group {

namespace {

constexpr std::uint64_t kRegionBytes = std::uint64_t{1} << 20;
static_assert(kRegionBytes >= pool::MapLog::kLeastRegionBytes);
// Between two events of one kind about one volume.
constexpr Duration kBetweenEvents = std::chrono::minutes(1);
// Between two attempts to change a map that could not be changed.
constexpr Duration kLookAtMap = std::chrono::seconds(10);
constexpr std::string_view kOlderMap =
    "the pool's map is older than it: pages that the map has there may belong to others now; "
    "import a newer export of the group";
constexpr std::string_view kInsist = "sandbay pool accept-older-map {} --yes-lose-data";
constexpr std::string_view kHangs =
    "a snapshot, restore, shrink or check was given up: I/O to its sets takes too long; see the "
    "list "
    "of drives, and try again";

}  // namespace

std::string region_name(const Uuid& pool) {
  return std::string(kRegionPrefix) + format_uuid(pool).substr(0, 8);
}

ServedPool::ServedPool(Executor& home, metadata::Store& store, EventLog& events, PoolRecord record,
                       Duration stamp_patience)
    : home_(home),
      store_(store),
      events_(events),
      record_(std::move(record)),
      stamp_patience_(stamp_patience) {}

ServedPool::~ServedPool() { assert(pool_ == nullptr && region_ == nullptr); }

// Without room in the NVRAM the map is logged in the metadata, which is slower and as good.
Task<std::string> ServedPool::claim_region(nvram::Nvram* nvram) {
  const std::string name = region_name(record_.uuid);
  std::uint64_t bytes = kRegionBytes;
  for (const nvram::RegionState& region : nvram->regions()) {
    if (region.name == name) bytes = region.byte_count;
  }
  auto claimed = co_await nvram->claim(name, bytes);
  if (!claimed.has_value()) co_return claimed.error();
  region_ = std::move(*claimed);
  co_return std::string();
}

Task<void> ServedPool::open(nvram::Nvram* nvram, bool mirrored, GivenUp given_up) {
  // It has the region, and why it is not open has not changed.
  if (ending_) co_return;
  assert(pool_ == nullptr);
  mirrored_ = mirrored;
  const std::string before = failure_;
  if (nvram != nullptr) {
    const std::string wrong = co_await claim_region(nvram);
    if (!wrong.empty() && before.empty()) {
      events_.add({.severity = Severity::kWarning,
                   .kind = "pool",
                   .text = fmt::format("pool {}: its map has no place in the NVRAM, and is kept in "
                                       "the metadata alone: {}",
                                       name(), wrong)});
    }
  }
  older_map_.clear();
  failure_ = co_await open_map(given_up.lost_changes);
  if (given_up.newer_map) older_ = pool::OlderMap::kAccept;
  if (failure_.empty()) failure_ = co_await compare_stamps();
  older_ = pool::OlderMap::kRefuse;
  loss_ = pool::MapLog::is_loss(failure_) ? failure_ : "";
  if (!loss_.empty()) {
    failure_ += fmt::format(
        "; if they cannot be brought back, give them up: sandbay pool discard {} --yes-lose-data",
        name());
  }
  if (failure_.empty() && !before.empty()) {
    events_.add({.kind = "pool", .text = fmt::format("pool {}: is open now", name())});
  }
  if (failure_.empty()) co_return;
  if (!ending_) region_.reset();
  if (failure_ == before) co_return;
  events_.add({.severity = Severity::kError,
               .kind = "pool failed",
               .text = fmt::format("pool {}: cannot be opened: {}", name(), failure_)});
}

Task<std::string> ServedPool::open_map(bool accept_loss) {
  pool::PoolOptions options;
  options.stamp_patience = stamp_patience_;
  options.log.accept_loss = accept_loss;
  // The mirror has no copy of the map's log, so the map must not need the NVRAM.
  options.log.only_replay_nvram = mirrored_;
  options.map.prefix = map_prefix(record_.uuid);
  options.map.page_chunks = static_cast<std::uint32_t>(record_.page_bytes / pool::kChunkBytes);
  if (record_.block_bytes != 0) options.block_bytes = record_.block_bytes;
  auto opened = co_await pool::Pool::open(home_, store_, region_.get(), std::move(options), {});
  if (!opened.has_value()) co_return opened.error();
  if ((*opened)->map().page_bytes() != record_.page_bytes) {
    co_await (*opened)->stop();
    co_return "its map has pages of another size than its record says";
  }
  pool_ = std::move(*opened);
  pool_->observe([this](const pool::PoolEvent& event) { on_event(event); });
  learn_labels();
  housekeeper_ = std::make_unique<pool::Housekeeper>(*pool_, pool::HousekeepingOptions{});
  co_return std::string();
}

// The older map of an import must not be used, so the pool is not open then.
Task<std::string> ServedPool::compare_stamps() {
  refused_.clear();
  (void)co_await find_and_compare(home_.now() + stamp_patience_);
  older_map_ = older_map();
  if (older_map_.empty()) co_return std::string();
  ending_ = true;
  spawn(end_unused());
  (void)co_await wait_for_end(home_.now() + stamp_patience_);
  co_return older_map_;
}

// A set that hangs holds it up, and nothing else.
Task<void> ServedPool::end_unused() {
  (void)co_await end(true, kNever);
  ending_ = false;
  arrived_.notify_all();
}

Task<bool> ServedPool::wait_for_end(TimePoint deadline) {
  bool in_time = true;
  while (ending_ && in_time) in_time = co_await arrived_.wait_until(deadline);
  co_return !ending_;
}

Task<bool> ServedPool::find_and_compare(TimePoint deadline) {
  if (find_devices) find_devices();
  bool in_time = true;
  while (!arriving_.empty() && in_time) in_time = co_await arrived_.wait_until(deadline);
  co_return in_time;
}

Task<void> ServedPool::accept_older_map() {
  assert(pool_ != nullptr);
  std::erase_if(refused_, [](const auto& one) { return one.second == Error::kMiscompare; });
  older_ = pool::OlderMap::kAccept;
  (void)co_await find_and_compare(home_.now() + stamp_patience_);
  older_ = pool::OlderMap::kRefuse;
}

std::optional<pool::StoreIndex> ServedPool::newer_store() const {
  const auto newer = std::ranges::find(refused_, Error::kMiscompare,
                                       &std::pair<const pool::StoreIndex, Error>::second);
  if (newer == refused_.end()) return std::nullopt;
  return newer->first;
}

std::string ServedPool::older_map() const {
  if (pool() == nullptr) return older_map_;
  const std::optional<pool::StoreIndex> newer = newer_store();
  if (!newer.has_value()) return {};
  return fmt::format("set {}: {}", words_of_store(*newer), words_on_older_map());
}

std::string ServedPool::words_on_older_map() const {
  return fmt::format("{}, or give up all of the pool's data on it: {}{}", kOlderMap,
                     fmt::format(kInsist, name()),
                     way_before_import ? way_before_import() : std::string());
}

Task<bool> ServedPool::close(bool quiet, TimePoint deadline) {
  bool ended = co_await wait_for_end(deadline);
  if (ended) ended = co_await end(quiet, deadline);
  co_return ended;
}

Task<bool> ServedPool::end(bool quiet, TimePoint deadline) {
  if (housekeeper_ != nullptr) {
    const bool ended = co_await housekeeper_->stop(deadline);
    if (!ended) {
      (void)housekeeper_.release();
      quiet = false;
      events_.add({.severity = Severity::kWarning,
                   .kind = "pool",
                   .text = fmt::format("pool {}: a set holds what was moved or copied in the "
                                       "background; it is left behind, and goes on with the next "
                                       "start",
                                       name())});
    }
  }
  housekeeper_.reset();
  bool in_time = true;
  while (!arriving_.empty() && in_time) in_time = co_await arrived_.wait_until(deadline);
  quiet = quiet && arriving_.empty();
  if (quiet && pool_ != nullptr) quiet = co_await pool_->end_flushes(deadline);
  if (!quiet) {
    // Somebody still has a volume of it.
    (void)pool_.release();
    (void)region_.release();
    co_return false;
  }
  if (pool_ != nullptr) {
    const Error error = co_await pool_->close();
    if (error != Error::kNone) {
      events_.add({.severity = Severity::kWarning,
                   .kind = "pool",
                   .text = fmt::format("pool {}: its map is not brought together: {}; the next "
                                       "start does that",
                                       name(), describe(error))});
    }
    pool_.reset();
  }
  region_.reset();
  co_return true;
}

// Labels ------------------------------------------------------------------------------------------

void ServedPool::learn_labels() {
  branches_.clear();
  snapshots_.clear();
  for (const auto& [id, branch] : pool_->map().branches()) {
    const auto uuid = parse_uuid(branch->record.label);
    if (uuid && !branch->record.dead) branches_[*uuid] = id;
    for (const auto& [generation, snapshot] : branch->snapshots) {
      const auto label = parse_uuid(snapshot.label);
      if (label) snapshots_[*label] = {.branch = id, .generation = generation};
    }
  }
}

pool::BranchId ServedPool::branch_of(const Uuid& uuid) const {
  const auto found = branches_.find(uuid);
  return found == branches_.end() ? 0 : found->second;
}

std::optional<pool::SnapshotKey> ServedPool::snapshot_of(const Uuid& uuid) const {
  const auto found = snapshots_.find(uuid);
  if (found == snapshots_.end()) return std::nullopt;
  return found->second;
}

// Stores ------------------------------------------------------------------------------------------

std::optional<pool::StoreIndex> ServedPool::store_of(const Uuid& set) const {
  if (pool() == nullptr) return std::nullopt;
  for (const auto& [index, store] : pool_->map().stores()) {
    if (store.record.uuid == set) return index;
  }
  return std::nullopt;
}

// The first set decides how large the blocks of all volumes are.
Task<Error> ServedPool::settle_block_bytes(std::uint32_t block_bytes) {
  PoolRecord record = record_;
  record.block_bytes = block_bytes;
  const Error error = co_await keep(std::move(record));
  if (error != Error::kNone) co_return error;
  if (block_bytes == pool_->options().block_bytes) co_return Error::kNone;
  (void)co_await housekeeper_->stop(kNever);
  housekeeper_.reset();
  const Error closed = co_await pool_->close();
  pool_.reset();
  if (closed != Error::kNone) co_return closed;
  failure_ = co_await open_map(false);
  if (failure_.empty()) housekeeper_->start();
  co_return failure_.empty() ? Error::kNone : Error::kNotReady;
}

Task<std::string> ServedPool::take(Uuid set, BlockDevice* device, std::uint8_t placement,
                                   metadata::Batch extra) {
  const Geometry geometry = device->geometry();
  if (record_.block_bytes == 0) {
    const Error error = co_await settle_block_bytes(geometry.block_bytes);
    if (error != Error::kNone) {
      co_return fmt::format("the metadata cannot be written: {}", describe(error));
    }
  }
  if (record_.block_bytes % geometry.block_bytes != 0) {
    co_return fmt::format("its blocks have {} bytes, those of the pool {}", geometry.block_bytes,
                          record_.block_bytes);
  }
  const std::uint64_t bytes = geometry.block_count * geometry.block_bytes;
  const std::uint64_t pages =
      (bytes - std::min(bytes, pool::StoreStamps::kBytes)) / record_.page_bytes;
  if (pages == 0) co_return "it has no room for a page";
  const pool::StoreIndex index = pool_->free_store_index();
  pool::StoreConfig config{.record = {.index = index,
                                      .uuid = set,
                                      .page_count = static_cast<std::uint32_t>(
                                          std::min<std::uint64_t>(pages, std::uint32_t{1} << 31U)),
                                      .placement = placement},
                           .device = device};
  const Error error = co_await pool_->put_store(std::move(config), std::move(extra));
  if (error == Error::kNone) co_return std::string();
  if (error == Error::kTimedOut) co_return std::string(kSilent);
  co_return fmt::format("it cannot be taken in: {}",
                        error == Error::kMiscompare ? kOlderMap : describe(error));
}

void ServedPool::set_device(pool::StoreIndex store, BlockDevice* device) {
  if (device == nullptr) {
    refused_.erase(store);
    refusals_told_.erase(store);
    pool_->set_device(store, nullptr);
    return;
  }
  const auto refused = refused_.find(store);
  const bool older = refused != refused_.end() && refused->second == Error::kMiscompare;
  if (older || pool_->device(store) == device || !arriving_.insert(store).second) return;
  spawn(admit(store, device, older_));
}

Task<void> ServedPool::admit(pool::StoreIndex store, BlockDevice* device, pool::OlderMap older) {
  const Error error = co_await pool_->admit(store, device, older);
  arriving_.erase(store);
  arrived_.notify_all();
  // It was left behind while the set did not answer.
  if (pool_ == nullptr) co_return;
  if (error == Error::kNone) {
    refused_.erase(store);
    refusals_told_.erase(store);
  }
  if (error == Error::kNone || error == Error::kCancelled || error == Error::kNotFound) co_return;
  refused_[store] = error;
  if (std::exchange(refusals_told_[store], error) == error) co_return;
  const std::string set = words_of_store(store);
  events_.add(
      {.severity = Severity::kError,
       .kind = "pool",
       .set = set,
       .text = fmt::format("pool {}: set {} is not used: {}", name(), set, refusal_of(store))});
}

std::string ServedPool::refusal_of(pool::StoreIndex store) const {
  const auto refused = refused_.find(store);
  if (refused == refused_.end()) return {};
  if (refused->second == Error::kMiscompare) return words_on_older_map();
  return fmt::format("its stamp cannot be read or written: {}", describe(refused->second));
}

Task<Error> ServedPool::set_state(pool::StoreIndex store, pool::StoreState state,
                                  metadata::Batch extra) {
  const auto found = pool_->map().stores().find(store);
  assert(found != pool_->map().stores().end());
  pool::StoreConfig config{.record = found->second.record, .device = pool_->device(store)};
  config.record.state = state;
  co_return co_await pool_->put_store(std::move(config), std::move(extra));
}

bool ServedPool::is_vacated(pool::StoreIndex store) const {
  const auto found = pool_->map().stores().find(store);
  if (found == pool_->map().stores().end()) return false;
  const pool::PoolSpace space = pool_->space(store);
  return found->second.record.state == pool::StoreState::kVacating &&
         space.free_pages == space.pages;
}

Task<Error> ServedPool::let_go(pool::StoreIndex store, std::optional<PoolRecord> record) {
  metadata::Batch extra;
  if (record) extra.put(pool_key(record->uuid), encode(*record));
  const Error error = co_await pool_->remove_store(store, std::move(extra));
  if (error == Error::kNone && record) record_ = std::move(*record);
  co_return error;
}

Task<Error> ServedPool::keep(PoolRecord record) {
  metadata::Batch batch;
  batch.put(pool_key(record.uuid), encode(record));
  const Error error = co_await store_.commit(std::move(batch));
  if (error == Error::kNone) record_ = std::move(record);
  co_return error;
}

// Events ------------------------------------------------------------------------------------------

// Nobody may want to change anything for long.
Task<void> ServedPool::look_at_map() {
  if (!map_failing_ || pool() == nullptr || home_.now() < look_at_map_) co_return;
  look_at_map_ = home_.now() + kLookAtMap;
  const Error error = co_await pool_->hold();
  if (error != Error::kNone) co_return;
  pool_->release();
  map_failing_ = false;
  // Should it fail again, that is told at once.
  std::erase_if(told_, [](const auto& entry) {
    return entry.first.first == pool::PoolEvent::Kind::kMapFailure;
  });
  events_.add(
      {.kind = "pool map", .text = fmt::format("pool {}: its map can be changed again", name())});
}

std::string ServedPool::words_of(pool::BranchId branch) const {
  const pool::Branch* const found = pool_->map().find(branch);
  const auto uuid = found != nullptr ? parse_uuid(found->record.label) : std::nullopt;
  const std::string volume = uuid && name_of_volume ? name_of_volume(*uuid) : std::string();
  return volume.empty() ? fmt::format("pool {}", name())
                        : fmt::format("volume {} of pool {}", volume, name());
}

std::string ServedPool::words_of_store(pool::StoreIndex store) const {
  const auto found = pool_->map().stores().find(store);
  if (found == pool_->map().stores().end()) return {};
  const Uuid& uuid = found->second.record.uuid;
  const std::string set = name_of_set ? name_of_set(uuid) : std::string();
  return set.empty() ? format_uuid(uuid) : set;
}

void ServedPool::on_event(const pool::PoolEvent& event) {
  using Kind = pool::PoolEvent::Kind;
  if (event.kind == Kind::kVacated && on_vacated) on_vacated();
  map_failing_ = map_failing_ || event.kind == Kind::kMapFailure;
  const pool::Branch* const branch = pool_->map().find(event.branch);
  if (event.kind == Kind::kPagesWarning && branch != nullptr && on_space_warning) {
    if (const auto uuid = parse_uuid(branch->record.label)) on_space_warning(*uuid);
  }
  TimePoint& quiet_until = told_[{event.kind, event.branch}];
  if (home_.now() < quiet_until) return;
  quiet_until = home_.now() + kBetweenEvents;
  events_.add(told_of(event));
}

std::string ServedPool::lacks_room(std::uint64_t needed_pages, std::uint64_t room_pages) const {
  const std::uint64_t page_bytes = record_.page_bytes;
  return fmt::format(
      "it needs {} and may use {} of the free space; add a member, or delete volumes or snapshots",
      format_size_rounded(needed_pages * page_bytes), format_size_rounded(room_pages * page_bytes));
}

std::string ServedPool::words_on_copy(const pool::PoolEvent& event) const {
  using Kind = pool::PoolEvent::Kind;
  if (event.kind == Kind::kFilled) return "is a whole copy now";
  if (event.kind == Kind::kFillFailed) {
    return fmt::format("cannot be copied: {}", describe(event.error));
  }
  assert(event.kind == Kind::kCopyWaits);
  return fmt::format("its background copy waits: {}",
                     lacks_room(event.needed_pages, event.room_pages));
}

EventInfo ServedPool::told_of_set(const pool::PoolEvent& event) const {
  using Kind = pool::PoolEvent::Kind;
  EventInfo told{.severity = Severity::kError, .kind = "vacate"};
  told.set = words_of_store(event.store);
  if (event.kind == Kind::kVacated) {
    told.severity = Severity::kInformation;
    told.text = fmt::format("pool {}: set {} is vacated", name(), told.set);
  } else if (event.kind == Kind::kVacateStuck) {
    told.text = fmt::format("pool {}: set {} cannot be vacated: {}", name(), told.set,
                            describe(event.error));
  } else {
    assert(event.kind == Kind::kStampLost);
    told.severity = Severity::kWarning;
    told.kind = "pool";
    told.text = fmt::format(
        "pool {}: the stamp of set {} cannot be read and is written anew; if a map was imported "
        "just now, see that it is the newest export",
        name(), told.set);
  }
  return told;
}

EventInfo ServedPool::told_of(const pool::PoolEvent& event) const {
  using Kind = pool::PoolEvent::Kind;
  EventInfo told{.severity = Severity::kError, .kind = "pool full"};
  const std::string what = words_of(event.branch);
  switch (event.kind) {
    case Kind::kPagesWarning:
      told.severity = Severity::kWarning;
      told.kind = "space warning";
      told.text = fmt::format("{}: has reached its space warning", what);
      break;
    case Kind::kPagesLimit:
      told.kind = "space limit";
      told.text = fmt::format("{}: writes fail: it has all the space that it may take", what);
      break;
    case Kind::kPoolFull:
      told.text = fmt::format("{}: writes fail: pool {} is full; add a member, or delete something",
                              what, name());
      break;
    case Kind::kRoomAway:
      told.kind = "room away";
      told.text = fmt::format(
          "{}: writes wait: only missing sets of pool {} have room; bring them back, add a member, "
          "or delete something",
          what, name());
      break;
    case Kind::kMapFailure:
      told.kind = "pool map";
      told.text =
          fmt::format("pool {}: its map cannot be changed: {}", name(), describe(event.error));
      break;
    case Kind::kMapDamage:
      told.kind = "pool map";
      told.text = fmt::format(
          "pool {}: its map is damaged at {}; what needs that part fails, and nothing of it is "
          "believed",
          name(), event.key);
      break;
    case Kind::kFreeWarning:
      told.severity = Severity::kWarning;
      told.kind = "space warning";
      told.text = fmt::format("pool {}: less than {} % of it is free", name(),
                              pool_->options().free_warning_percent);
      break;
    case Kind::kVacated:
    case Kind::kVacateStuck:
    case Kind::kStampLost:
      told = told_of_set(event);
      break;
    case Kind::kFilled:
    case Kind::kFillFailed:
    case Kind::kCopyWaits:
      if (event.kind == Kind::kFilled) told.severity = Severity::kInformation;
      if (event.kind == Kind::kCopyWaits) told.severity = Severity::kWarning;
      told.kind = "copy";
      told.text = fmt::format("{}: {}", what, words_on_copy(event));
      break;
    case Kind::kWritesHang:
      told.kind = "writes hang";
      told.text = fmt::format("{}: {}", what, kHangs);
      break;
  }
  return told;
}

}  // namespace sandbay::group
