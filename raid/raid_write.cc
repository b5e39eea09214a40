// Host writes on their way to stripe updates: cut at chunk borders, queued at their stripes, and
// taken from there together with whatever else waits for the same stripe.
#include <algorithm>
#include <array>
#include <coroutine>
#include <utility>

#include "raid/raid_set.h"

namespace sandbay::raid {

namespace {

// Pieces that one update takes at most; the rest waits for the next.
constexpr std::size_t kMostPieces = 64;
// The same with integrity: a record has room for so many, and for the blocks of their entries.
constexpr std::size_t kMostCheckedPieces = 16;

}  // namespace

// One write of many pieces; its coroutine waits for the last of them.
struct HostWrite {
  Executor& home;
  std::size_t pieces_left = 1;  // One is the writer's own, until it waits.
  Error error = Error::kNone;
  std::coroutine_handle<> waiter;

  void piece_ended(Error of_piece) {
    if (error == Error::kNone) error = of_piece;
    if (--pieces_left == 0 && waiter) home.post(waiter);
  }
  bool await_ready() noexcept { return --pieces_left == 0; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { waiter = handle; }
  void await_resume() const noexcept {}
};

Task<Completion> RaidSet::write(Request request) {
  if (writes_directly()) return write_direct(std::move(request));
  return write_queued(std::move(request));
}

Task<Completion> RaidSet::write_queued(Request request) {
  Completion completion;
  const Extent extent = request.extent;
  completion.error = co_await write_extent(extent, request.data.share(), request.force_unit_access,
                                           request.origin);
  completion.data = std::move(request.data);
  const bool stable = journal_ == nullptr || journal_->survives_power_loss();
  if (completion.error == Error::kNone && request.force_unit_access && !stable) {
    completion.error = co_await flush_drives();
  }
  co_return completion;
}

Task<Error> RaidSet::write_extent(Extent extent, BufferList data, bool force_unit_access,
                                  Origin origin) {
  HostWrite whole{.home = home_};
  Lba lba = extent.first;
  while (lba < extent.end()) {
    const std::uint64_t stripe = layout_.position(lba).stripe;
    const Lba stripe_end = std::min<Lba>(extent.end(), (stripe + 1) * layout_.stripe_blocks());
    StripeEntry& entry = table_.enter(stripe);
    while (lba < stripe_end) {
      const Layout::Position position = layout_.position(lba);
      const auto rows = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(stripe_end - lba, layout_.strip_blocks() - position.row));
      auto* piece = new WritePiece;
      piece->whole = &whole;
      piece->force_unit_access = force_unit_access;
      piece->origin = origin;
      piece->fragment = {.member = position.chunk, .row = position.row, .row_count = rows};
      piece->extent = {.first = lba, .block_count = rows};
      piece->data = data.take_front(bytes_of(rows));
      (entry.last_piece != nullptr ? entry.last_piece->next : entry.first_piece) = piece;
      entry.last_piece = piece;
      ++whole.pieces_left;
      lba += rows;
    }
    start_writer(entry);
  }
  co_await whole;
  co_return whole.error;
}

// Takes over the caller's use of the entry.
void RaidSet::start_writer(StripeEntry& entry) {
  if (entry.writer_running) {
    table_.leave(entry);
    return;
  }
  entry.writer_running = true;
  spawn(write_stripe(&entry));
}

namespace {

// Whether they touch the same cell of a member.
bool overlap(const Fragment& a, const Fragment& b, std::uint32_t cell_rows) {
  return a.member == b.member && a.row / cell_rows <= (b.row + b.row_count - 1) / cell_rows &&
         b.row / cell_rows <= (a.row + a.row_count - 1) / cell_rows;
}

// Whether what waits covers the stripe, so that nothing is to be gained by waiting for more.
bool covers(const StripeEntry& entry, std::uint32_t stripe_blocks) {
  std::uint64_t rows = 0;
  for (const WritePiece* piece = entry.first_piece; piece != nullptr; piece = piece->next) {
    rows += piece->fragment.row_count;
  }
  return rows >= stripe_blocks;
}

// Takes what may be written together: in the order of arrival, up to the first piece that
// overlaps another.
std::size_t take_pieces(StripeEntry& entry, std::span<WritePiece*> taken, std::uint32_t cell_rows) {
  std::size_t count = 0;
  while (entry.first_piece != nullptr && count < taken.size()) {
    WritePiece* piece = entry.first_piece;
    for (std::size_t i = 0; i < count; ++i) {
      if (overlap(taken[i]->fragment, piece->fragment, cell_rows)) return count;
    }
    entry.first_piece = piece->next;
    if (entry.first_piece == nullptr) entry.last_piece = nullptr;
    taken[count++] = piece;
  }
  return count;
}

}  // namespace

Task<void> RaidSet::write_stripe(StripeEntry* entry) {
  // Whatever is ready to run now may bring neighbours of a partial stripe.
  if (layout_.parity_chunks() > 0 && !covers(*entry, layout_.stripe_blocks())) {
    co_await home_.yield();
  }
  std::array<WritePiece*, kMostPieces> taken;
  while (entry->first_piece != nullptr) {
    co_await table_.lock(*entry);
    const std::size_t most = integrity_ != nullptr ? kMostCheckedPieces : kMostPieces;
    const std::size_t count = take_pieces(*entry, std::span(taken).first(most), cell_rows_);
    if (count > 1) counters_.merged_writes += count - 1;
    const std::span<WritePiece* const> pieces(taken.data(), count);
    Error error = co_await write_pieces(entry->stripe, pieces);
    if (error == Error::kNone && drives_.lost_matters())
      error = co_await forget_lost_pieces(pieces);
    table_.unlock(*entry);
    for (std::size_t i = 0; i < count; ++i) {
      HostWrite* whole = taken[i]->whole;
      delete taken[i];
      whole->piece_ended(error);
    }
  }
  entry->writer_running = false;
  table_.leave(*entry);
}

Task<Error> RaidSet::write_pieces(std::uint64_t stripe, std::span<WritePiece* const> pieces) {
  if (offline_) co_return Error::kNotReady;
  if (integrity_ != nullptr) {
    const Error error = co_await complete_cells(stripe, pieces);
    if (error != Error::kNone) co_return error;
  }
  if (layout_.parity_chunks() > 0) co_return co_await update_parity(stripe, pieces);
  co_return co_await update_mirrors(stripe, pieces);
}

// Blocks that were lost and have been rewritten are whole again; that is durable before the write
// is acknowledged, or a restart would deny it. The stripe is still held, or they might be lost
// again meanwhile.
Task<Error> RaidSet::forget_lost_pieces(std::span<WritePiece* const> pieces) {
  Error error = Error::kNone;
  for (const WritePiece* piece : pieces) {
    if (error == Error::kNone) error = co_await forget_lost(piece->extent);
  }
  co_return error;
}

// What replaced the lost block is durable first. Else a loss of power could leave the zeros that
// stood for it, and a list that does not know them any more.
Task<Error> RaidSet::forget_lost(Extent extent) {
  if (drives_.lost().first_overlap(extent)) {
    const Error flushed = co_await flush_drives();
    if (flushed != Error::kNone) co_return flushed;
    drives_.remove_lost(extent);
  }
  co_return co_await drives_.save_lost();
}

// ---- no redundancy ----------------------------------------------------------------------------

// Each strip's part goes to its drive at once; nothing has to agree with anything.
Task<Completion> RaidSet::write_direct(Request request) {
  struct Part {
    Lba lba;
    unsigned role;
    Drive* drive;
    DriveIo io;
  };
  const DirectWrite direct(*this);
  Completion completion;
  BufferList rest = request.data.share();
  FrameVector<Part> parts;
  const Extent extent = request.extent;
  Lba lba = extent.first;
  while (lba < extent.end()) {
    const Layout::Position position = layout_.position(lba);
    const std::uint64_t blocks =
        std::min<std::uint64_t>(extent.end() - lba, layout_.strip_blocks() - position.row);
    const unsigned role = layout_.role(position.stripe, 0);
    Drive* drive = drives_.role(role).drive;
    Request part = request_like(request);
    part.extent = {.first = on_drive(position.stripe, position.row), .block_count = blocks};
    part.data = rest.take_front(bytes_of(blocks));
    if (drive != nullptr) {
      parts.push_back({lba, role, drive, drive->start(std::move(part))});
    } else {
      completion.error = Error::kNotReady;
    }
    lba += blocks;
  }
  for (Part& part : parts) {
    co_await part.io.wait();
    const Completion done = part.io.take();
    judge_direct(part.role, part.drive, done.error, "a write");
    if (done.error == Error::kNone || completion.error != Error::kNone) continue;
    completion.error = done.error;
    completion.first_bad_lba = part.lba;
  }
  if (completion.error == Error::kNone) completion.error = co_await end_direct(extent);
  completion.data = std::move(request.data);
  co_return completion;
}

// A drive that has just taken its role is believed only when the superblocks name it.
Task<Error> RaidSet::end_direct(Extent extent) {
  if (drives_.lost_matters()) {
    const Error error = co_await forget_lost(extent);
    if (error != Error::kNone) co_return error;
  }
  if (drives_.settled_now()) co_return Error::kNone;
  co_return co_await drives_.settled();
}

}  // namespace sandbay::raid
