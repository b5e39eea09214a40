// Pool: moving pages to another store while they are used.
//
// The page is copied chunk by chunk, each under a lock of its own; writers go on with the place the
// page has, and note what they have written since (PageMove). What was written is copied again, in
// rounds, the last one under a lock of the whole page, and then the new place is recorded. Until
// then the copy is nobody's: after a crash the page is where it was. Whoever gives the page another
// place, or none, cancels the move. A host that finds no free page ends it, and gets the target.
//
// Its steps pass the probes "rebalance.claimed", "rebalance.copied" (every run of chunks),
// "rebalance.ready" (all is copied), "rebalance.moved" (the new place is recorded) and
// "rebalance.kept" (what snapshots keep of one page is elsewhere). No verdict is obeyed: they are
// there for what happens at that very moment.
#include <algorithm>
#include <cassert>
#include <optional>
#include <string_view>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool.h"
#include "runtime/probe.h"

namespace sandbay::pool {

namespace {

// As many rounds, or until so little was written meanwhile.
constexpr int kMostRounds = 4;
constexpr std::uint32_t kFewChunks = 4;

void pass(std::string_view step, StoreIndex store, std::uint64_t page) {
  if (Probe::armed()) [[unlikely]] {
    (void)Probe::ask({.name = step, .number = store, .first = page});
  }
}

}  // namespace

Task<Error> Pool::move_page(BranchId branch, PageNumber page, StoreIndex target) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  co_return co_await move_locked(branch, page, target);
}

// Inside the background's door.
Task<Error> Pool::move_locked(BranchId id, PageNumber page, StoreIndex target) {
  if (!brief_claims_.try_enter()) co_await brief_claims_.enter();
  const DoorHold claiming(brief_claims_);
  Branch* const branch = map_.find(id);
  if (branch == nullptr) co_return Error::kNotFound;
  const Place from = branch->pages.at(page).place();
  if (from.none()) co_return Error::kNotFound;
  if (from.store == target) co_return Error::kNone;
  if (branch->move != nullptr || !may_allocate_on(target)) co_return Error::kNotReady;
  const std::optional<FreePages::Run> claimed = map_.claim_pages(target, 1);
  if (!claimed.has_value()) co_return Error::kNoSpace;
  const Place to{.store = target, .page = claimed->first};
  pass("rebalance.claimed", target, page);
  const BranchUse use(*branch);
  PageMove move{.page = page, .dirty = BitSet(map_.page_chunks())};
  move.dirty.assign(0, map_.page_chunks(), true);
  branch->move = &move;
  Error error = co_await copy_rounds(branch, to);
  if (error == Error::kNone) error = co_await finish_move(branch, from, to);
  branch->move = nullptr;
  if (error != Error::kNone) {
    map_.unclaim_page(to);
  } else {
    ++counters_.pages_moved;
    pass("rebalance.moved", target, page);
    // What it may have lost of this page before it was copied, the next flush has to hear of.
    const BlockDevice* const old = device(from.store);
    if (old == nullptr || needs_force(*old)) ++branch->left[from.store];
  }
  co_return error;
}

// Copies what is dirty, each run under a lock of its own.
Task<Error> Pool::copy_rounds(Branch* branch, Place to) {
  PageMove& move = *branch->move;
  for (int round = 0; round < kMostRounds && move.dirty.count() > kFewChunks; ++round) {
    ChunkIndex chunk = move.dirty.find(0, true);
    while (chunk < map_.page_chunks() && !move.cancelled) {
      if (hurries_) co_return Error::kCancelled;
      if (brief_claims_.is_closed()) co_return Error::kNoSpace;
      const ChunkIndex end = std::min(chunk + kCopyChunks, move.dirty.find(chunk, false));
      const ChunkRange run{.page = move.page, .first = chunk, .count = end - chunk};
      const std::uint64_t copied = counters_.bytes_copied;
      std::optional<ChunkLocks::Hold> hold;
      hold.emplace(branch->locks, ChunkLocks::Kind::kChange, run);
      if (!hold->ready()) co_await branch->locks.wait(*hold);
      const Error error = co_await copy_chunks(branch, run, to);
      if (error != Error::kNone) co_return error;
      hold.reset();
      co_await pace(copied);
      chunk = move.dirty.find(end, true);
    }
  }
  co_return move.cancelled ? Error::kNotFound : Error::kNone;
}

