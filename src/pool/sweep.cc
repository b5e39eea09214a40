// Pool: freeing what nobody needs any more, after snapshots and branches were removed.
//
// A pass goes over the pages of a branch that may have something useless: kept versions that no
// living generation sees; if the branch's live end is dead, also its own chunks that no living
// generation sees; otherwise, at the end of the pass, places behind its end. Each page is a change
// of its own, under a lock of all of it, and finds out by itself what to do; so a pass that was cut
// off begins anew and passes over what is done. A page whose part of the map is damaged is passed
// over, and the branch rests after such a pass: others are swept all the same. When nothing hangs
// on a dead branch any more, it is erased, and its parent is swept.
#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "pool/pool.h"

namespace sandbay::pool {

namespace {

// Of one change. A page with more versions takes several.
constexpr std::size_t kMostForgotten = 1024;
// After a pass that has found damage.
constexpr Duration kSweepAgain = std::chrono::minutes(1);

std::uint32_t page_of(const std::string& key) {
  // The page stands before the generation.
  std::uint32_t page = 0;
  for (std::size_t i = key.size() - 8; i < key.size() - 4; ++i) {
    page = page << 8U | static_cast<unsigned char>(key[i]);
  }
  return page;
}

}  // namespace

// Those that are being made are no leftovers, and nothing is done for them.
bool Pool::needs_sweep() const noexcept {
  return std::ranges::any_of(map_.branches(), [this](const auto& entry) {
    return entry.second->record.sweeping && !making_.contains(entry.first);
  });
}

bool Pool::may_sweep(BranchId id) const {
  const auto known = sweeps_.find(id);
  return !making_.contains(id) && (known == sweeps_.end() || known->second.again <= home_.now());
}

std::vector<BranchId> Pool::due_for_sweep() const {
  std::vector<BranchId> due;
  for (const auto& [id, branch] : map_.branches()) {
    if (branch->record.sweeping && may_sweep(id)) due.push_back(id);
  }
  return due;
}

Task<Result<bool>> Pool::sweep(std::uint32_t pages) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  const std::vector<BranchId> due = due_for_sweep();
  // Children first: their parents may become useless.
  for (auto id = due.rbegin(); id != due.rend() && pages > 0; ++id) {
    const auto more = co_await sweep_branch(*id, &pages);
    if (!more.has_value()) co_return std::unexpected(more.error());
  }
  if (!due_for_sweep().empty()) co_return true;
  if (needs_sweep()) co_return std::unexpected(Error::kDataCorrupt);
  co_return false;
}

Task<Result<bool>> Pool::sweep_branch(BranchId id, std::uint32_t* pages) {
  Branch* branch = map_.find(id);
  if (branch == nullptr || !branch->record.sweeping) co_return false;
  Sweep& sweep = sweeps_[id];
  if (!sweep.began) {
    // The store tells which pages have kept versions; it knows them from the checkpoint on.
    sweep = {.began = true, .next = 0, .living = branch->living_changes};
    // What is being written may yet keep something for a snapshot that is gone.
    {
      const BranchUse use(*branch);
      co_await branch->door.drain();
    }
    const Error error = co_await log_.checkpoint();
    if (error != Error::kNone) {
      sweeps_.erase(id);
      co_return std::unexpected(error);
    }
  }
  while (*pages > 0) {
    --*pages;
    const auto page = co_await next_to_sweep(branch, sweep.next);
    if (!page.has_value()) co_return std::unexpected(page.error());
    if (*page == kNoPage && sweep.damaged) {
      sweep = {.again = home_.now() + kSweepAgain};
      co_return false;
    }
    if (*page == kNoPage) {
      const std::uint64_t living = sweep.living;
      sweeps_.erase(id);
      co_await directory_.lock();
      // What has lost its last snapshot meanwhile takes another pass.
      const bool stale = living != branch->living_changes;
      Error error = Error::kNone;
      if (!stale) error = co_await end_sweep(branch);
      directory_.unlock();
      if (error != Error::kNone) co_return std::unexpected(error);
      co_return stale;
    }
    const Error error = co_await sweep_page(branch, *page);
    if (error != Error::kNone && error != Error::kDataCorrupt) co_return std::unexpected(error);
    sweep.damaged = sweep.damaged || error == Error::kDataCorrupt;
    sweep.next = *page + 1;
  }
  co_return true;
}

// The first page at or behind `from` that has kept versions or, in a dead branch, anything.
Task<Result<PageNumber>> Pool::next_to_sweep(const Branch* branch, PageNumber from) {
  PageNumber next = kNoPage;
  if (branch->record.dead) {
    next = branch->pages.next(from, kNoPage);
  }
  const auto kept = co_await next_kept(branch->id(), from);
  if (!kept.has_value()) co_return kept;
  co_return std::min(next, *kept);
}

// The first page of the branch at or behind `from` with kept versions in the store; kNoPage: none.
Task<Result<PageNumber>> Pool::next_kept(BranchId branch, PageNumber from) {
  const std::string first = map_.key_of({.branch = branch, .page = from}, 0);
  const std::string prefix = first.substr(0, map_.key('k').size() + sizeof branch);
  const auto kept = co_await store_.list(prefix, first, 1);
  if (!kept.has_value()) co_return std::unexpected(kept.error());
  co_return kept->empty() ? kNoPage : page_of(kept->front().first);
}

