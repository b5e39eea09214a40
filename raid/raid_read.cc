// Reads: straight from the drives, neighbouring strips of a drive in one request; from redundancy
// where a drive is away, stale, slow or cannot read. A host does not wait for the repair of what it
// found unreadable. Where mirrors may differ they are made alike before one of them is read.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "raid/raid_set.h"
#include "raid/read_piece.h"

namespace sandbay::raid {

namespace {

constexpr std::size_t kNone = ~std::size_t{0};  // No piece, no run.

// Stripes, a bit each, of which it is known that mirrors are alike before their region is verified.
constexpr std::uint64_t kMostAlike = std::uint64_t{1} << 26;
// What lies on a turning drive between two pieces of one read ahead, such as parity, is read and
// dropped if it is no more: that takes less time than the drive needs to begin anew.
constexpr std::uint64_t kMostGapBytes = std::uint64_t{128} << 10;
// That wait at once; what finds no room is found again by the next read, or by verify.
constexpr std::size_t kMostRepairs = 256;

// Whether a stripe can be had without these and what is away.
bool enough_without(const SetDrives& drives, std::uint64_t stripe, MemberSet members) {
  const Layout& layout = drives.layout();
  const auto without = static_cast<unsigned>(std::popcount(members | drives.unreadable(stripe)));
  return without <= (layout.mirrored() ? layout.width() - 1 : layout.parity_chunks());
}

}  // namespace

// Pieces that lie one after another on a drive, or nearly: one request.
struct RaidSet::ReadRun {
  unsigned role = 0;
  Drive* drive = nullptr;
  Lba first = 0;
  std::uint64_t blocks = 0;
  std::size_t first_piece = 0;  // Of a chain through next_of.
  std::size_t last_piece = 0;
  bool sole = false;  // Nothing makes up for the drive in one of them: it is waited for.
  DriveIo io;
};

// By which one of mirrors with equally much to do is chosen: the least.
Lba RaidSet::distance_to(const Drive& drive, std::uint64_t stripe, unsigned member, Lba at) const {
  if (!options_.nearest_mirror) return (stripe / layout_.group_count() + member) % layout_.width();
  return drive.head() > at ? drive.head() - at : at - drive.head();
}

// The mirror with the least to do, but one that limps only if all do; of equals the one whose head
// is nearest. Where mirrors may differ, the first that is whole, always. Its number is the width if
// there is none.
unsigned RaidSet::choose_member(std::uint64_t stripe, MemberSet unreadable) const {
  constexpr std::size_t kLimping = std::size_t{1} << 32;
  unsigned best = layout_.width();
  std::size_t least = 0;
  Lba nearest = 0;
  const Lba at = on_drive(stripe, 0);
  const bool any = drives_.redundancy_valid(stripe);
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if ((unreadable >> member & 1) != 0) continue;
    Drive* drive = drives_.drive(layout_.role(stripe, member));
    if (drive == nullptr) continue;
    drive->probe(at);
    const std::size_t busy = drive->in_flight() + (drive->limping() ? kLimping : 0);
    const Lba distance = distance_to(*drive, stripe, member, at);
    if (best == layout_.width() || busy < least || (busy == least && distance < nearest)) {
      best = member;
      least = busy;
      nearest = distance;
    }
    if (!any) break;
  }
  return best;
}

// Members on drives that limp, if what they have can be computed without them all the same.
MemberSet RaidSet::limping(std::uint64_t stripe) const {
  if (layout_.parity_chunks() == 0 || !drives_.redundancy_valid(stripe)) return 0;
  MemberSet limping = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    const Drive* drive = drives_.drive(layout_.role(stripe, member));
    if (drive != nullptr && drive->limping()) limping |= MemberSet{1} << member;
  }
  return enough_without(drives_, stripe, limping) ? limping : 0;
}

// True: it is read around at once.
bool RaidSet::around(Drive* drive, std::uint64_t stripe, unsigned member, Lba lba) const {
  if (!drive->limping() || (limping(stripe) >> member & 1) == 0) return false;
  drive->probe(lba);
  return true;
}

// What a host has read once may not become something else because the mirror it came from goes.
bool RaidSet::may_differ(std::uint64_t stripe) const {
  if (drives_.redundancy_valid(stripe)) return false;
  const MemberSet unreadable = drives_.unreadable(stripe);
  if (static_cast<unsigned>(std::popcount(unreadable)) + 1 >= layout_.width()) return false;
  const auto region = alike_.find(drives_.region_of(stripe));
  return region == alike_.end() || !region->second[stripe % drives_.superblock().region_stripes];
}

