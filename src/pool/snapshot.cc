// Pool: snapshots, clones, restores.
//
// A snapshot is one record, made while no write of its branches is under way: every write is wholly
// in it or wholly not. A clone is a branch that hangs on a snapshot, or on a generation of its own.
// A restored volume goes on in a new branch that hangs on the snapshot.
#include <algorithm>
#include <cassert>
#include <utility>

#include "pool/page_io.h"
#include "pool/pool.h"
#include "pool/pool_volume.h"
#include "runtime/in_time.h"

namespace sandbay::pool {

namespace {

// RAID sets give up a hung drive sooner.
constexpr Duration kFlushPatience = std::chrono::seconds(60);
// Hosts do not notice such a flush.
constexpr Duration kShortFlush = std::chrono::milliseconds(100);

}  // namespace

Task<Result<std::vector<Generation>>> Pool::snapshot(std::vector<SnapshotOrder> orders,
                                                     metadata::Batch extra) {
  co_await directory_.lock();
  auto taken = co_await snapshot_locked(std::move(orders), std::move(extra));
  directory_.unlock();
  co_return taken;
}

Task<Result<std::vector<Generation>>> Pool::snapshot_locked(std::vector<SnapshotOrder> orders,
                                                            metadata::Batch extra) {
  std::vector<Branch*> branches;
  for (const SnapshotOrder& order : orders) {
    Branch* const branch = find_live(order.branch);
    if (branch == nullptr) co_return std::unexpected(Error::kNotFound);
    if (std::ranges::find(branches, branch) != branches.end() ||
        order.label.size() > kLongestLabel) {
      co_return std::unexpected(Error::kInvalid);
    }
    if (branch->record.last_generation + 1 == kLive) co_return std::unexpected(Error::kNoSpace);
    branches.push_back(branch);
  }
  Error error = co_await settle(branches);
  std::vector<Generation> generations;
  std::vector<MapRecord> records;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    const BranchRecord& record = branches[i]->record;
    generations.push_back(record.last_generation + 1);
    records.emplace_back(SnapshotRecord{.branch = record.id,
                                        .generation = generations.back(),
                                        .byte_count = record.byte_count,
                                        .label = std::move(orders[i].label)});
  }
  if (error == Error::kNone) error = co_await commit(std::move(records), std::move(extra));
  for (Branch* const branch : branches) branch->door.open();
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return generations;
}

// Closes the doors of these branches and ends when no write is inside, and all that was written is
// durable: what a generation shows now it shows after a power cut, too. The caller opens the doors.
// kTimedOut: I/O below takes too long, and hosts must not wait for it.
Task<Error> Pool::settle(std::vector<Branch*> branches) {
  // Most of it while hosts still write, so that they wait for little.
  const auto early = co_await flush_early(branches, kFlushPatience);
  Error error = early.has_value() ? Error::kNone : early.error();
  const Duration flush = early.value_or(Duration::zero());
  // The flush behind closed doors would take as long.
  if (flush >= WriteDoor::kMostPatience) error = Error::kTimedOut;
  // All doors at once, and only then it waits: the moment is the same for all.
  for (Branch* const branch : branches) branch->door.close();
  const TimePoint deadline = home_.now() + patience(branches, flush);
  for (Branch* const branch : branches) {
    if (error != Error::kNone) break;
    const bool empty = co_await branch->door.wait_until_empty(deadline);
    if (!empty) error = Error::kTimedOut;
  }
  if (error == Error::kNone) error = co_await in_time(flush_behind(branches), deadline);
  if (error == Error::kTimedOut) {
    tell({.kind = PoolEvent::Kind::kWritesHang, .branch = branches.front()->id(), .error = error});
  }
  co_return error;
}

// Flushes while hosts still write, again as long as that halves the time of a flush: what hosts
// write meanwhile is less each time.
Task<Result<Duration>> Pool::flush_early(std::vector<Branch*> branches, Duration limit) {
  const TimePoint deadline = home_.now() + limit;
  for (Duration before = Duration::max();;) {
    const TimePoint begun = home_.now();
    const Error error = co_await in_time(flush_behind(branches), deadline);
    if (error != Error::kNone) co_return std::unexpected(error);
    const Duration took = home_.now() - begun;
    if (took <= kShortFlush || took > before / 2) co_return took;
    before = took;
  }
}

// The patience of a door behind which nothing is flushed. A flush shows how slow the stores are; if
// it fails or hangs, requests that do not need it go on.
Task<Duration> Pool::find_patience(Branch* branch) {
  const auto early = co_await flush_early({branch}, WriteDoor::kMostPatience);
  co_return patience({branch}, early.value_or(Duration::zero()));
}

// A request inside may wait for one that keeps a chunk first, and a flush follows: four accesses in
// turn, each in about the time that the stores take now.
Duration Pool::patience(const std::vector<Branch*>& branches, Duration flush) const {
  Duration slowest = flush;
  for (const auto& [index, store] : map_.stores()) {
    const bool concerned = std::ranges::any_of(
        branches, [index](const Branch* branch) { return branch->pages.count_on(index) > 0; });
    const auto latency = static_cast<Duration::rep>(load(index).latency_nanoseconds);
    if (concerned) slowest = std::max(slowest, Duration(latency));
  }
  return std::min(WriteDoor::kPatience + 4 * slowest, WriteDoor::kMostPatience);
}

