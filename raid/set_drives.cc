// Changes happen in memory at once and are made durable by whoever needs them to be: a save writes
// all that has changed when it begins, so those who wait together share one.
#include "raid/set_drives.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/set_back.h"

namespace sandbay::raid {

namespace {

// What a drive's reserved room has been seen to take, it takes for so long.
constexpr Duration kRoomStays = std::chrono::seconds(1);
// A set asks again for its record in the metadata, where it must not go on without.
constexpr Duration kRecordAgain = std::chrono::seconds(1);
// Drives that have gone and are kept.
constexpr std::size_t kMostGone = 64;

std::uint64_t bit(unsigned role) { return std::uint64_t{1} << role; }

}  // namespace

SetDrives::SetDrives(Executor& home, Layout layout, Superblock newest, RegionMap regions,
                     LostSectors lost)
    : home_(home),
      layout_(std::move(layout)),
      newest_(std::move(newest)),
      regions_(std::move(regions)),
      lost_(std::move(lost)),
      roles_(layout_.drive_count()),
      unverified_(regions_.region_count()),
      redundancy_losses_(regions_.region_count()),
      writing_(regions_.region_count()),
      touched_(regions_.region_count()),
      written_at_(regions_.region_count()),
      doubted_at_(regions_.region_count()) {
  lost_.cut(layout_.drive_count(), region_count());
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    if (regions_.dirty(region)) mark_unverified(region);
  }
  // A crash came after the last region was verified.
  if (newest_.redundancy_suspect && unverified_count_ == 0) {
    newest_.redundancy_suspect = false;
    ++changed_;
  }
  recount();
  for (unsigned role = 0; !lost_.tells_blank() && role < layout_.drive_count(); ++role) {
    // It may be a fresh drive whose rebuild an older version had begun.
    if (stale(role, false)) lost_.set_blank(role, true);
  }
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    if (newest_.roles[role].state == RoleState::kActive) settled_roles_ |= bit(role);
  }
}

SetDrives::~SetDrives() = default;

DropReason reason_of(Error error) {
  const bool missing = error == Error::kNotReady || error == Error::kClosed ||
                       error == Error::kNotFound || error == Error::kUnreachable;
  return missing ? DropReason::kMissing : DropReason::kFailed;
}

// A drive may come and go as often as it likes. Whoever still knows one that has gone has known it
// since before so many others came, and has nothing in it any more.
void SetDrives::forget_gone() {
  if (idle_awaited_ > 0) return;
  const auto in_role = [this](const Drive& drive) {
    return std::ranges::any_of(roles_, [&drive](const RoleDrive& role) {
      return role.drive == &drive || role.replacement == &drive;
    });
  };
  auto gone = static_cast<std::size_t>(std::ranges::count_if(
      drives_, [&](const std::unique_ptr<Owned>& owned) { return !in_role(owned->drive); }));
  std::erase_if(drives_, [&](const std::unique_ptr<Owned>& owned) {
    const bool old = gone > kMostGone && !in_role(owned->drive) && owned->drive.idle();
    gone -= old ? 1 : 0;
    return old;
  });
}

Drive* SetDrives::add_drive(BlockDevice& device, std::string name, DrivePolicy policy) {
  forget_gone();
  drives_.push_back(std::make_unique<Owned>(device, std::move(name), policy));
  Drive* drive = &drives_.back()->drive;
  drive->on_unheeded = [this, drive](Error error) { judge_unheeded(drive, error); };
  return drive;
}

// Reads that were read around do not keep a drive in its role that never answers them.
void SetDrives::judge_unheeded(const Drive* drive, Error error) {
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    if (roles_[role].drive != drive) continue;
    drop(role, reason_of(error),
         fmt::format("a read that took long failed at last: {}", describe(error)));
  }
}

void SetDrives::set_drive(unsigned role, BlockDevice& device, std::string name,
                          DrivePolicy policy) {
  roles_[role].drive = add_drive(device, std::move(name), policy);
  recount();
}

