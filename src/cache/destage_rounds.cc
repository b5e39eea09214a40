// Rounds: flushes below, shared by the units written before; and waiting for all of that.
#include <algorithm>
#include <utility>

#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/destage.h"
#include "cache/destage_unit.h"

namespace sandbay::cache {
namespace {

// A flush below costs more than a write does. So units wait for others, but not for long and not
// for many: what a round releases is what writers can go on with.
constexpr Duration kGather = std::chrono::milliseconds(10);
constexpr std::uint64_t kRoundBytes = std::uint64_t{8} << 20;

}  // namespace

bool Destager::round_is_wanted() const noexcept { return first_written_ != nullptr; }

bool Destager::round_is_due() const noexcept {
  return stopping_ || in_flight_ == 0 || waiting_ > 0 || written_bytes_ >= kRoundBytes ||
         cache_.throttle().waiting();
}

Task<void> Destager::run_rounds() {
  for (;;) {
    while (!round_is_wanted() && !(stopping_ && in_flight_ == 0)) co_await round_work_.wait();
    if (!round_is_wanted()) break;
    while (!round_is_due() && cache_.home().now() < written_since_ + kGather) {
      (void)co_await round_work_.wait_until(written_since_ + kGather);
    }
    Unit* unit = std::exchange(first_written_, nullptr);
    last_written_ = nullptr;
    written_bytes_ = 0;
    ++counters_.rounds;
    const Completion completion = co_await below_.submit(round_flush());
    while (unit != nullptr) {
      Unit* const next = unit->next;
      settle(unit, completion.error);
      unit = next;
    }
    landed_.notify_all();
  }
  gate_.leave();
}

Request Destager::round_flush() const {
  return {.operation = Operation::kFlush,
          .origin = Origin::kDestage,
          .extent = {.first = 0, .block_count = below_.geometry().block_count},
          .volume = kDestagerVolume};
}

Task<void> Destager::wait_for_flights(Extent extent, Patience patience) {
  const std::uint64_t latest = stripes_.flights();
  const std::uint64_t last = stripes_.stripe_of(extent.end() - 1);
  std::uint64_t number = stripes_.stripe_of(extent.first);
  ++waiting_;
  round_work_.notify_all();
  while (patience.lasts()) {
    const Stripe* const stripe = stripes_.next_in_flight(number);
    if (stripe == nullptr || stripe->number > last) break;
    number = stripe->number;
    if (stripe->flight <= latest) {
      co_await patience.wait(&landed_);
    } else {
      ++number;
    }
  }
  --waiting_;
}

Task<void> Destager::pause() {
  ++paused_;
  co_await wait_for_flights({.first = 0, .block_count = below_.geometry().block_count});
}

void Destager::resume() {
  assert(paused_ > 0);
  --paused_;
  changed_.notify_all();
  landed_.notify_all();
}

// Only its own stripes' failures end it: another volume's bad sector is not its concern.
Task<Error> Destager::destage(Extent extent, Patience patience) {
  const std::uint64_t flights = stripes_.flights();
  std::uint64_t failures = failures_;
  Error failed = Error::kNone;
  co_await wait_for_flights(extent, patience);
  std::uint64_t number = stripes_.stripe_of(extent.first);
  const std::uint64_t last = stripes_.stripe_of(extent.end() - 1);
  while (patience.lasts()) {
    if (std::exchange(failures, failures_) != failures_)
      failed = failed_since(extent, flights, true);
    if (failed != Error::kNone) break;
    Stripe* const stripe = stripes_.next(number);
    if (stripe == nullptr || stripe->number > last) break;
    if (stopping_) co_return Error::kClosed;
    if (!may_begin()) {
      co_await patience.wait(&landed_);
      continue;
    }
    number = stripe->number + 1;
    // In flight: it was begun after the flush, with all that the flush is about.
    if (!stripe->in_flight) {
      Unit* const unit = begin(*stripe);
      number = stripes_.stripe_of(unit->extent.end() - 1) + 1;
      spawn(write_unit(unit));
    }
  }
  co_await wait_for_flights(extent, patience);
  const Error end = patience.end();
  if (end != Error::kNone) co_return end;
  co_return failed != Error::kNone ? failed : failed_since(extent, flights, false);
}

Task<Error> Destager::expel(Extent extent, Patience patience, std::uint64_t left) {
  co_await wait_for_flights(extent, patience);
  Error error = patience.end();
  if (error == Error::kNone && first_record_in(extent) != nullptr) {
    error = co_await destage(extent, patience);
  }
  while (error == Error::kNone) {
    DirtyPart* const part = first_record_in(extent);
    if (part == nullptr) break;
    // It has other blocks elsewhere, or an older record that it must outlive has.
    const DirtyPart& holder = what_holds(*part);
    error = co_await destage({.first = device_.lba_in(*holder.line, holder.range.first),
                              .block_count = holder.range.count},
                             patience);
  }
  if (error == Error::kNone && cache_.write_memory() != nullptr) {
    error = co_await cache_.write_memory()->flush_releases(device_.uuid(), extent, patience, left);
  }
  co_return error;
}

// A record there that is not released, or null.
DirtyPart* Destager::first_record_in(const Extent& extent) {
  DirtyPart* found = nullptr;
  device_.for_lines(extent, [&](Line& line) {
    if (found == nullptr) found = oldest_overlapping(line, device_.range_in(line.number, extent));
  });
  return found;
}

// How a flight of a stripe there ended that began after so many and failed. One that is in flight
// again is none of the landed: it may yet do.
Error Destager::failed_since(const Extent& extent, std::uint64_t flights, bool landed) {
  if (stripes_.failed() == 0) return Error::kNone;
  const std::uint64_t last = stripes_.stripe_of(extent.end() - 1);
  const Stripe* stripe = stripes_.next(stripes_.stripe_of(extent.first));
  while (stripe != nullptr && stripe->number <= last) {
    const bool counts = stripe->flight > flights && !(landed && stripe->in_flight);
    if (counts && stripe->error != Error::kNone) return stripe->error;
    stripe = stripes_.next(stripe->number + 1);
  }
  return Error::kNone;
}

}  // namespace sandbay::cache
