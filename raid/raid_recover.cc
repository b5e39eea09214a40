// What cannot be read is computed from the other members; what cannot be computed either is lost:
// exactly those blocks become zeros, with parity that fits, and are remembered as lost until they
// are rewritten. So a stripe is always readable and consistent afterwards, and everything else,
// rebuild included, needs no rule of its own for lost blocks.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/parity.h"
#include "raid/raid_set.h"

namespace sandbay::raid {

namespace {

// `count` of the members in `set`, the lowest first: data before P before Q.
MemberSet lowest(MemberSet set, unsigned count) {
  MemberSet chosen = 0;
  for (; count > 0 && set != 0; --count) {
    chosen |= set & (~set + 1);
    set &= set - 1;
  }
  return chosen;
}

}  // namespace

Task<void> RaidSet::read_members(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                                 std::uint32_t row_count, Lanes* lanes, MemberSet* failed,
                                 MemberSet* medium, Lanes* suspects) {
  struct Reading {
    unsigned member;
    unsigned role;
    Drive* drive = nullptr;
    DriveIo io;
  };
  if (members == 0) co_return;
  const std::size_t lane_bytes = bytes_of(row_count);
  FrameVector<Reading> readings;
  readings.reserve(static_cast<std::size_t>(std::popcount(members)));
  BufferList memory =
      co_await scratch_.allocate(lane_bytes * static_cast<std::size_t>(std::popcount(members)));
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(members, member)) continue;
    const unsigned role = layout_.role(stripe, member);
    Drive* drive = drives_.role(role).drive;
    if (drive == nullptr) {
      *failed |= MemberSet{1} << member;
      continue;
    }
    Request request;
    request.origin = Origin::kRebuild;
    request.extent = {.first = on_drive(stripe, row), .block_count = row_count};
    request.data = memory.take_front(lane_bytes);
    readings.push_back({member, role, drive, drive->start(std::move(request))});
  }
  for (Reading& reading : readings) {
    co_await reading.io.wait();
    Completion done = reading.io.take();
    if (done.error == Error::kNone) {
      Integrity::Checked checked;
      if (integrity_ != nullptr) {
        checked = co_await integrity_->check(stripe, reading.member, row, row_count, &done.data);
      }
      if (checked.good()) {
        (*lanes)[reading.member] = std::move(done.data);
        continue;
      }
      *failed |= MemberSet{1} << reading.member;
      *medium |= MemberSet{1} << reading.member;
      if (suspects != nullptr) {
        (*suspects)[reading.member] = std::move(done.data);
      } else if (layout_.redundancy() > 0) {
        repair_later(stripe, reading.member, checked.first_bad, checked.end - checked.first_bad);
      }
      continue;
    }
    *failed |= MemberSet{1} << reading.member;
    if (done.error == Error::kMediumError) {
      *medium |= MemberSet{1} << reading.member;
    } else {
      judge(reading.role, reading.drive, done.error, "a read");
    }
  }
}