// Where that fails the mirrors stay unlike; the read goes on and says what is wrong. A repair that
// is still in a drive's cache could go with the power, and with it the content that the host read:
// so it is flushed first, also one that maintenance has made.
Task<void> RaidSet::make_alike(std::uint64_t stripe) {
  const std::uint64_t losses = drives_.redundancy_losses(drives_.region_of(stripe));
  const Verified verified = co_await verify_stripe(stripe);
  if (verified.error != Error::kNone) co_return;
  if (flushed_mirror_repairs_ != mirror_repairs_) {
    const Error flushed = co_await flush_drives();
    if (flushed != Error::kNone) co_return;
  }
  if (drives_.redundancy_valid(stripe)) co_return;
  if (drives_.redundancy_losses(drives_.region_of(stripe)) != losses) co_return;
  const std::uint64_t in_region = drives_.superblock().region_stripes;
  if ((alike_.size() + 1) * in_region > kMostAlike) alike_.clear();
  std::vector<bool>& region = alike_[drives_.region_of(stripe)];
  region.resize(in_region);
  region[stripe % in_region] = true;
}

Task<Completion> RaidSet::read(Request request) {
  if (!whole_cells(request.extent)) return read_widened(std::move(request));
  const Layout::Position position = layout_.position(request.extent.first);
  const bool one_strip = request.extent.block_count <= layout_.strip_blocks() - position.row;
  if (one_strip && drives_.optimal() && drives_.lost().empty() && request.extent.block_count > 0 &&
      !(layout_.mirrored() &&
        (table_.being_written(position.stripe) || may_differ(position.stripe)))) {
    return read_one(std::move(request), position);
  }
  const Extent asked = request.extent;
  return read_many(std::move(request), asked);
}

// The usual case: everything is well and one drive has it all.
Task<Completion> RaidSet::read_one(Request request, Layout::Position position) {
  const Extent extent = request.extent;
  const unsigned member = layout_.mirrored() ? choose_member(position.stripe, 0) : position.chunk;
  Drive* drive = drives_.role(layout_.role(position.stripe, member)).drive;
  Request below = request_like(request);
  below.extent = {.first = on_drive(position.stripe, position.row),
                  .block_count = extent.block_count};
  below.data = std::move(request.data);
  Completion completion;
  ReadPiece piece;
  const std::uint64_t losses = drives_.losses();
  piece.late = around(drive, position.stripe, member, below.extent.first);
  if (piece.late) {
    completion.data = std::move(below.data);
  } else {
    DriveIo io = drive->start(std::move(below));
    // Around a slow drive only where what is computed is what the drive has.
    if (layout_.redundancy() > 0 && drives_.redundancy_valid(position.stripe)) {
      co_await io.wait_or_slow();
    } else {
      co_await io.wait();
    }
    piece.late = !io.ended();
    if (!piece.late) completion = io.take();
  }
  // Blocks were lost meanwhile: this may be zeros that replaced one. The stripe tells, once held.
  const bool doubtful = drives_.losses() != losses;
  if (!piece.late && !doubtful && completion.error == Error::kNone && integrity_ == nullptr) {
    co_return completion;
  }
  piece.lba = extent.first;
  piece.position = position;
  piece.rows = static_cast<std::uint32_t>(extent.block_count);
  piece.member = member;
  piece.asked = extent;
  piece.data = std::move(completion.data);  // Nothing, if the drive still has it.
  if (!piece.late && !doubtful && completion.error == Error::kNone) {
    const bool good = co_await piece_good(&piece);
    completion.data = std::move(piece.data);
    if (good) co_return completion;
  } else if (!piece.late && completion.error != Error::kNone) {
    note_failed_read(piece, drive, completion);
  }
  co_await read_again(&piece);
  completion.error = piece.error;
  completion.first_bad_lba = piece.bad;
  completion.data = std::move(piece.data);
  co_return completion;
}

Task<Completion> RaidSet::read_many(Request request, Extent asked) {
  Completion completion;
  FrameVector<ReadPiece> pieces;
  pieces.reserve(request.extent.block_count / layout_.strip_blocks() + 2);
  for (Lba lba = request.extent.first; lba < request.extent.end();) {
    ReadPiece piece;
    piece.lba = lba;
    piece.position = layout_.position(lba);
    piece.rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        request.extent.end() - lba, layout_.strip_blocks() - piece.position.row));
    piece.data = request.data.take_front(bytes_of(piece.rows));
    piece.asked = asked;
    lba += piece.rows;
    pieces.push_back(std::move(piece));
  }
  co_await read_runs(&pieces, request.disable_page_out, request.origin);
  for (ReadPiece& piece : pieces) {
    if (!piece.again && integrity_ != nullptr) {  // It may be an update's that is under way.
      const bool good = co_await piece_good(&piece);
      piece.again = !good;
    }
    if (piece.again) co_await read_again(&piece);
    if (piece.error != Error::kNone && completion.error == Error::kNone) {
      completion.error = piece.error;
      completion.first_bad_lba = piece.bad;
    }
    completion.data.append(std::move(piece.data));
  }
  co_return completion;
}

