// WriteMemory and an image that takes its time (durability host): appends and releases count when
// it has been synced, and a disk may hang.
//
// Nobody waits for one sync longer than a second, and nobody's patience ends before: of a write
// that is on its way to the image nobody knows what a crash leaves. An append that did not end in
// time is left to itself: its write goes to the drives instead, and the record is released as soon
// as it is there. Until that is final a crash of the host may bring it back, so its blocks change
// no more, but for what it has itself. While there are such, nothing new is appended.
#include <algorithm>
#include <cassert>
#include <utility>

#include "cache/write_memory.h"

namespace sandbay::cache {
namespace {

constexpr Duration kSyncPatience = std::chrono::seconds(1);

bool overlaps(const WriteSubject& subject, const Uuid& device, const Extent& extent) {
  return subject.device == device && subject.extent.first < extent.end() &&
         extent.first < subject.extent.end();
}

}  // namespace

bool WriteMemory::to_host() const noexcept {
  return primary_.nvram->durability() == nvram::Durability::kHost ||
         (mirrored() && mirror_.nvram->durability() == nvram::Durability::kHost);
}

Task<Error> WriteMemory::append_in_time(std::uint32_t slot) {
  Append append;
  entries_[slot].waiting = &append;
  spawn(append_detached(slot));
  Executor& home = primary_.nvram->home();
  const TimePoint deadline = home.now() + kSyncPatience;
  while (!append.ended && home.now() < deadline) co_await append.changed.wait_until(deadline);
  if (append.ended) co_return append.error;
  Entry& entry = entries_[slot];
  entry.waiting = nullptr;
  left_.push_back({.subject = entry.subject, .order = entry.order});
  set_stalled(true);
  co_return Error::kTimedOut;
}

// Its caller is in the gate.
Task<void> WriteMemory::append_detached(std::uint32_t slot) {
  const bool entered = gate_.enter();
  assert(entered);
  const GateHold hold(gate_);
  const std::uint64_t order = entries_[slot].order;
  Append* waiting = nullptr;
  const Error error = co_await append_entry(slot, &waiting);
  if (waiting != nullptr) {
    waiting->ended = true;
    waiting->error = error;
    waiting->changed.notify_all();
    co_return;
  }
  if (error == Error::kNone) release(WriteId{slot});
  std::erase_if(left_, [order](const Left& one) { return one.order == order; });
  if (left_.empty()) set_stalled(false);
  final_changed_.notify_all();
}

void WriteMemory::set_stalled(bool stalled) {
  if (std::exchange(stalled_, stalled) == stalled) return;
  if (on_stalled) on_stalled(stalled);
}

// Whether a write there may come back; no write is longer than the largest one.
bool WriteMemory::in_doubt(const Uuid& device, const Extent& extent, std::uint64_t but) const {
  const auto counts = [&](const auto& one) {
    return one.order != but && overlaps(one.subject, device, extent);
  };
  const auto held = [&](std::uint32_t slot) { return counts(entries_[slot]); };
  if (std::ranges::any_of(released_, counts) || std::ranges::any_of(leaving_, counts) ||
      std::ranges::any_of(left_, counts) || std::ranges::any_of(held_releases_, held)) {
    return true;
  }
  const auto found = doubtful_.find(device);
  if (found == doubtful_.end()) return false;
  constexpr Lba kMostBlocks = kMostWriteBytes / 512;
  const Lba from = extent.first - std::min(extent.first, kMostBlocks);
  for (auto at = found->second.lower_bound(from);
       at != found->second.end() && at->first < extent.end(); ++at) {
    if (at->second.end > extent.first && at->second.order != but) return true;
  }
  return false;
}

// With durability host released writes become final by themselves (free_released()).
Task<Error> WriteMemory::flush_releases(Uuid device, Extent extent, Patience patience,
                                        std::uint64_t left) {
  if (!to_host()) {
    const Error error = co_await flush_releases();
    if (error != Error::kNone && !in_doubt(device, extent, left)) co_return Error::kNone;
    co_return error;
  }
  const Executor& home = primary_.nvram->home();
  SyncCounts before = sync_counts();
  TimePoint deadline = home.now() + kSyncPatience;
  while (in_doubt(device, extent, left)) {
    if (failure() != Error::kNone) co_return failure();
    const Error end = patience.end();
    if (end != Error::kNone) co_return end;
    if (home.now() >= deadline) {
      if (!has_gone_on(before)) co_return Error::kTimedOut;
      before = sync_counts();
      deadline = home.now() + kSyncPatience;
    }
    co_await patience.wait(&final_changed_, deadline);
  }
  co_return Error::kNone;
}

WriteMemory::SyncCounts WriteMemory::sync_counts() const noexcept {
  return {.primary = primary_.nvram->sync_count(),
          .mirror = mirrored() ? mirror_.nvram->sync_count() : 0};
}

// Whether an image was synced since then, and none hangs: many syncs of a slow disk take longer
// than one may.
bool WriteMemory::has_gone_on(const SyncCounts& since) const noexcept {
  const SyncCounts now = sync_counts();
  const bool primary = now.primary != since.primary;
  const bool mirror = now.mirror != since.mirror;
  if (!primary && primary_.nvram->syncing()) return false;
  if (mirrored() && !mirror && mirror_.nvram->syncing()) return false;
  return primary || mirror;
}

}  // namespace sandbay::cache
