// One update of one stripe: what a set of new pieces changes on the drives. Plans, reads what the
// plan needs, computes parity, and stores everything through the journal. The stripe is held
// exclusively all the while.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/parity.h"
#include "raid/raid_set.h"
#include "raid/stripe_update.h"

namespace sandbay::raid {

namespace {

// How often what a drive gives is repaired before it is taken for unreadable.
constexpr unsigned kMostRepairs = 3;
// How often a write begins anew because its rows were lost again.
constexpr unsigned kMostAgain = 3;
// An event reports a refused write of doubted rows once within that time.
constexpr Duration kDoubtGoesOn = std::chrono::minutes(1);

// Appends to the last segment of the member if it continues it.
void add_segment(FrameVector<Segment>& segments, unsigned member, std::uint32_t row,
                 std::uint32_t row_count, BufferList data) {
  for (auto last = segments.rbegin(); last != segments.rend(); ++last) {
    if (last->member != member) continue;
    if (last->row + last->row_count != row) break;
    last->row_count += row_count;
    last->data.append(std::move(data));
    return;
  }
  segments.push_back(
      {.member = member, .row = row, .row_count = row_count, .data = std::move(data)});
}

}  // namespace

Task<Error> RaidSet::update_mirrors(std::uint64_t stripe, std::span<WritePiece* const> pieces) {
  const unsigned width = layout_.width();
  FrameVector<Segment> segments;
  segments.reserve(pieces.size() * width);
  bool force_unit_access = false;
  Origin origin = Origin::kHost;
  // What fits one record, with the blocks of its entries.
  const std::uint32_t most_rows = journal_ != nullptr ? slice_rows() : ~std::uint32_t{0};
  const std::size_t most_blocks = Integrity::most_blocks(kMostStripBytes / kCellBytes) * width;
  const std::size_t most_segments =
      std::max<std::size_t>(kMostJournalWrites - most_blocks, 2 * width) - width;
  std::uint32_t rows = 0;
  for (const WritePiece* piece : pieces) {
    force_unit_access |= piece->force_unit_access;
    origin = piece->origin;
    const Fragment& fragment = piece->fragment;
    for (std::uint32_t done = 0; done < fragment.row_count;) {
      if (journal_ != nullptr && (rows == most_rows || segments.size() > most_segments)) {
        const Error error = co_await store(stripe, segments, force_unit_access, origin);
        if (error != Error::kNone) co_return error;
        segments.clear();
        rows = 0;
      }
      const std::uint32_t count = std::min(fragment.row_count - done, most_rows - rows);
      for (unsigned member = 0; member < width; ++member) {
        segments.push_back({.member = member,
                            .row = fragment.row + done,
                            .row_count = count,
                            .data = piece->data.share(bytes_of(done), bytes_of(count))});
      }
      rows += count;
      done += count;
    }
  }
  co_return co_await store(stripe, segments, force_unit_access, origin);
}

bool RaidSet::lost_within(std::span<WritePiece* const> pieces) const {
  return std::ranges::any_of(pieces, [this](const WritePiece* piece) {
    return drives_.lost().first_overlap(piece->extent).has_value();
  });
}

Task<Error> RaidSet::update_parity(std::uint64_t stripe, std::span<WritePiece* const> pieces) {
  Update update{.stripe = stripe, .pieces = pieces, .row = layout_.strip_blocks()};
  std::uint32_t end = 0;
  for (const WritePiece* piece : pieces) {
    update.row = std::min(update.row, piece->fragment.row);
    end = std::max(end, piece->fragment.row + piece->fragment.row_count);
    update.force_unit_access |= piece->force_unit_access;
    update.origin = piece->origin;
  }
  // Before it is planned what is left out: a drive that comes back meanwhile has missed it.
  Prepared prepared(drives_);
  const Error ready = co_await prepared.add(stripe, false);
  if (ready != Error::kNone) co_return ready;
  const std::uint32_t step = slice_rows();
  const std::uint32_t first = update.row;
  std::uint64_t losses = drives_.losses();
  for (unsigned again = 0; update.row < end;) {
    update.row_end = std::min(update.row + step, end);
    update.row_end =
        update.row + drives_.doubted_alike(stripe, update.row, update.row_end - update.row);
    const std::optional<Error> error = co_await update_rows(&update);
    if (!error.has_value()) continue;
    if (*error != Error::kNone) co_return *error;
    const bool lost = losses != drives_.losses();
    losses = drives_.losses();
    if (!lost || update.row == first || !lost_within(pieces)) {
      update.row = update.row_end;
      continue;
    }
    // Rows that were written before may have been lost with others of their physical block.
    if (++again > kMostAgain) co_return Error::kMediumError;
    update.row = first;
  }
  co_return Error::kNone;
}

Task<std::optional<Error>> RaidSet::update_rows(Update* update) {
  FrameVector<Fragment> fragments;
  for (const WritePiece* piece : update->pieces) {
    Fragment fragment = piece->fragment;
    const std::uint32_t end = std::min(fragment.row + fragment.row_count, update->row_end);
    fragment.row = std::max(fragment.row, update->row);
    if (fragment.row >= end) continue;
    fragment.row_count = end - fragment.row;
    fragments.push_back(fragment);
  }
  if (fragments.empty()) co_return Error::kNone;  // Between pieces that are far apart.
  const std::size_t most = bytes_of(update->row_end - update->row) * layout_.width() * 2;
  const std::size_t taken = co_await budget_.take(most);
  const ByteBudget::Share share(budget_, taken);
  co_return co_await update_planned(update, fragments);
}

// As the drives are now. `doubted`: parity may not fit the data; `keeps`: and data that is missing
// may be read again.
void RaidSet::plan(Update* update, std::span<const Fragment> fragments, bool doubted, bool keeps) {
  const std::uint64_t stripe = update->stripe;
  const MemberSet away = drives_.unreadable(stripe);
  const MemberSet lacking = away | update->avoid;
  update->bands =
      plan_write({.data_chunks = layout_.data_chunks(),
                  .parity_chunks = layout_.parity_chunks(),
                  .unreadable = lacking | (keeps ? 0 : unbelieved(stripe, lacking)),
                  .unwritable = drives_.unwritable(stripe),
                  .parity_unreliable = doubted && !keeps,
                  .parity_doubted = keeps,
                  .missing = drives_.absent(stripe) | (away & ~drives_.keeping(stripe))},
                 fragments);
}

// Where redundancy is not verified yet, whatever was written since has parity that fits. So with
// data away as many parities are believed: what they then give for blocks never written is as good
// as any. Another parity may say otherwise there, so it is computed anew.
//
// Plans again as long as reads show that a member is not what it seemed. Each time a member is
// avoided or a drive gone, or lost blocks have been settled, so this ends.
Task<std::optional<Error>> RaidSet::update_planned(Update* update,
                                                   std::span<const Fragment> fragments) {
  bool gave_up = false;
  unsigned repairs = 0;
  update->avoid = 0;
  for (;;) {
    const std::uint64_t stripe = update->stripe;
    const MemberSet away = drives_.unreadable(stripe);
    const auto beyond = [&](MemberSet members) {
      return static_cast<unsigned>(std::popcount(members)) > layout_.parity_chunks();
    };
    if (beyond(away)) co_return Error::kNotReady;
    const std::uint32_t rows = update->row_end - update->row;
    if (drives_.doubted_alike(stripe, update->row, rows) != rows) co_return std::nullopt;
    const bool doubted = drives_.doubted(stripe, update->row, rows);
    const bool keeps = doubted && keeps_away(stripe);
    if (!keeps && beyond(away | update->avoid)) {
      if (update->ailing && gave_up) co_return Error::kNotReady;
      if (std::exchange(gave_up, true)) co_return Error::kMediumError;
      const Error error = co_await declare_lost(stripe, update->row, rows);
      if (error != Error::kNone) co_return error;
      update->avoid = 0;
      continue;
    }
    update->drops = drives_.drops();
    plan(update, fragments, doubted, keeps);
    const bool recovers = std::ranges::any_of(
        update->bands, [](const Band& band) { return band.method == Method::kRecover; });
    if (doubted && recovers) {
      // It changes missing data beside other missing data, which may be read again; or there is no
      // room to remember that parity fits.
      if (keeps || std::exchange(gave_up, true)) co_return refuse_in_doubt(stripe);
      const Error error = co_await declare_lost(stripe, update->row, rows);
      if (error != Error::kNone) co_return error;
      update->avoid = 0;
      continue;
    }
    update->old.clear();
    const bool complete = co_await read_old(update);
    if (update->corrupt != 0 && repairs++ < kMostRepairs) {
      const Error error = co_await settle_granules(
          stripe, update->row, update->row_end - update->row, std::exchange(update->corrupt, 0));
      if (error != Error::kNone) co_return error;
    }
    update->avoid |= std::exchange(update->corrupt, 0);
    if (!complete) continue;
    co_await compute(update);
    if (keeps) drives_.written_in_doubt(stripe);
    const auto gone = static_cast<unsigned>(std::popcount(drives_.unreadable(stripe)));
    Error error = Error::kNone;
    if (gone >= layout_.parity_chunks() && integrity_ == nullptr) {
      error = co_await store_unprotected(update);
    } else {
      update->old.clear();
      error = co_await store(stripe, update->segments, update->force_unit_access, update->origin);
    }
    update->segments.clear();
    if (error != Error::kNone || !drives_.redundancy_suspect(stripe)) co_return error;
    co_return co_await end_suspect(update);
  }
}

// The rows match if parity has been computed anew; if it has changed by the difference only, they
// match as well as before, and only drives have the data. A write that a drive has missed, even if
// it is back by now, is acknowledged when it is durable that its data can be computed.
Task<Error> RaidSet::end_suspect(Update* update) {
  const std::uint64_t stripe = update->stripe;
  bool save = false;
  for (const Band& band : update->bands) {
    const MemberSet gone = drives_.gone_since(update->drops, stripe) | ~band.writes;
    const bool missed = (band.written & gone) != 0;
    const bool anew =
        band.method == Method::kFullStripe || band.method == Method::kReconstructWrite;
    const bool matches = anew ? drives_.add_matched(stripe, band.row, band.row_count)
                              : !drives_.doubted(stripe, band.row, band.row_count);
    // A replay would write it when the drive is back.
    if (missed && !matches) co_return co_await forget_failed(refuse_in_doubt(stripe));
    if (!matches) drives_.written_in_doubt(stripe);
    save |= missed || (band.written & drives_.unreadable(stripe)) != 0;
  }
  if (!save) co_return Error::kNone;
  co_return co_await drives_.save_doubts();
}

// Now and then an event says why.
Error RaidSet::refuse_in_doubt(std::uint64_t stripe) {
  if (home_.now() < doubt_told_until_) return Error::kMediumError;
  doubt_told_until_ = home_.now() + kDoubtGoesOn;
  drives_.tell({SetEvent::Kind::kWriteRefused, kNoRole,
                fmt::format("a write of stripe {} was refused: it needs data of a missing drive, "
                            "and parity is not verified; bring the drive back, or give its role "
                            "to another (drive replace)",
                            stripe)});
  return Error::kMediumError;
}

// Reads what the bands need, neighbouring rows of a member in one request.
Task<bool> RaidSet::read_old(Update* update) {
  FrameVector<OldRun>& old = update->old;
  std::uint64_t rows = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    for (const Band& band : update->bands) {
      if (!has(band.reads, member)) continue;
      rows += band.row_count;
      if (!old.empty() && old.back().member == member &&
          old.back().row + old.back().row_count == band.row) {
        old.back().row_count += band.row_count;
      } else {
        old.push_back({.member = member, .row = band.row, .row_count = band.row_count});
      }
    }
  }
  if (old.empty()) co_return true;
  struct Reading {
    unsigned role;
    Drive* drive = nullptr;
    DriveIo io;
  };
  BufferList memory = co_await scratch_.allocate(bytes_of(rows));
  FrameVector<Reading> readings;
  readings.reserve(old.size());
  bool complete = true;
  for (const OldRun& run : old) {
    const unsigned role = layout_.role(update->stripe, run.member);
    Reading reading{.role = role, .drive = drives_.role(role).drive};
    if (reading.drive == nullptr) co_return false;  // It went while memory was waited for.
    Request request;
    request.origin = update->origin;
    request.extent = {.first = on_drive(update->stripe, run.row), .block_count = run.row_count};
    request.data = memory.take_front(bytes_of(run.row_count));
    reading.io = reading.drive->start(std::move(request));
    readings.push_back(std::move(reading));
  }
  for (std::size_t i = 0; i < readings.size(); ++i) {
    co_await readings[i].io.wait();
    Completion done = readings[i].io.take();
    if (done.error == Error::kNone) {
      old[i].data = std::move(done.data);
      if (integrity_ == nullptr) continue;
      const Integrity::Checked checked = co_await integrity_->check(
          update->stripe, old[i].member, old[i].row, old[i].row_count, &old[i].data);
      if (checked.good()) continue;
      update->corrupt |= MemberSet{1} << old[i].member;
      complete = false;
      continue;
    }
    complete = false;
    const bool out = done.error != Error::kMediumError &&
                     judge(readings[i].role, readings[i].drive, done.error, "a read");
    if (!out) update->avoid |= MemberSet{1} << old[i].member;
    update->ailing |= done.error != Error::kMediumError;
    if (done.error == Error::kMediumError) {
      repair_later(update->stripe, old[i].member, old[i].row, old[i].row_count);
    }
  }
  co_return complete;
}