void SetDrives::set_replacement(unsigned role, BlockDevice& device, std::string name,
                                DrivePolicy policy) {
  roles_[role].replacement = add_drive(device, std::move(name), policy);
  replacing_ |= bit(role);
}

void SetDrives::recount() {
  absent_ = 0;
  stale_ = 0;
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    if (roles_[role].drive == nullptr) {
      absent_ |= bit(role);
    } else if (regions_.stale_count(role, false) > 0) {
      stale_ |= bit(role);
    }
  }
}

bool SetDrives::all_answer() const {
  return std::ranges::none_of(
      roles_, [](const RoleDrive& role) { return role.drive != nullptr && role.drive->gone(); });
}

MemberSet SetDrives::find_unreadable(std::uint64_t stripe) const {
  MemberSet members = 0;
  const std::uint64_t region = region_of(stripe);
  for (unsigned member = 0; member < layout_.width(); ++member) {
    const unsigned role = layout_.role(stripe, member);
    if ((absent_ & bit(role)) != 0) {
      members |= MemberSet{1} << member;
    } else if ((stale_ & bit(role)) != 0 && regions_.stale(role, false, region)) {
      const RoleDrive& here = roles_[role];
      const bool fresh = here.fresh_region[0] == region && stripe < here.fresh_end[0];
      if (!fresh) members |= MemberSet{1} << member;
    }
  }
  return members;
}

MemberSet SetDrives::unwritable(std::uint64_t stripe) const {
  if (absent_ == 0) return 0;
  MemberSet members = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    const unsigned role = layout_.role(stripe, member);
    const bool nowhere = (absent_ & bit(role)) != 0 && roles_[role].replacement == nullptr;
    if (nowhere) members |= MemberSet{1} << member;
  }
  return members;
}

MemberSet SetDrives::absent(std::uint64_t stripe) const {
  if (absent_ == 0) return 0;
  MemberSet members = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if ((absent_ & bit(layout_.role(stripe, member))) != 0) members |= MemberSet{1} << member;
  }
  return members;
}

MemberSet SetDrives::gone_since(std::uint64_t drops, std::uint64_t stripe) const {
  MemberSet members = absent(stripe);
  if (drops_ == drops) return members;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (dropped_at_[layout_.role(stripe, member)] > drops) members |= MemberSet{1} << member;
  }
  return members;
}

MemberSet SetDrives::returning(std::uint64_t stripe) const {
  MemberSet members = unreadable(stripe);
  for (unsigned member = 0; members != 0 && member < layout_.width(); ++member) {
    const RoleEntry& entry = newest_.roles[layout_.role(stripe, member)];
    if (entry.state == RoleState::kFailed) members &= ~(MemberSet{1} << member);
  }
  return members;
}

// ---- regions ------------------------------------------------------------------------------------

Task<Error> SetDrives::prepare_write(std::uint64_t region, bool intent) {
  ++writing_[region];
  touched_[region] = true;
  written_at_[region] = flushes_begun_;
  if (intent && !regions_.dirty(region)) {
    regions_.set_dirty(region, true);
    ++regions_changed_;
  }
  for (std::uint64_t roles = absent_; roles != 0; roles &= roles - 1) {
    const auto role = static_cast<unsigned>(std::countr_zero(roles));
    if (regions_.stale(role, false, region)) continue;
    regions_.set_stale(role, false, region, true);
    ++regions_changed_;
  }
  if (regions_saved_ == regions_changed_) co_return Error::kNone;
  const Error error = co_await save_regions();
  if (error != Error::kNone) end_write(region);
  co_return error;
}

void SetDrives::end_write(std::uint64_t region) noexcept {
  assert(writing_[region] > 0);
  --writing_[region];
  written_at_[region] = flushes_begun_;
}

std::uint64_t SetDrives::stale_count(unsigned role, bool replacement) const {
  return regions_.stale_count(role, replacement);
}

std::optional<std::uint64_t> SetDrives::first_stale(unsigned role, bool replacement,
                                                    std::uint64_t from) const {
  return regions_.first_stale(role, replacement, from);
}

