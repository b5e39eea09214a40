// PageChange: keeping what snapshots need, claims, records.
#include "pool/page_change.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::pool {

PageChange::PageChange(Pool& pool, Branch& branch, PageNumber page, Reserve reserve)
    : pool_(pool),
      branch_(branch),
      page_(page),
      reserve_(reserve),
      place_(branch.pages.at(page).place()) {}

PageChange::~PageChange() {
  for (const Slots::Run& run : claims_) pool_.map().unclaim_slots(run);
  if (claimed_.none()) return;
  --branch_.pages_claimed;
  pool_.map().unclaim_page(claimed_);
}

Task<Error> PageChange::load() {
  const PageKey key{.branch = branch_.id(), .page = page_};
  auto chunks = co_await pool_.map().chunk_map(key);
  if (!chunks.has_value()) co_return chunks.error();
  chunks_ = std::move(*chunks);
  before_ = *chunks_;
  newest_ = branch_.newest();
  if (newest_ == 0) co_return Error::kNone;
  auto kept = co_await pool_.map().kept(key, newest_);
  if (!kept.has_value()) co_return kept.error();
  kept_ = std::move(*kept);
  co_return Error::kNone;
}

Task<Error> PageChange::find_inherited() {
  if (!place_.none() || !branch_.reads_through(page_)) co_return Error::kNone;
  if (!pool_.is_at_limit(branch_)) co_return Error::kNone;
  ReadPlan plan;
  const ChunkRange whole{.page = page_, .first = 0, .count = pool_.map().page_chunks()};
  const Error error = co_await plan_read(&pool_, &branch_, kLive, whole, &plan);
  inherited_ = !std::ranges::all_of(plan.sources, &Source::zeros);
  co_return error;
}

Error PageChange::need_place(bool another) {
  if (!place_.none() && !another) return Error::kNone;
  assert(claimed_.none());
  if (!inherited_ && pool_.is_at_limit(branch_)) {
    pool_.tell({.kind = PoolEvent::Kind::kPagesLimit, .branch = branch_.id()});
    return Error::kNoSpace;
  }
  const Result<Place> place = pool_.claim_page(branch_, reserve_);
  lacks_page_ = !place.has_value() && place.error() == Error::kNoSpace;
  if (!place.has_value()) return place.error();
  claimed_ = *place;
  ++branch_.pages_claimed;
  if (place_.none()) put_place(claimed_);
  return Error::kNone;
}

void PageChange::put_place(Place place) {
  place_ = place;
  add(PlacePages{.branch = branch_.id(), .page = page_, .place = place});
}

void PageChange::set(ChunkIndex first, std::uint32_t count, ChunkState state) {
  add(SetChunks{.branch = branch_.id(),
                .page = page_,
                .first = static_cast<std::uint16_t>(first),
                .count = static_cast<std::uint16_t>(count),
                .state = state});
}

void PageChange::record_kept(ChunkIndex first, std::uint32_t count, ChunkState state, Slot slot) {
  add(KeepChunks{.branch = branch_.id(),
                 .page = page_,
                 .generation = newest_,
                 .first = static_cast<std::uint16_t>(first),
                 .count = static_cast<std::uint16_t>(count),
                 .state = state,
                 .slot = state == ChunkState::kData ? slot : Slot{}});
}

Task<Error> PageChange::keep(ChunkRange range, const Request* like) {
  for (ChunkIndex chunk = range.first; chunk < range.end();) {
    if (!must_keep(chunk)) {
      ++chunk;
      continue;
    }
    const ChunkState state = chunks_->state(chunk);
    const ChunkIndex limit =
        state == ChunkState::kData ? std::min(range.end(), chunk + kCopyChunks) : range.end();
    ChunkIndex end = chunk + 1;
    while (end < limit && must_keep(end) && chunks_->state(end) == state) ++end;
    if (state == ChunkState::kData) {
      const Error error = co_await copy_out(chunk, end - chunk, like);
      if (error != Error::kNone) co_return error;
    } else {
      record_kept(chunk, end - chunk, state, {});
    }
    chunk = end;
  }
  co_return Error::kNone;
}

Task<Error> PageChange::copy_out(ChunkIndex first, std::uint32_t count, const Request* like) {
  Request copy{.origin = Origin::kCopy, .volume = like->volume};
  BufferList data = co_await pool_.copies().allocate(count * kChunkBytes);
  const Slot from{.place = place_, .chunk = static_cast<std::uint16_t>(first)};
  PageIo reading(pool_);
  reading.start(copy, Operation::kRead, from, 0, std::move(data), 0);
  Completion read = co_await reading.wait();
  if (read.error != Error::kNone) co_return read.error;
  PageIo writing(pool_);
  Error error = Error::kNone;
  for (std::uint32_t done = 0; done < count && error == Error::kNone;) {
    auto slots = co_await pool_.claim_slots(count - done, reserve_);
    if (!slots.has_value()) {
      error = slots.error();
      lacks_page_ = error == Error::kNoSpace;
      break;
    }
    const Slots::Run run = slots->run;
    claims_.push_back(run);
    slot_maps_.push_back(std::move(slots->pin));
    record_kept(first + done, run.count, ChunkState::kData, run.first);
    const BlockDevice* const device = pool_.device(run.first.place.store);
    copy.force_unit_access = device != nullptr && needs_force(*device);
    writing.start(copy, Operation::kWrite, run.first, 0,
                  read.data.take_front(run.count * kChunkBytes), 0);
    done += run.count;
  }
  const Completion written = co_await writing.wait();
  if (error != Error::kNone) co_return error;
  if (written.error == Error::kNone) pool_.count().chunks_kept += count;
  co_return written.error;
}

