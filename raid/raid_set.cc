// What is asked of a set: sorting requests, flushes and what they release from the journal, runs of
// zeros, the replay after a crash, the end.
#include "raid/raid_set.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace sandbay::raid {

namespace {

// Stripes that are zeroed together.
constexpr std::uint64_t kZeroBatch = 128;
// A drive that has lacked room within that time still lacks it.
constexpr Duration kNoRoomGoesOn = std::chrono::minutes(1);

Geometry geometry_of(const SetDrives& drives) {
  const Layout& layout = drives.layout();
  Geometry geometry;
  geometry.block_bytes = layout.block_bytes();
  geometry.physical_block_bytes =
      std::max(layout.block_bytes(), drives.superblock().physical_block_bytes);
  geometry.block_count = layout.block_count();
  geometry.volatile_cache = false;
  geometry.unmap = true;
  geometry.unmap_zeroes = true;
  bool any = false;
  for (unsigned role = 0; role < layout.drive_count(); ++role) {
    const Drive* drive = drives.drive(role);
    if (drive == nullptr) continue;
    const Geometry& below = drive->geometry();
    any = true;
    geometry.physical_block_bytes =
        std::max(geometry.physical_block_bytes, below.physical_block_bytes);
    geometry.volatile_cache |= below.volatile_cache;
    geometry.rotational |= below.rotational;
    geometry.read_only |= below.read_only;
    geometry.unmap &= below.unmap && below.unmap_zeroes;
  }
  geometry.unmap &= any;
  geometry.unmap_zeroes = geometry.unmap;
  geometry.optimal_io_blocks = layout.stripe_blocks();
  geometry.unmap_granularity_blocks = layout.stripe_blocks();
  return geometry;
}

// What hosts wait for, or have caused.
bool of_a_host(Origin origin) {
  return origin == Origin::kHost || origin == Origin::kReadAhead || origin == Origin::kDestage;
}

bool changes(Operation operation) {
  return operation == Operation::kWrite || operation == Operation::kUnmap ||
         operation == Operation::kWriteZeroes;
}

}  // namespace

RaidSet::RaidSet(Executor& home, SetDrives& drives, Journal* journal, RaidSetOptions options)
    : home_(home),
      drives_(drives),
      journal_(journal),
      options_(std::move(options)),
      layout_(drives.layout()),
      geometry_(geometry_of(drives)),
      granule_(
          std::min(geometry_.physical_block_bytes / geometry_.block_bytes, layout_.strip_blocks())),
      budget_(options_.scratch_bytes),
      scratch_(home, options_.scratch_bytes * 2, options_.content),
      no_room_until_(layout_.drive_count()),
      refused_until_(layout_.drive_count()) {
  zeroes_ = scratch_.try_allocate_contiguous(bytes_of(layout_.strip_blocks()));
  assert(!zeroes_.empty());
  if (options_.content == Content::kBytes) {
    std::memset(zeroes_.data(), 0, zeroes_.byte_count());
  } else {
    assert(!drives_.superblock().integrity && journal_ == nullptr);
  }
  if (drives_.superblock().integrity) open_integrity();
  drives_.on_unmissable(
      [this](const std::string& why) { go_offline(why + "; it cannot run without it"); });
  if (journal_ == nullptr) return;
  journal_->on_pressure = [this] { begin_relief(); };
}

RaidSet::~RaidSet() {
  drives_.on_unmissable({});
  if (journal_ != nullptr) journal_->on_pressure = {};
}

Health RaidSet::health() const noexcept {
  if (offline_) return Health::kFailed;
  // A drive that fails, but that the set would not survive to lose, keeps its role.
  std::uint64_t lacking = drives_.absent_roles();
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    const Drive* drive = drives_.drive(role);
    if (drive != nullptr && drive->failing()) lacking |= std::uint64_t{1} << role;
  }
  if (!layout_.survives(lacking)) return Health::kFailed;
  if ((drives_.absent_roles() | drives_.stale_roles()) != 0) return Health::kDegraded;
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    const Drive* drive = drives_.drive(role);
    if (drive != nullptr && drive->device().health() == Health::kPredictedFailure) {
      return Health::kPredictedFailure;
    }
  }
  return Health::kGood;
}

