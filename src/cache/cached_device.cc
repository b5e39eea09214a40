// What a cached device says of itself, flushes, changes that pass the cache, discarding.
#include "cache/cached_device.h"

#include <algorithm>

#include "cache/pinned_lines.h"
#include "cache/write_memory.h"

namespace sandbay::cache {
namespace {

// Unmapping and zeroing lock and look through so much at once.
constexpr std::uint64_t kChangePieceBytes = std::uint64_t{64} << 20;

}  // namespace

CachedDevice::CachedDevice(Cache& cache, const Uuid& uuid, std::uint16_t index, BlockDevice& below,
                           std::uint32_t stripes_at_once)
    : Layer(below),
      cache_(cache),
      uuid_(uuid),
      index_(index),
      block_bytes_(below.geometry().block_bytes),
      line_blocks_(kLineBytes / block_bytes_),
      stripes_at_once_(stripes_at_once),
      destager_(cache, *this, below) {
  assert(&below.home() == &cache.home());
  destager_.start();
}

CachedDevice::~CachedDevice() = default;

void CachedDevice::note_released(const DirtyRecord& record) {
  assert(live_bytes_ >= record.bytes);
  live_bytes_ -= record.bytes;
  live_room_ -= record.room;
  destager_.update_stuck();
}

const Geometry& CachedDevice::geometry() const noexcept {
  shown_geometry_ = below().geometry();
  shown_geometry_.unit_blocks = shown_geometry_.optimal_io_blocks * stripes_at_once_;
  const bool safe = write_memory() != nullptr && write_memory()->non_volatile();
  shown_geometry_.volatile_cache = !safe;
  shown_geometry_.non_volatile_cache = safe;
  return shown_geometry_;
}

Health CachedDevice::health() const noexcept {
  const Health health = below().health();
  if (destager_.failure() == Error::kNone) return health;
  return health == Health::kFailed || health == Health::kMissing ? health : Health::kDegraded;
}

std::string CachedDevice::description() const { return below().description() + ", cached"; }

Task<Completion> CachedDevice::submit(Request request) {
  assert(request.operation == Operation::kFlush || fits(below().geometry(), request));
  if (closing_) {
    return complete(Error::kClosed, std::move(request.data));
  }
  return Layer::submit(std::move(request));
}

// What is dirty is mapped, whatever the device below says of it.
Task<Result<ProvisioningRun>> CachedDevice::provisioning(Lba first, Lba limit) {
  const Extent asked{.first = first, .block_count = limit - first};
  const Extent dirty = next_dirty(asked);
  if (dirty.block_count > 0 && dirty.first == first) {
    co_return ProvisioningRun{.block_count = dirty.block_count, .mapped = true};
  }
  Result<ProvisioningRun> run = co_await below().provisioning(first, limit);
  if (!run || run->mapped) co_return run;
  // What was dirty when it began may have been destaged behind the answer, and what is dirty now
  // may have become so; either is mapped.
  for (const Extent& other : {dirty, next_dirty(asked)}) {
    if (other.block_count == 0) continue;
    if (other.first == first) co_return ProvisioningRun{other.block_count, true};
    run->block_count = std::min(run->block_count, other.first - first);
  }
  co_return run;
}

// Lines --------------------------------------------------------------------------------------

Range CachedDevice::range_in(std::uint64_t number, const Extent& extent) const noexcept {
  const Lba line_first = number * line_blocks_;
  const Lba first = std::max(extent.first, line_first);
  const Lba end = std::min(extent.end(), line_first + line_blocks_);
  assert(first < end);
  return {.first = static_cast<unsigned>(first - line_first),
          .count = static_cast<unsigned>(end - first)};
}

Extent CachedDevice::next_dirty(const Extent& extent) {
  Stripes& stripes = destager_.stripes();
  for (const Stripe* stripe = stripes.next(stripes.stripe_of(extent.first)); stripe != nullptr;
       stripe = stripes.next(stripe->number + 1)) {
    Extent part = stripes.extent_of(stripe->number);
    const Lba end = std::min(part.end(), extent.end());
    if (part.first >= end) break;
    part.first = std::max(part.first, extent.first);
    if (part.first >= end) continue;
    part.block_count = end - part.first;
    for (std::uint64_t number = line_of(part.first); number <= line_of(end - 1); ++number) {
      const Line* const line = find_line(number);
      if (line == nullptr) continue;
      const Range range = range_in(number, part);
      for (unsigned i = find_segment(*line, range.first); i < line->segments.size(); ++i) {
        const Segment& segment = line->segments[i];
        if (segment.first >= range.end()) break;
        if (segment.dirty == nullptr) continue;
        const unsigned first = std::max<unsigned>(segment.first, range.first);
        return {.first = lba_in(*line, first),
                .block_count = std::min(segment.end(), range.end()) - first};
      }
    }
  }
  return {.first = extent.end(), .block_count = 0};
}

void CachedDevice::forget(const Extent& extent) {
  for_lines(extent, [&](Line& line) {
    cache_.pin(line);
    cache_.cut_out(line, range_in(line.number, extent));
    cache_.unpin(line);
  });
}

// Flush, unmap, zeroes -----------------------------------------------------------------------

Task<Completion> CachedDevice::flush(Request request) {
  ++cache_.volume_state(request.volume).counters.flushes;
  Completion completion{.data = std::move(request.data)};
  if (write_memory() != nullptr && write_memory()->non_volatile()) co_return completion;
  Extent extent = request.extent;
  if (!fits(below().geometry(), request) || extent.block_count == 0) extent = whole();
  const Patience patience(request);
  completion.error = co_await destager_.destage(extent, patience);
  if (completion.error != Error::kNone) co_return completion;
  completion.error = co_await flush_passed(request.volume, patience);
  co_return completion;
}

void CachedDevice::note_passed(std::uint64_t volume) {
  ++cache_.volume_state(volume).passed[index_].made;
  if (volume != 0) ++cache_.volume_state(0).passed[index_].made;
}

// A device that has lost what was not flushed says so once to each volume that it concerns, so each
// volume's flush is sent below in its own name. One of volume 0 looks after the changes of all, and
// settles no other volume's.
Task<Error> CachedDevice::flush_passed(std::uint64_t volume, Patience patience) {
  const Cache::VolumeUse use(cache_, volume);
  PassedChanges& passed = use.state().passed[index_];
  if (passed.flushed == passed.made) co_return Error::kNone;
  // All that wait for the same flush hear the same.
  std::shared_ptr<VolumeFlush> flush = passed.flush;
  if (flush == nullptr || flush->covers != passed.made) {
    flush = std::make_shared<VolumeFlush>();
    flush->covers = passed.made;
    passed.flush = flush;
    const bool entered = gate_.enter();
    Task<void> task = run_flush(volume, flush, entered);
    if (entered) {
      spawn(std::move(task));
    } else {
      co_await std::move(task);  // The device has stopped, and waits for nothing else.
    }
  }
  while (!flush->ended) {
    const Error end = patience.end();
    if (end != Error::kNone) co_return end;
    co_await patience.wait(&flush->changed);
  }
  co_return flush->error;
}

Task<void> CachedDevice::run_flush(std::uint64_t volume, std::shared_ptr<VolumeFlush> flush,
                                   bool in_gate) {
  const Cache::VolumeUse use(cache_, volume);
  const Completion completion = co_await below().submit(
      {.operation = Operation::kFlush, .extent = whole(), .volume = volume});
  PassedChanges& passed = use.state().passed[index_];
  if (completion.error == Error::kNone) passed.flushed = std::max(passed.flushed, flush->covers);
  if (passed.flush == flush) passed.flush = nullptr;
  flush->error = completion.error;
  flush->ended = true;
  flush->changed.notify_all();
  if (in_gate) gate_.leave();
}

Task<Completion> CachedDevice::change_below(Request request) {
  const std::uint64_t most = kChangePieceBytes / block_bytes_;
  const Patience patience(request);
  Completion completion;
  Extent rest = request.extent;
  while (rest.block_count > 0 && completion.error == Error::kNone) {
    Extent piece{.first = rest.first,
                 .block_count = std::min(rest.block_count, most - rest.first % most)};
    rest.first += piece.block_count;
    rest.block_count -= piece.block_count;
    RangeLocks::Hold hold(locks_, RangeLocks::Kind::kChange, piece);
    completion.error = co_await locks_.wait(hold, patience);
    if (completion.error != Error::kNone) break;
    completion.error = co_await destager_.expel(piece, patience);
    if (completion.error != Error::kNone) break;
    Request part = part_of(request, piece, {});
    part.operation = request.operation;
    completion = co_await below().submit(std::move(part));
    if (completion.error == Error::kNone) damaged_.remove(piece);
    note_passed(request.volume);
    forget(piece);
    // With NVRAM, what was acknowledged survives without a flush.
    if (completion.error == Error::kNone && write_memory() != nullptr) {
      completion.error = co_await flush_passed(request.volume, {});
    }
  }
  completion.data = std::move(request.data);
  co_return completion;
}

Request CachedDevice::part_of(const Request& request, const Extent& extent, BufferList data) {
  return {.operation = request.operation,
          .force_unit_access = request.force_unit_access,
          .disable_page_out = request.disable_page_out,
          .origin = request.origin,
          .extent = extent,
          .data = std::move(data),
          .volume = request.volume,
          .deadline = request.deadline,
          .cancellation = request.cancellation};
}

// Management ---------------------------------------------------------------------------------

// Of what is below then, a read that began before knows nothing: a write may have been destaged
// behind it. It must not fill what is discarded.
Task<std::vector<VolumeExtent>> CachedDevice::discard() {
  co_await destager_.pause();
  // No suspension from here on: nothing can be written or begun meanwhile.
  std::vector<VolumeExtent> discarded;
  for (Extent dirty = next_dirty(whole()); dirty.block_count > 0; dirty = next_dirty(whole())) {
    Line& line = *find_line(line_of(dirty.first));
    const Range range = range_in(line.number, dirty);
    const Segment& segment = line.segments[find_segment(line, range.first)];
    const std::uint64_t volume = segment.dirty->record->volume;
    cache_.pin(line);
    cache_.cut_out(line, range);
    cache_.check_releases(line);
    outdate_fetches(line, range);
    cache_.unpin(line);
    damaged_.remove(dirty);
    destager_.counters().discarded_bytes += dirty.byte_count(block_bytes_);
    if (!discarded.empty() && discarded.back().volume == volume &&
        discarded.back().extent.end() == dirty.first) {
      discarded.back().extent.block_count += dirty.block_count;
    } else {
      discarded.push_back({.volume = volume, .extent = dirty});
    }
  }
  destager_.forget_failure();
  destager_.resume();
  co_return discarded;
}

Task<Error> CachedDevice::flush_all() {
  Error error = co_await destage_all();
  if (error == Error::kNone) error = co_await flush_passed(0, {});
  co_return error;
}

Task<Error> CachedDevice::close() {
  closing_ = true;
  const Error error = co_await flush_all();
  co_await stop();
  co_return error;
}

Task<void> CachedDevice::stop() {
  closing_ = true;
  co_await gate_.close();
  co_await destager_.stop();
}

}  // namespace sandbay::cache