// New parity, band by band, and the segments to be stored.
Task<void> RaidSet::compute(Update* update) {
  for (const Band& band : update->bands) {
    Lanes lanes(layout_.width());
    for (unsigned member = 0; member < layout_.data_chunks(); ++member) {
      if (!has(band.written & band.writes, member)) continue;
      add_segment(update->segments, member, band.row, band.row_count,
                  update->fresh(member, band.row, band.row_count, geometry_.block_bytes));
    }
    switch (band.method) {
      case Method::kDataOnly:
        continue;
      case Method::kReadModifyWrite:
        ++counters_.read_modify_writes;
        break;
      case Method::kFullStripe:
        ++counters_.full_stripe_writes;
        break;
      case Method::kReconstructWrite:
        ++counters_.reconstruct_writes;
        break;
      case Method::kRecover:
        ++counters_.recover_writes;
        break;
    }
    if (band.method == Method::kReadModifyWrite) {
      modify_parity(*update, band, lanes);
    } else {
      co_await construct_parity(update, &band, &lanes);
    }
    for (unsigned member = layout_.data_chunks(); member < layout_.width(); ++member) {
      if (!has(band.writes, member)) continue;
      add_segment(update->segments, member, band.row, band.row_count, std::move(lanes[member]));
    }
  }
}

