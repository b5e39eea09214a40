// Works off what is stale, then what is unverified, then what was asked for; several stripes at
// once, at the pace that hosts leave.
#include "raid/maintenance.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace sandbay::raid {

using Kind = MaintenanceProgress::Kind;

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::kNothing:
      return "nothing";
    case Kind::kRebuild:
      return "rebuild";
    case Kind::kCopy:
      return "copy";
    case Kind::kVerify:
      return "verify";
  }
  return "nothing";
}

namespace {

// How long to leave a set alone in which something did not work.
constexpr Duration kBackOff = std::chrono::seconds(1);
// Regions that a rebuild passes over, since they wait for something, before it pauses.
constexpr unsigned kMostWaiting = 64;
constexpr Duration kRetireEvery = std::chrono::seconds(5);

}  // namespace

// Stripes at work at once; its coroutine waits until few enough are left.
struct Maintenance::Batch {
  RaidSet& set;
  unsigned running = 0;
  bool failed = false;
  std::uint64_t mismatches = 0;
  std::uint64_t left = 0;
  Condition ended;
};

Maintenance::Maintenance(RaidSet& set, MaintenancePolicy policy)
    : set_(set), drives_(set.drives()), home_(set.home()), policy_(policy) {}

Maintenance::~Maintenance() { assert(!running_); }

void Maintenance::start() {
  assert(!running_);
  running_ = true;
  stopping_ = false;
  next_retire_ = home_.now() + kRetireEvery;
  next_event_ = home_.now() + policy_.event_every;
  next_verify_ = next_verify_after_now();
  const bool entered = gate_.enter();
  assert(entered);
  spawn(run());
}

Task<void> Maintenance::stop() {
  stopping_ = true;
  changed_.notify_all();
  co_await gate_.drain();
}

void Maintenance::wake() { changed_.notify_all(); }

void Maintenance::request_verify() {
  verify_requested_ = true;
  changed_.notify_all();
}

void Maintenance::set_policy(MaintenancePolicy policy) {
  const bool other_schedule = policy.verify_every != policy_.verify_every;
  const bool other_rate = policy.rate_under_load != policy_.rate_under_load;
  policy_ = policy;
  if (other_schedule) next_verify_ = next_verify_after_now();
  if (other_rate) paced_until_ = home_.now();  // What waits by the old rate waits no longer.
  changed_.notify_all();
}

TimePoint Maintenance::next_verify_after_now() const {
  return policy_.verify_every > Duration::zero() ? home_.now() + policy_.verify_every : kNever;
}

bool Maintenance::idle() const noexcept {
  return !verify_requested_ && progress_.kind == Kind::kNothing &&
         next_work().kind == Kind::kNothing;
}

Task<void> Maintenance::wait_idle() {
  while (running_ && !idle()) co_await changed_.wait();
}

// Redundancy first: a drive that is there and not whole, then a replacement, then what may not
// match. Work that has just failed comes last.
Maintenance::Work Maintenance::next_work() const {
  Work waits;
  for (unsigned role = 0; role < set_.layout().drive_count(); ++role) {
    if (drives_.drive(role) == nullptr || !drives_.stale(role, false)) continue;
    const Work work{Kind::kRebuild, role};
    if (work != failed_) return work;
    waits = work;
  }
  for (unsigned role = 0; role < set_.layout().drive_count(); ++role) {
    if (drives_.replacement(role) == nullptr) continue;
    const Work work{Kind::kCopy, role};
    if (work != failed_) return work;
    waits = work;
  }
  if (waits.kind != Kind::kNothing) return waits;
  if (drives_.first_verifiable()) return {Kind::kVerify, kNoRole};
  return {};
}

// Suspect parity waits for all drives.
bool Maintenance::verify_can_begin() const {
  const bool waits = drives_.superblock().redundancy_suspect && !drives_.optimal();
  return verify_requested_ && !set_.offline() && !waits;
}

Task<void> Maintenance::run() {
  while (!stopping_) {
    if (home_.now() >= next_verify_) {
      verify_requested_ = true;
      next_verify_ = next_verify_after_now();
    }
    const Work work = set_.offline() ? Work{} : next_work();
    bool good = true;
    if (work.kind == Kind::kVerify) {
      good = co_await verify_regions();
    } else if (work.kind != Kind::kNothing) {
      good = co_await make_fresh(work);
    } else if (verify_can_begin()) {
      good = co_await verify_all();
    }
    failed_ = good ? Work{} : work;
    progress_ = {};
    if (!set_.offline() && home_.now() >= next_retire_) {
      co_await drives_.retire_intents(false);
      next_retire_ = home_.now() + kRetireEvery;
    }
    co_await bring_event_forward();
    changed_.notify_all();
    if (stopping_) break;
    if (!good) {
      co_await changed_.wait_until(home_.now() + kBackOff);
    } else if (set_.offline() || (next_work().kind == Kind::kNothing && !verify_can_begin())) {
      co_await changed_.wait_until(home_.now() + policy_.look_every);
    }
  }
  running_ = false;
  changed_.notify_all();
  gate_.leave();
}