Task<Error> RaidSet::recover_rows(std::uint64_t stripe, MemberSet wanted, std::uint32_t row,
                                  std::uint32_t row_count, MemberSet avoid, Lanes* lanes,
                                  std::uint32_t* bad_row) {
  const unsigned width = layout_.width();
  const unsigned needed = layout_.data_chunks();
  MemberSet refused = avoid & first_members(width);
  MemberSet there = 0;
  MemberSet medium = refused;
  for (;;) {
    const MemberSet away = lacking(stripe, row, row_count);
    const MemberSet bad = refused | away;
    const MemberSet good = first_members(width) & ~bad;
    // Straight from the drives, if they have what is wanted; a mirror stands for every other.
    MemberSet reads = wanted;
    if (layout_.mirrored()) {
      const unsigned mirror = choose_member(stripe, bad);
      reads = mirror < width ? MemberSet{1} << mirror : 0;
    } else if ((wanted & bad) != 0) {
      const auto got = static_cast<unsigned>(std::popcount(there));
      reads = there | lowest(good & ~there, needed - std::min(needed, got));
    }
    const bool doubted = incomputable(stripe, row, row_count, wanted & bad);
    if ((reads & bad) != 0 || doubted ||
        static_cast<unsigned>(std::popcount(reads)) < ((wanted & bad) != 0 ? needed : 1)) {
      *bad_row = row;
      // A drive that is there and failed otherwise may give it when it is asked again.
      const MemberSet otherwise = refused & ~medium & ~away;
      if ((medium == 0 && !doubted) || otherwise != 0) co_return Error::kNotReady;
      const bool alike = drives_.doubted_alike(stripe, row, row_count) == row_count;
      if (in_one_granule(row, row_count) && alike) co_return Error::kMediumError;
      lanes->clear();
      co_return co_await recover_by_granule(stripe, wanted, row, row_count, lanes, bad_row);
    }
    MemberSet failed = 0;
    if ((reads & ~there) != 0) {
      co_await read_members(stripe, reads & ~there, row, row_count, lanes, &failed, &medium);
    }
    there |= reads & ~failed;
    refused |= failed;
    if (failed != 0) continue;
    if (layout_.mirrored()) {
      const auto mirror = static_cast<unsigned>(std::countr_zero(reads));
      for (unsigned member = 0; member < width; ++member) {
        if (!has(wanted, member) || member == mirror) continue;
        (*lanes)[member] = (*lanes)[mirror].share();
      }
      co_return Error::kNone;
    }
    if ((wanted & ~there) == 0) co_return Error::kNone;
    co_await recover_from(there, wanted, row_count, lanes);
    if (integrity_ == nullptr) co_return Error::kNone;
    // What is computed from cells of which nothing is known may be wrong, too.
    const MemberSet unchecked = drives_.doubted(stripe, row, row_count)
                                    ? ~first_members(layout_.data_chunks())
                                    : drives_.unreadable(stripe);
    const MemberSet computed = wanted & ~there & ~unchecked;
    const bool right = co_await confirmed(stripe, row, row_count, computed, false, lanes, nullptr);
    if (right) co_return Error::kNone;
    *bad_row = row;
    if (in_one_granule(row, row_count)) co_return Error::kMediumError;
    lanes->clear();
    co_return co_await recover_by_granule(stripe, wanted, row, row_count, lanes, bad_row);
  }
}

// Members that no drive has. A drive that is back has its content before its region is rebuilt,
// where it will be kept.
MemberSet RaidSet::lacking(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) const {
  const MemberSet away = drives_.unreadable(stripe);
  if (away == 0 || !drives_.doubted(stripe, row, rows)) return away;
  if (drives_.doubted_alike(stripe, row, rows) != rows) return away;
  return away & (drives_.absent(stripe) | ~drives_.keeping(stripe));
}

// Data is not computed from parity that may not match it, unless an entry tells whether it does.
bool RaidSet::incomputable(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                           MemberSet wanted) const {
  if (!drives_.doubted(stripe, row, rows)) return false;
  for (unsigned member = 0; member < layout_.data_chunks(); ++member) {
    if (has(wanted, member) && !entry_tells(stripe, member)) return true;
  }
  return false;
}

MemberSet RaidSet::unbelieved(std::uint64_t stripe, MemberSet missing) const {
  if (drives_.redundancy_valid(stripe)) return 0;
  const MemberSet data = first_members(layout_.data_chunks());
  const MemberSet parities = first_members(layout_.width()) & ~data & ~missing;
  return parities & ~lowest(parities, static_cast<unsigned>(std::popcount(missing & data)));
}

// Computes the wanted members out of those that are there.
Task<void> RaidSet::recover_from(MemberSet there, MemberSet wanted, std::uint32_t row_count,
                                 Lanes* lanes) {
  const unsigned data = layout_.data_chunks();
  // All missing data has to be computed with what is wanted; a parity only if it is wanted.
  const MemberSet missing = (first_members(data) | wanted) & ~there;
  const std::size_t lane_bytes = bytes_of(row_count);
  BufferList memory =
      co_await scratch_.allocate(lane_bytes * static_cast<std::size_t>(std::popcount(missing)));
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (has(missing, member)) (*lanes)[member] = memory.take_front(lane_bytes);
  }
  recover_lanes(data, layout_.parity_chunks(), missing, *lanes, lane_bytes);
}

