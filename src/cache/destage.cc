// Destaging: what goes next, and writing it.
#include "cache/destage.h"

#include <algorithm>

#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/destage_unit.h"

namespace sandbay::cache {
namespace {

// After a failure; doubled each time.
constexpr Duration kFirstBackOff = std::chrono::milliseconds(500);
constexpr Duration kLongestBackOff = std::chrono::seconds(30);
// Of the room for dirty data: a stripe is young until so much was written after it had begun.
constexpr std::uint64_t kYoungShare = 8;

std::uint64_t stripe_blocks(const CacheOptions& options, const Geometry& geometry) {
  if (geometry.unit_blocks > 1) return geometry.unit_blocks;
  return std::max<std::uint64_t>(options.destage_bytes, kLineBytes) / geometry.block_bytes;
}

}  // namespace

Destager::Destager(Cache& cache, CachedDevice& device, BlockDevice& below)
    : cache_(cache),
      device_(device),
      below_(below),
      stripes_(stripe_blocks(cache.options(), device.geometry()), below.geometry().block_count) {}

Destager::~Destager() { assert(in_flight_ == 0 && first_written_ == nullptr); }

void Destager::start() {
  const bool entered = gate_.enter() && gate_.enter();
  assert(entered);
  spawn(run());
  spawn(run_rounds());
}

Task<void> Destager::stop() {
  stopping_ = true;
  changed_.notify_all();
  round_work_.notify_all();
  co_await gate_.close();
}

void Destager::note_write(const Extent& extent) {
  const bool was_empty = stripes_.dirty_blocks() == 0;
  last_write_ = cache_.home().now();
  stripes_.add(extent, last_write_);
  const Throttle& throttle = cache_.throttle();
  if (urgent()) {
    cache_.wake_destagers();
  } else if (was_empty || throttle.above_high() || (throttle.above_low() && stripes_.any_full())) {
    changed_.notify_all();
  }
}

void Destager::set_urgent(bool urgent) {
  urgent_ = urgent;
  changed_.notify_all();
}

// What goes next ------------------------------------------------------------------------------

Task<void> Destager::run() {
  while (!stopping_) {
    if (!may_begin()) {
      co_await landed_.wait();
      continue;
    }
    TimePoint wake_at = kNever;
    Stripe* const stripe = pick(&wake_at);
    if (stripe != nullptr) {
      spawn(write_unit(begin(*stripe)));
    } else {
      (void)co_await changed_.wait_until(wake_at);
    }
  }
  gate_.leave();
}

bool Destager::may_begin() const noexcept {
  return paused_ == 0 && in_flight_ < cache_.options().destages_in_flight;
}

// Where the memory does not count as safe, nothing stays in it.
bool Destager::content_gone() const noexcept {
  const WriteMemory* const memory = cache_.write_memory();
  return memory != nullptr && memory->content_gone();
}

bool Destager::urgent() const noexcept {
  const WriteMemory* const memory = cache_.write_memory();
  return urgent_ || (memory != nullptr && !memory->takes_writes());
}

// Null: nothing before wake_at, unless something changes.
Stripe* Destager::pick(TimePoint* wake_at) {
  const TimePoint now = cache_.home().now();
  Stripe* const oldest = stripes_.oldest();
  if (oldest == nullptr) return nullptr;
  if (failure_ != Error::kNone) {
    if (in_flight_ > 0) return nullptr;
    *wake_at = retry_at_;
    return now < retry_at_ ? nullptr : oldest;
  }
  const std::uint32_t block_bytes = below_.geometry().block_bytes;
  const Throttle::Limits& limits = cache_.throttle().limits();
  const std::uint64_t used = cache_.throttle().used_bytes();
  const std::uint64_t level = used - std::min(in_flight_bytes_, used);
  const CacheOptions& options = cache_.options();
  const WriteMemory* const memory = cache_.write_memory();
  const bool short_of_room =
      cache_.short_of_room() || (memory != nullptr && memory->short_of_log());
  const bool everything = urgent() || short_of_room || now - last_write_ >= options.idle_flush;
  if (everything || level > limits.low_bytes) {
    Stripe* full = stripes_.next_full(cursor_);
    if (full == nullptr) full = stripes_.next_full(0);
    if (full != nullptr) return full;
  }
  if (everything || level > limits.high_bytes) {
    // What has just begun may yet become full, and there is other work.
    const bool spare = !everything && in_flight_bytes_ > 0;
    const std::uint64_t young = spare ? limits.most_bytes / kYoungShare / block_bytes : 0;
    Stripe* next = next_idle(cursor_, young);
    if (next == nullptr) next = next_idle(0, young);
    if (next != nullptr) return next;
  }
  if (now - oldest->since >= options.age_limit) return oldest;
  // Beside what is stuck the low watermark may leave less than somebody waits for.
  if (cache_.throttle().short_of_room() && in_flight_bytes_ == 0) return oldest;
  *wake_at = std::min(oldest->since + options.age_limit, last_write_ + options.idle_flush);
  return nullptr;
}

// The next dirty stripe that is not in flight, and since whose first block at least `young` others
// have become dirty.
Stripe* Destager::next_idle(std::uint64_t number, std::uint64_t young) {
  Stripe* stripe = stripes_.next(number);
  while (stripe != nullptr && (stripe->in_flight || stripes_.youth(*stripe) < young)) {
    stripe = stripes_.next(stripe->number + 1);
  }
  return stripe;
}

// Writing --------------------------------------------------------------------------------------

// A unit of this stripe or, if it is full, of as many full ones in a row as one write takes.
Destager::Unit* Destager::begin(Stripe& first) {
  auto* const unit = new Unit;
  unit->sequence = cache_.sequence();
  unit->extent = stripes_.extent_of(first.number);
  std::uint64_t most = std::max<std::uint64_t>(
      cache_.options().destage_bytes / below_.geometry().block_bytes, stripes_.stripe_blocks());
  if (below_.geometry().maximum_io_blocks > 0) {
    most = std::min<std::uint64_t>(most, below_.geometry().maximum_io_blocks);
  }
  Stripe* stripe = &first;
  const bool whole = stripes_.full(first);
  std::uint64_t dirty_blocks = 0;
  for (;;) {
    dirty_blocks += stripe->dirty_blocks;
    stripes_.begin(*stripe);
    cursor_ = stripe->number + 1;
    stripe = stripes_.find(cursor_);
    if (!whole || stripe == nullptr || stripe->in_flight || !stripes_.full(*stripe)) break;
    const Extent more = stripes_.extent_of(stripe->number);
    if (unit->extent.block_count + more.block_count > most) break;
    unit->extent.block_count += more.block_count;
  }
  unit->bytes = dirty_blocks * below_.geometry().block_bytes;
  in_flight_bytes_ += unit->bytes;
  ++in_flight_;
  cache_.throttle().note_begun();
  const bool entered = gate_.enter();
  assert(entered);
  return unit;
}

Task<void> Destager::write_unit(Unit* unit) {
  unit->error = co_await check_content(unit);
  if (unit->error == Error::kNone) begin_runs(unit);
  while (unit->pending > 0) co_await unit->written.wait();

  --in_flight_;
  if (unit->error != Error::kNone) {
    settle(unit, unit->error);
  } else {
    if (first_written_ == nullptr) written_since_ = cache_.home().now();
    (first_written_ != nullptr ? last_written_->next : first_written_) = unit;
    last_written_ = unit;
    written_bytes_ += unit->bytes;
  }
  round_work_.notify_all();
  landed_.notify_all();
  gate_.leave();
}

void Destager::begin_runs(Unit* unit) {
  unit->whole = whole_in_cache(unit->extent);
  ++unit->pending;  // So that it does not end before its last run has begun.
  const std::uint64_t most = below_.geometry().maximum_io_blocks;
  Extent run = next_run(*unit, unit->extent.first, unit->whole);
  while (run.block_count > 0) {
    if (most > 0) run.block_count = std::min(run.block_count, most);
    ++unit->pending;
    spawn(write_run(unit, run, content_of(run)));
    run = next_run(*unit, run.end(), unit->whole);
  }
  --unit->pending;
}

Task<void> Destager::write_run(Unit* unit, Extent extent, BufferList data) {
  const std::uint64_t byte_count = data.byte_count();
  const bool gone = content_gone();
  const Completion completion = co_await below_.submit({.operation = Operation::kWrite,
                                                        .origin = Origin::kDestage,
                                                        .extent = extent,
                                                        .data = std::move(data),
                                                        .volume = kDestagerVolume});
  if (completion.error != Error::kNone) {
    unit->error = completion.error;
  } else if (content_gone() != gone) {
    unit->error = Error::kDataCorrupt;  // Perhaps zeros went below: again, and checked before.
  } else {
    ++counters_.destages;
    counters_.destage_bytes += byte_count;
  }
  --unit->pending;
  unit->written.notify_all();
}

// The next dirty blocks of the unit in one run, over lines, or all that are left; 0 blocks: none.
Extent Destager::next_run(const Unit& unit, Lba from, bool whole) {
  if (whole) return {.first = from, .block_count = unit.extent.end() - from};
  const auto dirty_from = [&](Lba at) {
    return device_.next_dirty({.first = at, .block_count = unit.extent.end() - at});
  };
  Extent run = dirty_from(from);
  while (run.block_count > 0 && run.end() < unit.extent.end()) {
    const Extent more = dirty_from(run.end());
    if (more.block_count == 0 || more.first != run.end()) break;
    run.block_count += more.block_count;
  }
  return run;
}

// Every block is cached, and nobody changes one below. What is clean in the write memory does not
// count: nobody can tell any more whether it is what it was. A lost block stays lost: a fetch may
// have brought its old content, and writing that below would take it off the list of lost blocks.
bool Destager::whole_in_cache(const Extent& extent) const {
  if (device_.locks_.blocked(RangeLocks::Kind::kRead, extent)) return false;
  if (device_.damaged_.first_in(extent)) return false;
  for (std::uint64_t number = device_.line_of(extent.first);
       number <= device_.line_of(extent.end() - 1); ++number) {
    const Line* const line = device_.find_line(number);
    if (line == nullptr) return false;
    const Range range = device_.range_in(number, extent);
    if (first_gap(*line, range).count > 0) return false;
    for (unsigned i = find_segment(*line, range.first); i < line->segments.size(); ++i) {
      const Segment& segment = line->segments[i];
      if (segment.first >= range.end()) break;
      if (segment.in_write_memory && segment.dirty == nullptr) return false;
    }
  }
  return true;
}

BufferList Destager::content_of(const Extent& extent) const {
  BufferList data;
  for (std::uint64_t number = device_.line_of(extent.first);
       number <= device_.line_of(extent.end() - 1); ++number) {
    const bool there = collect(*device_.find_line(number), device_.range_in(number, extent),
                               device_.block_bytes(), data);
    assert(there);
  }
  return data;
}

// The end of a unit ----------------------------------------------------------------------------

void Destager::settle(Unit* unit, Error error) {
  const TimePoint now = cache_.home().now();
  in_flight_bytes_ -= unit->bytes;
  cache_.throttle().note_destaged(error == Error::kNone ? unit->bytes : 0);
  if (error == Error::kNone) clean(*unit);
  const std::uint64_t first = stripes_.stripe_of(unit->extent.first);
  const std::uint64_t last = stripes_.stripe_of(unit->extent.end() - 1);
  if (error == Error::kNone) {
    (unit->whole ? counters_.full_stripes : counters_.partial_stripes) += last - first + 1;
  }
  for (std::uint64_t number = first; number <= last; ++number) {
    stripes_.end(*stripes_.find(number), now, error);
  }
  if (error != Error::kNone) {
    fail(error);
  } else if (stripes_.failed() == 0) {
    forget_failure();
  } else {
    retry_at_ = now;  // Others may do, too.
  }
  delete unit;
  changed_.notify_all();
  landed_.notify_all();
}

// What was dirty when the unit began and was not overwritten since is durable now.
void Destager::clean(const Unit& unit) {
  const std::uint32_t block_bytes = device_.block_bytes();
  device_.for_lines(unit.extent, [&](Line& line) {
    const Range range = device_.range_in(line.number, unit.extent);
    cache_.pin(line);
    split(line, range.first, block_bytes);
    split(line, range.end(), block_bytes);
    bool any = false;
    for (unsigned i = find_segment(line, range.first); i < line.segments.size(); ++i) {
      Segment& segment = line.segments[i];
      if (segment.first >= range.end()) break;
      if (segment.dirty == nullptr || segment.dirty->record->sequence > unit.sequence) continue;
      Releases::cleaned(*segment.dirty, segment.count);
      stripes_.remove({.first = device_.lba_in(line, segment.first), .block_count = segment.count});
      segment.dirty = nullptr;
      any = true;
    }
    if (any) cache_.check_releases(line);
    cache_.unpin(line);
  });
}

void Destager::fail(Error error) {
  ++counters_.destage_errors;
  ++failures_;
  const bool begins = failure_ == Error::kNone;
  failure_ = error;
  back_off_ = std::clamp(back_off_ * 2, kFirstBackOff, kLongestBackOff);
  retry_at_ = cache_.home().now() + back_off_;
  update_stuck();
  if (begins && cache_.on_failing) cache_.on_failing(device_.uuid());
}

void Destager::forget_failure() {
  const bool ends = failure_ != Error::kNone;
  failure_ = Error::kNone;
  back_off_ = Duration::zero();
  update_stuck();
  if (ends && cache_.on_failing) cache_.on_failing(device_.uuid());
}

void Destager::update_stuck() {
  const auto live = static_cast<std::int64_t>(device_.live_room_);
  const std::int64_t stuck = failure_ != Error::kNone ? live : 0;
  if (stuck == stuck_bytes_) return;
  const std::int64_t more = stuck - std::exchange(stuck_bytes_, stuck);
  cache_.throttle().add_stuck(more);
}

}  // namespace sandbay::cache
