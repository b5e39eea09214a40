// A set with integrity: every cell that is read is checked, and one that is not what was written
// last is as good as unreadable, so that all the rules for those hold. What is particular:
//
//   - Reads and writes are in whole cells: a host's request for a part of one is widened, and what
//     a write lacks is read first.
//   - What is computed in a cell's place has to be what the cell's entry says, too. If it is not,
//     but equals what the drive gave, the entry is wrong, for the others were all checked.
//   - With more corrupt members than redundancy makes up for, some are taken for right by trial:
//     if all the others, computed from them, then match their entries, those are the right ones.
//   - What cannot be proven is lost.
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "raid/raid_set.h"
#include "raid/read_piece.h"

namespace sandbay::raid {

namespace {

// Corrupt members of one row of cells among which trials are made.
constexpr int kMostSuspects = 8;

}  // namespace

void RaidSet::open_integrity() {
  integrity_ = std::make_unique<Integrity>(
      home_, drives_,
      [this](unsigned role, Drive* drive, Error error) {
        return judge(role, drive, error, "access to the integrity area", true);
      },
      options_.integrity);
  cell_rows_ = integrity_->cell_rows();
  granule_ = std::max(granule_, cell_rows_);
}

// Some drive that can be believed may have an entry of the member's cells.
bool RaidSet::entry_tells(std::uint64_t stripe, unsigned member) const {
  if (integrity_ == nullptr) return false;
  const MemberSet unreadable = drives_.unreadable(stripe);
  const unsigned partner = integrity_->partner(layout_.role(stripe, member));
  const auto other = layout_.member(stripe, partner);
  return !has(unreadable, member) || (other && !has(unreadable, *other));
}

// ---- reads --------------------------------------------------------------------------------------

// The cells that the extent touches; what was not asked for goes nowhere.
Task<Completion> RaidSet::read_widened(Request request) {
  const Extent asked = request.extent;
  const Lba first = asked.first / cell_rows_ * cell_rows_;
  const Lba end = (asked.end() + cell_rows_ - 1) / cell_rows_ * cell_rows_;
  const std::size_t head = bytes_of(asked.first - first);
  const std::size_t tail = bytes_of(end - asked.end());
  Request wide = request_like(request);
  wide.extent = {.first = first, .block_count = end - first};
  if (head > 0) {
    BufferList before = co_await home_.buffers().allocate(head);
    wide.data.append(std::move(before));
  }
  wide.data.append(std::move(request.data));
  if (tail > 0) {
    BufferList after = co_await home_.buffers().allocate(tail);
    wide.data.append(std::move(after));
  }
  Completion completion = co_await read_many(std::move(wide), asked);
  if (head > 0) completion.data.take_front(head);
  completion.data = completion.data.take_front(bytes_of(asked.block_count));
  co_return completion;
}

// What the drive gave is what was written last, as far as is known without holding the stripe.
Task<bool> RaidSet::piece_good(ReadPiece* piece) {
  const Integrity::Checked checked = co_await integrity_->check(
      piece->position.stripe, piece->member, piece->position.row, piece->rows, &piece->data);
  co_return checked.good();
}

// Without redundancy: from the one drive that has it, with no writer at the stripe.
Task<void> RaidSet::read_sole(ReadPiece* piece) {
  StripeEntry& entry = table_.enter(piece->position.stripe);
  co_await table_.lock_shared(entry);
  const StripeHold hold(table_, entry, true);
  if (const auto lost = drives_.lost().first_overlap(piece->wanted())) {
    piece->error = Error::kMediumError;
    piece->bad = *lost;
    co_return;
  }
  if (piece->failed) co_return;
  piece->member = 0;
  co_await read_alone(piece);
  if (piece->error != Error::kNone) co_return;
  const Integrity::Checked checked = co_await integrity_->check(
      piece->position.stripe, 0, piece->position.row, piece->rows, &piece->data);
  if (checked.good()) co_return;
  tell_corruption(piece->position.stripe, checked.first_bad, 1, "is corrupt");
  piece->error = Error::kMediumError;
  piece->bad = std::max(piece->lba + (checked.first_bad - piece->position.row), piece->asked.first);
}

// Nothing was found that could be believed: first it is found out what is right, and what is lost.
Task<void> RaidSet::settle_and_read(ReadPiece* piece) {
  StripeEntry& entry = table_.enter(piece->position.stripe);
  co_await table_.lock(entry);
  const StripeHold hold(table_, entry, false);
  if (offline_) co_return;
  const std::size_t most = bytes_of(std::max(std::min(piece->rows, slice_rows()), granule_));
  const std::size_t taken = co_await budget_.take(most * layout_.width() * 2);
  const ByteBudget::Share share(budget_, taken);
  const Error error = co_await settle_granules(piece->position.stripe, piece->position.row,
                                               piece->rows, first_members(layout_.width()));
  if (error != Error::kNone) co_return;
  piece->failed = false;
  piece->late = false;
  piece->error = Error::kNone;
  co_await read_slices(piece);
}

// ---- writes -------------------------------------------------------------------------------------

Task<Error> RaidSet::complete_cells(std::uint64_t stripe, std::span<WritePiece* const> pieces) {
  for (WritePiece* piece : pieces) {
    if ((piece->fragment.row | piece->fragment.row_count) % cell_rows_ == 0) continue;
    const std::size_t taken =
        co_await budget_.take(bytes_of(std::max(granule_, cell_rows_)) * layout_.width() * 4);
    const ByteBudget::Share share(budget_, taken);
    const Error error = co_await complete_piece(stripe, piece);
    if (error != Error::kNone) co_return error;
  }
  co_return Error::kNone;
}

// Puts what stands before and behind the piece in its first and last cell to it.
Task<Error> RaidSet::complete_piece(std::uint64_t stripe, WritePiece* piece) {
  Fragment& fragment = piece->fragment;
  const std::uint32_t end = fragment.row + fragment.row_count;
  const std::uint32_t head = fragment.row % cell_rows_;
  const std::uint32_t tail = (cell_rows_ - end % cell_rows_) % cell_rows_;
  BufferList whole;
  BufferList last;
  if (head > 0) {
    BufferList cell;
    const Error error = co_await read_cell(stripe, fragment.member, fragment.row - head, &cell);
    if (error != Error::kNone) co_return error;
    whole = cell.share(0, bytes_of(head));
    if (tail > 0 && end + tail - cell_rows_ == fragment.row - head) last = std::move(cell);
  }
  whole.append(std::move(piece->data));
  if (tail > 0) {
    if (last.empty()) {
      const Error error =
          co_await read_cell(stripe, fragment.member, end + tail - cell_rows_, &last);
      if (error != Error::kNone) co_return error;
    }
    whole.append(last.share(bytes_of(cell_rows_ - tail), bytes_of(tail)));
  }
  fragment.row -= head;
  fragment.row_count += head + tail;
  piece->data = std::move(whole);
  co_return Error::kNone;
}

// What of it is lost reads as zeros; the host hears of that when it reads those blocks.
Task<Error> RaidSet::read_cell(std::uint64_t stripe, unsigned member, std::uint32_t row,
                               BufferList* cell) {
  for (unsigned attempt = 0;; ++attempt) {
    Lanes lanes(layout_.width());
    std::uint32_t bad_row = 0;
    const Error error =
        co_await recover_rows(stripe, MemberSet{1} << member, row, cell_rows_, 0, &lanes, &bad_row);
    if (error == Error::kNone) {
      *cell = std::move(lanes[member]);
      co_return error;
    }
    if (error != Error::kMediumError || attempt > 1) co_return error;
    const Error settled = co_await declare_lost(stripe, row, cell_rows_);
    if (settled != Error::kNone) co_return settled;
  }
}

Task<Error> RaidSet::begin_sums(std::uint64_t stripe, std::span<const Segment> segments,
                                Integrity::Update* sums) {
  FrameVector<Integrity::Change> changes;
  changes.reserve(segments.size());
  for (const Segment& segment : segments) {
    changes.push_back(integrity_->change_of(stripe, segment.member, segment.row, segment.row_count,
                                            &segment.data));
  }
  co_return co_await integrity_->begin(std::move(changes), sums);
}

Task<Error> RaidSet::store_entries(std::uint64_t stripe, FrameVector<Integrity::Change> changes) {
  const Error error = co_await store_entries_once(stripe, std::move(changes));
  co_return co_await take_back(error);
}

Task<Error> RaidSet::store_entries_once(std::uint64_t stripe,
                                        FrameVector<Integrity::Change> changes) {
  Prepared prepared(drives_);
  const Error error = co_await prepared.add(stripe, intent());
  if (error != Error::kNone) co_return error;
  const Storing storing(*this);
  Integrity::Update sums;
  const Error begun = co_await integrity_->begin(std::move(changes), &sums);
  if (begun != Error::kNone) co_return begun;
  if (sums.empty()) co_return Error::kNotReady;
  FrameVector<JournalWrite> writes;
  BufferList payload;
  sums.add_to(&writes, &payload);
  const Result<std::uint64_t> ticket =
      co_await append_to_journal({.stripe = stripe, .writes = writes, .payload = &payload});
  if (!ticket) co_return ticket.error();
  integrity_->publish(&sums);
  FrameVector<Target> targets;
  co_return co_await end_store({.first = stripe}, &targets, &sums, *ticket);
}

// ---- what is right ------------------------------------------------------------------------------

Task<bool> RaidSet::confirmed(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                              MemberSet members, bool strictly, Lanes* lanes, Lanes* suspects) {
  bool any = false;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    const Integrity::Checked checked =
        co_await integrity_->check(stripe, member, row, rows, &(*lanes)[member]);
    any |= checked.proven();
    // From parity that may not match, only what some entry is known to say is believed.
    const bool data = !layout_.mirrored() && member < layout_.data_chunks();
    const bool doubted = data && drives_.doubted(stripe, row, rows);
    if (doubted ? checked.proven() : checked.good()) continue;
    if (strictly) co_return false;
    // Parity of data that was checked is what it should be, whatever its entry says.
    const bool parity = !layout_.mirrored() && member >= layout_.data_chunks();
    if (parity && suspects != nullptr) continue;
    const bool same = suspects != nullptr && !(*suspects)[member].empty() &&
                      (*suspects)[member].equals((*lanes)[member]);
    if (!same) co_return false;
  }
  co_return any || !strictly;
}