std::uint32_t RaidSet::slice_rows() const {
  std::size_t most = options_.largest_update_bytes;
  if (journal_ != nullptr) most = std::min(most, journal_->largest_payload_bytes());
  most /= layout_.width();
  if (integrity_ != nullptr) {
    const std::size_t blocks = Integrity::most_blocks(kMostStripBytes / kCellBytes);
    most -= std::min(most, blocks * kIntegrityBlockBytes);
  }
  const auto rows = static_cast<std::uint32_t>(
      std::min<std::size_t>(most / geometry_.block_bytes, layout_.strip_blocks()));
  return std::max(rows / granule_, 1U) * granule_;
}

std::size_t RaidSet::least_journal_payload() const {
  std::size_t of_member = bytes_of(granule_);
  if (integrity_ != nullptr) {
    of_member += Integrity::most_blocks(granule_ / cell_rows_) * kIntegrityBlockBytes;
  }
  return of_member * layout_.width();
}

std::string RaidSet::description() const {
  return fmt::format("{} {} of {} drives", describe(layout_.level()), options_.name,
                     layout_.drive_count());
}

Task<Completion> RaidSet::submit(Request request) {
  assert(fits(geometry_, request));
  Completion completion;
  if (offline_ || !gate_.enter()) {
    completion.error = Error::kNotReady;
    completion.data = std::move(request.data);
    co_return completion;
  }
  if (of_a_host(request.origin)) last_host_io_ = home_.now();
  written_ |= changes(request.operation);
  const Extent extent = request.extent;
  const bool owed = changes(request.operation) && !request.force_unit_access;
  completion = co_await dispatch(std::move(request));
  if (owed && completion.error == Error::kNone) ++acknowledged_;
  if (completion.error == Error::kMediumError && extent.block_count > 0) {
    completion.first_bad_lba = std::clamp(completion.first_bad_lba, extent.first, extent.end() - 1);
  }
  if (lacking_told_ && completion.error == Error::kNone && health() != Health::kFailed) {
    lacking_told_ = false;
    drives_.tell({SetEvent::Kind::kOnline, kNoRole, "its drives answer again"});
  }
  gate_.leave();
  co_return completion;
}

Task<Completion> RaidSet::dispatch(Request request) {
  switch (request.operation) {
    case Operation::kRead:
      ++counters_.host_reads;
      counters_.host_read_bytes += request.data.byte_count();
      return read(std::move(request));
    case Operation::kWrite:
      ++counters_.host_writes;
      counters_.host_written_bytes += request.data.byte_count();
      return write(std::move(request));
    case Operation::kFlush:
      ++counters_.flushes;
      return flush(std::move(request));
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      return zero(std::move(request));
    case Operation::kAdvise:
      break;
  }
  return advise(std::move(request));
}

// ---- flushes and the journal ----------------------------------------------------------------

Task<Completion> RaidSet::flush(Request request) {
  Completion completion;
  completion.error = co_await flush_drives();
  completion.data = std::move(request.data);
  co_return completion;
}

// A flush that is asked for while one runs is served by the next, with all that came meanwhile.
Task<Error> RaidSet::flush_drives() {
  const std::uint64_t mine = ++flushes_asked_;
  co_await flush_lock_.lock();
  Error error = Error::kNone;
  if (flushes_done_ < mine) {
    const std::uint64_t covered = flushes_asked_;
    const std::uint64_t acknowledged = acknowledged_;
    const std::uint64_t repairs = mirror_repairs_;
    std::swap(flushing_tickets_, written_tickets_);
    error = co_await drives_.flush();
    if (error == Error::kNone && !drives_.settled_now()) error = co_await drives_.settled();
    if (error == Error::kNone) {
      flushes_done_ = covered;
      flushed_ = acknowledged;
      flushed_mirror_repairs_ = repairs;
      if (journal_ != nullptr) release(flushing_tickets_);
    } else {
      written_tickets_.insert(written_tickets_.begin(), flushing_tickets_.begin(),
                              flushing_tickets_.end());
    }
    flushing_tickets_.clear();
  }
  flush_lock_.unlock();
  co_return error;
}

// Updates of different stripes may have a block of entries in common. Then the older must not be
// found in the journal when the newer is gone, so these go in their order.
void RaidSet::release(std::vector<std::uint64_t>& tickets) {
  std::uint64_t end = ~std::uint64_t{0};
  if (integrity_ != nullptr) {
    tickets.insert(tickets.end(), flushed_tickets_.begin(), flushed_tickets_.end());
    flushed_tickets_.clear();
    std::ranges::sort(tickets);
    if (!storing_tickets_.empty()) end = *storing_tickets_.begin();
    for (const std::uint64_t unflushed : written_tickets_) end = std::min(end, unflushed);
  }
  for (const std::uint64_t ticket : tickets) {
    if (ticket < end) {
      journal_->release(ticket);
    } else {
      flushed_tickets_.push_back(ticket);
    }
  }
}

