// Making and opening pools; sets that come and go.
#include "group/pools.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "group/units.h"

namespace sandbay::group {

namespace {

constexpr Duration kLookAtPools = std::chrono::seconds(1);
// Between two attempts to open pools that cannot be.
constexpr Duration kOpenAgain = std::chrono::seconds(10);

std::string standing_on_it(const std::vector<std::string>& volumes) {
  return fmt::format("{} {} on it by {}", fmt::join(volumes, ", "),
                     volumes.size() == 1 ? "stands" : "stand",
                     volumes.size() == 1 ? "itself" : "themselves");
}

}  // namespace

Pools::Pools(Executor& home, metadata::Store& store, EventLog& events, Members& members,
             Owner owner)
    : home_(home), store_(store), events_(events), members_(members), owner_(std::move(owner)) {}

Pools::~Pools() { assert(pools_.empty()); }

Task<Started> Pools::start(std::vector<PoolRecord> stored,
                           std::vector<PoolConfiguration> declared) {
  std::ranges::sort(stored, {}, &PoolRecord::name);
  std::vector<std::string> regions;
  for (const PoolRecord& record : stored) regions.push_back(region_name(record.uuid));
  co_await release_strays(std::move(regions));
  for (PoolRecord& record : stored) co_await add(std::move(record));
  for (const PoolConfiguration& wanted : declared) {
    if (find(wanted.name) != nullptr) continue;
    for (const std::string& member : wanted.members) {
      if (const ServedPool* const other = pool_of_member(member)) {
        co_return fault_of_configuration(fmt::format(
            "pool \"{}\": member \"{}\" is of pool \"{}\"; a member belongs to one pool",
            wanted.name, member, other->name()));
      }
    }
    PoolRecord record{.uuid = make_uuid(home_.random()),
                      .name = wanted.name,
                      .members = wanted.members,
                      .leaving = {},
                      .page_bytes = wanted.page_bytes,
                      .block_bytes = 0};
    const auto made = co_await create(std::move(record));
    if (!made) co_return std::unexpected(fmt::format("pool \"{}\": {}", wanted.name, made.error()));
  }
  co_await take_sets();
  members_.on_sets_changed([this] {
    set_devices();
    wake_.notify_all();
  });
  spawn(watch());
  co_return Started{};
}

// Of pools that are no more: the daemon ended between the record and the region, or an import has
// put other pools in their place. All records of pools were read.
Task<void> Pools::release_strays(std::vector<std::string> wanted) {
  nvram::Nvram* const nvram = members_.first().nvram();
  if (nvram == nullptr) co_return;
  for (const nvram::RegionState& region : nvram->regions()) {
    if (!region.name.starts_with(kRegionPrefix)) continue;
    if (std::ranges::find(wanted, region.name) != wanted.end()) continue;
    const std::string name = region.name;
    const auto released = co_await nvram->release(name);
    events_.add({.severity = Severity::kWarning,
                 .kind = "pool map",
                 .text = fmt::format("NVRAM: region \"{}\" is of a pool that is no more: {}", name,
                                     released ? "released" : released.error())});
  }
}

Task<bool> Pools::stop(bool quiet, TimePoint deadline) {
  stopping_ = true;
  members_.on_sets_changed(nullptr);
  wake_.notify_all();
  const bool watched = co_await gate_.close_until(deadline);
  // Otherwise it has them in its hands.
  if (!watched) co_return false;
  bool all = true;
  for (auto& pool : pools_) {
    const bool closed = co_await pool->close(quiet, deadline);
    if (!closed) (void)pool.release();
    all = all && closed;
  }
  pools_.clear();
  co_return all;
}

Task<void> Pools::add(PoolRecord record) {
  auto pool = std::make_unique<ServedPool>(home_, store_, events_, std::move(record),
                                           owner_.stamp_patience);
  pool->name_of_volume = owner_.name_of_volume;
  pool->on_space_warning = owner_.on_space_warning;
  pool->way_before_import = owner_.way_before_import;
  pool->name_of_set = [this](const Uuid& set) { return members_.name_of(set); };
  pool->on_vacated = [this] { wake_.notify_all(); };
  ServedPool* const added = pool.get();
  pool->find_devices = [this, added] { set_devices(added); };
  pools_.push_back(std::move(pool));
  co_await open(added);
}

Task<void> Pools::open(ServedPool* pool, GivenUp given_up) {
  const Hardware& first = members_.first();
  co_await pool->open(first.nvram(), first.has_mirror(), given_up);
  // It would find no room while the sets are not there yet.
  if (pool->housekeeper() != nullptr) pool->housekeeper()->start();
  look_again_ = home_.now() + kOpenAgain;
}

// What kept a pool from being opened may have passed: metadata that could not be read, say.
Task<void> Pools::open_again() {
  if (home_.now() < look_again_) co_return;
  co_await taking_.lock();
  for (const auto& pool : pools_) {
    if (pool->pool() == nullptr && !stopping_) co_await open(pool.get());
  }
  look_again_ = home_.now() + kOpenAgain;
  taking_.unlock();
}

Task<void> Pools::open_without(ServedPool* pool, GivenUp given_up) {
  co_await taking_.lock();
  if (pool->pool() == nullptr) {
    co_await open(pool, given_up);
  } else if (given_up.newer_map) {
    co_await pool->accept_older_map();
  }
  taking_.unlock();
  co_await take_sets();
}

Task<Error> Pools::note_disagreement(ServedPool* pool, bool disagrees) {
  co_await taking_.lock();
  PoolRecord record = pool->record();
  record.disagrees = disagrees;
  const Error error = co_await pool->keep(std::move(record));
  taking_.unlock();
  co_return error;
}

// The record first: a map without one is nobody's.
Task<std::expected<ServedPool*, std::string>> Pools::create(PoolRecord record) {
  const Uuid uuid = record.uuid;
  metadata::Batch batch;
  batch.erase_prefix(map_prefix(uuid));
  batch.put(pool_key(uuid), encode(record));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  const std::string name = record.name;
  // Whoever goes over the pools meanwhile would lose his place.
  co_await taking_.lock();
  co_await add(std::move(record));
  taking_.unlock();
  ServedPool* const made = find(uuid);
  if (made->pool() == nullptr) {
    const std::string why = made->failure();
    (void)co_await remove(made);
    co_return std::unexpected(why);
  }
  co_await take_sets();
  events_.add({.kind = "pool made", .text = fmt::format("pool {}: made", name)});
  co_return made;
}

Task<Pools::Outcome> Pools::remove(ServedPool* pool) {
  if (pool->is_ending()) co_return std::unexpected(std::string("one of its sets does not answer"));
  co_await taking_.lock();
  metadata::Batch batch;
  batch.erase(pool_key(pool->uuid()));
  batch.erase_prefix(map_prefix(pool->uuid()));
  // Nothing of the map is written any more when it is erased.
  if (pool->pool() != nullptr) (void)co_await pool->close(true, kNever);
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_await open(pool);
    taking_.unlock();
    co_return std::unexpected(fmt::format("the metadata cannot be written: {}", describe(error)));
  }
  const std::string name = pool->name();
  nvram::Nvram* const nvram = members_.first().nvram();
  if (nvram != nullptr) (void)co_await nvram->release(region_name(pool->uuid()));
  std::erase_if(pools_, [&](const auto& each) { return each.get() == pool; });
  outside_.clear();
  taking_.unlock();
  events_.add({.kind = "pool deleted", .text = fmt::format("pool {}: deleted", name)});
  co_return Outcome{};
}

