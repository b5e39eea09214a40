// Reads and advice of a cached device: hits, fetches, and reading around the cache.
#include <algorithm>
#include <array>

#include "cache/cached_device.h"
#include "cache/pinned_lines.h"

namespace sandbay::cache {
namespace {

// A read that cannot be served from the cache by then goes below by itself: what it wants is being
// unmapped under its feet, again and again.
constexpr unsigned kAttempts = 3;

// Whether a device has answered with the memory that it was given, all of it. Where it has not, a
// drive that is late may still put something there.
bool same_memory(const BufferList& one, const BufferList& other) {
  assert(one.byte_count() == other.byte_count());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < one.slice_count(); ++i) {
    const std::size_t byte_count = one[i].byte_count();
    const BufferList there = other.share(offset, byte_count);
    const std::byte* at = one[i].data();
    for (std::size_t j = 0; j < there.slice_count(); ++j) {
      if (there[j].data() != at) return false;
      at += there[j].byte_count();
    }
    offset += byte_count;
  }
  return true;
}

}  // namespace

// Not a coroutine: a hit costs one small frame, and those of the other ways are not part of it.
Task<Completion> CachedDevice::read(Request request) {
  VolumeState& volume = cache_.volume_state(request.volume);
  ++volume.counters.reads;
  volume.counters.read_bytes += request.data.byte_count();
  const bool for_host = request.origin == Origin::kHost || request.origin == Origin::kReadAhead;
  if (request.extent.block_count == 0) {
    return complete(Error::kNone, std::move(request.data));
  }
  if (!damaged_.empty()) {
    const std::optional<Lba> bad = damaged_.first_in(request.extent);
    if (bad) return end_damaged(*bad, std::move(request));
  }
  if (request.force_unit_access) return read_medium(std::move(request));
  if (!for_host || volume.mode == Mode::kNone) {
    ++volume.counters.pass_throughs;
    return read_around(std::move(request), !for_host);
  }
  BufferList data;
  if (!collect_hit(request.extent, data)) return read_missing(std::move(request));
  ++volume.counters.hits;
  return complete(Error::kNone, lend(std::move(data), request));
}

// The memory of writes is short: while slow readers have much of it, others get copies.
BufferList CachedDevice::lend(BufferList found, Request& request) const {
  if (!cache_.lent_too_much() || request.data.byte_count() != found.byte_count()) return found;
  const BufferPool& pool = write_memory()->buffers();
  for (std::size_t i = 0; i < found.slice_count(); ++i) {
    if (!pool.owns(found[i])) continue;
    request.data.copy_from(found);
    return std::move(request.data);
  }
  return found;
}

Task<Completion> CachedDevice::complete(Error error, BufferList data) {
  co_return Completion{.error = error, .data = std::move(data)};
}

Task<Completion> CachedDevice::end_damaged(Lba first, Request request) {
  co_return Completion{
      .error = Error::kMediumError, .first_bad_lba = first, .data = std::move(request.data)};
}

// Without waiting, and so without pins.
bool CachedDevice::collect_hit(const Extent& extent, BufferList& out) {
  std::array<Line*, kPieceBytes / kLineBytes + 1> lines;
  std::size_t count = 0;
  for (std::uint64_t number = line_of(extent.first); number <= line_of(extent.end() - 1);
       ++number) {
    Line* const line = count < lines.size() ? find_line(number) : nullptr;
    if (line == nullptr || !collect(*line, range_in(number, extent), block_bytes_, out)) {
      out.clear();
      return false;
    }
    lines[count++] = line;
  }
  for (std::size_t i = 0; i < count; ++i) {
    cache_.note_hit(*lines[i], range_in(lines[i]->number, extent));
  }
  return true;
}

Task<Completion> CachedDevice::read_missing(Request request) {
  const Cache::VolumeUse use(cache_, request.volume);
  VolumeState& volume = use.state();
  const TimePoint start = home().now();
  BufferList out;
  Seen seen;
  Extent rest = request.extent;
  while (rest.block_count > 0) {
    const Extent piece = first_piece(rest);
    const Result<bool> done = co_await assemble(piece, &request, &seen, &out);
    if (!done) {
      co_return Completion{.error = done.error(), .data = std::move(request.data)};
    }
    if (!*done) break;
    rest.first += piece.block_count;
    rest.block_count -= piece.block_count;
  }
  Completion completion;
  if (rest.block_count == 0) {
    ++(seen.present ? volume.counters.partial_hits : volume.counters.misses);
    if (seen.read_ahead) ++volume.counters.late_hits;
    completion.data = lend(std::move(out), request);
  } else {
    ++volume.counters.pass_throughs;
    completion = co_await read_around(std::move(request), false);
  }
  volume.counters.miss_latency.add(home().now() - start);
  co_return completion;
}