void RaidSet::begin_relief() {
  if (relieving_ || offline_ || !relief_.enter()) return;
  relieving_ = true;
  spawn(relieve_journal());
}

// An old record that is not released would keep all newer ones alive, so every update that may have
// one is waited for first. Two counts in turn tell those from the ones that begin meanwhile.
Task<Error> RaidSet::renew_journal() {
  const std::uint64_t mine = ++renewals_asked_;
  co_await renew_lock_.lock();
  Error error = Error::kNone;
  if (renewals_done_ < mine) {
    const std::uint64_t covered = renewals_asked_;
    const unsigned before = storing_turn_;
    storing_turn_ = 1 - before;
    while (storing_[before] > 0) co_await storing_ended_.wait();
    error = co_await flush_drives();
    if (error == Error::kNone && journal_ != nullptr) error = co_await journal_->renew();
    if (error == Error::kNone) renewals_done_ = covered;
  }
  renew_lock_.unlock();
  co_return error;
}

// The journal runs full: what has been written in place since is flushed and released.
Task<void> RaidSet::relieve_journal() {
  const Error error = co_await flush_drives();
  relieving_ = false;
  if (error != Error::kNone) {
    go_offline("its drives cannot be flushed");
  } else if (journal_->under_pressure() && !written_tickets_.empty()) {
    begin_relief();  // They came while the flush was under way, and who waits for room waits on.
  }
  relief_.leave();
}

bool RaidSet::of_entries(const JournalWrite& entry) const {
  const RoleEntry& role = drives_.superblock().roles[entry.role];
  const std::uint64_t area = role.integrity_offset_bytes / geometry_.block_bytes;
  const std::uint64_t area_end = area + role.integrity_bytes / geometry_.block_bytes;
  return integrity_ != nullptr && entry.extent.first >= area && entry.extent.end() <= area_end;
}

// A drive that is away misses this write, too.
Task<Error> RaidSet::prepare_replay(std::uint64_t stripe, JournalWrite entry, Prepared* prepared) {
  if (entry.role >= layout_.drive_count() || entry.extent.block_count == 0) {
    co_return Error::kDataCorrupt;
  }
  if (of_entries(entry)) {
    co_return co_await prepared->add(stripe, false);  // Entries go with their stripe.
  }
  const Lba first = entry.extent.first - drives_.data_offset();
  const Lba last = first + entry.extent.block_count - 1;
  if (last < first || last >= layout_.drive_blocks(entry.role)) co_return Error::kDataCorrupt;
  const std::uint64_t end = drives_.region_of(layout_.on_drive(entry.role, last).stripe) + 1;
  std::uint64_t region = drives_.region_of(layout_.on_drive(entry.role, first).stripe);
  for (; region < end; ++region) {
    const std::uint64_t in_region = region * drives_.superblock().region_stripes;
    const Error error = co_await prepared->add(in_region, false);
    if (error != Error::kNone) co_return error;
    // A drive that fails before the flush may keep what it had before.
    drives_.written_in_doubt(in_region);
  }
  co_return Error::kNone;
}

// A missing drive may have lost writes that were acknowledged for being in the journal. Zeros are
// written to whole stripes, so these match.
void RaidSet::doubt_replayed(std::uint64_t stripe, const JournalWrite& entry) {
  if (!entry.zeroes) return drives_.lose_content(entry.role, drives_.region_of(stripe));
  const Lba first = entry.extent.first - drives_.data_offset();
  for (Lba lba = first; lba < first + entry.extent.block_count; lba += layout_.strip_blocks()) {
    const std::uint64_t zeroed = layout_.on_drive(entry.role, lba).stripe;
    const bool known = drives_.add_matched(zeroed, 0, layout_.strip_blocks());
    if (!known) drives_.lose_content(entry.role, drives_.region_of(zeroed));
  }
}