void SetDrives::fresh_up_to(unsigned role, bool replacement, std::uint64_t region,
                            std::uint64_t stripe_end) {
  roles_[role].fresh_region[replacement ? 1 : 0] = region;
  roles_[role].fresh_end[replacement ? 1 : 0] = stripe_end;
}

void SetDrives::region_fresh(unsigned role, bool replacement, std::uint64_t region) {
  regions_.set_stale(role, replacement, region, false);
  roles_[role].fresh_region[replacement ? 1 : 0] = kNoRegion;
  ++regions_changed_;
  recount();
  if (!replacement && !stale(role, false)) doubts_changed_ += lost_.set_blank(role, false);
}

std::optional<std::uint64_t> SetDrives::first_verifiable() const {
  if (unverified_count_ == 0) return std::nullopt;
  if (newest_.redundancy_suspect && !optimal()) return std::nullopt;
  const auto found = std::find(unverified_.begin(), unverified_.end(), true);
  return static_cast<std::uint64_t>(found - unverified_.begin());
}

void SetDrives::mark_unverified(std::uint64_t region) {
  if (unverified_[region]) return;
  unverified_[region] = true;
  ++unverified_count_;
}

Extent SetDrives::rows_of_region(std::uint64_t region) const {
  const std::uint64_t first = region * newest_.region_stripes;
  return rows_of(first, 0, (end_of_region(region) - first) * layout_.strip_blocks());
}

std::vector<Extent> SetDrives::suspect_blocks() const {
  std::vector<Extent> blocks;
  const std::uint64_t in_stripe = layout_.stripe_blocks();
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    const std::uint64_t first = region * newest_.region_stripes;
    if (!redundancy_suspect(first)) continue;
    const std::uint64_t count = (end_of_region(region) - first) * in_stripe;
    if (!blocks.empty() && blocks.back().end() == first * in_stripe) {
      blocks.back().block_count += count;
    } else {
      blocks.push_back({.first = first * in_stripe, .block_count = count});
    }
  }
  return blocks;
}

std::uint32_t SetDrives::doubted_alike(std::uint64_t stripe, std::uint32_t row,
                                       std::uint32_t rows) const {
  if (!redundancy_suspect(stripe)) return rows;
  return static_cast<std::uint32_t>(lost_.matched().alike(rows_of(stripe, row, rows)));
}

bool SetDrives::add_matched(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) {
  if (!doubted(stripe, row, rows)) return true;
  ++doubts_changed_;
  return lost_.add_matched(rows_of(stripe, row, rows));
}

MemberSet SetDrives::keeping(std::uint64_t stripe) const {
  if (!redundancy_suspect(stripe)) return 0;
  MemberSet members = 0;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (keeps(stripe, layout_.role(stripe, member))) members |= MemberSet{1} << member;
  }
  return members;
}

// Redundancy of a region becomes suspect. A role keeps if its drive has missed nothing there,
// unless the drive is lost before everything is flushed.
void SetDrives::begin_doubt(std::uint64_t region) {
  lost_.forget_matched(rows_of_region(region));
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    lost_.set_keeping(role, region, !regions_.stale(role, false, region));
  }
  doubted_at_[region] = writing_[region] > 0 || unflushed(region) ? flushes_begun_ : 0;
  ++doubts_changed_;
}

void SetDrives::lose_content(unsigned role, std::uint64_t region) {
  if (!newest_.redundancy_suspect || !unverified_[region]) return;
  doubts_changed_ += lost_.set_keeping(role, region, false);
  doubts_changed_ += lost_.set_blank(role, true);
}

// Missing drives may not have the latest content of rows that matched until now.
void SetDrives::doubt_again(std::uint64_t region, Extent rows) {
  doubts_changed_ += lost_.forget_matched(rows);
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    if (regions_.stale(role, false, region)) {
      doubts_changed_ += lost_.set_keeping(role, region, false);
    }
  }
  if (writing_[region] > 0 || unflushed(region)) doubted_at_[region] = flushes_begun_;
}