std::string Pools::unsettled() const {
  for (const auto& pool : pools_) {
    if (pool->pool() == nullptr) return fmt::format("pool {} is not open", pool->name());
    for (const auto& [index, store] : pool->pool()->map().stores()) {
      if (pool->pool()->device(index) != nullptr) continue;
      return fmt::format("pool {} does not use set {}", pool->name(),
                         members_.name_of(store.record.uuid));
    }
  }
  return {};
}

ServedPool* Pools::find(const std::string& name) const {
  const auto found =
      std::ranges::find_if(pools_, [&](const auto& pool) { return pool->name() == name; });
  return found == pools_.end() ? nullptr : found->get();
}

ServedPool* Pools::find(const Uuid& uuid) const {
  const auto found =
      std::ranges::find_if(pools_, [&](const auto& pool) { return pool->uuid() == uuid; });
  return found == pools_.end() ? nullptr : found->get();
}

// A map that has lost changes may still count a set that has left since, and is another's by now:
// that of the pool that has its member, or a volume's.
ServedPool* Pools::owner_of(const Uuid& set) const {
  const auto joining = joining_.find(set);
  if (joining != joining_.end()) return joining->second;
  const Member* const member = members_.with_set(set);
  ServedPool* const near = member == nullptr ? nullptr : pool_of_member(member->name());
  ServedPool* found = nullptr;
  for (const auto& pool : pools_) {
    const bool counts = pool->store_of(set).has_value();
    if (counts && (found == nullptr || pool.get() == near)) found = pool.get();
  }
  if (found == nullptr) return nullptr;
  // Whether that counts it, nobody knows yet.
  if (near != nullptr && near->pool() == nullptr) return near;
  return owner_.volumes_placed_on(set).empty() ? found : nullptr;
}