// On the role's drive, and on its replacement.
Task<Error> RaidSet::replay_write(std::uint64_t stripe, JournalWrite entry,
                                  std::span<const std::byte> payload) {
  Prepared prepared(drives_);
  const Error ready = co_await prepare_replay(stripe, entry, &prepared);
  if (ready != Error::kNone) co_return ready;
  const SetDrives::RoleDrive both = drives_.role(entry.role);
  if (both.drive == nullptr) doubt_replayed(stripe, entry);
  for (Drive* drive : {both.drive, both.replacement}) {
    if (drive == nullptr) continue;
    const Error error = co_await replay_on(drive, entry, payload);
    if (error != Error::kNone) co_return error;
  }
  co_return Error::kNone;
}

// Where it is refused and the set cannot miss the drive, the physical blocks that cannot be written
// are lost, with what is away there.
Task<Error> RaidSet::replay_on(Drive* drive, JournalWrite entry,
                               std::span<const std::byte> payload) {
  Request request;
  request.operation = entry.zeroes ? Operation::kWriteZeroes : Operation::kWrite;
  request.extent = entry.extent;
  request.origin = Origin::kRebuild;
  if (!payload.empty()) {
    request.data = co_await scratch_.allocate(payload.size());
    request.data.copy_from(payload);
  }
  Error error = Error::kNone;
  {
    const Completion done = co_await drive->submit_metadata(std::move(request));
    error = done.error;
  }
  if (judge(entry.role, drive, error, "replay of the journal", of_entries(entry))) {
    co_return Error::kNone;
  }
  if (error != Error::kMediumError) {
    co_return error == Error::kNoSpace ? Error::kNoSpace : Error::kNotReady;
  }
  const Lba first = entry.extent.first;
  const std::uint64_t half = entry.extent.block_count / 2 / granule_;
  const Lba middle = first - first % granule_ + std::max<std::uint64_t>(half, 1) * granule_;
  if (middle >= entry.extent.end()) co_return co_await lose_written(entry.role, entry.extent);
  JournalWrite part = entry;
  part.extent.block_count = middle - first;
  const std::size_t bytes = payload.empty() ? 0 : bytes_of(part.extent.block_count);
  error = co_await replay_on(drive, part, payload.first(bytes));
  if (error != Error::kNone) co_return error;
  part.extent = {.first = middle, .block_count = entry.extent.end() - middle};
  co_return co_await replay_on(drive, part, payload.subspan(bytes));
}

Task<Error> RaidSet::replay_journal(bool clean, bool accept_loss) {
  if (journal_ == nullptr) {
    if (clean) co_return Error::kNone;
    // The drives may have kept writes that were never flushed, and a replacement not. A host must
    // not read what a loss of power may take back.
    const Error flushed = co_await flush_drives();
    if (flushed != Error::kNone) co_return flushed;
    co_return co_await drives_.copy_anew();
  }
  Result<JournalRecovery> found = co_await journal_->recover();
  if (!found) co_return found.error();
  if (clean) {  // What is there is of before: everything has been flushed since.
    found->updates.clear();
    found->all_lost = false;
    found->lost.clear();
  }
  std::uint64_t written = 0;
  for (const RecoveredUpdate& update : found->updates) {
    std::size_t offset = 0;
    for (const JournalWrite& entry : update.writes) {
      const std::size_t byte_count = entry.zeroes ? 0 : bytes_of(entry.extent.block_count);
      const auto payload = std::span(update.payload).subspan(offset, byte_count);
      const Error error = co_await replay_write(update.stripe, entry, payload);
      if (error != Error::kNone) co_return error;
      offset += byte_count;
    }
    ++written;
  }
  if (written > 0) {
    drives_.tell({SetEvent::Kind::kJournalReplayed, kNoRole,
                  fmt::format("{} updates were in the journal and have been written", written)});
  }
  const bool degraded =
      drives_.absent_roles() != 0 || (drives_.stale_roles() != 0 && layout_.parity_chunks() > 0);
  if (found->all_lost && degraded && !accept_loss) co_return Error::kDataCorrupt;
  for (const std::uint64_t stripe : stripes_of(found->lost)) {
    drives_.redundancy_lost(stripe);
    const MemberSet away = drives_.unreadable(stripe);
    if (away == 0 || layout_.mirrored() || keeps_away(stripe)) continue;
    // What is away was to be computed from parity that may not fit any more.
    const Error error = co_await add_lost(stripe, away, 0, layout_.strip_blocks());
    if (error != Error::kNone) co_return error;
  }
  if (found->all_lost) drives_.all_redundancy_lost();
  if (found->all_lost || !found->lost.empty()) {
    drives_.tell({SetEvent::Kind::kJournalLost, kNoRole,
                  found->all_lost
                      ? std::string("the journal was lost: the last writes may be lost; all "
                                    "redundancy is verified")
                      : fmt::format("{} updates in the journal were lost: the last writes there "
                                    "may be lost; redundancy is verified",
                                    found->lost.size())});
    Error error = co_await drives_.save_regions();
    if (error == Error::kNone) error = co_await drives_.settled();
    if (error != Error::kNone) co_return error;
  }
  Error error = co_await flush_drives();
  if (error == Error::kNone) error = co_await drives_.save_regions();
  if (error == Error::kNone) error = co_await drives_.save_doubts();
  if (error == Error::kNone) error = co_await drives_.settled();
  if (error != Error::kNone) co_return error;
  co_return co_await journal_->reset();
}