// Parity changes by the difference between old and new data; all of it in the memory read into.
void RaidSet::modify_parity(const Update& update, const Band& band, Lanes& lanes) {
  const unsigned data = layout_.data_chunks();
  const std::size_t lane_bytes = bytes_of(band.row_count);
  for (unsigned member = data; member < layout_.width(); ++member) {
    if (!has(band.writes, member)) continue;
    lanes[member] = update.old_rows(member, band.row, band.row_count, geometry_.block_bytes);
  }
  for (unsigned member = 0; member < data; ++member) {
    if (!has(band.written, member)) continue;
    Difference difference;
    difference.before() = update.old_rows(member, band.row, band.row_count, geometry_.block_bytes);
    difference.after() = update.fresh(member, band.row, band.row_count, geometry_.block_bytes);
    if (has(band.writes, data)) difference.p() = lanes[data].share();
    if (layout_.parity_chunks() > 1 && has(band.writes, data + 1)) {
      difference.q() = lanes[data + 1].share();
    }
    difference.apply(member, lane_bytes);
  }
}

// Parity from all data: the new, what was read, and what is recovered first.
Task<void> RaidSet::construct_parity(Update* update, const Band* band, Lanes* lanes) {
  const unsigned data = layout_.data_chunks();
  const std::size_t lane_bytes = bytes_of(band->row_count);
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(band->reads, member)) continue;
    (*lanes)[member] = update->old_rows(member, band->row, band->row_count, geometry_.block_bytes);
  }
  if (band->method == Method::kRecover)
    co_await recover_from(band->reads, 0, band->row_count, lanes);
  for (unsigned member = 0; member < data; ++member) {
    if (!has(band->written, member)) continue;
    (*lanes)[member] = update->fresh(member, band->row, band->row_count, geometry_.block_bytes);
  }
  std::size_t outputs = 0;
  for (unsigned member = data; member < layout_.width(); ++member)
    outputs += has(band->writes, member);
  BufferList memory = co_await scratch_.allocate(lane_bytes * outputs);
  for (unsigned member = data; member < layout_.width(); ++member) {
    (*lanes)[member].clear();
    if (has(band->writes, member)) (*lanes)[member] = memory.take_front(lane_bytes);
  }
  fill_parities(data, layout_.parity_chunks(), *lanes, lane_bytes);
}

