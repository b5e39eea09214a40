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

#include <fmt/core.h>

#include "raid/raid_set.h"
#include "raid/stripe_update.h"

namespace sandbay::raid {

namespace {

// A drive that has refused a write within that time is not told of again.
constexpr Duration kRefusedGoesOn = std::chrono::minutes(1);

bool covers(std::uint32_t first, std::uint32_t count, std::uint32_t row) {
  return first <= row && row < first + count;
}

// From one list into another of at least its length.
void copy(const BufferList& from, BufferList* into) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < from.slice_count(); ++i) {
    into->copy_from(from[i].bytes(), offset);
    offset += from[i].byte_count();
  }
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

// Run by run of rows that the same members are written and refused in. What turns out to be lost is
// remembered at the end, together, before the record is forgotten.
Task<Error> RaidSet::settle_refused(std::uint64_t stripe, const Unprotected* write,
                                    const FrameVector<Target>* targets) {
  FrameVector<LostRows> lost;
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
      error = co_await settle_refused_rows(stripe, write, here, row, end - row, &lost);
    } else if ((refused & ~data) != 0) {  // Its data has not been begun, and its parity is there.
      error = co_await put_rows(stripe, write, here.written & data, row, end - row, &lost);
    }
    if (error != Error::kNone) co_return error;
    row = end;
  }
  if (lost.empty()) {
    note_refused(stripe, layout_.role(stripe, static_cast<unsigned>(std::countr_zero(refused))));
    co_return Error::kNone;
  }
  for (const LostRows& rows : lost) note_lost(stripe, rows.members, rows.row, rows.row_count);
  co_return co_await drives_.save_lost();
}

// Now and then: a cache tries again what was refused.
void RaidSet::note_refused(std::uint64_t stripe, unsigned role) {
  const TimePoint before = refused_until_[role];
  if (home_.now() < before) return;
  refused_until_[role] = home_.now() + kRefusedGoesOn;
  const Drive* drive = drives_.role(role).drive;
  drives_.tell({SetEvent::Kind::kWriteRefused, role,
                fmt::format("drive {} refused a write of stripe {} for a bad place, and no "
                            "redundancy is left to go on without it; what was there is kept",
                            drive != nullptr ? drive->name() : "?", stripe)});
}

// Neighbouring rows become one.
void RaidSet::lose_rows(MemberSet members, std::uint32_t row, std::uint32_t rows,
                        FrameVector<LostRows>* lost) {
  if (!lost->empty() && lost->back().members == members &&
      lost->back().row + lost->back().row_count == row) {
    lost->back().row_count += rows;
  } else {
    lost->push_back({.members = members, .row = row, .row_count = rows});
  }
}

BufferList RaidSet::fresh_rows(const Unprotected& write, unsigned member, std::uint32_t row,
                               std::uint32_t rows) const {
  const Segment& segment = *segment_of(write.segments, member, row);
  return segment.data.share(bytes_of(row - segment.row), bytes_of(rows));
}

// In how many of these rows the members' lanes are what was to be written.
std::uint32_t RaidSet::taken_of(const Unprotected& write, MemberSet members, std::uint32_t row,
                                std::uint32_t rows, Lanes* lanes) const {
  std::uint32_t taken = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    for (std::uint32_t at = 0; at < rows; ++at) {
      const BufferList there = (*lanes)[member].share(bytes_of(at), bytes_of(1));
      taken += there.equals(fresh_rows(write, member, row + at, 1)) ? 1 : 0;
    }
  }
  return taken;
}