// Every stripe that they wrote; one update can have many.
std::set<std::uint64_t> RaidSet::stripes_of(std::span<const LostUpdate> updates) const {
  std::set<std::uint64_t> stripes;
  for (const LostUpdate& update : updates) {
    if (update.stripe < layout_.stripe_count()) stripes.insert(update.stripe);
    for (const JournalWrite& write : update.writes) {
      if (write.role >= layout_.drive_count()) continue;
      Lba lba = std::max(write.extent.first, drives_.data_offset()) - drives_.data_offset();
      const Lba end =
          std::min(std::max(write.extent.end(), drives_.data_offset()) - drives_.data_offset(),
                   layout_.drive_blocks(write.role));
      for (; lba < end; lba += layout_.strip_blocks() - lba % layout_.strip_blocks()) {
        stripes.insert(layout_.on_drive(write.role, lba).stripe);
      }
    }
  }
  return stripes;
}

void RaidSet::go_offline(const std::string& why) {
  if (std::exchange(offline_, true)) return;
  if (journal_ != nullptr) journal_->refuse_waiting(Error::kNotReady);
  drives_.tell({SetEvent::Kind::kOffline, kNoRole, "the set is offline: " + why});
}

Task<Error> RaidSet::close(TimePoint deadline) {
  bool done = co_await gate_.close_until(deadline);
  if (!done) co_return Error::kTimedOut;
  done = co_await background_.close_until(deadline);
  if (!done) co_return Error::kTimedOut;
  done = co_await relief_.close_until(deadline);
  if (!done) co_return Error::kTimedOut;
  if (offline_) co_return Error::kNotReady;
  co_return co_await flush_drives();
}

bool RaidSet::judge(unsigned role, Drive* drive, Error error, const char* doing, bool reserved) {
  if (error == Error::kNone) return true;
  const SetDrives::RoleDrive& now = drives_.role(role);
  if (drive == now.replacement) {
    drives_.drop_replacement(role, fmt::format("{} failed: {}", doing, describe(error)));
    return true;
  }
  if (drive != now.drive) return true;  // It has gone already.
  // The drive is well; it is what it lives on that is full.
  if (error == Error::kNoSpace && !reserved) {
    note_no_room(role, *drive);
    return false;
  }
  const std::string why = fmt::format("{} failed: {}", doing, describe(error));
  if (drives_.drop(role, reason_of(error), why)) return true;
  // Of a bad place of a stripe is told what it costs.
  if (error == Error::kMediumError && !layout_.mirrored()) return false;
  if (!offline_ && !std::exchange(lacking_told_, true)) {
    drives_.tell({SetEvent::Kind::kOffline, role,
                  fmt::format("more drives fail than the set survives; of drive {} {}",
                              drive->name(), why)});
  }
  return false;
}

void RaidSet::judge_direct(unsigned role, Drive* drive, Error error, const char* doing) {
  const bool missing = error != Error::kNone && reason_of(error) == DropReason::kMissing;
  if (missing || error == Error::kNoSpace) (void)judge(role, drive, error, doing);
}

// Once for as long as it goes on.
void RaidSet::note_no_room(unsigned role, const Drive& drive) {
  no_room_on_ = fmt::format("drive {} ({})", drive.name(), drive.device().description());
  const TimePoint before = std::exchange(no_room_until_[role], home_.now() + kNoRoomGoesOn);
  if (home_.now() < before) return;
  drives_.tell({SetEvent::Kind::kNoRoom, role,
                fmt::format("there is no room for a write on {}: writes that need some fail until "
                            "what it lives on has room again",
                            no_room_on_)});
}

// ---- zeros --------------------------------------------------------------------------------------