Task<Error> Pool::sweep_page(Branch* branch, PageNumber page) {
  const ChunkRange whole{.page = page, .first = 0, .count = map_.page_chunks()};
  ChunkLocks::Hold hold(branch->locks, ChunkLocks::Kind::kChange, whole);
  if (!hold.ready()) co_await branch->locks.wait(hold);
  Error error = co_await forget_useless(branch, page);
  if (error == Error::kNone && branch->record.dead) {
    error = co_await free_dead_page(branch, page);
  }
  co_return error;
}

Task<Error> Pool::forget_useless(Branch* branch, PageNumber page) {
  const PageKey key{.branch = branch->id(), .page = page};
  while (true) {
    auto kept = co_await map_.kept(key, 0);
    if (!kept.has_value()) co_return kept.error();
    const std::vector<KeptChunks::Useless> useless = (*kept)->useless(branch->living);
    if (useless.empty()) co_return Error::kNone;
    std::vector<MapRecord> records;
    std::vector<PoolMap::SlotMaps::Pin> pins;
    std::set<Place> pinned;
    for (const KeptChunks::Useless& version : useless) {
      if (records.size() == kMostForgotten) break;
      const Kept& one = version.kept;
      if (one.state == ChunkState::kData && pinned.insert(one.slot.place).second) {
        auto pin = co_await map_.slot_map(one.slot.place);
        if (!pin.has_value()) co_return pin.error();
        pins.push_back(std::move(*pin));
      }
      records.emplace_back(ForgetChunk{.branch = key.branch,
                                       .page = page,
                                       .generation = version.generation,
                                       .chunk = one.chunk});
    }
    const Error error = co_await commit(std::move(records), {});
    if (error != Error::kNone) co_return error;
  }
}

// The live end is nobody's: a chunk is needed only if the youngest generation that lives sees it.
Task<Error> Pool::free_dead_page(Branch* branch, PageNumber page) {
  const PageKey key{.branch = branch->id(), .page = page};
  auto chunks = co_await map_.chunk_map(key);
  if (!chunks.has_value()) co_return chunks.error();
  const Generation newest = branch->newest();
  PoolMap::KeptMaps::Pin kept;
  if (newest != 0) {
    auto loaded = co_await map_.kept(key, newest);
    if (!loaded.has_value()) co_return loaded.error();
    kept = std::move(*loaded);
  }
  std::vector<MapRecord> records;
  std::uint32_t data = 0;
  for (ChunkIndex chunk = 0; chunk < map_.page_chunks(); ++chunk) {
    const ChunkState state = (*chunks)->state(chunk);
    const bool needed = newest != 0 && kept->seen_by(newest, chunk) == nullptr;
    if (needed && state == ChunkState::kData) ++data;
    if (needed || state == ChunkState::kThrough) continue;
    auto* const last = records.empty() ? nullptr : std::get_if<SetChunks>(&records.back());
    if (last != nullptr && last->first + last->count == chunk) {
      ++last->count;
    } else {
      records.emplace_back(SetChunks{.branch = key.branch,
                                     .page = page,
                                     .first = static_cast<std::uint16_t>(chunk),
                                     .count = 1});
    }
  }
  const bool placed = !branch->pages.at(page).place().none();
  if (data == 0 && placed) {
    records.emplace_back(PlacePages{.branch = key.branch, .page = page, .place = {}});
  }
  if (records.empty()) co_return Error::kNone;
  const Error error = co_await commit(std::move(records), {});
  if (error == Error::kNone && data == 0 && placed) ++counters_.pages_freed;
  co_return error;
}

// With the directory locked, so that the size stays. A failed expansion or a shrinking has left
// these places.
Task<Error> Pool::free_tail(Branch* branch) {
  for (PageNumber next = map_.page_count_of(*branch); next != kNoPage;) {
    std::vector<MapRecord> records = tail_of(*branch, &next);
    if (records.empty()) {
      co_await home_.turn_end();
      continue;
    }
    const Error error = co_await commit(std::move(records), {});
    if (error != Error::kNone) co_return error;
  }
  co_return Error::kNone;
}

// With the directory locked: nothing lives or dies meanwhile.
Task<Error> Pool::end_sweep(Branch* branch) {
  if (!branch->record.dead) {
    const Error freed = co_await free_tail(branch);
    if (freed != Error::kNone) co_return freed;
  }
  std::vector<MapRecord> records;
  const bool idle = branch->record.dead && branch->snapshots.empty() && branch->children.empty() &&
                    branch->pages.placed_count() == 0 && branch->record.kept.total() == 0;
  // Somebody still looks at it: another pass comes.
  if (idle && (branch->users > 0 || !branch->locks.idle())) co_return Error::kNone;
  // Something has been put behind the sweep, by what began before the branch was removed.
  if (!idle && is_useless(*branch)) co_return Error::kNone;
  if (!idle) {
    BranchRecord record = branch->record;
    record.sweeping = false;
    records.emplace_back(std::move(record));
    co_return co_await commit(std::move(records), {});
  }
  const Branch* const parent = map_.find(branch->record.parent);
  records.emplace_back(EraseBranch{.branch = branch->id()});
  if (parent != nullptr) {
    BranchRecord record = parent->record;
    record.sweeping = true;
    records.emplace_back(std::move(record));
  }
  branch->erasing = true;
  const Error error = co_await commit(std::move(records), {});
  if (error != Error::kNone) branch->erasing = false;
  co_return error;
}

}  // namespace sandbay::pool
