// Volumes that were there before: what a crash has left unfinished of them is finished before they
// are served, and those that cannot be, since their pool is not open or a member is away, are tried
// again until they can. Meanwhile they say NOT READY.
#include <fmt/core.h>

#include <algorithm>

#include "group/log.h"
#include "group/running_group.h"
#include "group/units.h"
#include "pool/pool_volume.h"

namespace sandbay::group {

OpenFailure RunningGroup::absence_of(const ServedPool* pool, const std::string& name) {
  if (pool == nullptr) {
    return {.reason = fmt::format("pool \"{}\" is not there", name), .health = Health::kMissing};
  }
  return {.reason = fmt::format("pool \"{}\" is not open: {}", name, pool->failure()),
          .comes_back = true};
}

std::shared_ptr<Volume> RunningGroup::without_device(VolumeRecord record, OpenFailure failure) {
  const bool on_pool = record.specification.backing == Backing::kPool;
  Executor& home = on_pool ? Executor::current() : next_home();
  return Volume::without_device(std::move(record), configuration_.state, home, array_facts(),
                                std::move(failure), on_pool ? members_->streams() : nullptr);
}

// Nobody sees it half done, and nothing of it is attached.
Task<std::optional<OpenFailure>> RunningGroup::finish_volume(VolumeRecord* record) {
  const ServedPool* const pool = record->pool ? pools_->find(*record->pool) : nullptr;
  if (pool == nullptr || pool->pool() == nullptr) co_return std::nullopt;
  // Opening it makes the map's size its record's. A snapshot has no other than that.
  if (pool->record().disagrees && snapshots_.find(record->uuid) == snapshots_.end()) {
    std::string wrong = co_await settle_size(record);
    if (!wrong.empty()) {
      co_return OpenFailure{.reason = std::move(wrong), .comes_back = true};
    }
  }
  if (record->shrink_to == 0) co_return std::nullopt;
  const auto attached = pool->pool()->attach(pool->branch_of(record->uuid));
  Error error = attached == nullptr || attached->serves() ? Error::kNone : Error::kNotReady;
  const std::uint64_t byte_count = record->shrink_to;
  if (error == Error::kNone) error = co_await finish_shrinking(record);
  if (error == Error::kNone) {
    log_info("volume {}: had begun to shrink, has {}", record->specification.name,
             format_size(byte_count));
    co_return std::nullopt;
  }
  co_return OpenFailure{.reason = fmt::format("it has begun to shrink to {}, and cannot go on: {}",
                                              format_size(byte_count), describe(error)),
                        .health = error == Error::kNotReady ? Health::kMissing : Health::kFailed,
                        .comes_back = true};
}

Task<Volume::Opened> RunningGroup::reopen_on_pool(VolumeRecord record) {
  auto unfinished = co_await finish_volume(&record);
  if (unfinished) co_return std::unexpected(std::move(*unfinished));
  co_return open_on_pool(std::move(record));
}

// Once a second, with the schedules.
Task<void> RunningGroup::look_for_volumes() {
  const bool disagrees = std::ranges::any_of(pools_->all(), [](const auto& pool) {
    return pool->record().disagrees && pool->pool() != nullptr;
  });
  if (disagrees) (void)co_await alone(settle_pools());
  std::vector<Uuid> away;
  for (const auto& [name, volume] : volumes_) {
    if (volume->comes_back()) away.push_back(volume->uuid());
  }
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr && snapshot.volume->comes_back()) away.push_back(uuid);
  }
  for (const Uuid& uuid : away) {
    if (stopping_.is_set()) co_return;
    (void)co_await alone(bring_back(uuid));
  }
}

Task<Answer<void>> RunningGroup::bring_back(Uuid uuid) {
  const auto snapshot = snapshots_.find(uuid);
  const auto volume = snapshot != snapshots_.end() ? snapshot->second.volume : find(uuid);
  if (volume == nullptr || !volume->comes_back()) co_return Answer<void>{};
  VolumeRecord record = volume->record();
  auto failure = co_await finish_volume(&record);
  if (!failure) {
    auto ground = snapshot != snapshots_.end() ? ground_of_snapshot(snapshot->second.record)
                                               : ground_on_pool(record);
    if (ground) {
      volume->come_back(std::move(record), std::move(*ground));
      if (snapshot == snapshots_.end()) (void)co_await settle_limits(volume);
      log_info("volume {}: is online again", volume->name());
      co_return Answer<void>{};
    }
    failure = std::move(ground.error());
  }
  volume->stay_away(std::move(*failure));
  co_return Answer<void>{};
}

}  // namespace sandbay::group