// Whole stripes become zeros by a request to each drive, parity of zeros being zeros; what is left
// at the two ends is written.
Task<Completion> RaidSet::zero(Request request) {
  // Past a journal with older writes it would be undone by a replay.
  if (writes_directly()) co_return co_await zero_direct(std::move(request));
  Completion completion;
  completion.data = std::move(request.data);
  const Operation operation = request.operation == Operation::kUnmap && geometry_.unmap
                                  ? Operation::kUnmap
                                  : Operation::kWriteZeroes;
  const std::uint64_t stripe_blocks = layout_.stripe_blocks();
  Lba lba = request.extent.first;
  const Lba end = request.extent.end();
  while (lba < end && completion.error == Error::kNone) {
    const std::uint64_t stripe = lba / stripe_blocks;
    const std::uint64_t whole =
        lba % stripe_blocks == 0 ? std::min((end - lba) / stripe_blocks, zero_batch()) : 0;
    std::uint64_t blocks = whole * stripe_blocks;
    if (whole > 0) {
      completion.error = co_await zero_stripes(stripe, whole, operation, request.origin);
    } else {
      const Layout::Position position = layout_.position(lba);
      blocks = std::min<std::uint64_t>(end - lba, layout_.strip_blocks() - position.row);
      completion.error = co_await write_extent(Extent{.first = lba, .block_count = blocks},
                                               BufferList(zeroes_.slice(0, bytes_of(blocks))),
                                               request.force_unit_access, request.origin);
    }
    lba += blocks;
  }
  const bool stable = journal_ != nullptr && journal_->survives_power_loss();
  if (completion.error == Error::kNone && request.force_unit_access && !stable) {
    completion.error = co_await flush_drives();
  }
  co_return completion;
}

// As many stripes as one update may have, with the blocks of their entries; none if even one is too
// many, and then zeros are written like anything else.
std::uint64_t RaidSet::zero_batch() const {
  if (integrity_ == nullptr) return kZeroBatch;
  const std::size_t most =
      journal_ != nullptr ? journal_->largest_payload_bytes() : std::size_t{1} << 20;
  const std::uint64_t cells = layout_.strip_blocks() / cell_rows_;
  for (std::uint64_t stripes = kZeroBatch; stripes > 0; stripes /= 2) {
    const std::uint64_t on_each = (stripes - 1) / layout_.group_count() + 1;
    const std::uint64_t in_row = layout_.level() == Level::kConcatenation ? stripes : on_each;
    const std::uint64_t roles =
        std::min<std::uint64_t>(layout_.drive_count(), stripes * layout_.width());
    const std::uint64_t blocks = roles * Integrity::most_blocks(in_row * cells);
    if (roles + blocks <= kMostJournalWrites && blocks * kIntegrityBlockBytes <= most) {
      return stripes;
    }
  }
  return 0;
}

// The stripes are taken in order, so two such runs cannot wait for each other; whoever else holds a
// stripe waits for no other.
Task<Error> RaidSet::zero_stripes(std::uint64_t first, std::uint64_t count, Operation operation,
                                  Origin origin) {
  FrameVector<StripeEntry*> held;
  held.reserve(count);
  for (std::uint64_t stripe = first; stripe < first + count; ++stripe) {
    StripeEntry& entry = table_.enter(stripe);
    co_await table_.lock(entry);
    held.push_back(&entry);
  }
  Error error = Error::kNotReady;
  if (!offline_) error = co_await zero_held(first, count, operation, origin);
  if (error == Error::kNone && drives_.lost_matters()) {
    error = co_await forget_lost(
        {.first = first * layout_.stripe_blocks(), .block_count = count * layout_.stripe_blocks()});
  }
  for (StripeEntry* entry : held) {
    table_.unlock(*entry);
    table_.leave(*entry);
  }
  co_return error;
}

Task<Error> RaidSet::zero_held(std::uint64_t first, std::uint64_t count, Operation operation,
                               Origin origin) {
  const std::uint64_t drops = drives_.drops();
  const std::uint64_t absent = drives_.absent_roles();
  const Error error = co_await zero_once(first, count, operation, origin);
  if (error == Error::kNone) co_return co_await end_zeros(first, count, drops, absent);
  co_return co_await take_back(error);
}