void SetDrives::region_verified(std::uint64_t region, std::uint64_t losses) {
  if (!unverified_[region] || redundancy_losses_[region] != losses) return;
  // Whether it keeps counts again if a crash takes the verify back.
  doubts_changed_ += lost_.forget_matched(rows_of_region(region));
  unverified_[region] = false;
  if (--unverified_count_ == 0 && newest_.redundancy_suspect) {
    newest_.redundancy_suspect = false;
    ++changed_;
  }
  // A mirror that is being written keeps its mark until intents are retired.
  if (layout_.mirrored() && (writing_[region] > 0 || touched_[region])) return;
  regions_.set_dirty(region, false);
  ++regions_changed_;
}

void SetDrives::redundancy_lost(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) {
  const std::uint64_t region = region_of(stripe);
  ++redundancy_losses_[region];
  bool known = unverified_[region] && regions_.dirty(region);
  const bool valid = redundancy_valid(stripe);
  const bool suspect = redundancy_suspect(stripe);
  mark_unverified(region);
  regions_.set_dirty(region, true);
  // Mirrors that are away may be otherwise than those that are here.
  for (std::uint64_t roles = absent_; layout_.mirrored() && roles != 0; roles &= roles - 1) {
    const auto role = static_cast<unsigned>(std::countr_zero(roles));
    known &= regions_.stale(role, false, region);
    regions_.set_stale(role, false, region, true);
  }
  if (!known) ++regions_changed_;
  suspect_redundancy();
  if (layout_.mirrored()) return;
  const Extent doubted = rows_of(stripe, row, rows);
  if (suspect) return doubt_again(region, doubted);
  begin_doubt(region);
  if (!valid) return;
  // The region's other rows match as they did before.
  const Extent all = rows_of_region(region);
  lost_.add_matched({.first = all.first, .block_count = doubted.first - all.first});
  lost_.add_matched({.first = doubted.end(), .block_count = all.end() - doubted.end()});
}

// Every mirror is old or new, whichever is read.
void SetDrives::suspect_redundancy() {
  if (layout_.mirrored() || newest_.redundancy_suspect) return;
  newest_.redundancy_suspect = true;
  ++changed_;
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    if (unverified_[region]) begin_doubt(region);
  }
}

void SetDrives::all_redundancy_lost() {
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    ++redundancy_losses_[region];
    const bool suspect = newest_.redundancy_suspect && unverified_[region];
    mark_unverified(region);
    regions_.set_dirty(region, true);
    if (layout_.mirrored()) continue;
    if (suspect) {
      doubt_again(region, rows_of_region(region));
    } else if (newest_.redundancy_suspect) {
      begin_doubt(region);
    }
  }
  // Where a mirror that is missing differs, nobody knows.
  for (std::uint64_t roles = absent_; layout_.mirrored() && roles != 0; roles &= roles - 1) {
    regions_.set_all_stale(static_cast<unsigned>(std::countr_zero(roles)), false, true);
  }
  ++regions_changed_;
  suspect_redundancy();
}

Task<void> SetDrives::retire_intents(bool all) {
  std::vector<std::uint64_t> quiet;
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    if (!regions_.dirty(region) || unverified_[region]) continue;
    const bool touched = touched_[region] && !all;
    touched_[region] = false;
    if (writing_[region] == 0 && !touched) quiet.push_back(region);
  }
  if (quiet.empty()) co_return;
  const Error error = co_await flush();
  if (error != Error::kNone) co_return;
  for (const std::uint64_t region : quiet) {
    if (writing_[region] > 0 || touched_[region] || unverified_[region]) continue;
    regions_.set_dirty(region, false);
    ++regions_changed_;
  }
  co_await save_regions();
}

// ---- what is on the drives ----------------------------------------------------------------------

// One kind of write on every drive.
struct SetDrives::AllDrives {
  SetDrives& set;
  WriteOne write;
  struct Outcome {
    Drive* drive;
    unsigned role;
    bool replacement;
    Error error;
  };
  FrameVector<Outcome> outcomes;
  std::size_t running = 0;
  Condition ended;
};

Task<void> SetDrives::on_one(AllDrives* all, Owned* owned, unsigned role, bool replacement) {
  const Error error = co_await (all->set.*all->write)(owned, role, replacement);
  all->outcomes.push_back({&owned->drive, role, replacement, error});
  if (--all->running == 0) all->ended.notify_all();
}