// Halves rows of which something cannot be read, down to a physical block, or parity is not the
// same in all of them.
Task<Error> RaidSet::settle_refused_rows(std::uint64_t stripe, const Unprotected* write,
                                         WrittenRow here, std::uint32_t row, std::uint32_t rows,
                                         FrameVector<LostRows>* lost) {
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  const MemberSet away = drives_.unreadable(stripe);
  const MemberSet parities = here.refused & ~data;
  Lanes lanes(layout_.width());  // As it is on the drives.
  MemberSet failed = 0;
  MemberSet medium = 0;
  co_await read_members(stripe, here.refused, row, rows, &lanes, &failed, &medium);
  if ((failed & ~medium) != 0) co_return Error::kNotReady;
  Refused is = failed != 0 ? Refused::kUnreadable : Refused::kOld;
  if (failed == 0 && parities != 0) {
    const std::uint32_t taken = taken_of(*write, parities, row, rows, &lanes);
    const std::uint32_t all = rows * static_cast<std::uint32_t>(std::popcount(parities));
    is = taken == all ? Refused::kNew : taken != 0 ? Refused::kDivided : Refused::kOld;
  }
  if (is == Refused::kOld && parities != 0) {
    co_await read_members(stripe, here.written & data & ~away, row, rows, &lanes, &failed, &medium);
    if ((failed & ~medium) != 0) co_return Error::kNotReady;
    is = Refused::kUnreadable;
    if (failed == 0) {
      const bool old = co_await parities_old(write, here, away, row, rows, &lanes);
      is = old ? Refused::kOld : Refused::kDivided;
    }
  }
  // A drive has become fresh or has failed meanwhile: what was read is not all that counts.
  if (drives_.unreadable(stripe) != away) {
    lanes.clear();
    co_return co_await settle_refused_rows(stripe, write, here, row, rows, lost);
  }
  const std::uint32_t least = is == Refused::kUnreadable ? granule_ : 1;
  const std::uint32_t middle = row + std::max(rows / 2 / least, 1U) * least - row % least;
  if ((is == Refused::kUnreadable || is == Refused::kDivided) && middle < row + rows) {
    const std::uint32_t half = middle - row;
    lanes.clear();
    const Error error = co_await settle_refused_rows(stripe, write, here, row, half, lost);
    if (error != Error::kNone) co_return error;
    co_return co_await settle_refused_rows(stripe, write, here, middle, rows - half, lost);
  }
  co_return co_await end_refused_rows(stripe, write, here, row, rows, is, &lanes, lost);
}

// Data that parity speaks of already, or parity that fits the data: on the replacements of what is
// away, too.
Task<Error> RaidSet::end_refused_rows(std::uint64_t stripe, const Unprotected* write,
                                      WrittenRow here, std::uint32_t row, std::uint32_t rows,
                                      Refused is, Lanes* lanes, FrameVector<LostRows>* lost) {
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  const MemberSet away = drives_.unreadable(stripe);
  co_await follow_drives(stripe, here.refused, row, lanes);
  if (is == Refused::kNew) {
    co_return co_await put_rows(stripe, write, here.written & data, row, rows, lost);
  }
  const MemberSet parities = here.written & ~data & ~here.refused;
  // If what is away was to be changed as well, only what parity said tells its old content.
  if (is == Refused::kOld && ((here.refused & data) != 0 || (here.changed & away) == 0)) {
    const MemberSet there = (here.refused & data) != 0 ? here.refused : here.written & data & ~away;
    fit_parities(*write, parities, there, row, rows, lanes);
    co_return co_await put_rows(stripe, write, parities, row, rows, lost);
  }
  const MemberSet put = parities & ~away;
  Error error = Error::kNone;
  if (is == Refused::kOld && restore_parities(*write, put, row, rows)) {
    error = co_await put_rows(stripe, write, put, row, rows, lost);
  } else {
    lose_rows((computed_away(stripe, row, rows) | here.refused) & data, row, rows, lost);
  }
  if (error != Error::kNone || is == Refused::kUnreadable) co_return error;
  co_await compute_replacements(stripe, parities & away, row, rows);
  co_return Error::kNone;
}

// Of parities that are away, out of what is here. One that cannot be computed now has no
// replacement any more.
Task<void> RaidSet::compute_replacements(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                                         std::uint32_t rows) {
  for (unsigned member = 0; member < layout_.width(); ++member) {
    const unsigned role = layout_.role(stripe, member);
    if (!has(members, member) || drives_.replacement(role) == nullptr) continue;
    Lanes lanes(layout_.width());
    std::uint32_t bad_row = 0;
    const MemberSet self = MemberSet{1} << member;
    const Error error = co_await recover_rows(stripe, self, row, rows, 0, &lanes, &bad_row);
    if (error != Error::kNone) {
      drives_.drop_replacement(role, "what it should have cannot be read");
    } else {
      co_await follow_drives(stripe, self, row, &lanes);
    }
  }
}