// Whether there is memory for it. Pieces before it stay as they are.
bool RaidSet::add_gap(ReadPiece* piece, std::uint64_t blocks) const {
  if (blocks == 0) return true;
  BufferList data = home_.buffers().try_allocate(bytes_of(blocks));
  if (data.empty()) return false;
  piece->gap = static_cast<std::uint32_t>(blocks);
  data.append(std::move(piece->data));
  piece->data = std::move(data);
  return true;
}

// Sends every piece that can be read where it lies, and marks the others.
Task<void> RaidSet::read_runs(FrameVector<ReadPiece>* pieces, bool disable_page_out,
                              Origin origin) {
  FrameVector<ReadRun> runs;
  FrameVector<std::size_t> next(pieces->size(), kNone);
  std::array<std::size_t, kMostDrives> last_run;
  last_run.fill(kNone);
  const bool through_gaps =
      origin == Origin::kReadAhead && geometry_.rotational && integrity_ == nullptr;
  const std::uint64_t most_gap = through_gaps ? kMostGapBytes / geometry_.block_bytes : 0;
  for (std::size_t i = 0; i < pieces->size(); ++i) {
    ReadPiece& piece = (*pieces)[i];
    const std::uint64_t stripe = piece.position.stripe;
    const MemberSet unreadable = drives_.unreadable(stripe);
    piece.member = layout_.mirrored() ? choose_member(stripe, unreadable) : piece.position.chunk;
    const bool waits = layout_.mirrored() && (table_.being_written(stripe) || may_differ(stripe));
    const bool lost = !drives_.lost().empty() && drives_.lost().first_overlap(piece.wanted());
    piece.again =
        waits || lost || piece.member >= layout_.width() || (unreadable >> piece.member & 1) != 0;
    if (piece.again) continue;
    const unsigned role = layout_.role(stripe, piece.member);
    const Lba first = on_drive(stripe, piece.position.row);
    piece.late = piece.again = around(drives_.role(role).drive, stripe, piece.member, first);
    if (piece.late) continue;
    const bool sole = !enough_without(drives_, stripe, MemberSet{1} << piece.member);
    std::size_t& last = last_run[role];
    const Lba end = last != kNone ? runs[last].first + runs[last].blocks : 0;
    if (last != kNone && first >= end && first - end <= most_gap && add_gap(&piece, first - end)) {
      next[runs[last].last_piece] = i;
      runs[last].last_piece = i;
      runs[last].blocks = first + piece.rows - runs[last].first;
      runs[last].sole |= sole;
      continue;
    }
    last = runs.size();
    runs.push_back({.role = role,
                    .drive = drives_.role(role).drive,
                    .first = first,
                    .blocks = piece.rows,
                    .first_piece = i,
                    .last_piece = i,
                    .sole = sole});
  }
  const std::uint64_t losses = drives_.losses();
  for (ReadRun& run : runs) {
    Request below;
    below.disable_page_out = disable_page_out;
    below.origin = origin;
    below.extent = {.first = run.first, .block_count = run.blocks};
    for (std::size_t i = run.first_piece; i != kNone; i = next[i]) {
      below.data.append(std::move((*pieces)[i].data));
    }
    run.io = run.drive->start(std::move(below));
  }
  for (ReadRun& run : runs) {
    const bool waits = run.sole || drives_.unverified_count() > 0;
    const DriveIo::Wait end = waits ? run.io.wait() : run.io.wait_or_slow();
    co_await end;
    const bool late = !run.io.ended();
    const bool lost = drives_.losses() != losses;  // This may be zeros that replaced a block.
    Completion done = late ? Completion{} : run.io.take();
    for (std::size_t i = run.first_piece; i != kNone; i = next[i]) {
      ReadPiece& piece = (*pieces)[i];
      piece.take_from(&done.data, bytes_of(piece.gap), bytes_of(piece.rows));
      piece.late = late;
      piece.again = late || lost;
    }
    if (!late && done.error != Error::kNone) fail_run(run, done, *pieces, next);
  }
}

