// Writes of a cached device: back, through, and what both leave in the cache.
#include <algorithm>
#include <utility>

#include "cache/cached_device.h"
#include "cache/pinned_lines.h"
#include "cache/write_memory.h"

namespace sandbay::cache {
namespace {

bool cut_at_blocks(const BufferList& data, std::uint32_t block_bytes) {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    if (data[i].byte_count() % block_bytes != 0) return false;
  }
  return true;
}

// Puts `data`, the content of the range, into the line; nothing is there.
void put_all(Line& line, Range range, std::uint32_t block_bytes, const BufferList& data,
             DirtyPart* dirty, bool in_write_memory) {
  unsigned at = range.first;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    const std::size_t count = data[i].byte_count() / block_bytes;
    put(line, {.first = static_cast<std::uint16_t>(at),
               .count = static_cast<std::uint16_t>(count),
               .in_write_memory = in_write_memory,
               .dirty = dirty,
               .data = data[i]});
    at += static_cast<unsigned>(count);
  }
  assert(at == range.end());
}

// What has not come into the cache goes below, unless nobody waits for it any more.
Result<bool> given_up(const Patience& patience) {
  const Error end = patience.end();
  if (end != Error::kNone) return std::unexpected(end);
  return false;
}

}  // namespace

Task<Completion> CachedDevice::write(Request request) {
  VolumeState& volume = cache_.volume_state(request.volume);
  ++volume.counters.writes;
  volume.counters.write_bytes += request.data.byte_count();
  if (request.extent.block_count == 0) {
    return complete(Error::kNone, std::move(request.data));
  }
  if (writes_back(request, volume)) return write_back(std::move(request));
  const Extent all = request.extent;
  return write_through(std::move(request), all, home().now());
}

// While destaging fails a write goes below itself, and ends as that ends.
bool CachedDevice::writes_back(const Request& request, const VolumeState& volume) const {
  if (volume.mode != Mode::kWriteBack || !write_back_allowed_ || closing_) return false;
  if (destager_.failure() != Error::kNone) return false;
  const WriteMemory* const memory = write_memory();
  if (memory == nullptr) return !request.force_unit_access;
  if (request.force_unit_access && !memory->non_volatile()) return false;
  return memory->takes_writes();
}

// Whether a write may be acknowledged from the write memory: that may have become unsafe while the
// write waited.
bool CachedDevice::keeps(bool force_unit_access) const {
  const WriteMemory* const memory = write_memory();
  if (memory == nullptr) return true;
  return memory->keeps_writes() && (!force_unit_access || memory->non_volatile());
}

BufferList CachedDevice::write_buffers(std::size_t byte_count) {
  const WriteMemory* const memory = write_memory();
  if (memory == nullptr || byte_count % block_bytes_ != 0 || !write_back_allowed_) return {};
  if (destager_.failure() != Error::kNone || !memory->takes_writes()) return {};
  return cache_.allocate_for_payload(byte_count);
}

Task<Completion> CachedDevice::write_back(Request request) {
  const Cache::VolumeUse use(cache_, request.volume);
  VolumeState& volume = use.state();
  const TimePoint start = home().now();
  const Patience patience(request);
  const bool force_unit_access = request.force_unit_access;
  Extent rest = request.extent;
  std::uint64_t left = 0;
  Completion completion;
  while (rest.block_count > 0) {
    const Extent piece = first_piece(rest);
    const Result<bool> held = co_await write_piece(&volume, &request, piece, &left);
    if (!held) completion.error = held.error();
    if (!held || !*held) break;
    left = 0;
    rest.first += piece.block_count;
    rest.block_count -= piece.block_count;
  }
  const Extent kept{.first = request.extent.first,
                    .block_count = request.extent.block_count - rest.block_count};
  if (completion.error == Error::kNone && rest.block_count > 0) {
    // No room, and none soon: the rest goes below by itself; what a crash may bring back even if
    // nobody waits for it any more, so that what is read stays.
    if (left != 0) {
      request.cancellation = nullptr;
      request.deadline = kNever;
    }
    completion = co_await write_through(std::move(request), rest, start, left);
  } else {
    volume.counters.write_latency.add(home().now() - start);
    completion.data = std::move(request.data);
  }
  if (completion.error == Error::kNone && kept.block_count > 0 && !keeps(force_unit_access)) {
    completion.error = co_await destager_.destage(kept, patience);
  }
  co_return completion;
}