// The caller has locked them.
Task<Error> Pool::copy_chunks(Branch* branch, ChunkRange range, Place to) {
  PageMove& move = *branch->move;
  move.dirty.assign(range.first, range.count, false);
  PageChange change(*this, *branch, range.page);
  Error error = co_await change.load();
  for (ChunkIndex chunk = range.first; error == Error::kNone && chunk < range.end();) {
    const ChunkIndex end = change.chunks().end_of_run(chunk, range.end());
    const ChunkIndex first = std::exchange(chunk, end);
    if (change.chunks().state(first) != ChunkState::kData) continue;
    const auto number = static_cast<std::uint16_t>(first);
    error = co_await change.copy({.place = change.place(), .chunk = number},
                                 {.place = to, .chunk = number}, end - first);
  }
  if (error != Error::kNone) move.dirty.assign(range.first, range.count, true);
  if (error == Error::kNone) pass("rebalance.copied", to.store, range.page);
  co_return error;
}

Task<Error> Pool::finish_move(Branch* branch, Place from, Place to) {
  PageMove& move = *branch->move;
  const ChunkRange whole{.page = move.page, .first = 0, .count = map_.page_chunks()};
  ChunkLocks::Hold hold(branch->locks, ChunkLocks::Kind::kChange, whole);
  if (!hold.ready()) co_await branch->locks.wait(hold);
  while (!move.cancelled && move.dirty.count() > 0) {
    const ChunkIndex chunk = move.dirty.find(0, true);
    const ChunkIndex end = std::min(chunk + kCopyChunks, move.dirty.find(chunk, false));
    const ChunkRange run{.page = move.page, .first = chunk, .count = end - chunk};
    const Error error = co_await copy_chunks(branch, run, to);
    if (error != Error::kNone) co_return error;
  }
  if (move.cancelled) co_return Error::kNotFound;
  assert(branch->pages.at(move.page).place() == from);
  pass("rebalance.ready", to.store, move.page);
  co_return co_await commit({PlacePages{.branch = branch->id(), .page = move.page, .place = to}},
                            {});
}

// Waits for what was copied since, under no lock.
Task<Error> Pool::pace(std::uint64_t copied_before) {
  const std::uint64_t bytes = counters_.bytes_copied - copied_before;
  if (bytes == 0 || pace_.try_pass(home_.now(), bytes)) co_return Error::kNone;
  co_return co_await pace_.pass(home_, bytes, nullptr, kNever);
}

void Pool::set_pace(std::uint64_t bytes_per_second) {
  // The same again forgives nothing.
  if (pace_.limits().bytes_per_second == bytes_per_second) return;
  pace_.set({.operations_per_second = 0, .bytes_per_second = bytes_per_second}, home_.now());
}

// Vacating ----------------------------------------------------------------------------------------

bool Pool::is_vacating(StoreIndex store) const {
  const auto known = map_.stores().find(store);
  return known != map_.stores().end() && known->second.record.state == StoreState::kVacating;
}

Task<Result<bool>> Pool::vacate(StoreIndex store, std::uint32_t pages) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  if (!map_.stores().contains(store)) co_return std::unexpected(Error::kNotFound);
  if (!is_vacating(store)) co_return std::unexpected(Error::kInvalid);
  map_.close_slot_page();
  auto more = co_await vacate_pages(store, &pages);
  if (more.has_value() && !*more) more = co_await vacate_kept(store, &pages);
  if (is_vacating(store) && (!more.has_value() || *more)) co_return more;
  // The pass is over.
  const Error error = vacating_[store].error;
  vacating_.erase(store);
  // Whoever saw that it is empty may have taken it away meanwhile.
  const auto left = map_.stores().find(store);
  if (left == map_.stores().end()) co_return false;
  // Or it is to stay.
  if (!is_vacating(store)) co_return std::unexpected(Error::kInvalid);
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return left->second.pages.free_count() < left->second.pages.page_count();
}