// A run that cannot be had as a whole: what can be had of it, block by block. A block that is
// doubted in part is divided.
Task<Error> RaidSet::recover_by_granule(std::uint64_t stripe, MemberSet wanted, std::uint32_t row,
                                        std::uint32_t row_count, Lanes* lanes,
                                        std::uint32_t* bad_row) {
  Error result = Error::kNone;
  for (std::uint32_t done = 0; done < row_count;) {
    std::uint32_t rows = std::min(granule_ - (row + done) % granule_, row_count - done);
    rows = drives_.doubted_alike(stripe, row + done, rows);
    Lanes part(layout_.width());
    std::uint32_t ignored = 0;
    // What was bad about the run may lie elsewhere in it, so nothing is avoided.
    const Error error = co_await recover_rows(stripe, wanted, row + done, rows, 0, &part, &ignored);
    if (error == Error::kNotReady) co_return error;
    if (error != Error::kNone) part.clear();
    for (unsigned member = 0; member < layout_.width(); ++member) {
      if (!has(wanted, member)) continue;
      if (part[member].empty()) {
        part[member] = co_await scratch_.allocate(bytes_of(rows));
        part[member].fill_zero();
      }
      (*lanes)[member].append(std::move(part[member]));
    }
    if (error != Error::kNone && result == Error::kNone) {
      result = error;
      *bad_row = row + done;
    }
    done += rows;
  }
  co_return result;
}

// ---- repair and loss ----------------------------------------------------------------------------

Task<Error> RaidSet::declare_lost(std::uint64_t stripe, std::uint32_t row,
                                  std::uint32_t row_count) {
  if (keeps_away(stripe) && drives_.doubted(stripe, row, row_count)) {
    co_return Error::kMediumError;  // The missing drive has it.
  }
  co_return co_await settle_granules(stripe, row, row_count, first_members(layout_.width()));
}

Task<Error> RaidSet::settle_granules(std::uint64_t stripe, std::uint32_t row,
                                     std::uint32_t row_count, MemberSet looked_at) {
  // Data that is away and cannot be computed is given up only where everything is looked at, for a
  // write or a rebuild; else its drive may come back.
  const MemberSet data = first_members(layout_.data_chunks());
  const std::uint32_t first = row / granule_ * granule_;
  const std::uint32_t end = (row + row_count + granule_ - 1) / granule_ * granule_;
  const bool kept =
      drives_.doubted(stripe, first, end - first) && (drives_.unreadable(stripe) & data) != 0;
  if (kept && looked_at != first_members(layout_.width())) co_return Error::kNone;
  // As for every update: what is left out is settled before anything is looked at.
  Prepared prepared(drives_);
  const Error ready = co_await prepared.add(stripe, intent());
  if (ready != Error::kNone) co_return ready;
  Error result = Error::kNone;
  for (std::uint32_t at = first; at < end;) {
    const std::uint32_t rows = drives_.doubted_alike(stripe, at, granule_ - at % granule_);
    const Error error = co_await settle_granule(stripe, at, rows, looked_at);
    if (error != Error::kNone && error != Error::kMediumError) co_return error;
    if (error != Error::kNone) result = error;  // It is known to be lost; so may others be.
    at += rows;
  }
  co_return result;
}

// Makes one physical block of every member, or the part of it that is doubted alike, readable:
// reads `looked_at`, rewrites from redundancy what those could not read, and zeroes what is beyond
// redundancy.
Task<Error> RaidSet::settle_granule(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                                    MemberSet looked_at) {
  const MemberSet all = first_members(layout_.width());
  MemberSet failed = 0;
  MemberSet medium = 0;
  Lanes lanes(layout_.width());
  Lanes suspects(layout_.width());
  // Once one is bad the others matter, too. A drive may have become fresh while others were read.
  for (MemberSet asked = 0;;) {
    const MemberSet matter = all & (failed == 0 ? looked_at : all);
    const MemberSet more = matter & ~asked & ~drives_.unreadable(stripe);
    if (more == 0) break;
    asked |= more;
    co_await read_members(stripe, more, row, rows, &lanes, &failed, &medium, &suspects);
  }
  const MemberSet away = drives_.unreadable(stripe);
  const bool data_away = (away & first_members(layout_.data_chunks())) != 0;
  const bool doubted_away = data_away && drives_.doubted(stripe, row, rows);
  // A drive may have failed since it was asked whether its data may be given up.
  if (doubted_away && looked_at != all) co_return Error::kNone;
  if (doubted_away && keeps_away(stripe)) co_return Error::kMediumError;
  if (failed == 0 && !doubted_away) co_return Error::kNone;
  medium |= doubted_away ? away : 0;
  co_return co_await settle_bad(stripe, row, rows, failed, medium, &lanes, &suspects);
}