// Whether the cache has the piece now; the error of a request that did not wait for that.
Task<Result<bool>> CachedDevice::write_piece(VolumeState* volume, const Request* request,
                                             Extent piece, std::uint64_t* left) {
  const Patience patience(*request);
  const std::uint64_t byte_count = piece.byte_count(block_bytes_);
  const std::uint64_t room = cache_.room_for_write(byte_count);
  if (!cache_.throttle().try_admit(room)) {
    cache_.wake_destagers();
    const TimePoint start = home().now();
    const bool begun = piece.first != request->extent.first;
    const bool admitted = co_await cache_.throttle().admit(volume->queue, room, begun, patience);
    volume->counters.throttled_nanoseconds +=
        static_cast<std::uint64_t>((home().now() - start).count());
    if (!admitted) co_return given_up(patience);
  }

  const BufferList payload =
      request->data.share((piece.first - request->extent.first) * block_bytes_, byte_count);
  BufferList data = hold(payload);
  if (data.empty() && write_memory() != nullptr) {
    data = co_await cache_.wait_for_write(byte_count, patience);
    if (!data.empty()) data.copy_from(payload);
  }
  RangeLocks::Hold lock(locks_, RangeLocks::Kind::kRecord, piece);
  Error end = Error::kNone;
  if (!lock.ready()) end = co_await locks_.wait(lock, patience);
  PinnedLines lines(*this, piece, request->disable_page_out ? Hint::kOnce : Hint::kNormal);
  if (end != Error::kNone || !writes_back(*request, *volume) || !lines.obtain()) data.clear();
  WriteId id{};
  if (!data.empty() && write_memory() != nullptr) {
    const Result<WriteId> appended = co_await write_memory()->append(
        {.device = uuid_, .volume = request->volume, .block_bytes = block_bytes_, .extent = piece},
        data.share(), patience, left);
    if (appended) id = *appended;
    if (!appended) data.clear();
  }
  if (data.empty()) {
    cache_.throttle().give_back(room);
    if (*left != 0) co_return false;
    co_return given_up(patience);
  }
  DirtyRecord& record = *DirtyRecord::make(static_cast<unsigned>(lines.size()));
  record.volume = request->volume;
  record.extent = piece;
  record.bytes = byte_count;
  record.room = room;
  record.id = id;
  insert(record, lines, data);
  co_return true;
}

// The payload as the cache keeps it: as it is where it lies in the write memory, else a copy, so
// that the memory is the cache's own and accounted for, and small slices pin no large buffers.
BufferList CachedDevice::hold(const BufferList& data) {
  const WriteMemory* const memory = write_memory();
  if (memory != nullptr && memory->holds(data) && data.slice_count() <= WriteMemory::kMostSlices &&
      cut_at_blocks(data, block_bytes_)) {
    return data.share();
  }
  BufferList held;
  if (!cache_.short_of_room()) held = cache_.allocate_for_write(data.byte_count());
  if (!held.empty()) held.copy_from(data);
  return held;
}

void CachedDevice::insert(DirtyRecord& record, const PinnedLines& lines, const BufferList& data) {
  record.sequence = cache_.next_sequence();
  record.device = this;
  live_bytes_ += record.bytes;
  live_room_ += record.room;
  destager_.update_stuck();
  damaged_.remove(record.extent);
  VolumeState& volume = cache_.volume_state(record.volume);
  std::size_t offset = 0;
  std::uint64_t absorbed_blocks = 0;
  for (unsigned i = 0; i < lines.size(); ++i) {
    Line& line = lines[i];
    const Range range = lines.range(i);
    const std::size_t byte_count = std::size_t{range.count} * block_bytes_;
    absorbed_blocks += cache_.cut_out(line, range);
    DirtyPart& part = record.parts()[i];
    part.range = range;
    part.dirty_blocks = range.count;
    append_part(line, part);
    put_all(line, range, block_bytes_, data.share(offset, byte_count), &part,
            write_memory() != nullptr);
    offset += byte_count;
  }
  volume.counters.absorbed_bytes += absorbed_blocks * block_bytes_;
  destager_.note_write(record.extent);
  if (absorbed_blocks == 0) return;
  for (unsigned i = 0; i < lines.size(); ++i) cache_.check_releases(lines[i]);
}