Task<RaidSet::Proof> RaidSet::prove(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                                    MemberSet missing, MemberSet failed, Lanes* lanes,
                                    Lanes* suspects) {
  MemberSet corrupt = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!(*suspects)[member].empty()) corrupt |= MemberSet{1} << member;
  }
  const auto lacking = [&](MemberSet gone) {
    return static_cast<unsigned>(std::popcount(gone)) > layout_.redundancy();
  };
  const MemberSet all = first_members(layout_.width());
  if (!lacking(missing) && (all & ~missing) != 0) {
    co_await recover_missing(missing, rows, lanes);
    const bool right = co_await confirmed(stripe, row, rows, failed, false, lanes, suspects);
    if (right) {
      Proof proof{.proven = true};
      for (unsigned member = 0; member < layout_.width(); ++member) {
        if (has(corrupt, member) && (*suspects)[member].equals((*lanes)[member])) {
          proof.trusted |= MemberSet{1} << member;
        }
      }
      co_return proof;
    }
  }
  // Trials: every subset of the suspects, by number.
  if (std::popcount(corrupt) > kMostSuspects) co_return Proof{};
  for (MemberSet trusted = corrupt & (~corrupt + 1); trusted != 0;
       trusted = (trusted - corrupt) & corrupt) {
    if (lacking(missing & ~trusted) || (failed & ~trusted) == 0) continue;
    for (unsigned member = 0; member < layout_.width(); ++member) {
      if (has(missing, member)) (*lanes)[member].clear();
      if (has(trusted, member)) (*lanes)[member] = (*suspects)[member].share();
    }
    co_await recover_missing(missing & ~trusted, rows, lanes);
    const bool right =
        co_await confirmed(stripe, row, rows, failed & ~trusted, true, lanes, nullptr);
    if (right) co_return Proof{.proven = true, .trusted = trusted};
  }
  co_return Proof{};
}

