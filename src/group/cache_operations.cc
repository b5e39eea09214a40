// The controller's cache as management sees it, and what it may do with it.
#include <fmt/format.h>

#include <algorithm>

#include "group/log.h"
#include "group/running_group.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// Volumes that are looked at in one turn.
constexpr std::size_t kStatesInASlice = 256;

}  // namespace

void note_place(const VolumeRecord& record, ControllerCache::VolumePlaces& places) {
  if (!record.placement && !record.pool) return;
  ControllerCache::VolumePlace place{.name = record.specification.name, .first = std::nullopt};
  if (record.placement) place.first = record.placement->extent.first;
  places[number_of(record.uuid)] = std::move(place);
}

void RunningGroup::tell_places() {
  ControllerCache::VolumePlaces places;
  for (const auto& [name, volume] : volumes_) note_place(volume->record(), places);
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr) note_place(snapshot.volume->record(), places);
  }
  members_->know_volumes(places);
}

std::optional<std::string> cache_error(const VolumeSpecification& specification, bool has_cache) {
  if (specification.cache == cache::Mode::kWriteBack) return std::nullopt;  // The default.
  if (specification.backing != Backing::kRaid && specification.backing != Backing::kPool) {
    return "only volumes on RAID sets and pools are cached; leave it out";
  }
  if (!has_cache) return "the controller has no cache; write a section [cache], or leave it out";
  return std::nullopt;
}

std::optional<Uuid> RunningGroup::cached_set(const std::string& set) const {
  if (const auto uuid = members_->find_set(set)) return uuid;
  const auto uuid = parse_uuid(set);
  return uuid && members_->hardware_of_set(*uuid) != nullptr ? uuid : std::nullopt;
}

Task<CacheInfo> RunningGroup::cache_now() {
  const auto volumes = volumes_;  // A copy: the map may change while we wait below.
  std::map<std::string, cache::StreamCounters> streams;
  std::size_t looked = 0;
  for (const auto& [name, volume] : volumes) {
    if (!volume->record().placement && !volume->record().pool) continue;
    if (++looked % kStatesInASlice == 0) co_await Executor::current().turn_end();
    const Volume::State state = co_await volume->state();
    streams[name] = state.streams;
  }
  CacheInfo info;
  for (const auto& member : members_->all()) {
    const Hardware* const hardware = member->hardware();
    if (hardware == nullptr) continue;
    ControllerCache::VolumePlaces places;
    for (const auto& [name, volume] : volumes) {
      // A volume on a pool may be on all of them.
      const auto& placement = volume->record().placement;
      const bool here = !placement || members_->hardware_of_set(placement->set) == hardware;
      if (here) note_place(volume->record(), places);
    }
    const bool alone = members_->local().size() == 1;
    add(alone ? std::string() : member->name(), hardware->cache().show(places), info);
  }
  for (CachedVolumeInfo& volume : info.volumes) volume.streams = streams[volume.name];
  std::ranges::sort(info.volumes, {}, &CachedVolumeInfo::name);
  co_return info;
}

Task<CacheInfo> RunningGroup::show_cache() { return looking(cache_now(), {}); }

Task<Answer<void>> RunningGroup::flush_cache_now(std::string set) {
  std::optional<Uuid> uuid;
  if (!set.empty()) {
    uuid = cached_set(set);
    if (!uuid) co_return std::unexpected(no_such_set(set));
  }
  std::vector<std::string> left;
  for (Hardware* const hardware : members_->local()) {
    if (uuid && members_->hardware_of_set(*uuid) != hardware) continue;
    const auto flushed = co_await hardware->cache().flush(uuid);
    if (!flushed) left.push_back(flushed.error());
  }
  if (left.empty()) co_return Answer<void>{};
  co_return refuse(Refusal::Code::kFailed, fmt::format("{}", fmt::join(left, "; ")));
}

// Not alone: it takes its time, and changes nothing of what others check.
Task<Answer<void>> RunningGroup::flush_cache(std::string set) {
  return looking(flush_cache_now(std::move(set)));
}

Task<Answer<DiscardedWrites>> RunningGroup::discard_writes_now(std::string set,
                                                               std::string confirmed) {
  const auto found = cached_set(set);
  Hardware* const hardware = found ? members_->hardware_of_set(*found) : nullptr;
  if (hardware == nullptr) co_return std::unexpected(no_such_set(set));
  const Uuid uuid = known(found);
  if (confirmed != set) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("acknowledged writes of set {} would be lost for good; to "
                                 "confirm it write its name once more",
                                 set));
  }
  const ControllerCache& cache = hardware->cache();
  if (cache.bar(uuid).empty() && !cache.is_failing(uuid)) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("set {}: all that was acknowledged is on its drives or on its way "
                                 "there; there is nothing to give up",
                                 set));
  }
  auto discarded = co_await hardware->discard_writes(uuid);
  if (!discarded) co_return refuse(Refusal::Code::kFailed, discarded.error());
  co_return std::move(*discarded);
}

Task<Answer<DiscardedWrites>> RunningGroup::discard_writes(std::string set, std::string confirmed) {
  return alone(discard_writes_now(std::move(set), std::move(confirmed)));
}

Task<Answer<void>> RunningGroup::adopt_writes_now(std::string set) {
  const auto found = cached_set(set);
  Hardware* const hardware = found ? members_->hardware_of_set(*found) : nullptr;
  if (hardware == nullptr) co_return std::unexpected(no_such_set(set));
  if (!hardware->cache().may_adopt(known(found))) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("set {}: an import has left no writes of it in NVRAM that wait to "
                                 "be confirmed; see sandbay cache show",
                                 set));
  }
  const auto done = co_await hardware->adopt_writes(known(found));
  if (!done) co_return refuse(Refusal::Code::kFailed, done.error());
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::adopt_writes(std::string set) {
  return alone(adopt_writes_now(std::move(set)));
}

Task<Answer<void>> RunningGroup::acknowledge_now(std::string set) {
  const auto found = cached_set(set);
  Hardware* const hardware = found ? members_->hardware_of_set(*found) : nullptr;
  if (hardware == nullptr) co_return std::unexpected(no_such_set(set));
  const Uuid uuid = known(found);
  if (!hardware->cache().has_lost(uuid)) {
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("set {}: no acknowledged writes are lost; there is nothing to take notice of",
                    set));
  }
  const auto done = co_await hardware->cache().acknowledge(uuid);
  if (!done) co_return refuse(Refusal::Code::kFailed, done.error());
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::acknowledge_lost_writes(std::string set) {
  return alone(acknowledge_now(std::move(set)));
}

// Of one that is in use, too: what is dirty is destaged as before.
Task<Answer<void>> RunningGroup::change_cache_now(std::shared_ptr<Volume> volume,
                                                  cache::Mode mode) {
  VolumeRecord record = volume->record();
  if (record.specification.cache == mode) co_return Answer<void>{};
  record.specification.cache = mode;
  const std::vector<cache::Cache*> caches = members_->caches();
  if (const auto error = cache_error(record.specification, !caches.empty())) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("volume \"{}\": cache: {}", volume->name(), *error));
  }
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("volume \"{}\" keeps its cache mode: {}",
                                                         volume->name(), unwritten(stored)));
  }
  volume->record() = std::move(record);
  for (cache::Cache* const cache : caches) cache->set_mode(number_of(volume->uuid()), mode);
  log_info("volume {}: its cache is {} now", volume->name(), describe(mode));
  co_return Answer<void>{};
}

}  // namespace sandbay::group