// Appends the piece to `out`, after fetching what is not there. False: the cache cannot serve it.
// The error of a request that does not wait for a fetch any longer; the fetch goes on.
Task<Result<bool>> CachedDevice::assemble(Extent piece, const Request* request, Seen* seen,
                                          BufferList* out) {
  const Patience patience(*request);
  const Hint hint = request->disable_page_out ? Hint::kOnce : Hint::kNormal;
  PinnedLines lines(*this, piece, hint);
  if (!lines.obtain()) co_return false;
  for (unsigned attempt = 0; attempt < kAttempts; ++attempt) {
    bool complete = true;
    for (std::size_t i = 0; i < lines.size() && complete; ++i) {
      const Range gap = first_gap(lines[i], lines.range(i));
      complete = gap.count == 0;
      if (attempt == 0 && gap.count != lines.range(i).count) seen->present = true;
    }
    if (complete) {
      for (std::size_t i = 0; i < lines.size(); ++i) {
        collect(lines[i], lines.range(i), block_bytes_, *out);
        cache_.note_hit(lines[i], lines.range(i));
      }
      co_return true;
    }
    Joined joined;
    bool good = start_fetches(lines, *request, &joined);
    for (std::size_t i = 0; i < joined.count; ++i) {
      Fetch* const fetch = joined.fetches[i];
      seen->read_ahead = seen->read_ahead || fetch->origin == Origin::kReadAhead;
      while (good && !fetch->ended && patience.lasts()) co_await patience.wait(&fetch->end);
      good = good && fetch->ended && fetch->error == Error::kNone;
      Fetch::leave(fetch);
    }
    const Error end = patience.end();
    if (end != Error::kNone) co_return std::unexpected(end);
    if (!good) co_return false;
  }
  co_return false;
}

// Joins the fetches that bring missing blocks and starts others for the rest. False if one cannot
// be started; those that were are in `joined` all the same.
bool CachedDevice::start_fetches(const PinnedLines& lines, const Request& request, Joined* joined) {
  Extent run;  // Missing, and nobody fetches it: grows over lines.
  bool good = true;
  const auto start_run = [&] {
    if (run.block_count > 0) good = good && start_fetch(run, request, joined);
    run = {};
  };
  for (std::size_t i = 0; i < lines.size() && good; ++i) {
    const Line& line = lines[i];
    const Range whole_range = lines.range(i);
    Range left = whole_range;
    for (Range gap = first_gap(line, left); gap.count > 0 && good; gap = first_gap(line, left)) {
      unsigned next = gap.end();
      FetchPart* covering = nullptr;
      for (FetchPart* part = line.fetches; part != nullptr; part = part->next) {
        if (!part->range.overlaps(gap)) continue;
        if (part->range.first <= gap.first) covering = part;
        next = std::min(next, std::max(part->range.first, gap.first));
      }
      if (covering != nullptr) {
        next = std::min(covering->range.end(), gap.end());
        start_run();
        good = good && joined->add(*covering->fetch);
      } else {
        const Lba first = lba_in(line, gap.first);
        if (run.block_count > 0 && run.end() != first) start_run();
        if (run.block_count == 0) run.first = first;
        run.block_count += next - gap.first;
      }
      left = {.first = next, .count = whole_range.end() - next};
      if (left.count == 0) break;
    }
  }
  start_run();
  return good;
}