// All members but the failed ones and those that are away are in lanes.
Task<Error> RaidSet::settle_bad(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                                MemberSet failed, MemberSet medium, Lanes* lanes, Lanes* suspects) {
  const MemberSet all = first_members(layout_.width());
  const MemberSet data = first_members(layout_.data_chunks());
  const MemberSet missing = all & (drives_.unreadable(stripe) | failed);
  const MemberSet writable = all & ~drives_.unwritable(stripe);
  const std::size_t lane_bytes = bytes_of(rows);
  MemberSet rewrite = failed & writable;
  MemberSet corrupt = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!(*suspects)[member].empty()) corrupt |= MemberSet{1} << member;
  }
  const bool enough = static_cast<unsigned>(std::popcount(missing)) <= layout_.redundancy() &&
                      !incomputable(stripe, row, rows, missing);
  Proof proof{.proven = enough};
  if (integrity_ != nullptr && !incomputable(stripe, row, rows, missing)) {
    const MemberSet doubtful = drives_.doubted(stripe, row, rows) ? missing & data : 0;
    proof = co_await prove(stripe, row, rows, missing, failed | doubtful, lanes, suspects);
  } else if (enough) {
    co_await recover_missing(missing, rows, lanes);
  }
  tell_corruption(stripe, row, corrupt & ~proof.trusted,
                  proof.proven ? "was corrupt and has been rewritten" : "is corrupt");
  tell_corruption(stripe, row, corrupt & proof.trusted, nullptr);
  if (proof.proven) {
    counters_.corrections += static_cast<std::uint64_t>(std::popcount(rewrite)) * rows;
    if ((failed & ~corrupt) != 0) {
      drives_.tell(
          {SetEvent::Kind::kMediumErrorRepaired, kNoRole,
           fmt::format("{} rows from {} of stripe {} were unreadable and have been rewritten", rows,
                       row, stripe)});
    }
    if (drives_.doubted(stripe, row, rows)) {  // Entries tell of the data, not of every parity.
      co_await compute_parities(lanes, lane_bytes);
      rewrite |= writable & ~data;
    }
  } else {
    // What a drive holds that is there and failed otherwise is not lost.
    const MemberSet otherwise = failed & ~medium & ~drives_.unreadable(stripe);
    if (medium == 0 || otherwise != 0) co_return Error::kNotReady;
    const Error error =
        co_await add_lost(stripe, layout_.mirrored() ? data : missing & data, row, rows);
    if (error != Error::kNone) co_return error;
    for (unsigned member = 0; member < layout_.width(); ++member) {
      const bool zeroed = has(missing, member) && (layout_.mirrored() || has(data, member));
      if (zeroed) (*lanes)[member] = BufferList(zeroes_.slice(0, lane_bytes));
    }
    if (layout_.parity_chunks() > 0) co_await compute_parities(lanes, lane_bytes);
    rewrite = writable & (missing | (all & ~data));
  }
  FrameVector<Segment> segments;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(rewrite, member)) continue;
    segments.push_back(
        {.member = member, .row = row, .row_count = rows, .data = std::move((*lanes)[member])});
  }
  if (segments.empty()) co_return Error::kNone;
  const Error stored = co_await store(stripe, segments, false, Origin::kRebuild);
  // Parity fits now.
  if (stored == Error::kNone) drives_.add_matched(stripe, row, rows);
  mirror_repairs_ += layout_.mirrored() && journal_ == nullptr ? 1 : 0;
  co_return stored;
}