void RaidSet::tell_corruption(std::uint64_t stripe, std::uint32_t row, MemberSet members,
                              const char* outcome) {
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    const unsigned role = layout_.role(stripe, member);
    if (outcome == nullptr) {
      ++counters_.false_entries;
      drives_.tell({SetEvent::Kind::kCorruption, role,
                    fmt::format("rows from {} of stripe {} are right, but their checksum was not",
                                row, stripe)});
      continue;
    }
    ++counters_.corruptions;
    drives_.tell({SetEvent::Kind::kCorruption, role,
                  fmt::format("what rows from {} of stripe {} gave {}", row, stripe, outcome)});
  }
}

// ---- verify -------------------------------------------------------------------------------------

// The cells are in lanes and match one another. Every entry is there, in both copies, and what the
// drives have of them is what is remembered.
Task<Error> RaidSet::verify_entries(std::uint64_t stripe, MemberSet there, std::uint32_t row,
                                    std::uint32_t rows, Lanes* lanes) {
  if (integrity_ == nullptr) co_return Error::kNone;
  FrameVector<Integrity::Change> changes;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(there, member) || (*lanes)[member].empty()) continue;
    Integrity::Change change = integrity_->change_of(stripe, member, row, rows, &(*lanes)[member]);
    const bool whole =
        co_await integrity_->blocks_whole(change.role, change.first_cell, change.cell_count);
    const bool agree = co_await integrity_->entries_agree(stripe, member, row, rows);
    if (whole && agree) continue;
    const Integrity::Checked checked =
        co_await integrity_->check(stripe, member, row, rows, &(*lanes)[member]);
    if (!whole || checked.known) ++counters_.entries_mended;
    if (checked.proven()) change.kind = Integrity::Change::Kind::kKept;
    changes.push_back(change);
  }
  if (changes.empty()) co_return Error::kNone;
  co_return co_await store_entries(stripe, std::move(changes));
}

}  // namespace sandbay::raid