// ---- in place -----------------------------------------------------------------------------------

Task<Error> RaidSet::store(std::uint64_t stripe, std::span<Segment> segments,
                           bool force_unit_access, Origin origin) {
  const Error error = co_await store_once(stripe, segments, force_unit_access, origin);
  if (error != Error::kNoSpace) co_return error;
  co_return co_await take_back(error);
}

// A write that found no room has failed, and its blocks are read as they are now: so they stay. Its
// record must not be written after another start. Nor must an older one of these blocks, so all
// that is in place is flushed and forgotten together.
Task<Error> RaidSet::take_back(Error why) {
  if (why != Error::kNoSpace) co_return why;
  co_return co_await forget_failed(why);
}

Task<Error> RaidSet::forget_failed(Error why) {
  if (journal_ == nullptr) co_return why;
  const Error error = co_await renew_journal();
  if (error == Error::kNone) co_return why;
  go_offline("a write that failed cannot be taken back from its journal");
  co_return Error::kNotReady;
}

Task<Error> RaidSet::store_once(std::uint64_t stripe, std::span<Segment> segments,
                                bool force_unit_access, Origin origin,
                                const Unprotected* unprotected) {
  if (segments.empty()) co_return Error::kNotReady;
  Prepared prepared(drives_);
  const Error error = co_await prepared.add(stripe, intent());
  if (error != Error::kNone) co_return error;
  const Storing storing(*this);
  Integrity::Update sums;
  if (integrity_ != nullptr) {
    const Error begun = co_await begin_sums(stripe, segments, &sums);
    if (begun != Error::kNone) co_return begun;
  }
  std::uint64_t ticket = 0;
  if (journal_ != nullptr) {
    FrameVector<JournalWrite> writes;
    writes.reserve(segments.size());
    BufferList payload;
    for (const Segment& segment : segments) {
      const unsigned role = layout_.role(stripe, segment.member);
      writes.push_back(
          {.role = static_cast<std::uint16_t>(role),
           .extent = {.first = on_drive(stripe, segment.row), .block_count = segment.row_count}});
      payload.append(segment.data.share());
    }
    if (integrity_ != nullptr) sums.add_to(&writes, &payload);
    const Result<std::uint64_t> appended =
        co_await append_to_journal({.stripe = stripe, .writes = writes, .payload = &payload});
    if (!appended) co_return appended.error();
    ticket = *appended;
    force_unit_access = false;  // The journal has it, or the whole write ends with a flush.
  }
  if (integrity_ != nullptr) integrity_->publish(&sums);
  FrameVector<Target> targets;
  targets.reserve(segments.size() * 2);
  std::size_t started = 0;
  if (unprotected != nullptr) {
    while (started < segments.size() && segments[started].member >= layout_.data_chunks()) {
      ++started;
    }
    start_targets(stripe, segments.first(started), force_unit_access, origin, &targets);
    const bool taken = co_await parities_taken(&targets);
    if (!taken) {
      const Error refused = co_await write_targets({.first = stripe}, &targets, &sums, unprotected);
      const bool data_follows = refused == Error::kNone && started < segments.size();
      if (!data_follows) co_return co_await end_written(refused, ticket);
      targets.clear();  // The drives that refused have gone, and the set survives it.
    }
  }
  start_targets(stripe, segments.subspan(started), force_unit_access, origin, &targets);
  co_return co_await end_store({.first = stripe}, &targets, &sums, ticket, unprotected);
}

