// PoolVolume: unmapping and zeroing. Both make blocks read as zeros, and whole chunks cost no I/O:
// only what the map says of them changes. A page without data gives its place back, unless the
// volume is thick; if a snapshot needs what is in it, the place goes to the snapshots as it is.
//
// Each page is a change of its own, under its own lock. Many pages change at once, and so the log
// gathers their records into few groups. A crash in between leaves any of them as they were.
#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool_volume.h"

namespace sandbay::pool {

Task<Completion> PoolVolume::deallocate(Request request, std::uint64_t content) {
  if (read_only()) co_return Completion{.error = Error::kReadOnly};
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  WriteDoor& writes = branch_->door;
  if (!writes.try_enter()) co_await writes.enter();
  const DoorHold inside(writes);
  Error error = hindrance(request, content);
  if (error == Error::kNone) error = co_await deallocate_inside(&request);
  if (error == Error::kNone && request.force_unit_access) error = co_await secure_map();
  co_return Completion{.error = error};
}

Task<Error> PoolVolume::deallocate_inside(const Request* request) {
  const std::uint64_t block = pool_.options().block_bytes;
  const std::uint64_t end = request->extent.end() * block;
  Piece piece;
  Deallocation all;
  std::uint32_t passed = 0;
  for (std::uint64_t at = request->extent.first * block; at < end; at += piece.byte_count) {
    piece = first_piece(at, end);
    if (!is_settled(piece.page)) {
      const bool entered = all.pieces.enter();
      assert(entered);
      spawn(deallocate_beside(request, piece, &all));
      if (all.pieces.count() == kPagesAtOnce) co_await all.pieces.drain();
    }
    if (++passed % kSlicePages == 0) co_await pool_.home().turn_end();
    if (all.error != Error::kNone) break;
  }
  co_await all.pieces.drain();
  co_return all.error;
}

Task<void> PoolVolume::deallocate_beside(const Request* request, Piece piece, Deallocation* all) {
  const GateHold hold(all->pieces);
  const Error error = co_await deallocate_piece(request, piece);
  if (all->error == Error::kNone) all->error = error;
}

// Unmapping the page would change nothing.
bool PoolVolume::is_settled(PageNumber page) const {
  const bool has_place = !branch_->pages.at(page).place().none();
  return reads_as_zeros(page) && (branch_->record.thick || !has_place);
}

bool PoolVolume::reads_as_zeros(PageNumber page) const {
  const PageState state = branch_->pages.at(page).state;
  const bool through = branch_->has_parent() && branch_->reads_through(page);
  return state == PageState::kZero || (state == PageState::kThrough && !through);
}

Task<Error> PoolVolume::deallocate_piece(const Request* request, Piece piece) {
  const auto first = static_cast<ChunkIndex>((piece.offset + kChunkBytes - 1) / kChunkBytes);
  // The last chunk of the volume may be shorter than a chunk: nothing lies behind it.
  std::uint64_t stop = piece.offset + piece.byte_count;
  if (lba_of(piece) + piece.byte_count / pool_.options().block_bytes == geometry().block_count) {
    stop = (stop + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  }
  const auto last = static_cast<ChunkIndex>(stop / kChunkBytes);
  const std::uint64_t end = piece.offset + piece.byte_count;
  if (first > last || (first == last && end <= first * kChunkBytes)) {
    co_return co_await write_zeros(request, piece);
  }
  if (piece.offset < first * kChunkBytes) {
    const Piece head{.page = piece.page,
                     .offset = piece.offset,
                     .byte_count = first * kChunkBytes - piece.offset};
    const Error error = co_await write_zeros(request, head);
    if (error != Error::kNone) co_return error;
  }
  if (end > last * kChunkBytes) {
    const Piece tail{
        .page = piece.page, .offset = last * kChunkBytes, .byte_count = end - last * kChunkBytes};
    const Error error = co_await write_zeros(request, tail);
    if (error != Error::kNone) co_return error;
  }
  if (first == last) co_return Error::kNone;
  const ChunkRange range{.page = piece.page, .first = first, .count = last - first};
  for (int waits = 0;; ++waits) {
    bool lacks_page = false;
    const Error error = co_await deallocate_chunks(request, range, &lacks_page);
    if (!lacks_page || waits == Pool::kMostPageWaits) co_return error;
    const bool again = co_await pool_.wait_for_page(branch_->record.fixed_store);
    if (!again) co_return error;
  }
}

// A part of one chunk, or of two.
Task<Error> PoolVolume::write_zeros(const Request* request, Piece piece) {
  const ChunkRange range = piece.chunks();
  {
    // Where there are zeros already, nothing needs to be written.
    ChunkLocks::Hold hold(branch_->locks, ChunkLocks::Kind::kRead, range);
    if (!hold.ready()) co_await branch_->locks.wait(hold);
    ReadPlan plan;
    const Error error = co_await plan_read(&pool_, branch_, kLive, range, &plan);
    if (error != Error::kNone) co_return error;
    if (std::ranges::all_of(plan.sources, &Source::zeros)) co_return Error::kNone;
  }
  Request zeros = request_like(*request);
  zeros.operation = Operation::kWrite;
  for (std::uint64_t left = piece.byte_count; left > 0;) {
    const std::uint64_t bytes = std::min(left, kChunkBytes);
    zeros.data.append(pool_.zeros().slice(0, bytes));
    left -= bytes;
  }
  const Completion written = co_await write_piece(std::move(zeros), piece);
  co_return written.error;
}

Task<Error> PoolVolume::deallocate_chunks(const Request* request, ChunkRange range,
                                          bool* lacks_page) {
  Branch& branch = *branch_;
  const std::uint32_t page_chunks = pool_.map().page_chunks();
  const ChunkRange page{.page = range.page, .first = 0, .count = page_chunks};
  const ChunkState target = branch.nothing();
  bool whole = false;
  std::size_t others = pool_.map().stores().size();
  while (true) {
    ChunkLocks::Hold hold(branch.locks, ChunkLocks::Kind::kChange, whole ? page : range);
    if (!hold.ready()) co_await branch.locks.wait(hold);
    PageChange change(pool_, branch, range.page);
    Error error = co_await change.load();
    if (error != Error::kNone) co_return error;
    const ChunkMap& chunks = change.chunks();
    ChunkMap after = chunks;
    after.set(range.first, range.count, target);
    const bool has_place = !change.place().none();
    const bool gives_up = has_place && after.data_count() == 0;
    // A page loses its place under a lock of all of it.
    if (gives_up && !whole) {
      whole = true;
      continue;
    }
    if (after == chunks && !(gives_up && !branch.record.thick)) co_return Error::kNone;
    if (gives_up) {
      error = co_await change.surrender(range, target);
    } else {
      error = co_await change.keep_others(range, target, request);
    }
    // A store may have gone between the choice and the write; then others have their turn.
    if (error == Error::kNotReady && change.misplaced() && others-- > 0) continue;
    if (error == Error::kNone && branch.record.thick && change.surrendered()) {
      error = change.need_place(true);
    }
    *lacks_page = change.lacks_page();
    if (error != Error::kNone) co_return error;
    if (after != chunks) change.set(range.first, range.count, target);
    if (gives_up && !branch.record.thick) {
      change.put_place({});
    } else if (gives_up && change.surrendered()) {
      change.put_place(change.claimed());
    }
    error = co_await change.commit();
    // Whoever unmapped the rest of it meanwhile saw data here, as was seen there.
    if (error != Error::kNone || whole || !is_without_data(range.page)) co_return error;
    whole = true;
  }
}

bool PoolVolume::is_without_data(PageNumber page) const {
  const PageEntry entry = branch_->pages.at(page);
  if (entry.place().none() || branch_->record.thick) return false;
  if (entry.state != PageState::kMixed) return entry.state != PageState::kData;
  const auto chunks = pool_.map().chunk_map_here({.branch = branch_->id(), .page = page});
  return chunks && chunks->data_count() == 0;
}

}  // namespace sandbay::pool
