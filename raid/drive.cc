// An operation is shared by whoever waits for it and by the coroutine that is in the device with
// it; the drive's list holds those that have neither ended nor been given up. One timer for all of
// them looks at the oldest now and then, so that an operation itself costs no timer.
#include "raid/drive.h"

#include <algorithm>
#include <utility>

#include "runtime/frame_pool.h"

namespace sandbay::raid {

struct Drive::Operation : FramePooled {
  Drive* drive = nullptr;
  Operation* older = nullptr;
  Operation* newer = nullptr;
  TimePoint came;
  TimePoint started;  // Without the time that does not count.
  std::coroutine_handle<> waiter;
  Completion completion;
  Cancellation cancellation;  // Fires when nobody waits any longer.
  unsigned references = 2;    // The waiter's and the device's.
  Extent extent;
  std::size_t byte_count = 0;  // The device has this much memory.
  bool is_read = false;
  bool is_flush = false;
  bool is_change = false;
  bool sent = false;  // To the device.
  bool metadata = false;
  bool waiter_wants_slow = false;
  bool slow = false;
  bool ended = false;    // `completion` is there.
  bool doubted = false;  // The drive was found away meanwhile: this may be another one's answer.
};

namespace {

constexpr Duration kLeastWatch = std::chrono::milliseconds(1);
// A flush may have everything before it to write, and one slow host makes it slow on all drives.
constexpr int kFlushTimeouts = 3;
// A drive limps when more than one read of five is late for a while, and has recovered after as
// many that are in time as would have been needed for the worst of it.
constexpr unsigned kLateCounts = 4;
constexpr unsigned kLimps = 12;
constexpr unsigned kMostLateness = 24;
// Times what is late: without a late read for so long it does not limp any more.
constexpr int kLimpsFor = 16;
// Memory of operations that timed out and are still in a device: with more, the device gets
// nothing.
constexpr std::size_t kMostAbandonedBytes = std::size_t{4} << 20;

bool overlap(const Extent& a, const Extent& b) { return a.first < b.end() && b.first < a.end(); }

}  // namespace

Request request_like(const Request& request) {
  Request copy;
  copy.operation = request.operation;
  copy.force_unit_access = request.force_unit_access;
  copy.disable_page_out = request.disable_page_out;
  copy.origin = request.origin;
  copy.extent = request.extent;
  copy.volume = request.volume;
  copy.deadline = request.deadline;
  return copy;
}

struct Drive::Question {
  Result<ProvisioningRun> answer = std::unexpected(Error::kTimedOut);
  bool answered = false;
  bool late = false;
  sandbay::Event ended;
};

Drive::Drive(BlockDevice& device, std::string name, DrivePolicy policy)
    : device_(device), home_(device.home()), name_(std::move(name)), policy_(policy) {
  watch_timer_.owner = this;
  watch_timer_.fire = [](Timer& timer) { static_cast<Drive*>(timer.owner)->watch(); };
}

Drive::~Drive() {
  assert(idle() && oldest_ == nullptr);
  if (watch_timer_.armed()) home_.disarm(watch_timer_);
}

DriveIo Drive::start(Request request) {
  Operation* operation = begin(std::move(request), false);
  return DriveIo(operation);
}

Task<Completion> Drive::submit(Request request) {
  DriveIo io(begin(std::move(request), false));
  co_await io.wait();
  co_return io.take();
}

DriveIo Drive::start_metadata(Request request) { return DriveIo(begin(std::move(request), true)); }

Task<Completion> Drive::submit_metadata(Request request) {
  DriveIo io(begin(std::move(request), true));
  co_await io.wait();
  co_return io.take();
}

Task<Result<ProvisioningRun>> Drive::provisioning(Lba first, Lba limit) {
  if (const Error refused = refusal(); refused != Error::kNone) co_return std::unexpected(refused);
  if (late_questions_ >= kMostLateQuestions) co_return std::unexpected(Error::kTimedOut);
  const auto question = std::make_shared<Question>();
  ++outstanding_;
  spawn(ask(this, question, first, limit));
  // In steps, so that time in which the executor did not run counts for little.
  for (int step = 0; step < kQuestionSteps && !question->answered; ++step) {
    co_await question->ended.wait_until(home_.now() + policy_.timeout / kQuestionSteps);
  }
  if (!question->answered) {
    ++counters_.timeouts;
    ++late_questions_;
    question->late = true;
  }
  co_return question->answer;
}

Task<void> Drive::ask(Drive* drive, std::shared_ptr<Question> question, Lba first, Lba limit) {
  Result<ProvisioningRun> run = co_await drive->device_.provisioning(first, limit);
  if (!run && run.error() == Error::kHardware) {  // As with an operation.
    ++drive->counters_.retries;
    run = co_await drive->device_.provisioning(first, limit);
  }
  if (drive->gone()) run = std::unexpected(Error::kNotReady);
  if (!run && run.error() == Error::kNotReady) drive->doubt_in_flight();
  if (!run) ++drive->counters_.other_errors;
  drive->late_questions_ -= question->late ? 1 : 0;
  question->answer = run;
  question->answered = true;
  question->ended.set();
  if (--drive->outstanding_ == 0) drive->became_idle_.notify_all();
}

Drive::Operation* Drive::begin(Request&& request, bool metadata) {
  auto* operation = new Operation;
  operation->drive = this;
  operation->came = operation->started = home_.now();
  operation->is_read = request.operation == sandbay::Operation::kRead;
  operation->is_flush = request.operation == sandbay::Operation::kFlush;
  operation->is_change = !operation->is_read && !operation->is_flush &&
                         request.operation != sandbay::Operation::kAdvise;
  operation->extent = request.extent;
  operation->byte_count = request.data.byte_count();
  operation->metadata = metadata;
  operation->doubted = away_ || shut_;
  operation->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = operation;
  newest_ = operation;
  ++in_flight_;
  ++outstanding_;
  count(request, metadata);
  request.cancellation = &operation->cancellation;
  run(this, operation, std::move(request));
  if (!operation->ended && !watch_timer_.armed()) arm_watch();
  return operation;
}

void Drive::count(const Request& request, bool metadata) {
  const std::uint64_t bytes = request.extent.byte_count(geometry().block_bytes);
  if (metadata) {
    ++counters_.metadata_operations;
    if (request.operation != sandbay::Operation::kFlush) counters_.metadata_bytes += bytes;
    return;
  }
  switch (request.operation) {
    case sandbay::Operation::kRead:
      ++counters_.reads;
      counters_.read_bytes += bytes;
      break;
    case sandbay::Operation::kFlush:
      ++counters_.flushes;
      return;
    case sandbay::Operation::kAdvise:
      return;
    default:
      ++counters_.writes;
      counters_.written_bytes += bytes;
  }
  head_ = request.extent.end();
}

Spawned Drive::run(Drive* drive, Operation* operation, Request request) {
  const Request first = request_like(request);
  Completion completion;
  while (!operation->ended && drive->held_up(*operation)) co_await drive->recalled_.wait();
  completion.error = operation->ended ? Error::kTimedOut : drive->refusal();
  if (completion.error == Error::kNone) {
    operation->sent = true;
    completion = co_await drive->device_.submit(std::move(request));
  } else {
    completion.data = std::move(request.data);
  }
  // Once more: it may pass. But of what a flush has failed to write the next may know nothing.
  const bool again = completion.error == Error::kHardware && !operation->is_flush;
  if (again && !operation->ended && !operation->doubted) {
    ++drive->counters_.retries;
    Request second = request_like(first);
    second.cancellation = &operation->cancellation;
    second.data = std::move(completion.data);
    completion = co_await drive->device_.submit(std::move(second));
  }
  --drive->outstanding_;
  if (operation->ended) drive->recall(*operation);
  if (!operation->ended) drive->end(*operation, std::move(completion));
  drop(operation);
  drive->tell_unheeded();
  if (drive->outstanding_ == 0) drive->became_idle_.notify_all();
}

Error Drive::refusal() const noexcept {
  if (gone()) return Error::kNotReady;
  return abandoned_bytes_ > kMostAbandonedBytes ? Error::kTimedOut : Error::kNone;
}

bool Drive::held_up(const Operation& operation) const {
  if (abandoned_.empty() || !operation.is_change) return false;
  return std::ranges::any_of(abandoned_, [&operation](const Operation* other) {
    return other->sent && other->is_change && overlap(other->extent, operation.extent);
  });
}

void Drive::abandon(Operation& operation) {
  abandoned_.push_back(&operation);
  abandoned_bytes_ += operation.byte_count;
}

void Drive::recall(Operation& operation) {
  if (std::erase(abandoned_, &operation) == 0) return;
  abandoned_bytes_ -= operation.byte_count;
  recalled_.notify_all();
}

void Drive::shut() {
  shut_ = true;
  doubt_in_flight();
}

void Drive::doubt_in_flight() {
  for (Operation* other = oldest_; other != nullptr; other = other->newer) other->doubted = true;
}

void Drive::end(Operation& operation, Completion&& completion) {
  // Whatever it says may be another drive's word.
  if (operation.doubted) completion.error = Error::kNotReady;
  if (completion.error == Error::kNotReady && !operation.doubted) {
    away_ = true;
    doubt_in_flight();
  }
  if (operation.is_read && !operation.slow && completion.error == Error::kNone) note_read(false);
  failing_ = completion.error != Error::kNone && completion.error != Error::kMediumError &&
             completion.error != Error::kNoSpace;
  if (completion.error == Error::kMediumError) {
    ++counters_.medium_errors;
  } else if (completion.error == Error::kTimedOut) {
    ++counters_.timeouts;
  } else if (completion.error != Error::kNone) {
    ++counters_.other_errors;
  }
  const bool unheeded = operation.references == 1;  // The device's.
  if (unheeded && completion.error != Error::kNone && completion.error != Error::kMediumError) {
    unheeded_ = completion.error;
  }
  operation.completion = std::move(completion);
  operation.ended = true;
  unlink(operation);
  if (operation.waiter) home_.post(std::exchange(operation.waiter, {}));
}

void Drive::note_read(bool late) {
  if (late) {
    lateness_ = std::min(lateness_ + kLateCounts, kMostLateness);
    limps_until_ = home_.now() + kLimpsFor * policy_.slow_read;
  } else if (lateness_ > 0) {
    --lateness_;
  }
  if (lateness_ == 0 || lateness_ >= kLimps) limping_ = lateness_ > 0;
}

void Drive::probe(Lba lba) {
  if (!limping() || home_.now() < next_probe_) return;
  next_probe_ = home_.now() + policy_.slow_read;
  Request request;
  request.origin = Origin::kRebuild;
  request.extent = {.first = lba, .block_count = 1};
  request.data = home_.buffers().try_allocate(geometry().block_bytes);
  if (request.data.empty()) return;
  ++counters_.probes;
  (void)start_metadata(std::move(request));
}

void Drive::unlink(Operation& operation) {
  (operation.older != nullptr ? operation.older->newer : oldest_) = operation.newer;
  (operation.newer != nullptr ? operation.newer->older : newest_) = operation.older;
  operation.older = nullptr;
  operation.newer = nullptr;
  --in_flight_;
}

void Drive::drop(Operation* operation) {
  if (--operation->references == 0) delete operation;
}

void Drive::watch() {
  forgive_lateness();
  const TimePoint now = home_.now();
  const TimePoint busy_since = device_.busy_since();
  Operation* next = nullptr;
  for (Operation* operation = oldest_; operation != nullptr; operation = next) {
    next = operation->newer;
    if (operation->came >= busy_since) {
      operation->started = now;
      continue;
    }
    const Duration age = now - operation->started;
    if (age >= (operation->is_flush ? kFlushTimeouts : 1) * policy_.timeout) {
      Completion late;
      late.error = Error::kTimedOut;
      abandon(*operation);
      end(*operation, std::move(late));
      operation->cancellation.cancel();
      if (!operation->sent) recalled_.notify_all();  // It waits for nothing any more.
    } else if (age >= policy_.slow_read) {
      if (!operation->is_read || operation->slow) continue;
      operation->slow = true;
      ++counters_.slow_reads;
      note_read(true);
      if (operation->waiter && operation->waiter_wants_slow) {
        home_.post(std::exchange(operation->waiter, {}));
      }
    } else {
      break;
    }
  }
  if (oldest_ != nullptr) arm_watch();
  tell_unheeded();
}

// A daemon that was stopped, or had no processor, finds all that was in flight very old. No drive
// is to blame for that: it does not count.
void Drive::forgive_lateness() {
  const TimePoint due = watch_timer_.deadline;
  const Duration overslept = home_.now() - due;
  for (Operation* operation = oldest_; operation != nullptr; operation = operation->newer) {
    if (operation->started < due) operation->started += overslept;
  }
}

// Apart from where it was noticed, since the owner may do anything with the drive but destroy it.
void Drive::tell_unheeded() {
  const Error error = std::exchange(unheeded_, Error::kNone);
  if (error == Error::kNotReady) away_ = false;
  if (error != Error::kNone && on_unheeded) on_unheeded(error);
}

void Drive::arm_watch() {
  const Duration least = std::min(policy_.timeout, policy_.slow_read);
  watch_timer_.deadline = home_.now() + std::max(least / 4, kLeastWatch);
  home_.arm(watch_timer_);
}

Task<bool> Drive::wait_idle_until(TimePoint deadline) {
  while (!idle()) {
    const bool in_time = co_await became_idle_.wait_until(deadline);
    if (!in_time) co_return idle();
  }
  co_return true;
}

DriveIo& DriveIo::operator=(DriveIo&& other) noexcept {
  if (this == &other) return *this;
  if (operation_ != nullptr) Drive::drop(operation_);
  operation_ = std::exchange(other.operation_, nullptr);
  return *this;
}

DriveIo::~DriveIo() {
  if (operation_ != nullptr) Drive::drop(operation_);
}

bool DriveIo::ended() const noexcept { return operation_->ended; }

Error DriveIo::error() const noexcept {
  assert(operation_->ended);
  return operation_->completion.error;
}

bool DriveIo::Wait::await_ready() const noexcept {
  return operation->ended || (or_slow && operation->slow);
}

void DriveIo::Wait::await_suspend(std::coroutine_handle<> handle) const noexcept {
  assert(!operation->waiter);
  operation->waiter = handle;
  operation->waiter_wants_slow = or_slow;
}

Completion DriveIo::take() {
  assert(operation_->ended);
  if (operation_->completion.error == Error::kNotReady) operation_->drive->away_ = false;
  return std::move(operation_->completion);
}

}  // namespace sandbay::raid
