// Pool: making a branch independent of its parent, page by page, while it is used.
//
// What it reads through its parent is copied into pages of its own; a version that its snapshots
// have as "through" becomes one with data. What stays "through" afterwards are zeros, and so it
// means the same without a parent. Nothing that anybody reads changes, so nothing is kept for it.
#include <algorithm>
#include <cassert>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool.h"

namespace sandbay::pool {

namespace {

constexpr std::uint32_t kCopyChunks = 16;

}  // namespace

Task<Result<bool>> Pool::make_independent(BranchId id, PageNumber* next, std::uint32_t pages) {
  Branch* const branch = map_.find(id);
  if (branch == nullptr) co_return std::unexpected(Error::kNotFound);
  const BranchUse use(*branch);
  const ChunkRange whole{.page = 0, .first = 0, .count = map_.page_chunks()};
  for (; pages > 0 && branch->has_parent(); --pages) {
    if (*next >= end_of_all(*branch)) {
      co_await directory_.lock();
      const Error error = co_await cut_parent(branch);
      directory_.unlock();
      if (error != Error::kNone) co_return std::unexpected(error);
      continue;
    }
    ChunkRange range = whole;
    range.page = *next;
    ChunkLocks::Hold hold(branch->locks, ChunkLocks::Kind::kChange, range);
    if (!hold.ready()) co_await branch->locks.wait(hold);
    Error error = co_await copy_from_parent(branch, *next);
    if (error == Error::kNone) error = co_await rewrite_kept(branch, *next, kNoStore);
    if (error != Error::kNone) co_return std::unexpected(error);
    ++*next;
  }
  co_return branch->has_parent();
}

// Behind the last page that the branch, a snapshot of it or a child has.
PageNumber Pool::end_of_all(const Branch& branch) const {
  std::uint64_t bytes = branch.record.byte_count;
  for (const auto& [generation, snapshot] : branch.snapshots) {
    bytes = std::max(bytes, snapshot.byte_count);
  }
  for (const auto& [generation, child] : branch.children) {
    bytes = std::max(bytes, map_.find(child)->record.byte_count);
  }
  return static_cast<PageNumber>((bytes + map_.page_bytes() - 1) / map_.page_bytes());
}

Task<Error> Pool::copy_from_parent(Branch* branch, PageNumber page) {
  if (page >= map_.page_count_of(*branch)) co_return Error::kNone;
  PageChange change(*this, *branch, page);
  Error error = co_await change.load();
  Request copy{.origin = Origin::kCopy};
  for (ChunkIndex chunk = 0; error == Error::kNone && chunk < map_.page_chunks();) {
    const ChunkIndex end =
        change.chunks().end_of_run(chunk, std::min(chunk + kCopyChunks, map_.page_chunks()));
    const ChunkRange run{.page = page, .first = chunk, .count = end - chunk};
    chunk = end;
    if (change.chunks().state(run.first) != ChunkState::kThrough) continue;
    ReadPlan plan;
    error = co_await plan_read(this, branch, kLive, run, &plan);
    ChunkIndex at = run.first;
    for (const Source& source : plan.sources) {
      const ChunkIndex first = std::exchange(at, at + source.count);
      if (source.zeros || error != Error::kNone) continue;
      error = change.need_place();
      if (error != Error::kNone) break;
      error = co_await change.copy(
          source.slot, {.place = change.place(), .chunk = static_cast<std::uint16_t>(first)},
          source.count);
      change.set(first, source.count, ChunkState::kData);
    }
  }
  if (error != Error::kNone) co_return error;
  co_return co_await change.commit();
}

// With the directory locked: the branch is as large as it was found to be.
Task<Error> Pool::cut_parent(Branch* branch) {
  if (!branch->has_parent()) co_return Error::kNone;
  BranchRecord parent = map_.find(branch->record.parent)->record;
  parent.sweeping = true;
  BranchRecord record = branch->record;
  record.parent = 0;
  record.parent_generation = 0;
  std::vector<MapRecord> records;
  records.emplace_back(std::move(record));
  records.emplace_back(std::move(parent));
  co_return co_await commit(std::move(records), {});
}

}  // namespace sandbay::pool