Task<Error> SetDrives::on_all_drives(WriteOne write, const char* doing) {
  AllDrives all{.set = *this, .write = write};
  for (unsigned role = 0; role < layout_.drive_count(); ++role) {
    for (const bool replacement : {false, true}) {
      Drive* drive = replacement ? roles_[role].replacement : roles_[role].drive;
      if (drive == nullptr) continue;
      ++all.running;
      spawn(on_one(&all, owner_of(drive), role, replacement));
    }
  }
  while (all.running > 0) co_await all.ended.wait();
  Error result = Error::kNone;
  bool any = false;
  for (const AllDrives::Outcome& outcome : all.outcomes) {
    if (outcome.error == Error::kNone) {
      any = true;
      continue;
    }
    const std::string why = fmt::format("{} failed: {}", doing, describe(outcome.error));
    if (outcome.replacement && replacement(outcome.role) == outcome.drive) {
      drop_replacement(outcome.role, why);
    } else if (!outcome.replacement && drive(outcome.role) == outcome.drive) {
      if (!drop(outcome.role, reason_of(outcome.error), why)) result = outcome.error;
    }
  }
  co_return any ? result : Error::kNotReady;
}

SetDrives::Owned* SetDrives::owner_of(const Drive* drive) const {
  for (const std::unique_ptr<Owned>& owned : drives_) {
    if (&owned->drive == drive) return owned.get();
  }
  assert(false);
  return nullptr;
}

Task<Error> SetDrives::save_regions() {
  const std::uint64_t wanted = regions_changed_;
  co_await saving_.lock();
  Error error = Error::kNone;
  if (regions_saved_ < wanted) error = co_await write_region_maps();
  saving_.unlock();
  co_return error;
}

Task<Error> SetDrives::show_reserved_room() {
  const TimePoint now = home_.now();
  if (room_shown_ && now < *room_shown_ + kRoomStays && room_shown_at_ == changed_) {
    co_return Error::kNone;
  }
  ++regions_changed_;
  const Error error = co_await save_regions();
  if (error == Error::kNone) {
    room_shown_ = now;
    room_shown_at_ = changed_;
  }
  co_return error;
}

// A region that is found unverified must not be found with rows that matched before.
Task<Error> SetDrives::write_region_maps() {
  if (doubts_saved_ < doubts_changed_) {
    const Error error = co_await write_lost_lists();
    if (error != Error::kNone) co_return error;
  }
  const std::uint64_t saved = regions_changed_;
  image_ = std::make_shared<const std::vector<std::byte>>(regions_.encode_next());
  const Error error = co_await on_all_drives(&SetDrives::write_regions, "saving the region map");
  if (error == Error::kNone) regions_saved_ = std::max(regions_saved_, saved);
  co_return error;
}

Task<Error> SetDrives::save_lost() {
  const std::uint64_t wanted = lost_changed_;
  if (lost_saved_ >= wanted) co_return Error::kNone;
  co_await saving_.lock();
  Error error = Error::kNone;
  if (lost_saved_ < wanted) error = co_await write_lost_lists();
  saving_.unlock();
  co_return error;
}

Task<Error> SetDrives::save_doubts() {
  const std::uint64_t wanted = doubts_changed_;
  if (doubts_saved_ >= wanted) co_return Error::kNone;
  co_await saving_.lock();
  Error error = Error::kNone;
  if (doubts_saved_ < wanted) error = co_await write_lost_lists();
  saving_.unlock();
  co_return error;
}

Task<Error> SetDrives::write_lost_lists() {
  const std::uint64_t saved = lost_changed_;
  const std::uint64_t doubts = doubts_changed_;
  image_ = std::make_shared<const std::vector<std::byte>>(lost_.encode_next());
  const Error error = co_await on_all_drives(&SetDrives::write_lost, "saving the lost sectors");
  if (error == Error::kNone) {
    lost_saved_ = std::max(lost_saved_, saved);
    doubts_saved_ = std::max(doubts_saved_, doubts);
  }
  co_return error;
}