std::string Pools::refusal(const ServedPool& pool, const Uuid& set) const {
  std::string why = members_.refusal(set);
  const ServedPool* const owner = owner_of(set);
  const auto store = pool.store_of(set);
  if (why.empty() && owner == &pool && store) why = pool.refusal_of(*store);
  if (!why.empty() || owner == &pool) return why;
  if (owner == nullptr) return standing_on_it(owner_.volumes_placed_on(set));
  if (owner->pool() != nullptr) return fmt::format("it is of pool {} by now", owner->name());
  return fmt::format("its member is of pool {}, which is not open", owner->name());
}

ServedPool* Pools::pool_of_member(const std::string& member) const {
  const auto found = std::ranges::find_if(pools_, [&](const auto& pool) {
    return std::ranges::find(pool->record().members, member) != pool->record().members.end();
  });
  return found == pools_.end() ? nullptr : found->get();
}

// Sets --------------------------------------------------------------------------------------------

Task<void> Pools::take_sets() {
  co_await taking_.lock();
  for (const auto& member : members_.all()) {
    const std::vector<MemberSet> sets = member->sets();
    for (const MemberSet& set : sets) co_await take_set(member.get(), set);
  }
  taking_.unlock();
}

bool Pools::stays_outside(const Uuid& set) {
  const auto again = ask_again_.find(set);
  if (again == ask_again_.end()) return outside_.contains(set);
  if (home_.now() < again->second) return true;
  ask_again_.erase(again);
  return false;
}

Task<void> Pools::take_set(Member* member, MemberSet set) {
  const Uuid uuid = set.uuid;
  ServedPool* const pool = pool_of_member(member->name());
  BlockDevice* const device = member->serving(uuid);
  if (pool == nullptr || pool->pool() == nullptr || device == nullptr || stays_outside(uuid) ||
      is_leaving(*pool, member->name()) || owner_of(uuid) != nullptr) {
    co_return;
  }
  const std::vector<std::string> volumes = owner_.volumes_on(uuid);
  if (!volumes.empty()) {
    outside_[uuid] = standing_on_it(volumes);
    co_return;
  }
  metadata::Batch extra;
  member->note_use(uuid, extra);
  joining_[uuid] = pool;
  std::string wrong =
      co_await pool->take(uuid, device, static_cast<std::uint8_t>(set.level), std::move(extra));
  joining_.erase(uuid);
  if (!wrong.empty()) {
    if (wrong == ServedPool::kSilent) ask_again_[uuid] = home_.now() + kOpenAgain;
    if (outside_[uuid] != wrong) {
      events_.add({.severity = Severity::kWarning,
                   .kind = "pool",
                   .set = set.name,
                   .text = fmt::format("pool {}: set {} is not part of it: {}", pool->name(),
                                       set.name, wrong)});
    }
    outside_[uuid] = std::move(wrong);
    co_return;
  }
  outside_.erase(uuid);
  events_.add({.kind = "pool",
               .set = set.name,
               .text = fmt::format("pool {}: set {} of member {} gives it {}", pool->name(),
                                   set.name, member->name(), format_size_rounded(set.byte_count))});
}

