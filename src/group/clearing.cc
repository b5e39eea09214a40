// Whoever needs a chunk claims it and makes it zeros; whoever needs one that another has claimed
// waits for that. Then one of those who wait keeps what all of them have zeroed.
#include "group/clearing.h"

#include <algorithm>
#include <utility>

namespace sandbay::group {

namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// How much clearing in the background a crash may undo: a GiB.
constexpr std::size_t kMostUnkept = 1024;
constexpr Duration kLongestUnkept = 10s;
// The set is away, or there is no room.
constexpr Duration kRetry = 5s;
// Hosts that have asked for nothing for so long are idle; where they are not, it rests this many
// times as long as it has worked.
constexpr Duration kHostsAreIdleAfter = 100ms;
constexpr int kRests = 3;
// In the background as many chunks are cleared by one request as take no longer than a first write
// to one of them can wait: below an NVRAM every request costs a flush.
constexpr Duration kQuick = 10ms;
constexpr Duration kLong = 40ms;
constexpr std::uint64_t kMostAtOnce = 64;

Request part_of(const Request& request, Extent extent) {
  Request part;
  part.operation = request.operation;
  part.force_unit_access = request.force_unit_access;
  part.disable_page_out = request.disable_page_out;
  part.origin = request.origin;
  part.extent = extent;
  part.volume = request.volume;
  part.deadline = request.deadline;
  part.cancellation = request.cancellation;
  return part;
}

bool changes(Operation operation) {
  return operation == Operation::kWrite || operation == Operation::kUnmap ||
         operation == Operation::kWriteZeroes;
}

// Has whoever waits look again.
struct WakeOnCancel : Cancellation::Hook {
  Condition& waiting;
  WakeOnCancel(Cancellation* cancellation, Condition& condition)
      : Hook(cancellation,
             [](Hook& hook) { static_cast<WakeOnCancel&>(hook).waiting.notify_all(); }),
        waiting(condition) {}
};

}  // namespace

bool Clearing::refuses(const Request& request) const {
  return passes_ == Passes::kNothing || changes(request.operation);
}

Task<Completion> Clearing::refuse(Request request) {
  co_return Completion{.error = Error::kClosed,
                       .first_bad_lba = request.extent.first,
                       .data = std::move(request.data)};
}

Task<Completion> Clearing::submit(Request request) {
  ++lane_->requests;
  if (passes_ != Passes::kAll && refuses(request)) return refuse(std::move(request));
  const bool whole = areas_.empty() || request.operation == Operation::kFlush ||
                     request.operation == Operation::kAdvise || areas_.kept(request.extent);
  if (whole) return below().submit(std::move(request));
  if (request.operation == Operation::kRead) return read_known(std::move(request));
  if (request.operation == Operation::kWrite) return write_cleared(std::move(request));
  return zero_known(std::move(request));
}

// Zeros where nothing has been written yet; the rest from below.
Task<Completion> Clearing::read_known(Request request) {
  Completion completion;
  const Extent extent = request.extent;
  for (Lba lba = extent.first; lba < extent.end();) {
    const ClearedAreas::Run run = areas_.run_at(lba, extent.end());
    BufferList bytes = request.data.take_front(run.block_count * geometry().block_bytes);
    if (!run.kept) {
      bytes.fill_zero();
      completion.data.append(std::move(bytes));
    } else {
      Request part = part_of(request, {.first = lba, .block_count = run.block_count});
      part.data = std::move(bytes);
      Completion done = co_await below().submit(std::move(part));
      completion.data.append(std::move(done.data));
      if (done.error != Error::kNone && completion.error == Error::kNone) {
        completion.error = done.error;
        completion.first_bad_lba = done.first_bad_lba;
      }
    }
    lba += run.block_count;
  }
  co_return completion;
}

Task<Completion> Clearing::write_cleared(Request request) {
  Completion failed;
  failed.error = co_await clear_for(&request);
  if (failed.error == Error::kNone) co_return co_await below().submit(std::move(request));
  failed.first_bad_lba = request.extent.first;
  failed.data = std::move(request.data);
  co_return failed;
}

// What reads as zeros is left as it is.
Task<Completion> Clearing::zero_known(Request request) {
  Completion completion;
  completion.data = std::move(request.data);
  const Extent extent = request.extent;
  for (Lba lba = extent.first; lba < extent.end() && completion.error == Error::kNone;) {
    const ClearedAreas::Run run = areas_.run_at(lba, extent.end());
    if (run.kept) {
      completion.error = reason_to_end(request);
      if (completion.error != Error::kNone) break;
      const Extent here{.first = lba, .block_count = run.block_count};
      const Completion done = co_await below().submit(part_of(request, here));
      completion.error = done.error;
      completion.first_bad_lba = done.first_bad_lba;
    }
    lba += run.block_count;
  }
  co_return completion;
}