// ---- stale regions ------------------------------------------------------------------------------

bool Maintenance::is_target(const Drive* drive) const {
  for (unsigned role = 0; role < set_.layout().drive_count(); ++role) {
    if (drive == drives_.drive(role) || drive == drives_.replacement(role)) return true;
  }
  return false;
}

Drive* Maintenance::target_of(const Work& work) const {
  return work.kind == Kind::kCopy ? drives_.replacement(work.role) : drives_.drive(work.role);
}

Task<bool> Maintenance::make_fresh(Work work) {
  const bool copy = work.kind == Kind::kCopy;
  const std::uint64_t regions = drives_.region_count();
  progress_ = {.kind = work.kind, .role = work.role, .started = home_.now()};
  const std::uint64_t per_region =
      std::max<std::uint64_t>(drives_.superblock().region_stripes / set_.layout().group_count(), 1);
  // Of the whole drive, whoever has done the rest: another run, or nobody had to.
  progress_.all_stripes = regions * per_region;
  progress_.done_stripes = (regions - drives_.stale_count(work.role, copy)) * per_region;
  const Drive* target = target_of(work);
  std::erase_if(begun_, [this](const auto& each) { return !is_target(each.first); });
  const auto [begun, is_new] = begun_.try_emplace(target, 0);
  if (is_new) {  // Else something came in between.
    drives_.tell({copy ? SetEvent::Kind::kCopyStarted : SetEvent::Kind::kRebuildStarted, work.role,
                  fmt::format("{} of {} regions are to be {}", drives_.stale_count(work.role, copy),
                              regions, copy ? "copied" : "rebuilt")});
  }
  for (unsigned waiting = 0;;) {
    std::optional<std::uint64_t> region = drives_.first_stale(work.role, copy, begun->second);
    if (!region && waiting > 0) co_return false;  // Each has had its turn.
    if (!region) region = drives_.first_stale(work.role, copy);
    if (!region) break;
    begun->second = *region + 1;  // It may wait for a drive that is missing; others do not.
    const bool good = co_await freshen_region(work, *region);
    if (good) continue;
    if (stopping_ || set_.offline() || target_of(work) != target) co_return false;
    if (++waiting == kMostWaiting) co_return false;
  }
  const bool ended = co_await end_fresh(work);
  if (ended) begun_.erase(begun);
  co_return ended;
}

// False when the drive has gone, the set cannot work, or maintenance stops.
Task<bool> Maintenance::freshen_region(Work work, std::uint64_t region) {
  const bool copy = work.kind == Kind::kCopy;
  const Layout& layout = set_.layout();
  // Another drive that takes the place meanwhile has nothing of what was done.
  Drive* const target = target_of(work);
  if (target == nullptr) co_return false;
  const auto still = [&] { return target == target_of(work); };
  const std::uint64_t end = drives_.end_of_region(region);
  Batch batch{.set = set_};
  std::optional<std::uint64_t> stripe =
      layout.first_stripe(work.role, region * drives_.superblock().region_stripes);
  while (stripe && *stripe < end && !batch.failed && !stopping_ && still()) {
    std::uint64_t done = *stripe;
    for (unsigned i = 0; i < policy_.stripes_at_once && stripe && *stripe < end; ++i) {
      done = *stripe;
      const std::optional<unsigned> member = layout.member(done, work.role);
      assert(member.has_value());
      ++batch.running;
      spawn(rebuild_one(&batch, done, member.value_or(0), target));
      stripe = layout.next_stripe(work.role, done);
      ++progress_.done_stripes;
    }
    while (batch.running > 0) co_await batch.ended.wait();
    if (!batch.failed && still()) drives_.fresh_up_to(work.role, copy, region, done + 1);
    const std::uint64_t strip_bytes = std::uint64_t{layout.strip_blocks()} * layout.block_bytes();
    co_await pace(strip_bytes * policy_.stripes_at_once);
  }
  if (batch.failed || stopping_ || !still()) co_return false;
  // Flushes the drive, too. Without it an update of before the drive was lost could come back from
  // the journal over what has been rebuilt.
  const Error renewed = co_await set_.renew_journal();
  if (renewed != Error::kNone || !still()) co_return false;
  drives_.region_fresh(work.role, copy, region);
  const Error saved = co_await drives_.save_regions();
  co_return saved == Error::kNone;
}

Task<void> Maintenance::rebuild_one(Batch* batch, std::uint64_t stripe, unsigned member,
                                    Drive* target) {
  const Error error = co_await batch->set.rebuild_member(stripe, member, target);
  batch->failed |= error != Error::kNone;
  if (--batch->running == 0) batch->ended.notify_all();
}

