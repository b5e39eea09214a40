// Pool: making a branch independent of its parent, page by page, while it is used.
//
// What it reads through its parent is copied into pages of its own; a version that its snapshots
// have as "through" becomes one with data. What stays "through" afterwards are zeros, and so it
// means the same without a parent. Nothing that anybody reads changes, so nothing is kept for it.
//
// A whole copy begins only when all its pages fit beside the reserve of hosts (placement.cc). If
// hosts claim the room meanwhile, the copy stops at the reserve and waits for the rest of its need.
// The branch's own limit refuses it no page, since it has these data already.
#include <algorithm>
#include <cassert>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool.h"

namespace sandbay::pool {

namespace {

// Looks at page maps in one turn.
constexpr std::size_t kSliceSteps = 4096;
// Hosts' writes and sweeps change what a copy needs. To count takes a walk over the row's pages.
constexpr Duration kCountAgain = std::chrono::minutes(1);

}  // namespace

Task<Result<bool>> Pool::make_independent(BranchId id, PageNumber* next, std::uint32_t pages) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  Branch* const branch = map_.find(id);
  if (branch == nullptr || branch->erasing) co_return std::unexpected(Error::kNotFound);
  const BranchUse use(*branch);
  forget_passes_over(*branch);
  const Error room = co_await find_room(branch, *next);
  if (room != Error::kNone) co_return std::unexpected(room);
  co_return co_await copy_pages(branch, next, pages, Independence::kOfAll);
}

std::uint64_t Pool::pages_awaited(BranchId branch) const noexcept {
  const auto found = needs_.find(branch);
  return found == needs_.end() || found->second.fits ? 0 : found->second.pages;
}

// kNone: a whole copy of the branch may go on at page `from`.
Task<Error> Pool::find_room(const Branch* branch, PageNumber from) {
  const auto known = needs_.find(branch->id());
  const bool begins = known == needs_.end();
  CopyNeed need = begins ? CopyNeed{} : known->second;
  if (need.fits) co_return Error::kNone;
  if (begins) std::erase_if(needs_, [this](const auto& one) { return !map_.find(one.first); });
  if (begins || home_.now() >= need.count_again) {
    need.pages = co_await pages_to_copy(branch, from);
    need.count_again = home_.now() + kCountAgain;
  }
  const std::uint64_t room = room_for_copies(branch->record.fixed_store);
  need.fits = need.pages <= room;
  needs_[branch->id()] = need;
  if (need.fits) co_return Error::kNone;
  if (begins) {
    tell({.kind = PoolEvent::Kind::kCopyWaits,
          .branch = branch->id(),
          .error = Error::kNoSpace,
          .needed_pages = need.pages,
          .room_pages = room});
  }
  co_return Error::kNoSpace;
}

// The number of pages from `from` on that a whole copy claims, at most: those that any parent has
// in a place or keeps in slots, and a page for slots of its own.
Task<std::uint64_t> Pool::pages_to_copy(const Branch* branch, PageNumber from) {
  const PageNumber end = std::min(branch->record.through_pages, map_.page_count_of(*branch));
  std::uint64_t without_place = 0;
  std::uint64_t pages = 0;
  std::size_t steps = 0;
  for (PageNumber page = from; page < end; ++page) {
    steps += 1 + parent_count(*branch);
    if (steps >= kSliceSteps) {
      steps = 0;
      co_await home_.turn_end();
    }
    if (!branch->pages.at(page).place().none()) continue;
    ++without_place;
    bool any = false;
    for (const Branch* at = branch; at->has_parent() && !any;) {
      at = map_.find(at->record.parent);
      any = !at->pages.at(page).place().none();
    }
    if (any) ++pages;
  }
  std::uint64_t slots = 0;
  for (const Branch* at = branch; at->has_parent();) {
    at = map_.find(at->record.parent);
    slots += at->record.kept.total();
  }
  pages += (slots + map_.page_chunks() - 1) / map_.page_chunks();
  co_return std::min(pages, without_place) + (branch->living.empty() ? 0 : 1);
}