Task<Error> PageChange::keep_others(ChunkRange range, ChunkState target, const Request* like) {
  for (ChunkIndex chunk = range.first; chunk < range.end();) {
    const ChunkIndex end = chunks_->end_of_run(chunk, range.end());
    const ChunkRange run{.page = range.page, .first = chunk, .count = end - chunk};
    chunk = end;
    if (chunks_->state(run.first) == target) continue;
    const Error error = co_await keep(run, like);
    if (error != Error::kNone) co_return error;
  }
  co_return Error::kNone;
}

Task<Error> PageChange::surrender(ChunkRange range, ChunkState target) {
  assert(claimed_ != place_);
  bool any = false;
  for (ChunkIndex chunk = range.first; chunk < range.end();) {
    const ChunkState state = chunks_->state(chunk);
    if (!must_keep(chunk) || state == target) {
      ++chunk;
      continue;
    }
    ChunkIndex end = chunk + 1;
    while (end < range.end() && must_keep(end) && chunks_->state(end) == state) ++end;
    record_kept(chunk, end - chunk, state,
                {.place = place_, .chunk = static_cast<std::uint16_t>(chunk)});
    any = any || state == ChunkState::kData;
    chunk = end;
  }
  surrendered_ = any;
  if (!any) co_return Error::kNone;
  auto pin = co_await pool_.map().slot_map(place_);
  if (!pin.has_value()) co_return pin.error();
  slot_maps_.push_back(std::move(*pin));
  co_return Error::kNone;
}

Task<Error> PageChange::copy(Slot from, Slot to, std::uint32_t count) {
  assert(count <= kCopyChunks);
  Request like{.origin = Origin::kCopy};
  BufferList data = co_await pool_.copies().allocate(count * kChunkBytes);
  PageIo reading(pool_);
  reading.start(like, Operation::kRead, from, 0, std::move(data), 0);
  Completion read = co_await reading.wait();
  if (read.error != Error::kNone) co_return read.error;
  const BlockDevice* const device = pool_.device(to.place.store);
  like.force_unit_access = device != nullptr && needs_force(*device);
  PageIo writing(pool_);
  writing.start(like, Operation::kWrite, to, 0, std::move(read.data), 0);
  const Completion written = co_await writing.wait();
  pool_.count().bytes_copied += count * kChunkBytes;
  co_return written.error;
}

Task<Error> PageChange::replace_version(Generation generation, Kept old, ChunkState state,
                                        Slot slot) {
  if (old.state == ChunkState::kData) {
    auto pin = co_await pool_.map().slot_map(old.slot.place);
    if (!pin.has_value()) co_return pin.error();
    slot_maps_.push_back(std::move(*pin));
  }
  add(ForgetChunk{
      .branch = branch_.id(), .page = page_, .generation = generation, .chunk = old.chunk});
  add(KeepChunks{.branch = branch_.id(),
                 .page = page_,
                 .generation = generation,
                 .first = old.chunk,
                 .count = 1,
                 .state = state,
                 .slot = slot});
  co_return Error::kNone;
}

Task<Error> PageChange::move_version(Generation generation, Kept old, Slot from) {
  auto slots = co_await pool_.claim_slots(1, reserve_);
  if (!slots.has_value()) co_return slots.error();
  const Slot to = slots->run.first;
  claims_.push_back(slots->run);
  slot_maps_.push_back(std::move(slots->pin));
  const Error error = co_await copy(from, to, 1);
  if (error != Error::kNone) co_return error;
  co_return co_await replace_version(generation, old, ChunkState::kData, to);
}

bool PageChange::misplaced() const noexcept {
  const auto away = [this](StoreIndex store) {
    return pool_.device(store) == nullptr || pool_.is_silent(store);
  };
  if (!claimed_.none() && away(claimed_.store)) return true;
  return std::ranges::any_of(
      claims_, [&away](const Slots::Run& run) { return away(run.first.place.store); });
}

Task<Error> PageChange::commit() {
  if (records_.empty()) co_return Error::kNone;
  const Error error = co_await pool_.log().commit(std::move(records_));
  records_.clear();
  if (error != Error::kNone) {
    pool_.tell({.kind = PoolEvent::Kind::kMapFailure, .branch = branch_.id(), .error = error});
    co_return error;
  }
  claims_.clear();
  if (!claimed_.none()) {
    --branch_.pages_claimed;
    claimed_ = {};
    ++pool_.count().pages_allocated;
    const BranchRecord& record = branch_.record;
    const bool reached = record.page_warning != 0 && !record.thick &&
                         branch_.pages.placed_count() >= record.page_warning;
    if (reached && !branch_.warned) {
      pool_.tell({.kind = PoolEvent::Kind::kPagesWarning, .branch = branch_.id()});
    }
    branch_.warned = reached;
  }
  co_return Error::kNone;
}

}  // namespace sandbay::pool