bool CachedDevice::start_fetch(const Extent& extent, const Request& request, Joined* joined) {
  const bool ahead = request.origin == Origin::kReadAhead;
  if (joined->full() || !gate_.enter()) return false;
  const std::uint64_t byte_count = extent.byte_count(block_bytes_);
  const bool room = !ahead || cache_.begin_read_ahead(byte_count);
  BufferList data;
  if (room) data = allocate_by_line(extent);
  if (ahead) {
    VolumeCounters& counters = cache_.volume_state(request.volume).counters;
    (data.empty() ? counters.advice_dropped_bytes : counters.read_ahead_bytes) += byte_count;
    if (room && data.empty()) cache_.end_read_ahead(byte_count);
  }
  if (data.empty()) {
    gate_.leave();
    return false;
  }
  const std::uint64_t first = line_of(extent.first);
  const auto count = static_cast<unsigned>(line_of(extent.end() - 1) - first + 1);
  Fetch* const fetch = Fetch::make(count);
  fetch->extent = extent;
  fetch->origin = request.origin;
  fetch->volume = request.volume;
  if (ahead) fetch->hint = Hint::kReadAhead;
  if (request.disable_page_out) fetch->hint = Hint::kOnce;
  fetch->data = std::move(data);
  for (unsigned i = 0; i < count; ++i) {
    FetchPart& part = fetch->parts()[i];
    Line& line = *find_line(first + i);  // Pinned by the caller.
    part.line = &line;
    part.range = range_in(first + i, extent);
    part.next = line.fetches;
    line.fetches = &part;
  }
  joined->add(*fetch);
  run_fetch(fetch);
  return true;
}

// Buffers end with lines, so that they come free with them.
BufferList CachedDevice::allocate_by_line(const Extent& extent) {
  BufferList data;
  for (std::uint64_t number = line_of(extent.first); number <= line_of(extent.end() - 1);
       ++number) {
    BufferList part = cache_.allocate(std::size_t{range_in(number, extent).count} * block_bytes_);
    if (part.empty()) return {};
    data.append(std::move(part));
  }
  return data;
}

Spawned CachedDevice::run_fetch(Fetch* fetch) {
  const Cache::VolumeUse use(cache_, fetch->volume);
  RangeLocks::Hold lock(locks_, RangeLocks::Kind::kRead, fetch->extent);
  if (!lock.ready()) (void)co_await locks_.wait(lock);
  Request request{.operation = Operation::kRead,
                  .origin = fetch->origin,
                  .extent = fetch->extent,
                  .data = fetch->data.share(),
                  .volume = fetch->volume};
  Completion completion = co_await below().submit(std::move(request));
  fetch->error = completion.error;
  if (fetch->error == Error::kNone && !same_memory(completion.data, fetch->data)) {
    fetch->data = allocate_by_line(fetch->extent);
    if (fetch->data.empty()) {
      fetch->error = Error::kNoMemory;  // Whoever waits reads for himself.
    } else {
      fetch->data.copy_from(completion.data);
    }
  }
  if (fetch->outdated && fetch->error == Error::kNone) fetch->error = Error::kCancelled;
  end_fetch(*fetch);
  Fetch::leave(fetch);
  gate_.leave();
}

void CachedDevice::end_fetch(Fetch& fetch) {
  const bool ahead = fetch.origin == Origin::kReadAhead;
  VolumeState& volume = cache_.volume_state(fetch.volume);
  if (ahead) cache_.end_read_ahead(fetch.extent.byte_count(block_bytes_));
  if (ahead && fetch.error != Error::kNone) ++volume.counters.read_ahead_errors;
  std::size_t offset = 0;
  for (unsigned i = 0; i < fetch.part_count; ++i) {
    const FetchPart& part = fetch.parts()[i];
    Line& line = *part.line;
    FetchPart** link = &line.fetches;
    while (*link != &part) link = &(*link)->next;
    *link = part.next;
    const std::size_t byte_count = std::size_t{part.range.count} * block_bytes_;
    if (fetch.error == Error::kNone) {
      if (ahead && first_gap(line, part.range).count == part.range.count) {
        cache_.note_read_ahead(line, part.range, volume);
      }
      fill_gaps(line, part.range, block_bytes_, fetch.data.share(offset, byte_count));
    }
    offset += byte_count;
    cache_.settle(line, fetch.hint);
  }
  fetch.data.clear();
  fetch.ended = true;
  fetch.end.notify_all();
}

// Advice -------------------------------------------------------------------------------------

Task<Completion> CachedDevice::advise(Request request) {
  VolumeState& volume = cache_.volume_state(request.volume);
  Completion completion{.data = std::move(request.data)};
  if (volume.mode == Mode::kNone) co_return completion;
  request.origin = Origin::kReadAhead;
  request.data = {};
  // As much as a fetch may have, up to the end of a stripe.
  const std::uint64_t most = kMostFetchBytes / block_bytes_;
  const std::uint64_t stripe = std::clamp<std::uint64_t>(geometry().unit_blocks, 1, most);
  const std::uint64_t unit = stripe * (most / stripe);
  Extent rest = request.extent;
  while (rest.block_count > 0) {
    const Extent piece{.first = rest.first,
                       .block_count = std::min(rest.block_count, unit - rest.first % stripe)};
    rest.first += piece.block_count;
    rest.block_count -= piece.block_count;
    read_ahead(piece, request);
  }
  co_return completion;
}