// Whether there is more; at the end the parent is cut off.
Task<Result<bool>> Pool::copy_pages(Branch* branch, PageNumber* next, std::uint32_t pages,
                                    Independence of) {
  const ChunkRange whole{.page = 0, .first = 0, .count = map_.page_chunks()};
  for (; pages > 0 && branch->has_parent(); --pages) {
    if (is_useless(*branch)) co_return std::unexpected(Error::kNotFound);
    // This end only comes nearer, so the wait for the directory does not matter.
    if (!branch->reads_through(*next)) {
      co_await directory_.lock();
      const Error error = co_await cut_parent(branch, of);
      directory_.unlock();
      if (error != Error::kNone) co_return std::unexpected(error);
      needs_.erase(branch->id());
      co_return false;
    }
    ChunkRange range = whole;
    range.page = *next;
    const std::uint64_t copied = counters_.bytes_copied;
    {
      ChunkLocks::Hold hold(branch->locks, ChunkLocks::Kind::kChange, range);
      if (!hold.ready()) co_await branch->locks.wait(hold);
      Error error = co_await adopt_page(branch, *next);
      if (error == Error::kNone) error = co_await copy_from_parent(branch, *next, of);
      if (error == Error::kNone) {
        error = co_await rewrite_kept(branch, *next, kNoStore, reserve_for(of));
      }
      // Hosts have claimed what was counted for it.
      const bool full = room_for_copies(branch->record.fixed_store) == 0;
      if (error == Error::kNoSpace && full) needs_.erase(branch->id());
      if (error != Error::kNone) co_return std::unexpected(error);
    }
    ++*next;
    co_await pace(copied);
  }
  co_return branch->has_parent();
}

std::uint32_t Pool::parent_count(const Branch& branch) const noexcept {
  std::uint32_t count = 0;
  for (const Branch* at = &branch; at->has_parent(); at = map_.find(at->record.parent)) ++count;
  return count;
}

// Of those that could not be shortened each has its turn again when all others had theirs.
Branch* Pool::next_long_row(std::uint32_t most_parents) {
  Branch* failed = nullptr;
  for (const auto& [id, branch] : map_.branches()) {
    if (parent_count(*branch) <= most_parents || is_useless(*branch)) continue;
    if (!not_flattened_.contains(id)) return branch.get();
    if (failed == nullptr) failed = branch.get();
  }
  not_flattened_.clear();
  return failed;
}

// The oldest one: all its parents have no more than so many themselves. Somewhere in the row there
// may be one that takes over its parent, which costs little; if not, the whole is copied.
Task<Result<bool>> Pool::flatten(std::uint32_t most_parents, std::uint32_t pages,
                                 BranchId* changed) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  Branch* const long_row = next_long_row(most_parents);
  if (long_row == nullptr) {
    flattening_.clear();
    not_flattened_.clear();
    co_return false;
  }
  Branch* chosen = long_row;
  Independence of = Independence::kOfAll;
  for (Branch* at = long_row; at->has_parent(); at = map_.find(at->record.parent)) {
    if (!is_heir(*at)) continue;
    const auto inherits = [this](const Branch* heir) {
      return map_.find(heir->record.parent)->pages.placed_count();
    };
    if (of == Independence::kOfAll || inherits(at) < inherits(chosen)) chosen = at;
    of = Independence::kOfParent;
  }
  const BranchUse use(*chosen);
  forget_passes_over(*chosen);
  const BranchId id = chosen->id();
  if (changed != nullptr) *changed = id;
  Flattening pass = flattening_[id];
  // It may have become an heir since, or be one no more: then its first pages are gone over again.
  if (pass.of != of) pass = {.of = of, .next = 0};
  Error room = Error::kNone;
  if (of == Independence::kOfAll) room = co_await find_room(chosen, pass.next);
  Result<bool> more = std::unexpected(room);
  if (room == Error::kNone) more = co_await copy_pages(chosen, &pass.next, pages, of);
  flattening_[id] = pass;
  if (!more.has_value()) {
    not_flattened_.insert(long_row->id());
    co_return more;
  }
  // It begins anew with another parent.
  if (!*more) flattening_.erase(id);
  co_return true;
}

// What a child has passed over, as its parent says nothing of it, the parent may get now.
void Pool::forget_passes_over(const Branch& parent) {
  for (const auto& [generation, child] : parent.children) flattening_.erase(child);
}

// It is only there until it is swept.
bool Pool::is_useless(const Branch& branch) noexcept {
  return branch.record.dead && branch.living.empty();
}

// Its parent's live end is nobody's, and nobody else hangs there or ever will.
bool Pool::is_heir(const Branch& branch) const noexcept {
  const Branch& parent = *map_.find(branch.record.parent);
  return parent.record.dead && parent.snapshots.empty() && parent.children.size() == 1;
}