Task<Error> RaidSet::zero_once(std::uint64_t first, std::uint64_t count, Operation operation,
                               Origin origin) {
  // One extent a drive: whole strips of neighbouring stripes lie side by side on it.
  FrameVector<JournalWrite> writes;
  std::array<std::size_t, kMostDrives> last;
  last.fill(~std::size_t{0});
  for (std::uint64_t stripe = first; stripe < first + count; ++stripe) {
    for (unsigned member = 0; member < layout_.width(); ++member) {
      const unsigned role = layout_.role(stripe, member);
      const Lba at = on_drive(stripe, 0);
      if (last[role] < writes.size() && writes[last[role]].extent.end() == at) {
        writes[last[role]].extent.block_count += layout_.strip_blocks();
        continue;
      }
      last[role] = writes.size();
      writes.push_back({.role = static_cast<std::uint16_t>(role),
                        .zeroes = true,
                        .extent = {.first = at, .block_count = layout_.strip_blocks()}});
    }
  }
  Prepared prepared(drives_);
  for (std::uint64_t stripe = first; stripe < first + count; ++stripe) {
    const Error error = co_await prepared.add(stripe, intent());
    if (error != Error::kNone) co_return error;
  }
  const Storing storing(*this);
  Integrity::Update sums;
  BufferList payload;
  const std::size_t cell_writes = writes.size();
  if (integrity_ != nullptr) {
    FrameVector<Integrity::Change> changes;
    for (const JournalWrite& write : writes) {
      changes.push_back({.role = write.role,
                         .first_cell = (write.extent.first - drives_.data_offset()) / cell_rows_,
                         .cell_count = write.extent.block_count / cell_rows_,
                         .kind = Integrity::Change::Kind::kZeroes});
    }
    const Error begun = co_await integrity_->begin(std::move(changes), &sums);
    if (begun != Error::kNone) co_return begun;
    sums.add_to(&writes, &payload);
  }
  const Result<std::uint64_t> ticket = co_await append_to_journal(
      {.stripe = first, .writes = writes, .payload = payload.empty() ? nullptr : &payload});
  if (!ticket) co_return ticket.error();
  if (integrity_ != nullptr) integrity_->publish(&sums);
  FrameVector<Target> targets;
  for (const JournalWrite& write : std::span(writes).first(cell_writes)) {
    const SetDrives::RoleDrive& here = drives_.role(write.role);
    for (Drive* drive : {here.drive, here.replacement}) {
      if (drive == nullptr) continue;
      Request request;
      // One that has come since may not free space.
      const bool frees = drive->geometry().unmap && drive->geometry().unmap_zeroes;
      request.operation = frees ? operation : Operation::kWriteZeroes;
      request.origin = origin;
      request.extent = write.extent;
      targets.push_back({write.role, drive, write.extent, drive->start(std::move(request))});
    }
  }
  co_return co_await end_store({.first = first, .count = count}, &targets, &sums, *ticket);
}

// Whole stripes of zeros match. `absent`: the roles without a drive when there were `drops`.
Task<Error> RaidSet::end_zeros(std::uint64_t first, std::uint64_t count, std::uint64_t drops,
                               std::uint64_t absent) {
  bool save = false;
  for (std::uint64_t stripe = first; stripe < first + count; ++stripe) {
    if (!drives_.redundancy_suspect(stripe)) continue;
    const MemberSet gone = drives_.gone_since(drops, stripe);
    bool missed = false;
    for (unsigned member = 0; member < layout_.data_chunks(); ++member) {
      missed |= has(gone, member) || (absent >> layout_.role(stripe, member) & 1) != 0;
    }
    const bool matches = drives_.add_matched(stripe, 0, layout_.strip_blocks());
    // A replay would write the zeros when the drive is back.
    if (missed && !matches) co_return co_await forget_failed(refuse_in_doubt(stripe));
    if (!matches) drives_.written_in_doubt(stripe);
    save |= missed || (drives_.unreadable(stripe) & first_members(layout_.data_chunks())) != 0;
  }
  if (!save) co_return Error::kNone;
  co_return co_await drives_.save_doubts();
}