// A drive that fails here changes roles again, and then it is not over yet. Map and lost sectors go
// first: a superblock that gives a role to a fresh drive must not be found with a map that calls it
// whole, nor on a drive that one day is the only one without a list of what is lost.
Task<Error> SetDrives::settled() {
  const std::uint64_t wanted = changed_;
  co_await saving_.lock();
  Error error = Error::kNone;
  while (settled_ < wanted && error == Error::kNone) {
    const std::uint64_t changes = changed_;
    if (regions_saved_ < regions_changed_) error = co_await write_region_maps();
    const bool lists = lost_saved_ < lost_changed_ || doubts_saved_ < doubts_changed_;
    if (error == Error::kNone && lists) error = co_await write_lost_lists();
    if (error != Error::kNone || changed_ != changes) continue;
    newest_.advance(home_.random());
    error = co_await on_all_drives(&SetDrives::write_superblock, "writing the superblock");
    if (error != Error::kNone || changed_ != changes) continue;
    if (recorder_) error = co_await recorder_(newest_.event);
    if (error != Error::kNone || changed_ != changes) continue;
    newest_.mark_complete();
    settled_ = changes;
    settled_roles_ = ~absent_;
  }
  saving_.unlock();
  co_return error;
}

Task<Error> SetDrives::settled_at_last() {
  Error error = co_await settled();
  while (error == Error::kTimedOut) {
    co_await home_.sleep_for(kRecordAgain);
    error = co_await settled();
  }
  co_return error;
}

Task<Error> SetDrives::save_clean(bool clean) {
  newest_.clean = clean;
  ++changed_;
  co_return co_await settled();
}

// Nobody waits for it, unless a drive fails meanwhile.
Task<Error> SetDrives::bring_event_forward() {
  co_await saving_.lock();
  Error error = Error::kNone;
  if (settled_now()) {
    newest_.advance(home_.random());
    error = co_await on_all_drives(&SetDrives::write_superblock, "writing the superblock");
    if (error == Error::kNone && settled_now() && recorder_) {
      error = co_await recorder_(newest_.event);
    }
    if (error == Error::kNone && settled_now()) newest_.mark_complete();
  }
  saving_.unlock();
  if (settled_now()) co_return error;
  co_return co_await settled();
}

std::uint32_t SetDrives::largest_physical_block() const {
  std::uint32_t largest = newest_.block_bytes;
  for (const RoleDrive& role : roles_) {
    if (role.drive == nullptr) continue;
    largest = std::max(largest, role.drive->geometry().physical_block_bytes);
  }
  return largest;
}

void SetDrives::learn_physical_block() {
  if (newest_.physical_block_bytes != 0 || absent_ != 0) return;
  newest_.physical_block_bytes = std::min(largest_physical_block(), kMostPhysicalBlockBytes);
}

void SetDrives::begin_journal_life() {
  while (newest_.next_journal_key == 0) newest_.next_journal_key = home_.random().next();
}

void SetDrives::end_last_journal_life() {
  assert(newest_.next_journal_key != 0);
  newest_.journal_key = std::exchange(newest_.next_journal_key, 0);
}

Task<Error> SetDrives::write_regions(Owned* owned, unsigned, bool) {
  return owned->metadata.write_region_map(image_);
}

Task<Error> SetDrives::write_lost(Owned* owned, unsigned, bool) {
  return owned->metadata.write_lost_sectors(image_);
}

Task<Error> SetDrives::write_superblock(Owned* owned, unsigned role, bool replacement) {
  return owned->metadata.write_superblock(replacement ? newest_.for_replacement(role)
                                                      : newest_.for_role(role));
}

Task<Error> SetDrives::flush_one(Owned* owned, unsigned, bool) {
  Request request;
  request.operation = Operation::kFlush;
  const Completion done = co_await owned->drive.submit(std::move(request));
  co_return done.error;
}

Task<Error> SetDrives::flush() {
  const std::uint64_t covers = ++flushes_begun_;
  const Error error = co_await on_all_drives(&SetDrives::flush_one, "a flush");
  if (error == Error::kNone) flushes_covered_ = std::max(flushes_covered_, covers);
  co_return error;
}