// On each role's drive, and on its replacement.
void RaidSet::start_targets(std::uint64_t stripe, std::span<const Segment> segments,
                            bool force_unit_access, Origin origin, FrameVector<Target>* targets) {
  for (const Segment& segment : segments) {
    const unsigned role = layout_.role(stripe, segment.member);
    const SetDrives::RoleDrive& here = drives_.role(role);
    for (Drive* drive : {here.drive, here.replacement}) {
      if (drive == nullptr) continue;
      Request request;
      request.operation = Operation::kWrite;
      request.force_unit_access = force_unit_access;
      request.origin = origin;
      request.extent = {.first = on_drive(stripe, segment.row), .block_count = segment.row_count};
      request.data = segment.data.share();
      const Extent extent = request.extent;
      targets->push_back({role, drive, extent, drive->start(std::move(request))});
    }
  }
}

// Nothing without a journal.
Task<Result<std::uint64_t>> RaidSet::append_to_journal(StripeUpdate update) {
  if (journal_ == nullptr) co_return 0;
  const Result<std::uint64_t> appended = co_await journal_->append(update);
  if (appended) {
    if (integrity_ != nullptr) storing_tickets_.insert(*appended);
    co_return appended;
  }
  // Nothing is written in place, and the write gives its stripe back.
  if (appended.error() == Error::kTimedOut) co_return appended;
  go_offline("its journal cannot be written");
  co_return std::unexpected(Error::kNotReady);
}

