// What the snapshots of volumes take of their pools, and what happens when that is more than their
// reserve. That is looked at once a second; until then hosts' writes take what there is.
#include <fmt/core.h>

#include <algorithm>

#include "group/running_group.h"
#include "group/units.h"
#include "pool/pool_volume.h"

namespace sandbay::group {

namespace {

// Deletions of one volume's snapshots, before others have their turn.
constexpr int kMostAtOnce = 16;

// Pages of a branch that the volume was restored away from. Where it still reads through it, what
// it has not written itself is its own affair, and no snapshot's.
std::uint64_t pages_left_on(const pool::PoolMap& map, const pool::Branch& branch,
                            const pool::Branch* live) {
  const std::uint64_t pages = branch.pages.placed_count();
  std::uint64_t written = 0;
  for (const pool::Branch* at = live; at != nullptr; at = map.find(at->record.parent)) {
    if (at == &branch) return std::min(pages, written);
    written += at->pages.placed_count();
  }
  return pages;
}

}  // namespace

std::uint64_t RunningGroup::kept_by(const ServedPool* pool, const Snapshot& snapshot) {
  const auto key = pool != nullptr ? pool->snapshot_of(snapshot.record.uuid) : std::nullopt;
  if (!key || pool->pool() == nullptr) return 0;
  const pool::PoolMap& map = pool->pool()->map();
  const pool::Branch* const found = map.find(key->branch);
  // The map may have lost it just now, and whoever deletes it may not know that yet.
  if (found == nullptr || !found->snapshots.contains(key->generation)) return 0;
  const pool::Branch& branch = *found;
  std::uint64_t bytes = branch.slots_of(key->generation) * pool::kChunkBytes;
  const pool::Branch* const own = map.find(pool->branch_of(snapshot.record.uuid));
  if (own != nullptr) bytes += own->pages.placed_count() * map.page_bytes();
  // Its youngest snapshot is the last that needs them. What nobody needs is not swept yet.
  const bool youngest = branch.snapshots.rbegin()->first == key->generation;
  if (branch.record.dead && !branch.record.sweeping && youngest) {
    const pool::Branch* const live = map.find(pool->branch_of(snapshot.record.volume));
    bytes += pages_left_on(map, branch, live) * map.page_bytes();
  }
  return bytes;
}

std::uint64_t RunningGroup::kept_for_snapshots(const Uuid& volume) const {
  const std::vector<Snapshot*>& all = snapshots_.of(volume);
  const ServedPool* const pool = all.empty() ? nullptr : pools_->find(all.front()->record.pool);
  if (pool == nullptr || pool->pool() == nullptr) return 0;
  // Mostly all are of what the volume is now, and nothing hangs on any: what each keeps adds up to
  // what is kept at all.
  const pool::Branch* const live = pool->pool()->map().find(pool->branch_of(volume));
  if (live != nullptr && live->children.empty() && live->snapshots.size() == all.size()) {
    return live->kept_for.between(live->living.front(), pool::kLive) * pool::kChunkBytes;
  }
  std::uint64_t bytes = 0;
  for (const Snapshot* const one : all) bytes += kept_by(pool, *one);
  return bytes;
}

std::uint64_t RunningGroup::reserve_of(const VolumeRecord& record) {
  return record.specification.snapshot_reserve.bytes_of(record.specification.size_bytes);
}

// Where the policy is that they are offline then.
std::optional<Refusal> RunningGroup::refusal_of_reserve(const Volume& volume) const {
  const VolumeSpecification& s = volume.record().specification;
  if (s.snapshot_reserve.none() || s.reserve_policy != ReservePolicy::kOffline) return std::nullopt;
  const std::uint64_t bytes = kept_for_snapshots(volume.uuid());
  const std::uint64_t reserve = reserve_of(volume.record());
  if (bytes <= reserve) return std::nullopt;
  return Refusal{.code = Refusal::Code::kConflict,
                 .message = fmt::format(
                     "volume \"{}\": its snapshots take {}, and have a reserve of {}; "
                     "delete some, or give more: sandbay volume limits {} "
                     "--snapshot-reserve SIZE",
                     s.name, format_size_rounded(bytes), format_size_rounded(reserve), s.name)};
}

Task<void> RunningGroup::watch_reserves() {
  std::map<Uuid, std::uint64_t> taken;
  for (const auto& [name, volume] : volumes_) {
    const bool has =
        volume->record().pool && !volume->record().specification.snapshot_reserve.none();
    if (has) taken.emplace(volume->uuid(), 0);
  }
  std::erase_if(full_reserves_, [&](const auto& entry) { return !taken.contains(entry.first); });
  if (taken.empty()) co_return;
  for (auto& [uuid, bytes] : taken) bytes = kept_for_snapshots(uuid);
  for (const auto& [uuid, bytes] : taken) {
    if (stopping_.is_set()) co_return;
    const auto volume = find(uuid);
    if (volume == nullptr) continue;
    if (bytes > reserve_of(volume->record())) {
      (void)co_await alone(settle_reserve(uuid));
    } else if (full_reserves_.erase(uuid) != 0) {
      tell_of_reserve(*volume, Severity::kInformation,
                      "its snapshots fit into their reserve again");
    }
  }
}

void RunningGroup::tell_of_reserve(const Volume& volume, Severity severity, std::string what) {
  events_.add({.severity = severity,
               .kind = "snapshot reserve",
               .text = fmt::format("volume {}: {}", volume.name(), what)});
}

// Once, until they fit again or something else is to be told.
void RunningGroup::tell_full_reserve(const Volume& volume, std::string what) {
  std::string& told = full_reserves_[volume.uuid()];
  if (told == what) return;
  told = what;
  tell_of_reserve(volume, Severity::kWarning,
                  fmt::format("its snapshots take {}, and have a reserve of {}: {}",
                              format_size_rounded(kept_for_snapshots(volume.uuid())),
                              format_size_rounded(reserve_of(volume.record())), what));
}

Task<Answer<void>> RunningGroup::settle_reserve(Uuid uuid) {
  const auto volume = find(uuid);
  if (volume == nullptr) co_return Answer<void>{};
  if (volume->record().specification.reserve_policy == ReservePolicy::kOffline) {
    co_await take_all_offline(volume);
    co_return Answer<void>{};
  }
  for (int count = 0; count < kMostAtOnce; ++count) {
    if (kept_for_snapshots(uuid) <= reserve_of(volume->record())) break;
    const bool deleted = co_await delete_oldest(volume);
    if (!deleted) break;
  }
  co_return Answer<void>{};
}

Task<void> RunningGroup::take_all_offline(std::shared_ptr<Volume> volume) {
  std::vector<Uuid> online;
  for (const Snapshot* const one : snapshots_of(volume->uuid())) {
    if (one->record.online) online.push_back(one->record.uuid);
  }
  std::string what = "they are offline, and none is taken, until there is room";
  for (const Uuid& one : online) {
    const auto offline = co_await take_offline(one);
    if (offline) ++reserve_actions_[volume->uuid()].taken_offline;
    if (!offline) what = offline.error().message;
  }
  tell_full_reserve(*volume, std::move(what));
}

bool RunningGroup::was_writable(const Snapshot& snapshot) const {
  const ServedPool* const pool = pools_->find(snapshot.record.pool);
  return pool != nullptr && pool->branch_of(snapshot.record.uuid) != 0;
}

// The oldest that no session uses, and that has no writes of its own: those are nowhere else.
// False: none can be, now.
Task<bool> RunningGroup::delete_oldest(std::shared_ptr<Volume> volume) {
  const auto counts = co_await sessions_by_target();
  const std::vector<Snapshot*> all = snapshots_of(volume->uuid());
  const auto found = std::ranges::find_if(all, [&](const Snapshot* one) {
    const bool used = one->record.online && has_sessions(one->record.target, counts);
    return !used && !was_writable(*one);
  });
  if (found == all.end()) {
    tell_full_reserve(
        *volume,
        "all of them are in use or have taken writes of their own; no snapshot is deleted");
    co_return false;
  }
  const SnapshotRecord record = (*found)->record;
  // What older ones see, too, stays. How much that was is known when the last one is swept.
  const ServedPool* const pool = pools_->find(record.pool);
  const auto key = pool != nullptr ? pool->snapshot_of(record.uuid) : std::nullopt;
  if (!key || pool->pool() == nullptr) co_return false;
  const bool swept = !pool->pool()->map().find(key->branch)->record.sweeping;
  if (found != all.begin() && !swept) co_return false;
  const std::uint64_t bytes = kept_for_snapshots(volume->uuid());
  const auto dropped = co_await drop_snapshot(record.uuid);
  if (!dropped) {
    tell_full_reserve(*volume, dropped.error().message);
    co_return false;
  }
  ++reserve_actions_[volume->uuid()].deleted;
  tell_of_reserve(*volume, Severity::kWarning,
                  fmt::format("its snapshots took {}, and have a reserve of {}: snapshot {} is "
                              "deleted",
                              format_size_rounded(bytes),
                              format_size_rounded(reserve_of(volume->record())), record.name));
  co_return true;
}

}  // namespace sandbay::group