Task<bool> Maintenance::end_fresh(Work work) {
  Error error = Error::kNone;
  if (work.kind == Kind::kCopy) {
    error = co_await drives_.promote_replacement(work.role);
    // Of what was appended until now a copy may be on the drive that has gone.
    if (error == Error::kNone) error = co_await set_.renew_journal();
  } else {
    error = co_await drives_.settled();
  }
  if (error != Error::kNone) co_return false;
  drives_.tell(
      {work.kind == Kind::kCopy ? SetEvent::Kind::kCopyEnded : SetEvent::Kind::kRebuildEnded,
       work.role, "the drive is whole"});
  if (drives_.optimal()) drives_.tell({SetEvent::Kind::kOptimal, kNoRole, "all drives are whole"});
  co_return true;
}

// ---- verify -------------------------------------------------------------------------------------

Task<bool> Maintenance::verify_regions() {
  progress_ = {.kind = Kind::kVerify, .started = home_.now()};
  progress_.all_stripes = drives_.unverified_count() * drives_.superblock().region_stripes;
  for (;;) {
    const std::optional<std::uint64_t> region = drives_.first_verifiable();
    if (!region) break;
    const std::uint64_t first = *region * drives_.superblock().region_stripes;
    // A write that fails meanwhile may leave a stripe unequal that has been verified already.
    const std::uint64_t losses = drives_.redundancy_losses(*region);
    bool good = co_await verify_range(first, drives_.end_of_region(*region));
    if (!good) co_return false;
    const Error flushed = co_await set_.flush_drives();
    if (flushed != Error::kNone) co_return false;
    drives_.region_verified(*region, losses);
    const Error saved = co_await drives_.save_regions();
    good = saved == Error::kNone;
    if (!good) co_return false;
  }
  // With the last region nothing is suspect any more.
  const Error settled = co_await drives_.settled();
  co_return settled == Error::kNone;
}

Task<bool> Maintenance::verify_all() {
  progress_ = {.kind = Kind::kVerify, .started = home_.now()};
  progress_.all_stripes = set_.layout().stripe_count();
  drives_.tell({SetEvent::Kind::kVerifyStarted, kNoRole, "every stripe is verified"});
  const bool good = co_await verify_range(0, set_.layout().stripe_count());
  if (!good) co_return false;
  const Error flushed = co_await set_.flush_drives();
  if (flushed != Error::kNone) co_return false;
  verify_requested_ = false;
  ++verifies_ended_;
  drives_.tell({SetEvent::Kind::kVerifyEnded, kNoRole,
                fmt::format("{} stripes verified, {} did not match and were repaired{}",
                            progress_.all_stripes, progress_.mismatches - progress_.left,
                            progress_.left == 0
                                ? std::string()
                                : fmt::format(", {} did not match and were left as they are, "
                                              "because drives are missing",
                                              progress_.left))});
  co_return true;
}

Task<bool> Maintenance::verify_range(std::uint64_t first, std::uint64_t end) {
  Batch batch{.set = set_};
  const Layout& layout = set_.layout();
  const std::uint64_t strip_bytes = std::uint64_t{layout.strip_blocks()} * layout.block_bytes();
  for (std::uint64_t stripe = first; stripe < end && !batch.failed && !stopping_;) {
    for (unsigned i = 0; i < policy_.stripes_at_once && stripe < end; ++i, ++stripe) {
      ++batch.running;
      spawn(verify_one(&batch, stripe));
      ++progress_.done_stripes;
    }
    while (batch.running > 0) co_await batch.ended.wait();
    progress_.mismatches += std::exchange(batch.mismatches, 0);
    progress_.left += std::exchange(batch.left, 0);
    co_await pace(strip_bytes * policy_.stripes_at_once);
  }
  co_return !batch.failed && !stopping_;
}

Task<void> Maintenance::verify_one(Batch* batch, std::uint64_t stripe) {
  const RaidSet::Verified verified = co_await batch->set.verify_stripe(stripe);
  batch->failed |= verified.error != Error::kNone;
  batch->mismatches += verified.mismatch;
  batch->left += verified.left;
  if (--batch->running == 0) batch->ended.notify_all();
}

// If it fails, drives have gone for it, or whoever writes next hears of it.
Task<void> Maintenance::bring_event_forward() {
  const TimePoint now = home_.now();
  if (now < next_event_ || set_.offline() || !set_.take_written()) co_return;
  next_event_ = now + policy_.event_every;
  (void)co_await drives_.bring_event_forward();
}

// Sleeps so that the rate holds, if a host was at work lately; lets others run in any case.
Task<void> Maintenance::pace(std::uint64_t bytes) {
  co_await bring_event_forward();
  const TimePoint now = home_.now();
  const bool quiet = now - set_.last_host_io() > policy_.host_is_quiet_after;
  if (policy_.rate_under_load == 0 || quiet) {
    co_await home_.yield();
    co_return;
  }
  const auto nanoseconds = static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 /
                                                     static_cast<double>(policy_.rate_under_load));
  paced_until_ = std::max(paced_until_, now) + Duration(nanoseconds);
  // Another policy, or the end of maintenance, ends the pause.
  while (!stopping_ && home_.now() < paced_until_) co_await changed_.wait_until(paced_until_);
}

}  // namespace sandbay::raid