// Every piece of the run is read again, by itself: those that can be are, the others are recovered.
void RaidSet::fail_run(const ReadRun& run, const Completion& done, FrameVector<ReadPiece>& pieces,
                       const FrameVector<std::size_t>& next) {
  const bool several = run.first_piece != run.last_piece;
  for (std::size_t i = run.first_piece; i < pieces.size(); i = next[i]) {
    pieces[i].again = true;
    // A medium error may lie in another piece; then this one is as good as its drive.
    if (several && done.error == Error::kMediumError) continue;
    note_failed_read(pieces[i], run.drive, done);
  }
}

// What to do about a piece that its drive did not give.
void RaidSet::note_failed_read(ReadPiece& piece, Drive* drive, const Completion& done) {
  piece.failed = true;
  piece.error = done.error;
  if (done.error == Error::kMediumError) {
    const Lba first = on_drive(piece.position.stripe, piece.position.row);
    piece.bad = piece.lba + (done.first_bad_lba >= first ? done.first_bad_lba - first : 0);
    return;
  }
  piece.bad = piece.lba;
  const unsigned role = layout_.role(piece.position.stripe, piece.member);
  if (layout_.redundancy() > 0) {
    judge(role, drive, done.error, "a read");
  } else {
    judge_direct(role, drive, done.error, "a read");
  }
}

// Into memory that is not the set's, so that the answer may outlive it: the host's, or where a
// drive still has that, other. It is there before anything is held.
Task<void> RaidSet::read_again(ReadPiece* piece) {
  bool unsettled = false;
  if (piece->data.empty()) piece->data = co_await home_.buffers().allocate(bytes_of(piece->rows));
  if (layout_.redundancy() == 0) {
    if (const auto lost = drives_.lost().first_overlap(piece->wanted())) {
      piece->error = Error::kMediumError;
      piece->bad = *lost;
      piece->data.fill_zero();
    } else if (integrity_ != nullptr) {
      co_await read_sole(piece);
    } else if (!piece->failed) {
      co_await read_alone(piece);
    }
  } else {
    const bool unlike = layout_.mirrored() && may_differ(piece->position.stripe);
    if (unlike) co_await make_alike(piece->position.stripe);
    StripeEntry& entry = table_.enter(piece->position.stripe);
    co_await table_.lock_shared(entry);
    const StripeHold hold(table_, entry, true);
    if (offline_) {  // A write may have failed in the middle of the stripe.
      piece->error = Error::kNotReady;
      piece->bad = piece->lba;
      piece->data.fill_zero();
      co_return;
    }
    const std::size_t most = bytes_of(std::min(piece->rows, slice_rows()));
    const std::size_t taken = co_await budget_.take(most * layout_.width() * 2);
    const ByteBudget::Share share(budget_, taken);
    co_await read_slices(piece);
    unsettled = integrity_ != nullptr && piece->error == Error::kMediumError &&
                !drives_.lost().first_overlap(piece->wanted());
    // A drive that is away may come back and have it.
    const std::uint64_t stripe = piece->position.stripe;
    unsettled &= !drives_.doubted(stripe, piece->position.row, piece->rows) ||
                 drives_.unreadable(stripe) == 0;
  }
  if (unsettled) co_await settle_and_read(piece);
  if (!piece->data.empty()) co_return;
  // With an error, too, the host gets as many bytes as it asked for.
  piece->data = co_await home_.buffers().allocate(bytes_of(piece->rows));
  piece->data.fill_zero();
}

// From the one drive that has it. Blocks that are lost meanwhile are not returned.
Task<void> RaidSet::read_alone(ReadPiece* piece) {
  const std::uint64_t stripe = piece->position.stripe;
  Drive* drive = drives_.role(layout_.role(stripe, piece->member)).drive;
  if (drive == nullptr) {
    piece->error = Error::kNotReady;
    co_return;
  }
  Request request;
  request.extent = {.first = on_drive(stripe, piece->position.row), .block_count = piece->rows};
  request.data = std::move(piece->data);
  Completion done = co_await drive->submit(std::move(request));
  piece->error = Error::kNone;
  piece->data = std::move(done.data);
  if (done.error != Error::kNone) co_return note_failed_read(*piece, drive, done);
  if (const auto lost = drives_.lost().first_overlap(piece->wanted())) {
    piece->error = Error::kMediumError;
    piece->bad = *lost;
    piece->data.fill_zero();
  }
}