void CachedDevice::restore(WriteId id, std::uint64_t volume, const Extent& extent,
                           const BufferList& data) {
  PinnedLines lines(*this, extent, Hint::kNormal);
  lines.obtain(true);
  DirtyRecord& record = *DirtyRecord::make(static_cast<unsigned>(lines.size()));
  record.volume = volume;
  record.extent = extent;
  record.bytes = extent.byte_count(block_bytes_);
  record.room = cache_.room_for_write(record.bytes);
  record.id = id;
  cache_.throttle().take(record.room);
  insert(record, lines, data);
}

// With NVRAM nobody flushes behind it, so it is durable below before it ends. Its first piece may
// be one that append() has `left`.
Task<Completion> CachedDevice::write_through(Request request, Extent rest, TimePoint start,
                                             std::uint64_t left) {
  const Cache::VolumeUse use(cache_, request.volume);
  VolumeState& volume = use.state();
  ++volume.counters.write_throughs;
  const Patience patience(request);
  if (write_memory() != nullptr) request.force_unit_access = true;
  Completion completion;
  while (rest.block_count > 0) {
    const Extent piece = first_piece(rest);
    rest.first += piece.block_count;
    rest.block_count -= piece.block_count;
    RangeLocks::Hold lock(locks_, RangeLocks::Kind::kChange, piece);
    completion.error = co_await locks_.wait(lock, patience);
    if (completion.error != Error::kNone) break;
    completion.error = co_await destager_.expel(piece, patience, std::exchange(left, 0));
    if (completion.error != Error::kNone) break;
    const BufferList data = request.data.share((piece.first - request.extent.first) * block_bytes_,
                                               piece.byte_count(block_bytes_));
    Request part = part_of(request, piece, data.share());
    completion = co_await below().submit(std::move(part));
    if (completion.error == Error::kNone && !is_as_received(data)) {
      completion.error = Error::kNotReady;  // Perhaps zeros went below. The host writes it again.
    }
    if (completion.error == Error::kNone) damaged_.remove(piece);
    if (!request.force_unit_access) note_passed(request.volume);
    const bool keep =
        completion.error == Error::kNone && volume.mode != Mode::kNone && !request.disable_page_out;
    PinnedLines lines(*this, piece, Hint::kNormal);
    if (keep && lines.obtain()) {
      install(lines, data);
    } else {
      forget(piece);
    }
    if (completion.error != Error::kNone) break;
  }
  volume.counters.write_latency.add(home().now() - start);
  completion.data = std::move(request.data);
  co_return completion;
}

// Data that lie in memory that has gone are zeros, and nobody knows since when.
bool CachedDevice::is_as_received(const BufferList& data) const noexcept {
  const WriteMemory* const memory = write_memory();
  return memory == nullptr || !memory->content_gone() || !memory->holds_any(data);
}

// What is below now, as far as there is memory for it.
void CachedDevice::install(const PinnedLines& lines, const BufferList& data) {
  std::size_t offset = 0;
  for (unsigned i = 0; i < lines.size(); ++i) {
    Line& line = lines[i];
    const Range range = lines.range(i);
    const std::size_t byte_count = std::size_t{range.count} * block_bytes_;
    BufferList held = cache_.allocate(byte_count);
    cache_.cut_out(line, range);
    if (!held.empty()) {
      held.copy_from(data.share(offset, byte_count));
      put_all(line, range, block_bytes_, held, nullptr, false);
    }
    offset += byte_count;
  }
}

}  // namespace sandbay::cache