// There are enough others.
Task<void> RaidSet::recover_missing(MemberSet missing, std::uint32_t rows, Lanes* lanes) {
  const MemberSet there = first_members(layout_.width()) & ~missing;
  if (!layout_.mirrored()) co_return co_await recover_from(there, missing, rows, lanes);
  const auto mirror = static_cast<unsigned>(std::countr_zero(there));
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (has(missing, member)) (*lanes)[member] = (*lanes)[mirror].share();
  }
}

// Fresh parity lanes for data lanes that are all there.
Task<void> RaidSet::compute_parities(Lanes* lanes, std::size_t lane_bytes) {
  const unsigned data = layout_.data_chunks();
  for (unsigned member = data; member < layout_.width(); ++member) {
    (*lanes)[member] = co_await scratch_.allocate(lane_bytes);
  }
  fill_parities(data, layout_.parity_chunks(), *lanes, lane_bytes);
}

void RaidSet::note_lost(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                        std::uint32_t rows) {
  for (unsigned member = 0; member < layout_.data_chunks(); ++member) {
    if (!has(members, member)) continue;
    const Extent extent{.first = layout_.lba({.stripe = stripe, .chunk = member, .row = row}),
                        .block_count = rows};
    drives_.add_lost(extent);
    counters_.lost_blocks += rows;
    tell_lost(extent);
  }
}

void RaidSet::tell_lost(Extent extent) {
  drives_.tell({SetEvent::Kind::kSectorsLost, kNoRole,
                fmt::format("blocks {} to {} are lost: they cannot be read or recovered",
                            extent.first, extent.end() - 1)});
}

Task<Error> RaidSet::add_lost(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                              std::uint32_t rows) {
  note_lost(stripe, members, row, rows);
  co_return co_await drives_.save_lost();
}

// The drives have what they had, and parity that fits. The list is saved once for all strips: until
// then the blocks are lost in memory only, and the caller still counts them as its own.
Task<Error> RaidSet::lose(std::vector<Extent> extents) {
  if (offline_ || !gate_.enter()) co_return Error::kNotReady;
  const GateHold hold(gate_);
  for (const Extent& extent : extents) {
    for (Lba lba = extent.first; lba < extent.end();) {
      const Layout::Position position = layout_.position(lba);
      const std::uint64_t rows =
          std::min<std::uint64_t>(extent.end() - lba, layout_.strip_blocks() - position.row);
      StripeEntry& entry = table_.enter(position.stripe);
      co_await table_.lock(entry);
      const bool offline = offline_;
      if (!offline) drives_.add_lost({.first = lba, .block_count = rows});
      table_.unlock(entry);
      table_.leave(entry);
      if (offline) co_return Error::kNotReady;
      lba += rows;
    }
    counters_.lost_blocks += extent.block_count;
    tell_lost(extent);
  }
  co_return co_await drives_.save_lost();
}

Task<Error> RaidSet::lose_written(unsigned role, Extent extent) {
  const MemberSet data = first_members(layout_.data_chunks());
  Lba lba = extent.first - drives_.data_offset();
  const Lba end = lba + extent.block_count;
  if (extent.first < drives_.data_offset() || end > layout_.drive_blocks(role)) {
    co_return Error::kMediumError;  // Entries of cells: that cannot be told to a host.
  }
  while (lba < end) {
    const Layout::OnDrive at = layout_.on_drive(role, lba);
    auto rows = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(end - lba, layout_.strip_blocks() - at.row));
    rows = drives_.doubted_alike(at.stripe, at.row, rows);
    const MemberSet computed = computed_away(at.stripe, at.row, rows);
    const MemberSet lost =
        layout_.mirrored() ? data : (computed | MemberSet{1} << at.member) & data;
    const Error error = co_await add_lost(at.stripe, lost, at.row, rows);
    if (error != Error::kNone) co_return error;
    // The place does not fit the rest any more, of which others would be computed later. A set that
    // was never verified stays as it is while a drive is missing: all of it would be doubted.
    const bool whole = drives_.absent_roles() == 0 && (drives_.unreadable(at.stripe) & data) == 0;
    const bool judged = drives_.superblock().redundancy_suspect || drives_.unverified_count() == 0;
    if (layout_.parity_chunks() > 0 && (whole || judged)) {
      drives_.redundancy_lost(at.stripe, at.row, rows);
    }
    lba += rows;
  }
  co_return Error::kNone;
}