// So many rows at a time as memory allows.
Task<void> RaidSet::read_slices(ReadPiece* piece) {
  if (piece->rows <= slice_rows()) co_return co_await read_held(piece);
  Error error = Error::kNone;
  Lba bad = piece->bad;
  for (std::uint32_t done = 0; done < piece->rows;) {
    ReadPiece slice;
    slice.lba = piece->lba + done;
    slice.position = piece->position;
    slice.position.row += done;
    slice.rows = std::min(slice_rows(), piece->rows - done);
    slice.member = piece->member;
    slice.asked = piece->asked;
    slice.failed = piece->failed;
    slice.late = piece->late;
    slice.error = piece->error;
    slice.data = piece->data.share(bytes_of(done), bytes_of(slice.rows));
    co_await read_held(&slice);
    if (slice.error != Error::kNone && error == Error::kNone) {
      error = slice.error;
      bad = slice.bad;
    }
    done += slice.rows;
  }
  piece->error = error;
  piece->bad = bad;
}

namespace {

// What there is of it, or zeros.
void fill(BufferList& target, const BufferList& bytes) {
  if (bytes.empty()) return target.fill_zero();
  std::size_t offset = 0;
  for (std::size_t at = 0; at < bytes.slice_count(); ++at) {
    target.copy_from(bytes[at].bytes(), offset);
    offset += bytes[at].byte_count();
  }
}

}  // namespace

// From whatever has it; the stripe is held.
Task<void> RaidSet::read_held(ReadPiece* piece) {
  const std::uint64_t stripe = piece->position.stripe;
  const std::uint32_t row = piece->position.row;
  const bool medium_error = piece->failed && piece->error == Error::kMediumError;
  if (const auto lost = drives_.lost().first_overlap(piece->wanted())) {
    piece->error = Error::kMediumError;
    piece->bad = *lost;
    piece->data.fill_zero();
    co_return;
  }
  const unsigned wanted = layout_.mirrored() ? 0 : piece->position.chunk;
  const bool by_drive = piece->member < layout_.width();
  const MemberSet self = by_drive ? MemberSet{1} << piece->member : 0;
  Lanes lanes(layout_.width());
  std::uint32_t bad_row = row;
  // A drive that failed otherwise and could not be dropped is asked again: then that counts, and is
  // no medium error.
  MemberSet slow = limping(stripe);
  if (piece->late && !enough_without(drives_, stripe, slow | self)) slow = 0;
  if (piece->late && enough_without(drives_, stripe, self)) slow |= self;
  const MemberSet avoid = medium_error ? self : slow;
  piece->error = co_await recover_rows(stripe, MemberSet{1} << wanted, row, piece->rows, avoid,
                                       &lanes, &bad_row);
  if (piece->error == Error::kNone) {
    if ((self & (avoid | drives_.unreadable(stripe))) != 0) ++counters_.reconstructions;
    if (piece->late) ++counters_.reads_around;
  } else if ((avoid & slow) != 0) {  // Then the slow drives are what there is.
    lanes.clear();
    piece->error = co_await recover_rows(stripe, MemberSet{1} << wanted, row, piece->rows,
                                         avoid & ~slow, &lanes, &bad_row);
  }
  fill(piece->data, lanes[wanted]);
  piece->bad = std::max(piece->lba + (bad_row - row), piece->asked.first);
  const bool there = by_drive && (self & drives_.unreadable(stripe)) == 0;
  if (there && (medium_error || piece->error == Error::kMediumError)) {
    repair_later(stripe, piece->member, row, piece->rows);
  }
}

// ---- repair -----------------------------------------------------------------------------------

void RaidSet::repair_later(std::uint64_t stripe, unsigned member, std::uint32_t row,
                           std::uint32_t count) {
  if (repairing_.size() >= kMostRepairs || !background_.enter()) return;
  if (repairing_.insert({stripe, member, row}).second) {
    spawn(repair(stripe, member, row, count));
  } else {
    background_.leave();
  }
}

// Writes what could be recovered over what could not be read; drives put another sector there.
Task<void> RaidSet::repair(std::uint64_t stripe, unsigned member, std::uint32_t row,
                           std::uint32_t count) {
  StripeEntry& entry = table_.enter(stripe);
  co_await table_.lock(entry);
  if (!offline_) {
    const std::size_t taken = co_await budget_.take(bytes_of(granule_) * layout_.width() * 2);
    const ByteBudget::Share share(budget_, taken);
    co_await settle_granules(stripe, row, count, MemberSet{1} << member);
  }
  table_.unlock(entry);
  table_.leave(entry);
  repairing_.erase({stripe, member, row});
  background_.leave();
}

}  // namespace sandbay::raid