void CachedDevice::read_ahead(const Extent& piece, const Request& request) {
  PinnedLines lines(*this, piece, Hint::kReadAhead);
  Joined joined;
  if (lines.obtain()) start_fetches(lines, request, &joined);
  for (std::size_t i = 0; i < joined.count; ++i) Fetch::leave(joined.fetches[i]);
}

// Around the cache ---------------------------------------------------------------------------

// The run from `at` on that is, or is not, served by a segment; within the extent.
CachedDevice::Run CachedDevice::run_at(Lba at, const Extent& extent, bool only_dirty) const {
  Run run{.extent = {.first = at, .block_count = 0}};
  while (run.extent.end() < extent.end()) {
    const Lba from = run.extent.end();
    const Line* const line = find_line(line_of(from));
    const Range range =
        range_in(line_of(from), {.first = from, .block_count = extent.end() - from});
    unsigned covered_from = range.end();  // Where the next segment that counts begins.
    const Segment* found = nullptr;
    const unsigned size = line != nullptr ? line->segments.size() : 0;
    for (unsigned i = size > 0 ? find_segment(*line, range.first) : 0; i < size; ++i) {
      const Segment& segment = line->segments[i];
      if (segment.first >= range.end()) break;
      if (only_dirty && segment.dirty == nullptr) continue;
      found = &segment;
      covered_from = std::max<unsigned>(segment.first, range.first);
      break;
    }
    if (found != nullptr && covered_from == range.first) {
      if (run.extent.block_count > 0) return run;
      const unsigned end = std::min(found->end(), range.end());
      run.extent.block_count = end - range.first;
      run.cached = found->data.slice(std::size_t{range.first - found->first} * block_bytes_,
                                     std::size_t{end - range.first} * block_bytes_);
      return run;
    }
    run.extent.block_count += covered_from - range.first;
    if (found != nullptr) return run;
  }
  return run;
}

Task<Completion> CachedDevice::read_around(Request request, bool only_dirty) {
  Completion completion;
  BufferList answer;
  Lba at = request.extent.first;
  while (at < request.extent.end()) {
    // Looked up at each step: what was written meanwhile is taken as it is now.
    const Run run = run_at(at, request.extent, only_dirty);
    const std::size_t offset = (at - request.extent.first) * block_bytes_;
    const std::size_t byte_count = run.extent.byte_count(block_bytes_);
    if (!run.cached.empty()) {
      request.data.copy_from(run.cached.bytes(), offset);
      answer.append(request.data.share(offset, byte_count));
    } else {
      RangeLocks::Hold lock(locks_, RangeLocks::Kind::kRead, run.extent);
      if (!lock.ready()) {
        completion.error = co_await locks_.wait(lock, Patience(request));
        if (completion.error != Error::kNone) break;
        continue;
      }
      Request part = part_of(request, run.extent, request.data.share(offset, byte_count));
      completion = co_await below().submit(std::move(part));
      if (completion.error != Error::kNone) break;
      answer.append(std::move(completion.data));
    }
    at = run.extent.end();
  }
  completion.data = completion.error == Error::kNone ? std::move(answer) : std::move(request.data);
  co_return completion;
}

// FUA: from the medium, which first gets what is dirty.
Task<Completion> CachedDevice::read_medium(Request request) {
  VolumeState& volume = cache_.volume_state(request.volume);
  ++volume.counters.pass_throughs;
  const Patience patience(request);
  if (next_dirty(request.extent).block_count > 0) {
    const Error error = co_await destager_.destage(request.extent, patience);
    if (error != Error::kNone) {
      co_return Completion{.error = error, .data = std::move(request.data)};
    }
  }
  RangeLocks::Hold lock(locks_, RangeLocks::Kind::kRead, request.extent);
  if (!lock.ready()) {
    const Error error = co_await locks_.wait(lock, patience);
    if (error != Error::kNone) {
      co_return Completion{.error = error, .data = std::move(request.data)};
    }
  }
  co_return co_await below().submit(std::move(request));
}

}  // namespace sandbay::cache