void Pools::set_devices() {
  for (const auto& pool : pools_) set_devices(pool.get());
}

void Pools::set_devices(ServedPool* pool) {
  if (pool->pool() == nullptr) return;
  for (const auto& [index, store] : pool->pool()->map().stores()) {
    pool->set_device(index, device_for(*pool, store.record.uuid));
  }
}

// Whatever its member is called, and of whichever it is: only another owner keeps it away.
BlockDevice* Pools::device_for(const ServedPool& pool, const Uuid& set) const {
  return owner_of(set) == &pool ? members_.serving(set) : nullptr;
}

Task<void> Pools::look_at_maps() {
  co_await taking_.lock();
  for (const auto& pool : pools_) co_await pool->look_at_map();
  taking_.unlock();
}

Task<void> Pools::watch() {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  while (!stopping_) {
    co_await wake_.wait_until(home_.now() + kLookAtPools);
    co_await home_.yield();
    if (stopping_) co_return;
    co_await open_again();
    set_devices();
    co_await take_sets();
    co_await see_off_members();
    co_await look_at_maps();
  }
}

// Management --------------------------------------------------------------------------------------

// The first set of a pool may have its map opened anew.
Task<pool::CheckReport> Pools::check(const ServedPool* pool) {
  co_await taking_.lock();
  pool::CheckReport report;
  if (pool->pool() == nullptr) {
    report.error = Error::kNotReady;
    report.wrong.push_back("it is not open: " + pool->failure());
  } else {
    report = co_await pool->pool()->check();
  }
  taking_.unlock();
  co_return report;
}

PoolInfo Pools::show(const ServedPool& pool) const {
  PoolInfo info{.name = pool.name(),
                .uuid = format_uuid(pool.uuid()),
                .members = pool.record().members,
                .leaving = pool.record().leaving,
                .page_bytes = pool.record().page_bytes,
                .block_bytes = pool.record().block_bytes,
                .reason = pool.failure(),
                .map_in_nvram = pool.map_in_nvram()};
  if (pool.pool() != nullptr) {
    const std::uint64_t page_bytes = pool.record().page_bytes;
    const pool::PoolSpace space = pool.pool()->space();
    info.size_bytes = space.pages * page_bytes;
    info.free_bytes = space.free_pages * page_bytes;
    info.snapshot_bytes = space.reserve_pages * page_bytes;
    info.counters = pool.pool()->counters();
    for (const auto& [index, store] : pool.pool()->map().stores()) {
      const Uuid& uuid = store.record.uuid;
      const Member* const member = members_.with_set(uuid);
      const pool::PoolSpace part = pool.pool()->space(index);
      info.stores.push_back(
          {.set = members_.name_of(uuid),
           .uuid = format_uuid(uuid),
           .member = member == nullptr ? "" : member->name(),
           .level = std::string(describe(static_cast<raid::Level>(store.record.placement))),
           .size_bytes = part.pages * page_bytes,
           .free_bytes = part.free_pages * page_bytes,
           .state = store.record.state == pool::StoreState::kVacating ? "vacating" : "active",
           .reason = refusal(pool, uuid)});
    }
  }
  for (const auto& [uuid, why] : outside_) {
    const Member* const member = members_.with_set(uuid);
    if (member != nullptr && pool_of_member(member->name()) == &pool) {
      info.outside.push_back({.set = members_.name_of(uuid), .reason = why});
    }
  }
  return info;
}

}  // namespace sandbay::group