// The first page that is in the store, in order of branches and pages from `from` on.
std::optional<PageKey> Pool::next_on(StoreIndex store, PageKey from) const {
  for (auto at = map_.branches().lower_bound(from.branch); at != map_.branches().end(); ++at) {
    const Branch& branch = *at->second;
    if (branch.pages.count_on(store) == 0) continue;
    const PageNumber first = at->first == from.branch ? from.page : 0;
    for (PageNumber page = branch.pages.next(first, kNoPage); page != kNoPage;
         page = branch.pages.next(page + 1, kNoPage)) {
      if (branch.pages.at(page).place_store == store) return PageKey{at->first, page};
    }
  }
  return std::nullopt;
}

// Until the store is to stay, too.
Task<Result<bool>> Pool::vacate_pages(StoreIndex store, std::uint32_t* pages) {
  while (is_vacating(store)) {
    const std::optional<PageKey> next = next_on(store, vacating_[store].page);
    if (!next.has_value()) co_return false;
    if (*pages == 0) co_return true;
    --*pages;
    PageKey at = *next;
    const BranchRecord& record = map_.find(at.branch)->record;
    // A branch that was fixed to the store goes elsewhere all the same.
    const std::optional<StoreIndex> target = choose_store(record.placement, kNoStore);
    if (!target.has_value()) co_return std::unexpected(Error::kNoSpace);
    const Error error = co_await move_locked(at.branch, at.page, *target);
    if (error == Error::kNotReady || error == Error::kNoSpace) co_return std::unexpected(error);
    ++at.page;
    Vacating& pass = vacating_[store];
    pass.page = at;
    if (error != Error::kNone && error != Error::kNotFound) pass.error = error;
  }
  co_return false;
}

Task<Result<bool>> Pool::vacate_kept(StoreIndex store, std::uint32_t* pages) {
  PageKey& at = vacating_[store].kept;
  if (at == PageKey{}) {
    // The store tells which pages have kept versions.
    const Error error = co_await log_.checkpoint();
    if (error != Error::kNone) co_return std::unexpected(error);
  }
  const ChunkRange whole{.page = 0, .first = 0, .count = map_.page_chunks()};
  while (is_vacating(store)) {
    const auto found = map_.branches().lower_bound(at.branch);
    if (found == map_.branches().end()) break;
    if (found->first != at.branch) at = {.branch = found->first, .page = 0};
    Branch* const branch = found->second.get();
    if (branch->erasing) {  // It keeps nothing.
      at = {.branch = at.branch + 1, .page = 0};
      continue;
    }
    const BranchUse use(*branch);
    const auto page = co_await next_kept(at.branch, at.page);
    if (!page.has_value()) co_return std::unexpected(page.error());
    if (*page == kNoPage) {
      at = {.branch = at.branch + 1, .page = 0};
      continue;
    }
    if (*pages == 0) co_return true;
    --*pages;
    ChunkRange range = whole;
    range.page = *page;
    const std::uint64_t copied = counters_.bytes_copied;
    {
      ChunkLocks::Hold hold(branch->locks, ChunkLocks::Kind::kChange, range);
      if (!hold.ready()) co_await branch->locks.wait(hold);
      const Error error = co_await rewrite_kept(branch, *page, store, Reserve::kMayUse);
      if (error == Error::kNotReady || error == Error::kNoSpace) co_return std::unexpected(error);
      if (error != Error::kNone) vacating_[store].error = error;
    }
    pass("rebalance.kept", store, *page);
    at.page = *page + 1;
    co_await pace(copied);
  }
  co_return false;
}

}  // namespace sandbay::pool
