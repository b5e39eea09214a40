// Chunks are zeroed one at a time, by whoever needs one or by the run in the background.
#include "group/clearing.h"

#include <algorithm>
#include <utility>

namespace sandbay::group {

namespace {

using std::chrono_literals::operator""s;

// At once where zeros are written: few enough that hosts are not kept waiting.
constexpr std::uint64_t kZeroBytes = std::uint64_t{1} << 20;
// How much work a crash may undo.
constexpr std::uint64_t kMostUnkept = 1024;
constexpr Duration kLongestUnkept = 10s;
// The set is away, or there is no room.
constexpr Duration kRetry = 5s;

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
  part.modelled_arrival = request.modelled_arrival;
  return part;
}

}  // namespace

Task<Completion> Clearing::submit(Request request) {
  if (areas_.empty()) return below().submit(std::move(request));
  ++requests_;
  const bool whole = request.operation == Operation::kFlush ||
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
      completion.modelled_end = std::max(completion.modelled_end, done.modelled_end);
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
  failed.error = co_await clear_for(request.extent);
  if (failed.error == Error::kNone) {
    Completion done = co_await below().submit(std::move(request));
    co_return done;
  }
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
      const Extent here{.first = lba, .block_count = run.block_count};
      const Completion done = co_await below().submit(part_of(request, here));
      completion.error = done.error;
      completion.first_bad_lba = done.first_bad_lba;
      completion.modelled_end = std::max(completion.modelled_end, done.modelled_end);
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

Task<Error> Clearing::clear_for(Extent extent) {
  co_await lock_.lock();
  Error error = Error::kNone;
  while (error == Error::kNone) {
    const auto chunk = areas_.first_old(extent);
    if (!chunk) break;
    error = co_await zero_chunk(*chunk);
    if (error == Error::kNone) areas_.mark_zeroed(*chunk);
  }
  if (error == Error::kNone && !areas_.kept(extent)) error = co_await keep_zeroed();
  lock_.unlock();
  co_return error;
}

// By one request where that costs the drives no writing.
Task<Error> Clearing::zero_chunk(Extent chunk) {
  if (!unmap_refused_ && geometry().unmap && geometry().unmap_zeroes) {
    Request request;
    request.operation = Operation::kUnmap;
    request.extent = chunk;
    const Completion done = co_await below().submit(std::move(request));
    if (done.error != Error::kUnsupported) co_return done.error;
    unmap_refused_ = true;
  }
  const std::uint64_t step = std::max<std::uint64_t>(1, kZeroBytes / geometry().block_bytes);
  while (chunk.block_count > 0) {
    Request request;
    request.operation = Operation::kWriteZeroes;
    request.extent = {.first = chunk.first, .block_count = std::min(step, chunk.block_count)};
    chunk.first += request.extent.block_count;
    chunk.block_count -= request.extent.block_count;
    const Completion done = co_await below().submit(std::move(request));
    if (done.error != Error::kNone) co_return done.error;
  }
  co_return Error::kNone;
}

// The zeros are durable first, then the record of them.
Task<Error> Clearing::keep_zeroed() {
  Request flush;
  flush.operation = Operation::kFlush;
  const Completion flushed = co_await below().submit(std::move(flush));
  if (flushed.error != Error::kNone) co_return flushed.error;
  const Error error = co_await keep_(areas_.first_old() ? areas_.encode() : std::string());
  if (error != Error::kNone) co_return error;
  areas_.keep_zeroed();
  kept_at_ = home().now();
  co_return Error::kNone;
}

Task<Error> Clearing::grow(Extent added, Store store) {
  co_await lock_.lock();
  Error error = Error::kNone;
  // The record would call it cleared.
  if (areas_.zeroed_count() > 0) error = co_await keep_zeroed();
  ClearedAreas larger = areas_;
  larger.add(added, geometry().block_bytes);
  if (error == Error::kNone) {
    error = co_await store(larger.empty() ? std::string() : larger.encode());
  }
  if (error == Error::kNone) areas_ = std::move(larger);
  lock_.unlock();
  if (error == Error::kNone) start();
  co_return error;
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
  wake_.notify_all();
  const bool ended = co_await gate_.close_until(deadline);
  co_return ended;
}

// One chunk more; now and then what has been zeroed is kept.
Task<Error> Clearing::step(bool* ended) {
  co_await lock_.lock();
  Error error = Error::kNone;
  const auto chunk = areas_.first_old();
  if (chunk) error = co_await zero_chunk(*chunk);
  if (chunk && error == Error::kNone) areas_.mark_zeroed(*chunk);
  const bool due = !areas_.first_old() || areas_.zeroed_count() >= kMostUnkept ||
                   home().now() - kept_at_ >= kLongestUnkept;
  if (error == Error::kNone && due && areas_.zeroed_count() > 0) error = co_await keep_zeroed();
  *ended = areas_.empty();
  lock_.unlock();
  co_return error;
}

// Where hosts are at work it rests as long as it has worked.
Task<void> Clearing::run() {
  bool ended = false;
  while (!ended && !stopping_) {
    const std::uint64_t requests = requests_;
    const TimePoint began = home().now();
    const Error error = co_await step(&ended);
    const TimePoint now = home().now();
    if (ended || stopping_) break;
    if (error != Error::kNone) {
      (void)co_await wake_.wait_until(now + kRetry);
    } else if (requests != requests_) {
      (void)co_await wake_.wait_until(now + (now - began));
    } else {
      co_await home().yield();
    }
  }
  running_ = false;
  gate_.leave();
}

}  // namespace sandbay::group