// A drive that begins to be copied meanwhile is copied when this has ended.
Task<Completion> RaidSet::zero_direct(Request request) {
  const DirectWrite direct(*this);
  Completion completion;
  completion.data = std::move(request.data);
  Lba lba = request.extent.first;
  while (lba < request.extent.end() && completion.error == Error::kNone) {
    const Layout::Position position = layout_.position(lba);
    const std::uint64_t blocks =
        std::min<std::uint64_t>(request.extent.end() - lba, layout_.strip_blocks() - position.row);
    Drive* drive = drives_.role(layout_.role(position.stripe, 0)).drive;
    if (drive == nullptr) {
      completion.error = Error::kNotReady;
      break;
    }
    Request part = request_like(request);
    if (!geometry_.unmap) part.operation = Operation::kWriteZeroes;
    part.extent = {.first = on_drive(position.stripe, position.row), .block_count = blocks};
    const Completion done = co_await drive->submit(std::move(part));
    judge_direct(layout_.role(position.stripe, 0), drive, done.error, "a write of zeros");
    completion.error = done.error;
    completion.first_bad_lba = lba;
    lba += blocks;
  }
  if (completion.error == Error::kNone) completion.error = co_await end_direct(request.extent);
  co_return completion;
}

Task<Completion> RaidSet::advise(Request request) {
  Completion completion;
  completion.data = std::move(request.data);
  const Lba end = request.extent.end();
  for (Lba lba = request.extent.first; lba < end;) {
    const Layout::Position position = layout_.position(lba);
    const std::uint64_t blocks =
        std::min<std::uint64_t>(end - lba, layout_.strip_blocks() - position.row);
    const unsigned member =
        layout_.mirrored() ? choose_member(position.stripe, drives_.unreadable(position.stripe))
                           : position.chunk;
    if (member < layout_.width()) {
      Drive* drive = drives_.role(layout_.role(position.stripe, member)).drive;
      Request part = request_like(request);
      part.extent = {.first = on_drive(position.stripe, position.row), .block_count = blocks};
      if (drive != nullptr) {
        const Completion done = co_await drive->submit(std::move(part));
        judge_direct(layout_.role(position.stripe, member), drive, done.error, "advice");
      }
    }
    lba += blocks;
  }
  co_return completion;
}

// ---- provisioning -------------------------------------------------------------------------------

Task<Result<ProvisioningRun>> RaidSet::provisioning(Lba first, Lba limit) {
  ProvisioningRun run;
  Lba lba = first;
  for (unsigned strips = 0; lba < limit && strips < 256; ++strips) {
    const Layout::Position position = layout_.position(lba);
    const std::uint64_t most =
        std::min<std::uint64_t>(limit - lba, layout_.strip_blocks() - position.row);
    const Result<ProvisioningRun> here = co_await provisioning_of_strip(lba, most);
    if (!here) co_return here;
    if (run.block_count > 0 && here->mapped != run.mapped) break;
    run.mapped = here->mapped;
    run.block_count += here->block_count;
    lba += here->block_count;
    if (here->block_count < most) break;
  }
  co_return run;
}

// Blocks of one strip. Only what is sure to read as zeros is not mapped: what its drive says so of,
// if no entry says otherwise.
Task<Result<ProvisioningRun>> RaidSet::provisioning_of_strip(Lba lba, std::uint64_t most) {
  const Layout::Position position = layout_.position(lba);
  const std::uint64_t stripe = position.stripe;
  const ProvisioningRun mapped{.block_count = most, .mapped = true};
  const MemberSet unreadable = drives_.unreadable(stripe);
  const unsigned member = layout_.mirrored() ? choose_member(stripe, unreadable) : position.chunk;
  if (member >= layout_.width() || (unreadable >> member & 1) != 0) co_return mapped;
  if (drives_.lost().first_overlap({.first = lba, .block_count = most})) co_return mapped;
  const unsigned role = layout_.role(stripe, member);
  Drive* drive = drives_.role(role).drive;
  const Lba at = on_drive(stripe, position.row);
  const Result<ProvisioningRun> below = co_await drive->provisioning(at, at + most);
  if (!below) {
    judge_direct(role, drive, below.error(), "asking what it has mapped");
    if (layout_.redundancy() == 0) co_return below;
    const bool drives_own = below.error() == Error::kTimedOut ||
                            below.error() == Error::kHardware ||
                            reason_of(below.error()) == DropReason::kMissing;
    const bool survives =
        !drives_own || judge(role, drive, below.error(), "asking what it has mapped");
    if (!survives && below.error() == Error::kTimedOut) co_return below;
    co_return mapped;
  }
  // Lost while the drive was asked.
  if (drives_.lost().first_overlap({.first = lba, .block_count = most})) co_return mapped;
  if (below->mapped || integrity_ == nullptr) co_return *below;
  co_return co_await integrity_->zeros(stripe, member, position.row,
                                       static_cast<std::uint32_t>(below->block_count));
}

}  // namespace sandbay::raid