bool SetDrives::idle(const BlockDevice& device) const {
  return std::ranges::all_of(drives_, [&device](const std::unique_ptr<Owned>& owned) {
    return &owned->drive.device() != &device || owned->drive.idle();
  });
}

Task<bool> SetDrives::wait_idle_until(TimePoint deadline) {
  ++idle_awaited_;
  bool idle = true;
  for (std::size_t i = 0; idle && i < drives_.size(); ++i) {
    idle = co_await drives_[i]->drive.wait_idle_until(deadline);
  }
  --idle_awaited_;
  co_return idle;
}

// ---- roles --------------------------------------------------------------------------------------

bool SetDrives::survives_without(unsigned role) const {
  return layout_.redundancy() > 0 && layout_.survives(absent_ | stale_ | bit(role));
}

bool SetDrives::drop(unsigned role, DropReason reason, const std::string& why) {
  RoleDrive& here = roles_[role];
  assert(here.drive != nullptr);
  const bool missing = reason == DropReason::kMissing;
  if (missing) here.drive->shut();
  if (!survives_without(role)) {
    if (missing && unmissable_sink_) {
      unmissable_sink_(
          fmt::format("drive {} in role {} is missing: {}", here.drive->name(), role, why));
    }
    return false;
  }
  const std::string name = here.drive->name();
  here.drive = nullptr;
  dropped_at_[role] = ++drops_;
  here.fresh_region[0] = kNoRegion;
  settled_roles_ &= ~bit(role);
  newest_.roles[role].state = missing ? RoleState::kMissing : RoleState::kFailed;
  mark_doubtful(role);
  ++changed_;
  recount();
  tell(
      {missing ? SetEvent::Kind::kDriveMissing : SetEvent::Kind::kDriveFailed, role,
       fmt::format("drive {} in role {} is {}: {}", name, role, missing ? "away" : "failed", why)});
  tell({SetEvent::Kind::kDegraded, kNoRole,
        fmt::format("{} of {} drives are away", std::popcount(absent_), layout_.drive_count())});
  return true;
}

// What is being written, or was and is not flushed, may never have reached the drive that goes. And
// where redundancy is not verified, what it has may not match what it will be computed to be; but
// where nothing can be computed, it is what there is.
void SetDrives::mark_doubtful(unsigned role) {
  for (std::uint64_t region = 0; region < region_count(); ++region) {
    if (doubted_at_[region] != 0 && doubted_at_[region] >= flushes_covered_) {
      lose_content(role, region);
    }
    const bool unmatched = unverified_[region] && !newest_.redundancy_suspect;
    if (writing_[region] == 0 && !unflushed(region) && !unmatched) continue;
    if (regions_.stale(role, false, region)) continue;
    regions_.set_stale(role, false, region, true);
    ++regions_changed_;
  }
}

void SetDrives::drop_replacement(unsigned role, const std::string& why) {
  RoleDrive& here = roles_[role];
  if (here.replacement == nullptr) return;
  const std::string name = here.replacement->name();
  here.replacement->shut();
  here.replacement = nullptr;
  replacing_ &= ~bit(role);
  here.fresh_region[1] = kNoRegion;
  newest_.roles[role].replacement = {};
  newest_.roles[role].replacement_known_event = 0;
  regions_.set_all_stale(role, true, true);  // Until no superblock names it any more, and longer.
  ++regions_changed_;
  ++changed_;
  tell({SetEvent::Kind::kDriveFailed, role,
        fmt::format("drive {}, replacement in role {}, is failed: {}", name, role, why)});
}

