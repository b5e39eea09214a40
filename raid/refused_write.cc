// A parity stripe that has no redundancy left, for drives are away, and a drive that refuses a
// write of it for a bad place. The write fails; what is away stays computable, so nothing else is
// lost.
//
// Parities go first. If one is refused no data has changed, and parity says what it said; what has
// been taken of it all the same is followed by its data, and the other parity goes back. If data is
// refused, parity is made to fit what stands there instead. For either is looked at what the
// refusing drives have now; what they cannot read either is lost, and with it what is away.
//
// All this happens in place while the write's record is still in the journal: after a crash a
// replay writes all of the write anew, whatever has been put there. Once it is settled the record
// is forgotten before the write fails, so what is read then stays.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "raid/raid_set.h"
#include "raid/stripe_update.h"

namespace sandbay::raid {

namespace {

bool has(MemberSet set, unsigned member) { return (set >> member & 1) != 0; }

bool covers(std::uint32_t first, std::uint32_t count, std::uint32_t row) {
  return first <= row && row < first + count;
}

const Segment* segment_of(std::span<const Segment> segments, unsigned member, std::uint32_t row) {
  const auto found = std::ranges::find_if(segments, [&](const Segment& segment) {
    return segment.member == member && covers(segment.row, segment.row_count, row);
  });
  return found != segments.end() ? &*found : nullptr;
}

}  // namespace

Task<Error> RaidSet::store_unprotected(Update* update) {
  const unsigned data = layout_.data_chunks();
  std::ranges::partition(update->segments,
                         [data](const Segment& segment) { return segment.member >= data; });
  const Unprotected write{
      .segments = update->segments, .pieces = update->pieces, .old = update->old};
  const Error error = co_await store_once(update->stripe, update->segments,
                                          update->force_unit_access, update->origin, &write);
  if (error != Error::kMediumError) co_return co_await take_back(error);
  co_return co_await forget_failed(error);
}

// Or their drives have gone, for the set survives it.
Task<bool> RaidSet::parities_taken(FrameVector<Target>* targets) {
  bool taken = true;
  for (Target& target : *targets) {
    co_await target.io.wait();
    taken &= judge(target.role, target.drive, target.io.error(), "a write");
  }
  co_return taken;
}

// Members that a row changes, those of them and of the parities that are written, and those that
// are refused there. Rows that are alike in this were planned alike, too.
RaidSet::WrittenRow RaidSet::written_at(std::uint64_t stripe, const Unprotected& write,
                                        const FrameVector<Target>& targets,
                                        std::uint32_t row) const {
  WrittenRow members;
  for (const WritePiece* piece : write.pieces) {
    const Fragment& fragment = piece->fragment;
    if (covers(fragment.row, fragment.row_count, row)) {
      members.changed |= MemberSet{1} << fragment.member;
    }
  }
  for (const Segment& segment : write.segments) {
    if (!covers(segment.row, segment.row_count, row)) continue;
    members.written |= MemberSet{1} << segment.member;
    const unsigned role = layout_.role(stripe, segment.member);
    const Lba first = on_drive(stripe, segment.row);
    const bool refused = std::ranges::any_of(targets, [&](const Target& target) {
      return target.role == role && target.extent.first == first &&
             target.error == Error::kMediumError;
    });
    if (refused) members.refused |= MemberSet{1} << segment.member;
  }
  return members;
}

// Run by run of rows that the same members are written and refused in.
Task<Error> RaidSet::settle_refused(std::uint64_t stripe, const Unprotected* write,
                                    const FrameVector<Target>* targets) {
  const std::uint64_t lost_before = counters_.lost_blocks;
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  MemberSet refused = 0;
  for (std::uint32_t row = 0; row < layout_.strip_blocks(); ++row) {
    refused |= written_at(stripe, *write, *targets, row).refused;
  }
  for (std::uint32_t row = 0; row < layout_.strip_blocks();) {
    const WrittenRow here = written_at(stripe, *write, *targets, row);
    std::uint32_t end = row + 1;
    while (end < layout_.strip_blocks() && written_at(stripe, *write, *targets, end) == here) ++end;
    Error error = Error::kNone;
    if (here.refused != 0) {
      error = co_await settle_refused_rows(stripe, write, here.refused, row, end - row);
    } else if ((refused & ~data) != 0) {  // Its data has not been begun, and its parity is there.
      error = co_await put_rows(stripe, write, here.written & data, row, end - row);
    }
    if (error != Error::kNone) co_return error;
    row = end;
  }
  if (counters_.lost_blocks != lost_before) co_return Error::kNone;  // That is told already.
  const unsigned role = layout_.role(stripe, static_cast<unsigned>(std::countr_zero(refused)));
  const Drive* drive = drives_.role(role).drive;
  drives_.tell({SetEvent::Kind::kWriteRefused, role,
                fmt::format("drive {} refused a write of stripe {} for a bad place, and no "
                            "redundancy is left to go on without it; what was there is kept",
                            drive != nullptr ? drive->name() : "?", stripe)});
  co_return Error::kNone;
}

// How much of a refused parity is there all the same, and how much is as it was, in rows.
RaidSet::Taken RaidSet::taken_of(const Unprotected& write, MemberSet parities, std::uint32_t row,
                                 std::uint32_t rows, Lanes* lanes) const {
  Taken taken;
  for (unsigned member = layout_.data_chunks(); member < layout_.width(); ++member) {
    if (!has(parities, member)) continue;
    for (std::uint32_t at = 0; at < rows; ++at) {
      const BufferList there = (*lanes)[member].share(bytes_of(at), bytes_of(1));
      ++(there.equals(fresh_rows(write, member, row + at, 1)) ? taken.new_rows : taken.old_rows);
    }
  }
  return taken;
}

BufferList RaidSet::fresh_rows(const Unprotected& write, unsigned member, std::uint32_t row,
                               std::uint32_t rows) const {
  const Segment& segment = *segment_of(write.segments, member, row);
  return segment.data.share(bytes_of(row - segment.row), bytes_of(rows));
}

// Halves rows of which something cannot be read, or parity is old only in part.
Task<Error> RaidSet::settle_refused_rows(std::uint64_t stripe, const Unprotected* write,
                                         MemberSet refused, std::uint32_t row, std::uint32_t rows) {
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  const MemberSet away = drives_.unreadable(stripe);
  MemberSet written = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    const bool here = segment_of(write->segments, member, row) != nullptr;
    if (here && !has(away, member)) written |= MemberSet{1} << member;
  }
  const MemberSet refused_parities = refused & ~data;
  const MemberSet looked_at = refused | (refused_parities != 0 ? written & data : 0);
  Lanes lanes(layout_.width());  // As it is on the drives.
  MemberSet failed = 0;
  MemberSet medium = 0;
  co_await read_members(stripe, looked_at, row, rows, &lanes, &failed, &medium);
  if ((failed & ~medium) != 0) co_return Error::kNotReady;
  const Taken taken = taken_of(*write, refused_parities & ~failed, row, rows, &lanes);
  const bool divided = failed != 0 || (taken.old_rows != 0 && taken.new_rows != 0);
  if (divided && rows > 1) {
    const std::uint32_t half = rows / 2;
    const Error error = co_await settle_refused_rows(stripe, write, refused, row, half);
    if (error != Error::kNone) co_return error;
    co_return co_await settle_refused_rows(stripe, write, refused, row + half, rows - half);
  }
  const MemberSet lost = (away | refused) & data;
  if (divided) co_return co_await add_lost(stripe, lost, row, rows);
  // Data that parity speaks of already, or parity that fits the data.
  MemberSet put = written & data;
  if (refused_parities == 0 || taken.old_rows != 0) {
    put = written & ~data & ~refused;
    // If what is away was to be changed as well, only what parity said tells its old content.
    const bool changes_away = std::ranges::any_of(write->pieces, [&](const WritePiece* piece) {
      const Fragment& fragment = piece->fragment;
      return has(away, fragment.member) && fragment.row < row + rows &&
             row < fragment.row + fragment.row_count;
    });
    if (put == 0 || refused_parities == 0 || !changes_away) {
      fit_parities(*write, put, looked_at & data, row, rows, &lanes);
    } else if (!restore_parities(*write, put, row, rows)) {
      co_return co_await add_lost(stripe, lost, row, rows);
    }
  }
  co_return co_await put_rows(stripe, write, put, row, rows);
}