Task<Result<ProvisioningRun>> Clearing::provisioning(Lba first, Lba limit) {
  const ClearedAreas::Run run = areas_.run_at(first, limit);
  if (!run.kept) co_return ProvisioningRun{.block_count = run.block_count, .mapped = false};
  auto below_it = co_await below().provisioning(first, first + run.block_count);
  if (below_it) below_it->block_count = std::min(below_it->block_count, run.block_count);
  co_return below_it;
}

// ---- clearing -----------------------------------------------------------------------------------

// Why a first write does not go on, however far it has come.
Error Clearing::reason_to_end(const Request& request) const {
  if (passes_ != Passes::kAll) return Error::kClosed;
  if (request.cancellation != nullptr && request.cancellation->cancelled()) {
    return Error::kCancelled;
  }
  return home().now() >= request.deadline ? Error::kTimedOut : Error::kNone;
}

bool Clearing::being_zeroed(const Extent& extent) const {
  return std::ranges::any_of(zeroing_, [&](const Extent& one) { return one.overlaps(extent); });
}

// Each time round one thing has come about, or what was waited for has changed.
Task<Error> Clearing::clear_for(const Request* request) {
  const Extent extent = request->extent;
  const WakeOnCancel wake(request->cancellation, changed_);
  std::uint64_t good_turn = 0;  // The first that begins when all these chunks are zeroed.
  for (;;) {
    const Error end = reason_to_end(*request);
    if (end != Error::kNone) co_return end;
    if (areas_.kept(extent)) co_return Error::kNone;
    if (good_turn != 0 && failed_turn_ >= good_turn) co_return failure_;
    if (const auto chunk = areas_.first_old(extent)) {
      const Error error = co_await zero(run_from(*chunk, extent.end(), kMostAtOnce), request);
      if (error != Error::kNone) co_return error;
    } else if (being_zeroed(extent)) {
      (void)co_await changed_.wait_until(request->deadline);
    } else {
      if (good_turn == 0) good_turn = turn_ + 1;
      if (turning_) {
        (void)co_await changed_.wait_until(request->deadline);
      } else {
        const Error error = co_await keep_zeroed(request->origin);
        if (error != Error::kNone) co_return error;
      }
    }
  }
}

// Old chunks, one behind the other; for a request, or in the background.
Task<Error> Clearing::zero(Extent run, const Request* on_behalf) {
  std::vector<Extent> chunks;
  while (const auto chunk = areas_.first_old(run)) {
    areas_.claim(*chunk);
    chunks.push_back(*chunk);
  }
  zeroing_.push_back(run);
  const Error error = co_await zero_below(run, on_behalf);
  std::erase(zeroing_, run);
  if (error == Error::kNone) {
    zeroed_.insert(zeroed_.end(), chunks.begin(), chunks.end());
  } else {
    for (const Extent& chunk : chunks) areas_.give_back(chunk);
  }
  changed_.notify_all();
  co_return error;
}

// From an old chunk on so many that are old, too, and begin before `limit`.
Extent Clearing::run_from(Extent run, Lba limit, std::uint64_t chunks) const {
  const std::uint64_t most = geometry().maximum_io_blocks;
  for (; chunks > 1 && run.end() < limit; --chunks) {
    const auto next = areas_.first_old({.first = run.end(), .block_count = 1});
    if (!next || (most != 0 && run.block_count + next->block_count > most)) break;
    run.block_count += next->block_count;
  }
  return run;
}

// Without writing where drives can do without.
Task<Error> Clearing::zero_below(Extent run, const Request* on_behalf) {
  Request like;
  like.origin = Origin::kClearing;
  if (on_behalf != nullptr) like = part_of(*on_behalf, run);
  like.force_unit_access = false;
  if (!unmap_refused_ && geometry().unmap && geometry().unmap_zeroes) {
    like.operation = Operation::kUnmap;
    const Completion done = co_await below().submit(part_of(like, run));
    if (done.error != Error::kUnsupported) co_return done.error;
    unmap_refused_ = true;
  }
  if (passes_ != Passes::kAll) co_return Error::kClosed;
  like.operation = Operation::kWriteZeroes;
  const Completion done = co_await below().submit(part_of(like, run));
  co_return done.error;
}