// What was written in place is covered by the next flush; what skipped a drive is settled first.
Task<Error> RaidSet::end_store(Stripes stripes, FrameVector<Target>* targets,
                               Integrity::Update* sums, std::uint64_t ticket,
                               const Unprotected* unprotected) {
  const Error error = co_await write_targets(stripes, targets, sums, unprotected);
  co_return co_await end_written(error, ticket);
}

Task<Error> RaidSet::end_written(Error error, std::uint64_t ticket) {
  // What found no room, or a bad place, is known to, so the record of it is not needed any more,
  // either.
  const bool known_to = error == Error::kNoSpace || error == Error::kMediumError;
  if (error != Error::kNone && !known_to) co_return error;
  if (journal_ != nullptr) {
    storing_tickets_.erase(ticket);
    written_tickets_.push_back(ticket);
    if (journal_->under_pressure()) begin_relief();
  }
  if (drives_.settled_now()) co_return error;
  const Error settled = co_await drives_.settled();
  co_return settled != Error::kNone ? settled : error;
}

// Waits for all of them. A drive that fails goes. If the set does not survive that, what could not
// be written for a medium error is lost, and with it what would be computed from it (kMediumError).
// An unprotected stripe is settled as refused_write.cc says.
// For another failure a parity set stops here, for drives now disagree about the stripe, and a
// mirrored one says what its last drive said.
Task<Error> RaidSet::write_targets(Stripes stripes, FrameVector<Target>* targets,
                                   Integrity::Update* sums, const Unprotected* unprotected) {
  const bool disagree = journal_ != nullptr || layout_.parity_chunks() > 0;
  Error error = Error::kNone;  // Nothing is written to drives that have gone meanwhile.
  bool no_room = false;
  bool bad_place = false;
  if (!sums->empty()) error = co_await integrity_->write_out(sums);
  for (Target& target : *targets) {
    co_await target.io.wait();
    target.error = target.io.take().error;
    if (target.error == Error::kNone) continue;
    if (judge(target.role, target.drive, target.error, "a write")) {
      target.error = Error::kNone;
    } else if (target.error == Error::kNoSpace) {
      no_room = true;
    } else if (target.error == Error::kMediumError && disagree) {
      bad_place = true;
    } else {
      error = target.error;
    }
  }
  if (error == Error::kNone && bad_place && unprotected != nullptr) {
    error = co_await settle_refused(stripes.first, unprotected, targets);
  } else if (error == Error::kNone && bad_place) {
    error = co_await lose_refused(targets);
  }
  if (layout_.redundancy() == 0 && drives_.replacing()) co_await follow_sole(targets);
  if (error == Error::kNone && no_room) no_room = co_await lack_room(targets);
  if (error == Error::kNone && no_room) co_return co_await leave_unequal(stripes, Error::kNoSpace);
  if (error == Error::kNone) co_return bad_place ? Error::kMediumError : Error::kNone;
  if (!disagree) {
    co_return co_await leave_unequal(stripes, error);
  }
  go_offline("more drives failed in a write than it survives");
  co_return Error::kNotReady;
}