// ---- for maintenance ------------------------------------------------------------------------

Task<Error> RaidSet::rebuild_member(std::uint64_t stripe, unsigned member, Drive* target) {
  // Those that began before the drive had a replacement know nothing of it.
  while (direct_writes_ > 0) co_await direct_writes_ended_.wait();
  StripeEntry& entry = table_.enter(stripe);
  co_await table_.lock(entry);
  Error error = Error::kNotReady;
  if (!offline_) {
    const std::size_t taken = co_await budget_.take(bytes_of(slice_rows()) * layout_.width() * 2);
    const ByteBudget::Share share(budget_, taken);
    error = Error::kNone;
    for (std::uint32_t row = 0; row < layout_.strip_blocks() && error == Error::kNone;) {
      std::uint32_t rows = std::min(slice_rows(), layout_.strip_blocks() - row);
      rows = drives_.doubted_alike(stripe, row, rows);
      const std::uint32_t part =
          (row + rows) % granule_;  // The rest of a granule is a piece of its own.
      rows -= rows > part ? part : 0;
      error = co_await rebuild_held(stripe, member, target, row, rows);
      row += rows;
    }
  }
  table_.unlock(entry);
  table_.leave(entry);
  co_return error;
}

Task<Error> RaidSet::rebuild_held(std::uint64_t stripe, unsigned member, Drive* target,
                                  std::uint32_t row, std::uint32_t rows) {
  const unsigned role = layout_.role(stripe, member);
  const SetDrives::RoleDrive& here = drives_.role(role);
  if (target != here.drive && target != here.replacement) co_return Error::kNotFound;
  if (target == here.drive && drives_.doubted(stripe, row, rows)) {
    const auto kept = co_await keep_doubted(stripe, member, target, row, rows);
    if (kept.has_value()) co_return *kept;
  }
  Lanes lanes(layout_.width());
  for (unsigned attempt = 0;; ++attempt) {
    std::uint32_t bad_row = 0;
    lanes.clear();
    const Error error =
        co_await recover_rows(stripe, MemberSet{1} << member, row, rows, 0, &lanes, &bad_row);
    if (error == Error::kNone) break;
    if (error != Error::kMediumError) co_return error;
    if (attempt > 0) {
      if (!in_one_granule(row, rows)) {
        co_return co_await rebuild_pieces(stripe, member, target, row, rows, granule_);
      }
      lanes.clear();
      const bool had = co_await have_zeros(stripe, member, row, rows, &lanes);
      if (had) break;
      if (rows <= cell_rows_) co_return error;
      co_return co_await rebuild_pieces(stripe, member, target, row, rows, cell_rows_);
    }
    const Error settled = co_await declare_lost(stripe, row, rows);
    if (settled != Error::kNone && settled != Error::kMediumError) co_return settled;
  }
  Request request;
  request.operation = Operation::kWrite;
  request.origin = Origin::kRebuild;
  request.extent = {.first = on_drive(stripe, row), .block_count = rows};
  request.data = std::move(lanes[member]);
  const BufferList written = request.data.share();
  const Completion done = co_await target->submit(std::move(request));
  if (done.error != Error::kNone) judge(role, target, done.error, "a write of the rebuild");
  if (done.error != Error::kNone || integrity_ == nullptr) co_return done.error;
  // Its entries, and those that its drive has of another's cells, which may be stale as well.
  FrameVector<Integrity::Change> changes;
  changes.push_back(integrity_->change_of(stripe, member, row, rows, &written));
  changes.push_back(kept_entries(stripe, member, row, rows));
  co_return co_await store_entries(stripe, std::move(changes));
}

// The copies of another's entries on the member's drive.
Integrity::Change RaidSet::kept_entries(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                        std::uint32_t rows) const {
  Integrity::Change change = integrity_->change_of(stripe, member, row, rows, nullptr);
  change.role = integrity_->before(layout_.role(stripe, member));
  change.kind = Integrity::Change::Kind::kKept;
  return change;
}