// A turn: the zeros are durable first, then the record of them.
Task<Error> Clearing::keep_zeroed(Origin origin) {
  turning_ = true;
  ++turn_;
  const std::vector<Extent> chunks = std::exchange(zeroed_, {});
  Request flush;
  flush.operation = Operation::kFlush;
  flush.origin = origin;
  const Completion flushed = co_await below().submit(std::move(flush));
  if (flushed.error != Error::kNone) {
    // What a flush that failed was to bring to the drives may be gone.
    for (const Extent& chunk : chunks) areas_.give_back(chunk);
    for (const Extent& chunk : std::exchange(zeroed_, {})) areas_.give_back(chunk);
    end_turn(flushed.error);
    co_return flushed.error;
  }
  Error error = passes_ == Passes::kNothing ? Error::kClosed : Error::kNone;
  if (error == Error::kNone) error = co_await keep_(areas_.record_with(chunks));
  if (error == Error::kNone) {
    areas_.keep(chunks);
    kept_at_ = home().now();
  } else {
    zeroed_.insert(zeroed_.end(), chunks.begin(), chunks.end());
  }
  end_turn(error);
  co_return error;
}

void Clearing::end_turn(Error error) {
  if (error != Error::kNone) {
    failed_turn_ = turn_;
    failure_ = error;
  }
  turning_ = false;
  changed_.notify_all();
}

// A turn of its own, since no other may write the record meanwhile.
Task<Error> Clearing::grow(Extent added, Keep store) {
  while (turning_) co_await changed_.wait();
  turning_ = true;
  ++turn_;
  const Error error = co_await store(areas_.record_grown(added, geometry().block_bytes));
  if (error == Error::kNone) areas_.add(added, geometry().block_bytes);
  // Nothing was kept; whoever waits for that takes the next turn.
  turning_ = false;
  changed_.notify_all();
  if (error == Error::kNone) start();
  co_return error;
}

void Clearing::refuse_changes() {
  passes_ = std::max(passes_, Passes::kNoChanges);
  changed_.notify_all();
}

void Clearing::refuse_all() {
  passes_ = Passes::kNothing;
  changed_.notify_all();
}

// ---- in the background --------------------------------------------------------------------------

void Clearing::start() {
  if (running_ || stopping_ || areas_.empty() || !gate_.enter()) return;
  running_ = true;
  kept_at_ = home().now();
  spawn(run());
}

Task<bool> Clearing::stop(TimePoint deadline) {
  stopping_ = true;
  changed_.notify_all();
  lane_->changed.notify_all();
  co_return co_await gate_.close_until(deadline);
}

// False: it is to stop.
Task<bool> Clearing::take_lane() {
  while (lane_->taken && !stopping_) co_await lane_->changed.wait();
  if (stopping_) co_return false;
  lane_->taken = true;
  co_return true;
}

// Where hosts are at work it rests, and no other volume's clearing works meanwhile.
Task<void> Clearing::leave_lane(TimePoint began, bool worked) {
  const TimePoint now = home().now();
  if (std::exchange(lane_->seen, lane_->requests) != lane_->requests) {
    lane_->quiet_from = now + kHostsAreIdleAfter;
  }
  const TimePoint rested = now + kRests * (now - began);
  while (worked && !stopping_ && now < lane_->quiet_from && home().now() < rested) {
    (void)co_await changed_.wait_until(rested);
  }
  lane_->taken = false;
  lane_->changed.notify_all();
}

// Some chunks more; now and then what has been zeroed is kept.
Task<Error> Clearing::step() {
  Error error = Error::kNone;
  const TimePoint began = home().now();
  const auto chunk = areas_.first_old();
  if (chunk) {
    error = co_await zero(run_from(*chunk, geometry().block_count, at_once_), nullptr);
  }
  const Duration took = home().now() - began;
  if (took < kQuick) at_once_ = std::min(2 * at_once_, kMostAtOnce);
  if (took > kLong) at_once_ = std::max<std::uint64_t>(at_once_ / 2, 1);
  if (error != Error::kNone || stopping_ || turning_ || zeroed_.empty()) co_return error;
  const bool due = !areas_.first_old() || zeroed_.size() >= kMostUnkept ||
                   home().now() - kept_at_ >= kLongestUnkept;
  if (due) error = co_await keep_zeroed(Origin::kClearing);
  co_return error;
}

Task<void> Clearing::run() {
  while (!stopping_ && !areas_.empty()) {
    if (!areas_.first_old() && (turning_ || zeroed_.empty())) {
      co_await changed_.wait();  // For others, who have the last chunks in hand.
      continue;
    }
    const bool taken = co_await take_lane();
    if (!taken) break;
    const TimePoint began = home().now();
    const Error error = co_await step();
    co_await leave_lane(began, error == Error::kNone);
    const TimePoint again = home().now() + (error == Error::kNone ? Duration::zero() : kRetry);
    while (!stopping_ && home().now() < again) (void)co_await changed_.wait_until(again);
    if (!stopping_) co_await home().yield();
  }
  running_ = false;
  gate_.leave();
}

}  // namespace sandbay::group