// An heir takes its parent's page over, without a copy. What the parent keeps of it for the
// generation lies in slots and is copied afterwards.
Task<Error> Pool::adopt_page(Branch* branch, PageNumber page) {
  Branch* const parent = map_.find(branch->record.parent);
  const Generation generation = branch->record.parent_generation;
  const PageKey own{.branch = branch->id(), .page = page};
  const PageKey key{.branch = parent->id(), .page = page};
  const bool due = is_heir(*branch) && page < map_.page_count_of(*branch) &&
                   branch->pages.at(page).empty() && !parent->pages.at(page).place().none();
  if (!due) co_return Error::kNone;
  // What its own snapshots have as "through" is read from the parent yet.
  const auto versions = co_await map_.kept(own, 0);
  if (!versions.has_value()) co_return versions.error();
  if (!(*versions)->generations().empty()) co_return Error::kNone;
  const ChunkRange whole{.page = page, .first = 0, .count = map_.page_chunks()};
  ChunkLocks::Hold hold(parent->locks, ChunkLocks::Kind::kChange, whole);
  if (!hold.ready()) co_await parent->locks.wait(hold);
  const Place place = parent->pages.at(page).place();
  if (place.none()) co_return Error::kNone;
  const auto chunks = co_await map_.chunk_map(key);
  if (!chunks.has_value()) co_return chunks.error();
  const auto kept = co_await map_.kept(key, generation);
  if (!kept.has_value()) co_return kept.error();
  const auto mine = co_await map_.chunk_map(own);
  if (!mine.has_value()) co_return mine.error();
  std::vector<MapRecord> records;
  records.emplace_back(SetChunks{.branch = key.branch,
                                 .page = page,
                                 .first = 0,
                                 .count = static_cast<std::uint16_t>(whole.count)});
  records.emplace_back(PlacePages{.branch = key.branch, .page = page, .place = {}});
  records.emplace_back(PlacePages{.branch = own.branch, .page = page, .place = place});
  bool any = false;
  for (ChunkIndex chunk = 0; chunk < whole.count; ++chunk) {
    const ChunkState state = (*chunks)->state(chunk);
    const bool seen = (*kept)->seen_by(generation, chunk) == nullptr;
    if (!seen || state == ChunkState::kThrough) continue;
    any = any || state == ChunkState::kData;
    records.emplace_back(SetChunks{.branch = own.branch,
                                   .page = page,
                                   .first = static_cast<std::uint16_t>(chunk),
                                   .count = 1,
                                   .state = state});
  }
  if (!any) co_return Error::kNone;
  const Error error = co_await commit(std::move(records), {});
  if (error == Error::kNone) ++counters_.pages_adopted;
  co_return error;
}

Task<Error> Pool::copy_from_parent(Branch* branch, PageNumber page, Independence of) {
  // The branch gets no place behind its end. Readers find zeros there, such as a larger child from
  // a map of version 2.
  const bool is_behind = page >= map_.page_count_of(*branch);
  PageChange change(*this, *branch, page, reserve_for(of));
  Error error = co_await change.load();
  Request copy{.origin = Origin::kCopy};
  for (ChunkIndex chunk = 0; error == Error::kNone && chunk < map_.page_chunks();) {
    const ChunkIndex end =
        change.chunks().end_of_run(chunk, std::min(chunk + kCopyChunks, map_.page_chunks()));
    const ChunkRange run{.page = page, .first = chunk, .count = end - chunk};
    chunk = end;
    if (change.chunks().state(run.first) != ChunkState::kThrough) continue;
    if (hurries_) co_return Error::kCancelled;
    ReadPlan plan;
    const bool all = of == Independence::kOfAll;
    error = co_await plan_read(this, branch, kLive, run, &plan, all ? kAllParents : 1);
    ChunkIndex at = run.first;
    for (const Source& source : plan.sources) {
      const ChunkIndex first = std::exchange(at, at + source.count);
      if (error != Error::kNone) continue;
      if (source.zeros || is_behind) {
        // The parent's zeros hide what its own parent has there.
        if (!all && !source.through) change.set(first, source.count, ChunkState::kZero);
        continue;
      }
      change.note_inherited();
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

// With the directory locked. Behind the parent's own end the branch reads zeros from now on.
Task<Error> Pool::cut_parent(Branch* branch, Independence of) {
  if (!branch->has_parent()) co_return Error::kNone;
  BranchRecord parent = map_.find(branch->record.parent)->record;
  parent.sweeping = true;
  BranchRecord record = branch->record;
  const bool all = of == Independence::kOfAll;
  record.parent = all ? 0 : parent.parent;
  record.parent_generation = all ? 0 : parent.parent_generation;
  record.through_pages = all ? 0 : std::min(record.through_pages, parent.through_pages);
  std::vector<MapRecord> records;
  records.emplace_back(std::move(record));
  records.emplace_back(std::move(parent));
  co_return co_await commit(std::move(records), {});
}

}  // namespace sandbay::pool