// A drive is back, and nothing has been written to these rows since with parity that fits. Its
// content counts if the region keeps, or if it matches the others. With integrity it counts only if
// nothing else can be computed.
Task<std::optional<Error>> RaidSet::keep_doubted(std::uint64_t stripe, unsigned member,
                                                 Drive* target, std::uint32_t row,
                                                 std::uint32_t rows) {
  Lanes lanes(layout_.width());
  // Parity of these rows says nothing while data of theirs is to come.
  const bool waits = member >= layout_.data_chunks() && keeps_away(stripe);
  if (waits || has(drives_.keeping(stripe), member)) {
    if (integrity_ == nullptr) co_return Error::kNone;
    Error error = Error::kMediumError;
    if (entry_tells(stripe, member)) {
      std::uint32_t bad_row = 0;
      error = co_await recover_rows(stripe, MemberSet{1} << member, row, rows, 0, &lanes, &bad_row);
    }
    if (error == Error::kNone) co_return std::nullopt;
    if (error != Error::kMediumError) co_return error;
    if (!in_one_granule(row, rows)) {
      co_return co_await rebuild_pieces(stripe, member, target, row, rows, granule_);
    }
    FrameVector<Integrity::Change> changes;
    changes.push_back(kept_entries(stripe, member, row, rows));
    co_return co_await store_entries(stripe, std::move(changes));
  }
  if (integrity_ != nullptr || drives_.lost().blank(layout_.role(stripe, member)))
    co_return std::nullopt;
  const MemberSet self = MemberSet{1} << member;
  const MemberSet all = first_members(layout_.width());
  if ((drives_.unreadable(stripe) & ~self) != 0) co_return std::nullopt;
  MemberSet failed = 0;
  MemberSet medium = 0;
  co_await read_members(stripe, all, row, rows, &lanes, &failed, &medium);
  if (failed == 0) {
    const MemberSet wrong = co_await wrong_parities(&lanes, all, bytes_of(rows));
    if (wrong == 0) {
      drives_.add_matched(stripe, row, rows);
      co_return Error::kNone;
    }
  }
  if (in_one_granule(row, rows)) co_return std::nullopt;
  co_return co_await rebuild_pieces(stripe, member, target, row, rows, granule_);
}

Task<Error> RaidSet::rebuild_pieces(std::uint64_t stripe, unsigned member, Drive* target,
                                    std::uint32_t row, std::uint32_t rows, std::uint32_t most) {
  for (const std::uint32_t end = row + rows; row < end;) {
    const std::uint32_t here = std::min(most - row % most, end - row);
    const Error error = co_await rebuild_held(stripe, member, target, row, here);
    if (error != Error::kNone) co_return error;
    row += here;
  }
  co_return Error::kNone;
}

// Zeros stand for lost blocks, even if another drive cannot store them, or if there was no room to
// remember that parity fits. False: something that is not lost cannot be read.
Task<bool> RaidSet::have_zeros(std::uint64_t stripe, unsigned member, std::uint32_t row,
                               std::uint32_t rows, Lanes* lanes) {
  const bool data = layout_.mirrored() || member < layout_.data_chunks();
  const MemberSet others = data ? 0 : first_members(layout_.data_chunks());
  MemberSet zeros = data ? MemberSet{1} << member : others & drives_.unreadable(stripe);
  MemberSet medium = 0;
  MemberSet failed = 0;
  co_await read_members(stripe, others & ~zeros, row, rows, lanes, &failed, &medium);
  if ((failed & ~medium) != 0) co_return false;  // It may be read when it is asked again.
  zeros |= failed;
  for (unsigned each = 0; each < layout_.width(); ++each) {
    if (!has(zeros, each)) continue;
    const unsigned chunk = layout_.mirrored() ? 0 : each;
    const Lba first = layout_.lba({.stripe = stripe, .chunk = chunk, .row = row});
    if (!drives_.lost().covers({.first = first, .block_count = rows})) co_return false;
    (*lanes)[each] = BufferList(zeroes_.slice(0, bytes_of(rows)));
  }
  if (!data) co_await compute_parities(lanes, bytes_of(rows));
  co_return true;
}

}  // namespace sandbay::raid
