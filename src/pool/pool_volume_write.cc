// PoolVolume: writes.
//
// A write in place needs every chunk to have data and, if there are snapshots, to be kept for the
// youngest. Otherwise the page's map changes:
//
//   chunk has    youngest snapshot     what happens
//   data         none, or has it       overwritten in place, after the record of the others
//   data         needs it              copied to a slot, recorded as kept, then overwritten
//   no data      none, or has it       written whole (what the write does not cover is filled with
//                                      what the chunk reads as), recorded as data
//   no data      needs it              the same; "through" or "zero" is recorded as kept
//
// All of a piece is one group of records; whatever it says is durable before it.
#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool_volume.h"

namespace sandbay::pool {

Task<Completion> PoolVolume::write(Request request, std::uint64_t content) {
  if (read_only()) {
    co_return Completion{.error = Error::kReadOnly, .data = std::move(request.data)};
  }
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  WriteDoor& writes = branch_->door;
  if (!writes.try_enter()) co_await writes.enter();
  const DoorHold inside(writes);
  const Error error = hindrance(request, content);
  if (error != Error::kNone) co_return Completion{.error = error, .data = std::move(request.data)};
  const bool forced = request.force_unit_access;
  Completion done = co_await in_pieces(std::move(request), &PoolVolume::write_piece);
  if (forced && done.error == Error::kNone) done.error = co_await secure_map();
  co_return done;
}

Task<Completion> PoolVolume::write_piece(Request request, Piece piece) {
  Branch& branch = *branch_;
  const ChunkRange range = piece.chunks();
  branch.pages.note_use(piece.page);
  {
    ChunkLocks::Hold hold(branch.locks, ChunkLocks::Kind::kWrite, range);
    if (!hold.ready()) co_await branch.locks.wait(hold);
    std::optional<bool> in_place = may_write_in_place(range);
    // The youngest snapshot may go while its versions are loaded, and then older ones count.
    while (!in_place.has_value()) {
      PoolMap::ChunkMaps::Pin chunks;
      PoolMap::KeptMaps::Pin kept;
      const Error error = co_await load_for_write(range.page, &chunks, &kept);
      if (error != Error::kNone) {
        co_return Completion{.error = error, .data = std::move(request.data)};
      }
      in_place = may_write_in_place(range);
    }
    if (*in_place) co_return co_await write_in_place(std::move(request), piece);
  }
  co_return co_await change_piece(std::move(request), piece);
}

// The caller has locked it. A change of the map that failed may come back at a crash, as long as it
// is in doubt, and take away what is written now.
Task<Completion> PoolVolume::write_in_place(Request request, Piece piece) {
  if (pool_.log().endangers(branch_->id())) {
    const Error error = co_await pool_.log().commit({});
    if (error != Error::kNone) {
      co_return Completion{.error = error, .data = std::move(request.data)};
    }
  }
  note_written(piece.chunks());
  const Place place = branch_->pages.at(piece.page).place();
  co_return co_await submit_in_place(std::move(request), place, piece);
}

// Nothing: the store must be asked.
std::optional<bool> PoolVolume::may_write_in_place(const ChunkRange& range) {
  const PageKey key{.branch = branch_->id(), .page = range.page};
  const PageEntry entry = branch_->pages.at(range.page);
  if (entry.place().none()) return false;
  if (entry.state == PageState::kThrough || entry.state == PageState::kZero) return false;
  if (entry.state == PageState::kMixed) {
    const PoolMap::ChunkMaps::Pin chunks = pool_.map().chunk_map_here(key);
    if (!chunks) return std::nullopt;
    if (chunks->state(range.first) != ChunkState::kData) return false;
    if (chunks->end_of_run(range.first, range.end()) < range.end()) return false;
  }
  const Generation newest = branch_->newest();
  if (newest == 0) return true;
  const PoolMap::KeptMaps::Pin kept = pool_.map().kept_here(key, newest);
  if (!kept) return std::nullopt;
  for (ChunkIndex chunk = range.first; chunk < range.end(); ++chunk) {
    if (kept->seen_by(newest, chunk) == nullptr) return false;
  }
  return true;
}

Task<Error> PoolVolume::load_for_write(PageNumber page, PoolMap::ChunkMaps::Pin* chunks,
                                       PoolMap::KeptMaps::Pin* kept) {
  const PageKey key{.branch = branch_->id(), .page = page};
  auto chunk_map = co_await pool_.map().chunk_map(key);
  if (!chunk_map.has_value()) co_return chunk_map.error();
  *chunks = std::move(*chunk_map);
  const Generation newest = branch_->newest();
  if (newest == 0) co_return Error::kNone;
  auto versions = co_await pool_.map().kept(key, newest);
  if (!versions.has_value()) co_return versions.error();
  *kept = std::move(*versions);
  co_return Error::kNone;
}

// Whoever moves the page copies these chunks again.
void PoolVolume::note_written(const ChunkRange& range) {
  PageMove* const move = branch_->move;
  if (move != nullptr && move->page == range.page) {
    move->dirty.assign(range.first, range.count, true);
  }
}

Task<Completion> PoolVolume::change_piece(Request request, Piece piece) {
  for (int waits = 0;; ++waits) {
    bool lacks_page = false;
    Completion done = co_await try_change(&request, piece, &lacks_page);
    if (lacks_page && waits < Pool::kMostPageWaits) {
      const bool again = co_await pool_.wait_for_page(branch_->record.fixed_store);
      if (again) continue;
    }
    done.data = std::move(request.data);
    co_return done;
  }
}

// The payload stays where it is.
Task<Completion> PoolVolume::try_change(const Request* request, Piece piece, bool* lacks_page) {
  Branch& branch = *branch_;
  const ChunkRange range = piece.chunks();
  const ChunkRange whole{.page = piece.page, .first = 0, .count = pool_.map().page_chunks()};
  // A page gets its place under a lock of all of it.
  bool needs_place = branch.pages.at(piece.page).place().none();
  std::optional<ChunkLocks::Hold> hold;
  while (true) {
    hold.emplace(branch.locks, ChunkLocks::Kind::kChange, needs_place ? whole : range);
    if (!hold->ready()) co_await branch.locks.wait(*hold);
    if (needs_place || !branch.pages.at(piece.page).place().none()) break;
    needs_place = true;
    hold.reset();
  }
  // A store may go between the choice and the write; then others have their turn.
  for (std::size_t others = pool_.map().stores().size();; --others) {
    PageChange change(pool_, branch, piece.page);
    Completion done = co_await change_locked(&change, request, piece);
    if (done.error == Error::kNotReady && change.misplaced() && others > 0) continue;
    *lacks_page = change.lacks_page();
    co_return done;
  }
}

Task<Completion> PoolVolume::change_locked(PageChange* change, const Request* request,
                                           Piece piece) {
  const ChunkRange range = piece.chunks();
  Error error = co_await change->load();
  if (error == Error::kNone) error = co_await change->find_inherited();
  if (error == Error::kNone) error = change->need_place();
  if (error == Error::kNone) error = co_await change->keep(range, request);
  if (error != Error::kNone) co_return Completion{.error = error};
  Completion fresh = co_await write_fresh(change, request, piece);
  if (fresh.error == Error::kNone) {
    note_written(range);
    fresh.error = co_await change->commit();
  }
  if (fresh.error != Error::kNone) co_return fresh;
  co_return co_await write_rest(change, request, piece);
}

// The part of the piece that lies in the chunks [first, end): where it begins in the payload.
PoolVolume::Piece PoolVolume::part_of(const Piece& piece, ChunkIndex first, ChunkIndex end) {
  const std::uint64_t from = std::max(piece.offset, first * kChunkBytes);
  const std::uint64_t to = std::min(piece.offset + piece.byte_count, end * kChunkBytes);
  return {.page = piece.page, .offset = from, .byte_count = to - from};
}

// Chunks without data are written whole, durably, and recorded as data.
Task<Completion> PoolVolume::write_fresh(PageChange* change, const Request* request, Piece piece) {
  const ChunkRange range = piece.chunks();
  const Place place = change->place();
  Request like = request_like(*request);
  Completion whole;
  for (ChunkIndex chunk = range.first; chunk < range.end();) {
    const ChunkIndex end = change->chunks().end_of_run(chunk, range.end());
    const ChunkIndex first = std::exchange(chunk, end);
    if (change->chunks().state(first) == ChunkState::kData) continue;
    const Piece part = part_of(piece, first, end);
    const std::uint64_t head = part.offset - first * kChunkBytes;
    const std::uint64_t tail = end * kChunkBytes - part.offset - part.byte_count;
    auto around = co_await fill(piece.page, part, head, tail);
    if (!around.has_value()) {
      whole.error = around.error();
      break;
    }
    BufferList data = around->take_front(head);
    data.append(request->data.share(part.offset - piece.offset, part.byte_count));
    data.append(std::move(*around));
    // The store may have been away before.
    const BlockDevice* const device = pool_.device(place.store);
    like.force_unit_access =
        request->force_unit_access || (device != nullptr && needs_force(*device));
    PageIo io(pool_);
    io.start(like, Operation::kWrite, {.place = place, .chunk = static_cast<std::uint16_t>(first)},
             0, std::move(data), lba_of(part));
    // The next run may wait for a lock of a parent, and then holds no buffers.
    const Completion written = co_await io.wait();
    whole.error = written.error;
    whole.first_bad_lba = written.first_bad_lba;
    if (whole.error != Error::kNone) break;
    change->set(first, end - first, ChunkState::kData);
  }
  co_return whole;
}

// Chunks that had data before the change are overwritten in place.
Task<Completion> PoolVolume::write_rest(PageChange* change, const Request* request, Piece piece) {
  const ChunkRange range = piece.chunks();
  PageIo io(pool_);
  for (ChunkIndex chunk = range.first; chunk < range.end();) {
    const ChunkIndex end = change->before().end_of_run(chunk, range.end());
    const ChunkIndex first = std::exchange(chunk, end);
    if (change->before().state(first) != ChunkState::kData) continue;
    const Piece part = part_of(piece, first, end);
    io.start(*request, Operation::kWrite,
             {.place = change->place(), .chunk = static_cast<std::uint16_t>(first)},
             part.offset - first * kChunkBytes,
             request->data.share(part.offset - piece.offset, part.byte_count), lba_of(part));
  }
  co_return co_await io.wait();
}

// What the chunks at the two ends of a part read as now: `head` bytes before it, `tail` behind it.
// One plan for both: two would hold two locks of a parent, one while waiting for the other.
Task<Result<BufferList>> PoolVolume::fill(PageNumber page, Piece part, std::uint64_t head,
                                          std::uint64_t tail) {
  if (head + tail == 0) co_return BufferList();
  const ChunkRange range = part.chunks();
  assert(range.page == page);
  // Locks first: whoever has buffers waits for no lock.
  ReadPlan plan;
  const Error error = co_await plan_read(&pool_, branch_, kLive, range, &plan);
  if (error != Error::kNone) co_return std::unexpected(error);
  BufferList room = co_await pool_.copies().allocate(head + tail);
  const Request like{.origin = Origin::kCopy};
  PageIo io(pool_);
  const auto start = [&](const Source& source, std::uint32_t behind, std::uint64_t offset,
                         std::uint64_t byte_count) {
    if (byte_count == 0) return;
    BufferList data = room.take_front(byte_count);
    if (source.zeros) {
      io.add_zeros(std::move(data));
    } else {
      Slot slot = source.slot;
      slot.chunk = static_cast<std::uint16_t>(slot.chunk + behind);
      io.start(like, Operation::kRead, slot, offset, std::move(data), 0);
    }
    ++pool_.count().chunks_filled;
  };
  const Source& last = plan.sources.back();
  start(plan.sources.front(), 0, 0, head);
  start(last, last.count - 1, kChunkBytes - tail, tail);
  Completion read = co_await io.wait();
  if (read.error != Error::kNone) co_return std::unexpected(read.error);
  co_return std::move(read.data);
}

}  // namespace sandbay::pool