Task<Error> RaidSet::lose_refused(const FrameVector<Target>* targets) {
  for (const Target& target : *targets) {
    if (target.error != Error::kMediumError) continue;
    const Error error = co_await lose_written(target.role, target.extent);
    if (error != Error::kNone) co_return error;
  }
  Error error = co_await drives_.save_regions();
  if (error == Error::kNone) error = co_await drives_.save_doubts();
  co_return error;
}

// A drive that is full still takes what its room is reserved for; the region map is that. One that
// does not cannot keep its place. It goes before anything is in doubt: what it has not taken is on
// the others.
Task<bool> RaidSet::lack_room(const FrameVector<Target>* targets) {
  if (layout_.redundancy() == 0) co_return true;
  (void)co_await drives_.show_reserved_room();  // Who fails it is dropped, or cannot be missed.
  co_return std::ranges::any_of(*targets, [this](const Target& target) {
    const SetDrives::RoleDrive& now = drives_.role(target.role);
    return target.error == Error::kNoSpace &&
           (target.drive == now.drive || target.drive == now.replacement);
  });
}

// The replacement may have taken what its drive has not, and would bring it back.
Task<void> RaidSet::follow_sole(const FrameVector<Target>* targets) {
  for (const Target& target : *targets) {
    if (target.error == Error::kNone || target.drive != drives_.role(target.role).drive) continue;
    const Lba end = target.extent.end() - drives_.data_offset();
    for (Lba at = target.extent.first - drives_.data_offset(); at < end;) {
      const Layout::OnDrive place = layout_.on_drive(target.role, at);
      const std::uint32_t rows = std::min(slice_rows(), layout_.strip_blocks() - place.row);
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(end - at, rows));
      co_await compute_replacements(place.stripe, MemberSet{1} << place.member, place.row, count);
      at += count;
    }
  }
}

// Some members have what was written, and others do not: their region is verified, and that is
// known before the journal forgets the write. With a member away it may be the only one that tells
// what is on that member.
Task<Error> RaidSet::leave_unequal(Stripes stripes, Error why) {
  if (layout_.redundancy() == 0) co_return why;
  for (std::uint64_t stripe = stripes.first; stripe < stripes.first + stripes.count; ++stripe) {
    if (layout_.mirrored() || drives_.unreadable(stripe) == 0) continue;
    go_offline("there is no room for a write, and a drive is away");
    co_return Error::kNotReady;
  }
  for (std::uint64_t stripe = stripes.first; stripe < stripes.first + stripes.count; ++stripe) {
    drives_.redundancy_lost(stripe);
    alike_.erase(drives_.region_of(stripe));
  }
  if (journal_ == nullptr && layout_.mirrored()) co_return why;  // As before every write of theirs.
  Error error = co_await drives_.save_regions();
  if (error == Error::kNone) error = co_await drives_.save_doubts();  // Known regions, too.
  if (error == Error::kNone) error = co_await drives_.settled_at_last();
  if (error == Error::kNone) co_return why;
  go_offline("that redundancy is not valid cannot be written");
  co_return Error::kNotReady;
}

}  // namespace sandbay::raid