// Goes on if settle() gives up.
Task<Error> Pool::flush_behind(std::vector<Branch*> branches) {
  if (!flushes_.enter()) co_return Error::kClosed;
  const GateHold hold(flushes_);
  const Request like{.operation = Operation::kFlush, .origin = Origin::kCopy};
  const Completion flushed = co_await flush_stores(this, branches, &like, true);
  co_return flushed.error;
}

Task<Result<BranchId>> Pool::clone(SnapshotKey of, BranchOptions options, metadata::Batch extra) {
  co_await directory_.lock();
  const auto made = co_await clone_locked(of, std::move(options), std::move(extra));
  directory_.unlock();
  co_return made;
}

Task<Result<BranchId>> Pool::clone_locked(SnapshotKey of, BranchOptions options,
                                          metadata::Batch extra) {
  Branch* const source = map_.find(of.branch);
  const bool live = of.generation == kLive;
  if (source == nullptr || (live ? source->record.dead : !has(of))) {
    co_return std::unexpected(Error::kNotFound);
  }
  // What only a branch hangs on may be on its way to that branch.
  if (source->record.dead && !source->snapshots.contains(of.generation)) {
    co_return std::unexpected(Error::kNotFound);
  }
  std::uint64_t byte_count = source->record.byte_count;
  const auto snapshot = source->snapshots.find(of.generation);
  if (snapshot != source->snapshots.end()) byte_count = snapshot->second.byte_count;
  if (options.byte_count == 0) options.byte_count = byte_count;
  if (options.byte_count < byte_count || options.byte_count % options_.block_bytes != 0 ||
      options.byte_count > kMostBranchBytes || options.label.size() > kLongestLabel) {
    co_return std::unexpected(Error::kInvalid);
  }
  if (live && source->record.last_generation + 1 == kLive) {
    co_return std::unexpected(Error::kNoSpace);
  }
  std::vector<MapRecord> records;
  BranchRecord child{.id = map_.claim_branch(),
                     .byte_count = options.byte_count,
                     .parent = of.branch,
                     .parent_generation = of.generation,
                     .through_pages = map_.page_count(byte_count),
                     .placement = options.placement,
                     .fixed_store = options.fixed_store,
                     .page_limit = options.page_limit,
                     .page_warning = options.page_warning,
                     .label = std::move(options.label)};
  const BranchId id = child.id;
  Error error = Error::kNone;
  if (live) {
    error = co_await settle({source});
    BranchRecord parent = source->record;
    child.parent_generation = ++parent.last_generation;
    records.emplace_back(std::move(parent));
  }
  records.emplace_back(std::move(child));
  if (error == Error::kNone) error = co_await commit(std::move(records), std::move(extra));
  if (live) source->door.open();
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return id;
}

Task<Result<BranchId>> Pool::restore(PoolVolume& volume, SnapshotKey to, metadata::Batch extra,
                                     std::move_only_function<void()> switched) {
  co_await directory_.lock();
  const Duration patience = co_await find_patience(&volume.branch());
  // Reads that wait at this door find the new branch behind it; changes that wait are refused.
  volume.door_.close();
  const bool empty = co_await volume.door_.wait_until_empty(home_.now() + patience);
  Result<BranchId> restored = std::unexpected(Error::kTimedOut);
  if (empty) {
    restored = co_await restore_locked(&volume, to, std::move(extra));
    if (restored.has_value()) {
      ++volume.content_;
      if (switched) switched();
    }
  } else {
    tell({.kind = PoolEvent::Kind::kWritesHang,
          .branch = volume.branch().id(),
          .error = Error::kTimedOut});
  }
  volume.door_.open();
  directory_.unlock();
  co_return restored;
}

Task<Result<BranchId>> Pool::restore_locked(PoolVolume* volume, SnapshotKey to,
                                            metadata::Batch extra) {
  const Branch* const source = map_.find(to.branch);
  if (volume->read_only()) co_return std::unexpected(Error::kReadOnly);
  if (source == nullptr || !source->snapshots.contains(to.generation)) {
    co_return std::unexpected(Error::kNotFound);
  }
  BranchRecord old = volume->branch().record;
  BranchRecord next = old;
  next.id = map_.claim_branch();
  next.byte_count = source->snapshots.at(to.generation).byte_count;
  next.parent = to.branch;
  next.parent_generation = to.generation;
  next.through_pages = map_.page_count(next.byte_count);
  next.last_generation = 0;
  next.kept = {};
  next.sweeping = false;
  old.dead = true;
  old.sweeping = true;
  const BranchId id = next.id;
  const BranchId old_id = old.id;
  std::vector<MapRecord> others;
  others.emplace_back(std::move(old));
  const Error error = co_await provision(std::move(next), 0, std::move(extra), std::move(others));
  if (error != Error::kNone) co_return std::unexpected(error);
  volume->branch_ = map_.find(id);
  volumes_.erase(old_id);
  volumes_[id] = volume;
  co_return id;
}

}  // namespace sandbay::pool