// False if they were not read for the write. Where what is away changes, none changes in place.
bool RaidSet::restore_parities(const Unprotected& write, MemberSet parities, std::uint32_t row,
                               std::uint32_t rows) const {
  for (unsigned member = layout_.data_chunks(); member < layout_.width(); ++member) {
    if (!has(parities, member)) continue;
    const auto run = std::ranges::find_if(write.old, [&](const OldRun& old) {
      return old.member == member && covers(old.row, old.row_count, row);
    });
    if (run == write.old.end() || row + rows > run->row + run->row_count) return false;
    const BufferList before = run->data.share(bytes_of(row - run->row), bytes_of(rows));
    BufferList fresh = fresh_rows(write, member, row, rows);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < before.slice_count(); ++i) {
      fresh.copy_from(before[i].bytes(), offset);
      offset += before[i].byte_count();
    }
  }
  return true;
}

// Changes what was to be written of the parities to what fits members as they are in lanes.
void RaidSet::fit_parities(const Unprotected& write, MemberSet parities, MemberSet members,
                           std::uint32_t row, std::uint32_t rows, Lanes* lanes) const {
  const unsigned p = layout_.data_chunks();
  for (unsigned member = 0; member < p && parities != 0; ++member) {
    if (!has(members, member)) continue;
    Difference difference;
    difference.before() = std::move((*lanes)[member]);
    difference.after() = fresh_rows(write, member, row, rows);
    if (has(parities, p)) difference.p() = fresh_rows(write, p, row, rows);
    if (has(parities, p + 1)) difference.q() = fresh_rows(write, p + 1, row, rows);
    difference.apply(member, bytes_of(rows));
  }
}

// If one of them is refused as well, what is away is lost.
Task<Error> RaidSet::put_rows(std::uint64_t stripe, const Unprotected* write, MemberSet members,
                              std::uint32_t row, std::uint32_t rows) {
  FrameVector<Segment> segments;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    segments.push_back({.member = member,
                        .row = row,
                        .row_count = rows,
                        .data = fresh_rows(*write, member, row, rows)});
  }
  FrameVector<Target> targets;
  start_targets(stripe, segments, false, Origin::kRebuild, &targets);
  Error error = Error::kNone;
  for (Target& target : targets) {
    co_await target.io.wait();
    const Error here = target.io.take().error;
    if (judge(target.role, target.drive, here, "a write")) continue;
    if (error == Error::kNone || here != Error::kMediumError) error = here;
  }
  if (error != Error::kMediumError) co_return error;
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  co_return co_await add_lost(stripe, drives_.unreadable(stripe) & data, row, rows);
}

}  // namespace sandbay::raid