// Whether refused parities are what they were before the write. A drive that has put something else
// there tells nothing of what is away. True, too, where that cannot be told: all that is away was
// to be written, so parity was not read. The write's data is in lanes.
Task<bool> RaidSet::parities_old(const Unprotected* write, WrittenRow here, MemberSet away,
                                 std::uint32_t row, std::uint32_t rows, Lanes* lanes) {
  const unsigned p = layout_.data_chunks();
  const std::size_t lane_bytes = bytes_of(rows);
  for (unsigned member = p; member < layout_.width(); ++member) {
    if (!has(here.refused, member)) continue;
    BufferList before;
    if ((here.changed & away) != 0) {
      const OldRun* run = old_run(*write, member, row, rows);
      if (run == nullptr) continue;
      before = run->data.share(bytes_of(row - run->row), lane_bytes);
    } else {
      before = co_await scratch_.allocate(lane_bytes);
      copy(fresh_rows(*write, member, row, rows), &before);
      BufferList there = co_await scratch_.allocate(lane_bytes);
      for (unsigned changed = 0; changed < p; ++changed) {
        if (!has(here.written, changed)) continue;
        copy((*lanes)[changed], &there);
        Difference difference;
        difference.before() = there.share();
        difference.after() = fresh_rows(*write, changed, row, rows);
        (member == p ? difference.p() : difference.q()) = before.share();
        difference.apply(changed, lane_bytes);
      }
    }
    if (!(*lanes)[member].equals(before)) co_return false;
  }
  co_return true;
}

// What a replacement has taken and its drive has not is made what the drive has, which is in lanes
// unless it cannot be read: else it would bring back what has been said to have failed, and parity
// does not fit that.
Task<void> RaidSet::follow_drives(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                                  Lanes* lanes) {
  FrameVector<Target> targets;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    const unsigned role = layout_.role(stripe, member);
    Drive* replacement = drives_.role(role).replacement;
    if (replacement == nullptr || (*lanes)[member].empty()) continue;
    Request request;
    request.operation = Operation::kWrite;
    request.origin = Origin::kRebuild;
    request.data = (*lanes)[member].share();
    request.extent = {.first = on_drive(stripe, row),
                      .block_count = request.data.byte_count() / geometry_.block_bytes};
    const Extent extent = request.extent;
    targets.push_back({role, replacement, extent, replacement->start(std::move(request))});
  }
  for (Target& target : targets) {
    co_await target.io.wait();
    judge(target.role, target.drive, target.io.take().error, "a write");
  }
}

const OldRun* RaidSet::old_run(const Unprotected& write, unsigned member, std::uint32_t row,
                               std::uint32_t rows) {
  const auto run = std::ranges::find_if(write.old, [&](const OldRun& old) {
    return old.member == member && covers(old.row, old.row_count, row);
  });
  const bool whole = run != write.old.end() && row + rows <= run->row + run->row_count;
  return whole ? &*run : nullptr;
}

// False if they were not read for the write. Where what is away changes, none changes in place.
bool RaidSet::restore_parities(const Unprotected& write, MemberSet parities, std::uint32_t row,
                               std::uint32_t rows) const {
  for (unsigned member = layout_.data_chunks(); member < layout_.width(); ++member) {
    if (!has(parities, member)) continue;
    const OldRun* run = old_run(write, member, row, rows);
    if (run == nullptr) return false;
    BufferList fresh = fresh_rows(write, member, row, rows);
    copy(run->data.share(bytes_of(row - run->row), bytes_of(rows)), &fresh);
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
                              std::uint32_t row, std::uint32_t rows, FrameVector<LostRows>* lost) {
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
    if (here == Error::kMediumError) {
      drives_.drop_replacement(target.role, "it has taken what its drive has refused");
    }
    if (error == Error::kNone || here != Error::kMediumError) error = here;
  }
  if (error != Error::kMediumError) co_return error;
  const MemberSet data = (MemberSet{1} << layout_.data_chunks()) - 1;
  lose_rows(computed_away(stripe, row, rows) & data, row, rows, lost);
  co_return Error::kNone;
}

}  // namespace sandbay::raid