void SetDrives::take_role(unsigned role, BlockDevice& device, std::string name, DrivePolicy policy,
                          const Uuid& uuid, bool returning) {
  assert(roles_[role].drive == nullptr);
  RoleEntry& entry = newest_.roles[role];
  entry.state = RoleState::kActive;
  roles_[role].fresh_region[0] = kNoRegion;
  settled_roles_ &= ~bit(role);
  if (!returning) {
    entry.drive = uuid;
    entry.known_event = 0;
    regions_.set_all_stale(role, false, true);
    doubts_changed_ += lost_.stop_keeping(role);  // It has nothing to keep.
    doubts_changed_ += lost_.set_blank(role, true);
  }
  // The map and the list on the drive are old, or it has neither: settled() writes both before a
  // superblock calls the drive active.
  ++regions_changed_;
  ++lost_changed_;
  ++changed_;
  set_drive(role, device, std::move(name), policy);
}

void SetDrives::begin_replacement(unsigned role, BlockDevice& device, std::string name,
                                  DrivePolicy policy, const Uuid& uuid) {
  assert(roles_[role].replacement == nullptr);
  roles_[role].fresh_region[1] = kNoRegion;
  newest_.roles[role].replacement = uuid;
  newest_.roles[role].replacement_known_event = 0;
  if (roles_[role].drive == nullptr) doubts_changed_ += lost_.stop_keeping(role);
  regions_.set_all_stale(role, true, true);
  ++regions_changed_;
  ++lost_changed_;
  ++changed_;
  set_replacement(role, device, std::move(name), policy);
}

Task<Error> SetDrives::copy_anew() {
  for (unsigned role = 0; role < roles_.size(); ++role) {
    if (roles_[role].replacement == nullptr) continue;
    regions_.set_all_stale(role, true, true);
    ++regions_changed_;
  }
  co_return co_await save_regions();
}

// Until the superblocks name the replacement in the role, the role's map is the old drive's, which
// may call more stale than is, but never less.
Task<Error> SetDrives::promote_replacement(unsigned role) {
  RoleDrive& here = roles_[role];
  if (here.replacement == nullptr) co_return Error::kNotFound;
  const std::string old = here.drive != nullptr ? here.drive->name() : std::string("none");
  RoleEntry& entry = newest_.roles[role];
  entry.drive = entry.replacement;
  entry.known_event = entry.replacement_known_event;
  entry.replacement = {};
  entry.replacement_known_event = 0;
  entry.state = RoleState::kActive;
  here.drive = std::exchange(here.replacement, nullptr);
  replacing_ &= ~bit(role);
  settled_roles_ &= ~bit(role);
  here.fresh_region[0] = kNoRegion;
  here.fresh_region[1] = kNoRegion;
  ++changed_;
  recount();
  Drive* promoted = here.drive;
  tell({SetEvent::Kind::kDriveReplaced, role,
        fmt::format("drive {} has taken role {} from drive {}", promoted->name(), role, old)});
  const Error error = co_await settled_at_last();
  if (error != Error::kNone) co_return error;
  if (here.drive != promoted) co_return Error::kNone;  // Dropped meanwhile; its log goes on.
  regions_.promote_replacement(role);
  doubts_changed_ += lost_.set_blank(role, false);
  ++regions_changed_;
  recount();
  co_return co_await save_regions();
}

// ---- for the journal ----------------------------------------------------------------------------

std::uint64_t SetDrives::live_roles() const noexcept {
  const std::uint64_t all =
      layout_.drive_count() >= 64 ? ~std::uint64_t{0} : bit(layout_.drive_count()) - 1;
  return all & ~absent_ & settled_roles_;
}

std::uint32_t SetDrives::live_mark() const noexcept {
  return raid::live_mark(newest_, live_roles());
}

Task<Completion> SetDrives::journal_io(unsigned role, Request request) {
  Drive* drive = roles_[role].drive;
  if (drive == nullptr) {
    Completion none;
    none.error = Error::kNotReady;
    none.data = std::move(request.data);
    co_return none;
  }
  const bool reads = request.operation == Operation::kRead;
  Completion done = co_await drive->submit_metadata(std::move(request));
  const bool missing = reason_of(done.error) == DropReason::kMissing;
  if (done.error != Error::kNone && (!reads || missing) && roles_[role].drive == drive) {
    drop(role, reason_of(done.error),
         fmt::format("{} the journal failed: {}", reads ? "reading" : "writing",
                     describe(done.error)));
  }
  co_return done;
}

}  // namespace sandbay::raid
