// Memory, lines and room for dirty data: what the devices of a cache share.
#include "cache/cache.h"

#include <algorithm>

#include "cache/cached_device.h"

namespace sandbay::cache {
namespace {

// Buffers for cached data: no larger than a line, so that memory comes free with lines.
constexpr std::size_t kPieceBytes[] = {512, 4096, 8 * 1024, 16 * 1024, 64 * 1024};
constexpr std::size_t kPieceSizes = std::size(kPieceBytes);
// Lines are made for so much memory each, so that small segments cannot make too many of them.
constexpr std::size_t kLeastBytesPerLine = 4096;
// What one allocation may evict before it gives up, and before it looks again.
constexpr unsigned kMostEvictions = 256;
constexpr Duration kRoomPatience = std::chrono::seconds(1);
constexpr Duration kUnreadPatience = std::chrono::seconds(10);

// The size for the next piece of `left` bytes: at most two pieces of one size, so that lists stay
// short and little is wasted.
std::size_t piece_index(std::size_t left) {
  std::size_t index = 0;
  while (index + 1 < kPieceSizes && kPieceBytes[index + 1] <= left) ++index;
  if (index + 1 < kPieceSizes && left > 2 * kPieceBytes[index]) ++index;
  return index;
}

// What pieces for so many bytes take of a pool.
std::size_t footprint(std::size_t byte_count) {
  std::size_t taken = 0;
  while (byte_count > 0) {
    const std::size_t piece = kPieceBytes[piece_index(byte_count)];
    taken += piece;
    byte_count -= std::min(piece, byte_count);
  }
  return taken;
}

Throttle::Limits limits_of(const CacheOptions& options, WriteMemory* memory) {
  // Of a pool, an eighth is for what sizes of buffers do not share.
  const std::uint64_t most =
      memory != nullptr ? memory->data_bytes() / 8 * 7
                        : std::min(options.dirty_limit_bytes, options.memory_bytes / 4 * 3);
  const auto share = [most](double part) {
    return static_cast<std::uint64_t>(static_cast<double>(most) * std::clamp(part, 0.0, 1.0));
  };
  const std::uint64_t high = share(options.high_watermark);
  return {.low_bytes = std::min(share(options.low_watermark), high),
          .high_bytes = high,
          .most_bytes = most};
}

std::size_t most_lines(const CacheOptions& options, WriteMemory* memory) {
  const std::size_t more = memory != nullptr ? memory->data_bytes() : 0;
  return std::max<std::size_t>((options.memory_bytes + more) / kLeastBytesPerLine, 64);
}

}  // namespace

Cache::Cache(Executor& home, CacheOptions options, WriteMemory* write_memory)
    : home_(home),
      options_(options),
      write_memory_(write_memory),
      pool_(home, options.memory_bytes, options.content),
      eviction_(pool_.limit_bytes(), options_.read_ahead_share),
      index_(most_lines(options, write_memory)),
      throttle_(home, limits_of(options, write_memory)) {
  if (write_memory == nullptr) return;
  assert(options.content == Content::kBytes);
  write_memory->on_short_of_log = [this] { wake_destagers(); };
  write_memory->on_buffers_freed = [this] { wake_room_waiter(); };
  battery_.emplace(write_memory->battery(), [this](nvram::BatteryState state) {
    for (const auto& device : devices_) {
      device->destager_.set_urgent(state != nvram::BatteryState::kGood);
    }
  });
}

Cache::~Cache() {
  battery_.reset();
  if (write_memory_ != nullptr) {
    write_memory_->on_short_of_log = nullptr;
    write_memory_->on_buffers_freed = nullptr;
  }
  abandon_records();
  // Lines look at their devices.
  index_.for_each([this](Line& line) {
    assert(!line.pinned());
    drop(line);
  });
  devices_.clear();
}

// What could not be destaged: the write memory keeps it.
void Cache::abandon_records() {
  std::vector<DirtyRecord*> records;
  index_.for_each([&records](Line& line) {
    for (const DirtyPart* part = line.first_part; part != nullptr; part = part->newer) {
      if (part == part->record->parts()) records.push_back(part->record);
    }
    line.first_part = nullptr;
    line.last_part = nullptr;
  });
  for (DirtyRecord* const record : records) DirtyRecord::destroy(record);
}

void Cache::adopt(std::vector<RecoveredWrite> writes) {
  assert(devices_.empty() && recovered_.empty());
  recovered_ = std::move(writes);
  std::uint64_t room = 0;
  for (const RecoveredWrite& write : recovered_) {
    room += room_of(write);
    waiting_bytes_ += write.data.byte_count();
  }
  throttle_.take(room);
  throttle_.add_stuck(static_cast<std::int64_t>(room));
}

std::uint64_t Cache::room_of(const RecoveredWrite& write) const noexcept {
  return room_for_write(write.subject.extent.byte_count(write.subject.block_bytes));
}

// Of writes that do not wait any more. Those that have become dirty took room of their own.
void Cache::end_waiting(std::uint64_t room, std::uint64_t bytes) {
  waiting_bytes_ -= bytes;
  throttle_.add_stuck(-static_cast<std::int64_t>(room));
  throttle_.give_back(room);
}

std::vector<VolumeExtent> Cache::discard_waiting(const Uuid& uuid) {
  std::vector<VolumeExtent> extents;
  std::uint64_t room = 0;
  std::uint64_t bytes = 0;
  std::erase_if(recovered_, [&](RecoveredWrite& write) {
    if (write.subject.device != uuid) return false;
    room += room_of(write);
    bytes += write.data.byte_count();
    extents.push_back({.volume = write.subject.volume, .extent = write.subject.extent});
    write_memory_->release(write.id);
    return true;
  });
  end_waiting(room, bytes);
  return extents;
}

CachedDevice& Cache::add_device(const Uuid& uuid, BlockDevice& below,
                                std::uint32_t stripes_at_once) {
  const auto index = static_cast<std::uint16_t>(devices_.size());
  devices_.push_back(std::make_unique<CachedDevice>(*this, uuid, index, below, stripes_at_once));
  CachedDevice& device = *devices_.back();
  std::uint64_t room = 0;
  std::uint64_t bytes = 0;
  std::erase_if(recovered_, [&](RecoveredWrite& write) {
    const WriteSubject& subject = write.subject;
    if (subject.device != uuid || subject.block_bytes != device.block_bytes() ||
        subject.extent.end() > below.geometry().block_count) {
      return false;
    }
    device.restore(write.id, subject.volume, subject.extent, write.data);
    room += room_of(write);
    bytes += write.data.byte_count();
    return true;
  });
  end_waiting(room, bytes);
  if (write_memory_ != nullptr) device.destager_.set_urgent(!write_memory_->battery().good());
  return device;
}

Task<Error> Cache::close() {
  Error first = Error::kNone;
  for (const auto& device : devices_) {
    const Error error = co_await device->close();
    if (first == Error::kNone) first = error;
  }
  co_return first;
}

Task<void> Cache::stop() {
  for (const auto& device : devices_) co_await device->stop();
}

VolumeState& Cache::volume_state(std::uint64_t volume) {
  if (last_volume_ == nullptr || last_volume_id_ != volume) {
    last_volume_ = &volumes_[volume];
    last_volume_id_ = volume;
  }
  return *last_volume_;
}

// Lines may know it.
void Cache::forget_volume(std::uint64_t volume) {
  const auto found = volumes_.find(volume);
  if (found == volumes_.end()) return;
  VolumeState* const state = &found->second;
  state->gone = true;
  if (state->users != 0) return;
  index_.for_each([this, state](Line& line) {
    if (line.read_ahead_for != state) return;
    pin(line);
    drop_unread(line, {.first = 0, .count = kMostLineBlocks});
    line.read_ahead_for = nullptr;
    unpin(line);
  });
  if (last_volume_ == state) last_volume_ = nullptr;
  volumes_.erase(found);
}

CacheCounters Cache::counters() const {
  return {.evictions = evictions_,
          .lines = index_.size(),
          .memory_bytes = pool_.used_bytes(),
          .memory_limit_bytes = pool_.limit_bytes(),
          .dirty_bytes = throttle_.used_bytes(),
          .dirty_limit_bytes = throttle_.limits().most_bytes,
          .stuck_bytes = static_cast<std::uint64_t>(throttle_.stuck_bytes()),
          .read_ahead_in_flight_bytes = ahead_in_flight_,
          .read_ahead_unread_bytes = ahead_unread_};
}

// Memory -------------------------------------------------------------------------------------

BufferList Cache::allocate(std::uint64_t byte_count) {
  return try_allocate(pool_, byte_count, byte_count, &Cache::evict_one);
}

std::uint64_t Cache::room_for_write(std::uint64_t byte_count) const noexcept {
  const std::uint64_t memory = footprint(byte_count);
  return write_memory_ == nullptr ? memory : write_memory_->room_for(memory);
}

BufferList Cache::allocate_for_write(std::uint64_t byte_count) {
  if (write_memory_ == nullptr) return allocate(byte_count);
  return try_allocate(write_memory_->buffers(), byte_count, WriteMemory::kMostSlices,
                      &Cache::reclaim_write_memory);
}

BufferList Cache::allocate_for_payload(std::uint64_t byte_count) {
  if (write_memory_ == nullptr || short_of_room() || throttle_.waiting()) return {};
  const BufferPool& pool = write_memory_->buffers();
  // Clean data go when others need the room, and slices of a block that others hold count for it.
  const std::uint64_t used =
      pool.used_bytes() - std::min<std::uint64_t>(clean_bytes_, pool.used_bytes());
  if (used + byte_count > pool.limit_bytes() / 2) return {};
  return allocate_for_write(byte_count);
}

// Where only small pieces are free, and more of them are needed than a list may have, there is
// none.
BufferList Cache::try_allocate(BufferPool& pool, std::uint64_t byte_count, std::size_t most_slices,
                               bool (Cache::*make_room)()) {
  BufferList list;
  unsigned evictions = 0;
  while (list.byte_count() < byte_count) {
    const std::size_t left = byte_count - list.byte_count();
    const std::size_t index = piece_index(left);
    const std::size_t wanted = std::min(kPieceBytes[index], left);
    Buffer piece = pool.try_allocate_contiguous(wanted);
    bool more = true;
    for (; piece.empty() && more && evictions < kMostEvictions; ++evictions) {
      more = (this->*make_room)();
      piece = pool.try_allocate_contiguous(wanted);
    }
    // What is free may be in smaller pieces.
    for (std::size_t smaller = index; piece.empty() && smaller-- > 0;) {
      if (left % kPieceBytes[smaller] == 0 && kPieceBytes[smaller] >= kLeastBytesPerLine) {
        piece = pool.try_allocate_contiguous(kPieceBytes[smaller]);
      }
    }
    if (piece.empty() || list.slice_count() == most_slices) return {};
    list.append(std::move(piece));
  }
  return list;
}

// Of what stuck writes have nothing comes free soon, and where nothing else is there, what is free
// stays in the pieces in which it is.
bool Cache::may_come(std::uint64_t byte_count) const noexcept {
  if (write_memory_ == nullptr) return true;
  const BufferPool& pool = write_memory_->buffers();
  const std::uint64_t held = write_memory_->held_bytes();
  const std::uint64_t stuck = stuck_payload_bytes();
  const std::uint64_t free = pool.limit_bytes() - std::min(pool.limit_bytes(), pool.used_bytes());
  return held > stuck && free + clean_bytes_ + held - stuck >= byte_count;
}

std::uint64_t Cache::stuck_payload_bytes() const noexcept {
  std::uint64_t bytes = waiting_bytes_;
  for (const auto& device : devices_) {
    if (device->destage_failure() != Error::kNone) bytes += device->dirty_bytes();
  }
  return bytes;
}

bool Cache::lent_too_much() const noexcept {
  if (write_memory_ == nullptr) return false;
  const BufferPool& pool = write_memory_->buffers();
  return pool.used_bytes() > write_memory_->held_bytes() + clean_bytes_ + pool.limit_bytes() / 4;
}

Task<BufferList> Cache::wait_for_write(std::uint64_t byte_count, Patience patience) {
  RoomWaiter waiter{.turn = {}};
  (last_room_waiter_ != nullptr ? last_room_waiter_->next : first_room_waiter_) = &waiter;
  last_room_waiter_ = &waiter;
  wake_destagers();
  const TimePoint deadline = home_.now() + kRoomPatience;
  BufferList list;
  for (;;) {
    if (first_room_waiter_ == &waiter) list = allocate_for_write(byte_count);
    if (!list.empty() || home_.now() >= deadline || !patience.lasts()) break;
    if (!may_come(byte_count)) break;
    co_await patience.wait(&waiter.turn, deadline);
  }
  leave_room_queue(waiter);
  co_return list;
}

void Cache::leave_room_queue(RoomWaiter& waiter) {
  RoomWaiter** link = &first_room_waiter_;
  RoomWaiter* before = nullptr;
  while (*link != &waiter) {
    before = *link;
    link = &before->next;
  }
  *link = waiter.next;
  if (last_room_waiter_ == &waiter) last_room_waiter_ = before;
  wake_room_waiter();
}

void Cache::wake_room_waiter() {
  if (first_room_waiter_ != nullptr) first_room_waiter_->turn.notify_all();
}

bool Cache::evict_one() {
  Evictable* const victim = eviction_.take_victim();
  if (victim == nullptr) return false;
  auto& line = static_cast<Line&>(*victim);
  line.listed = false;
  ++evictions_;
  drop(line);
  prefetch_victims();
  return true;
}

// The oldest lines are in no processor's cache any more. Two evictions
// before a line goes it is asked for, one before that where it is listed.
void Cache::prefetch_victims() const noexcept {
  const auto* const next = static_cast<const Line*>(eviction_.likely_victim());
  if (next == nullptr) return;
  index_.prefetch(next->key);
  eviction_.prefetch(next->key);
  if (!next->segments.empty()) next->segments[0].data.prefetch();
  const auto* const second = static_cast<const Line*>(next->previous);
  if (second == nullptr) return;
  const auto* const bytes = reinterpret_cast<const char*>(second);
  for (std::size_t at = 0; at < sizeof(Line); at += 64) __builtin_prefetch(bytes + at, 1);
}

// Clean data in the write memory is there only as long as nobody needs the room.
bool Cache::reclaim_write_memory() {
  Line* const line = first_clean_;
  if (line == nullptr) return false;
  ++evictions_;
  for (unsigned i = line->segments.size(); i-- > 0;) {
    const Segment& segment = line->segments[i];
    if (!segment.in_write_memory) continue;
    drop_unread(*line, {.first = segment.first, .count = segment.count});
    line->segments.erase(i, i + 1);
  }
  settle(*line);
  return true;
}

// What was read ahead and is still not asked for is no stream's any more: it stays like what was
// read in any other way, and leaves its share to others.
void Cache::forget_old_unread(std::uint64_t most_unread) {
  const TimePoint old = home_.now() - kUnreadPatience;
  while (ahead_unread_ > most_unread) {
    auto* const line = static_cast<Line*>(eviction_.oldest_read_ahead());
    if (line == nullptr || line->read_ahead_at > old) break;
    drop_unread(*line, {.first = 0, .count = kMostLineBlocks});
    eviction_.first_use(*line);
  }
}

bool Cache::begin_read_ahead(std::uint64_t byte_count) {
  const auto share = static_cast<std::uint64_t>(options_.read_ahead_share *
                                                static_cast<double>(pool_.limit_bytes()));
  if (ahead_in_flight_ + byte_count > options_.read_ahead_limit_bytes) return false;
  const std::uint64_t more = ahead_in_flight_ + byte_count;
  if (ahead_unread_ + more > share) forget_old_unread(share - std::min(share, more));
  if (ahead_unread_ + more > share) return false;
  ahead_in_flight_ += byte_count;
  return true;
}

// Lines --------------------------------------------------------------------------------------

Line* Cache::obtain(CachedDevice& device, std::uint64_t key, std::uint64_t number, bool always) {
  Line* const line = index_.find(key);
  if (line != nullptr) return line;
  if (index_.size() >= index_.most_lines() && !evict_one() && !always) return nullptr;
  eviction_.prefetch(key);
  return &index_.add(device, key, number);
}

void Cache::settle(Line& line, Hint hint) {
  // What it holds matters when it may go.
  if (line.pinned() && !line.listed && !line.in_clean_list) return;
  std::uint32_t bytes = 0;
  std::uint32_t in_write_memory = 0;
  for (const Segment& segment : line.segments) {
    const auto segment_bytes = static_cast<std::uint32_t>(segment.data.byte_count());
    bytes += segment_bytes;
    if (segment.in_write_memory) in_write_memory += segment_bytes;
  }
  if (bytes != line.bytes) eviction_.resized(line, bytes);
  const bool idle = !line.pinned();
  list_clean(line, idle ? in_write_memory : 0);
  if (line.listed && (!idle || bytes == 0)) {
    eviction_.remove(line);
    line.listed = false;
  }
  if (!idle) return;
  if (bytes == 0) {
    index_.remove(line);
  } else if (!line.listed) {
    eviction_.insert(line, line.unread.any() ? Hint::kReadAhead : hint);
    line.listed = true;
  }
}

void Cache::pin(Line& line) noexcept {
  ++line.pins;
  if (line.listed) settle(line);
}

void Cache::unpin(Line& line, Hint hint) {
  assert(line.pins > 0);
  --line.pins;
  settle(line, hint);
}

void Cache::drop(Line& line) {
  drop_unread(line, {.first = 0, .count = kMostLineBlocks});
  line.segments.clear();
  settle(line);
}

void Cache::list_clean(Line& line, std::uint32_t clean_bytes) {
  clean_bytes_ += clean_bytes;
  clean_bytes_ -= std::exchange(line.clean_bytes, clean_bytes);
  const bool belongs = clean_bytes > 0;
  if (belongs == line.in_clean_list) return;
  line.in_clean_list = belongs;
  if (belongs) {
    line.next_clean = nullptr;
    line.previous_clean = last_clean_;
    (last_clean_ != nullptr ? last_clean_->next_clean : first_clean_) = &line;
    last_clean_ = &line;
    return;
  }
  (line.previous_clean != nullptr ? line.previous_clean->next_clean : first_clean_) =
      line.next_clean;
  (line.next_clean != nullptr ? line.next_clean->previous_clean : last_clean_) =
      line.previous_clean;
}

void Cache::note_hit(Line& line, Range range) {
  if (line.unread.none()) {
    eviction_.hit(line);
    return;
  }
  std::uint64_t blocks = 0;
  for (unsigned block = range.first; block < range.end(); ++block) {
    blocks += line.unread[block] ? 1 : 0;
    line.unread[block] = false;
  }
  // Only what was there before and is asked for again counts as a use.
  if (blocks == 0) eviction_.hit(line);
  if (line.unread.none()) eviction_.first_use(line);
  const std::uint64_t bytes = blocks * line.device->block_bytes();
  line.read_ahead_for->counters.read_ahead_used_bytes += bytes;
  ahead_unread_ -= bytes;
}

void Cache::note_read_ahead(Line& line, Range range, VolumeState& volume) {
  std::uint64_t blocks = 0;
  for (unsigned block = range.first; block < range.end(); ++block) {
    blocks += line.unread[block] ? 0 : 1;
    line.unread[block] = true;
  }
  line.read_ahead_for = &volume;
  line.read_ahead_at = home_.now();
  ahead_unread_ += blocks * line.device->block_bytes();
}

void Cache::drop_unread(Line& line, Range range) {
  if (line.unread.none()) return;
  std::uint64_t blocks = 0;
  for (unsigned block = range.first; block < range.end(); ++block) {
    blocks += line.unread[block] ? 1 : 0;
    line.unread[block] = false;
  }
  const std::uint64_t bytes = blocks * line.device->block_bytes();
  line.read_ahead_for->counters.read_ahead_wasted_bytes += bytes;
  ahead_unread_ -= bytes;
}

// Dirty data ---------------------------------------------------------------------------------

unsigned Cache::cut_out(Line& line, Range range) {
  CachedDevice& device = *line.device;
  drop_unread(line, range);
  unsigned dirty_blocks = 0;
  cut(line, range, device.block_bytes(), [&](const Segment& segment) {
    if (segment.dirty == nullptr) return;
    Releases::overwritten(*segment.dirty, segment.count);
    device.destager_.stripes().remove(
        {.first = device.lba_in(line, segment.first), .block_count = segment.count});
    dirty_blocks += segment.count;
  });
  return dirty_blocks;
}

// A fetch that began before such a write was destaged would fill its place with older content.
void Cache::forget_clean_writes() {
  index_.for_each([this](Line& line) {
    pin(line);
    for (unsigned i = line.segments.size(); i-- > 0;) {
      const Segment& segment = line.segments[i];
      if (!segment.in_write_memory || segment.dirty != nullptr) continue;
      const Range range{.first = segment.first, .count = segment.count};
      drop_unread(line, range);
      outdate_fetches(line, range);
      line.segments.erase(i, i + 1);
    }
    unpin(line);
  });
}

void Cache::wake_destagers() {
  for (const auto& device : devices_) device->destager_.wake();
}

void Cache::check_releases(Line& line) {
  releases_.check(line, [this](DirtyRecord* record) { release(record); });
}

void Cache::release(DirtyRecord* record) {
  for (unsigned i = 0; i < record->part_count; ++i) settle(*record->parts()[i].line);
  if (write_memory_ != nullptr) write_memory_->release(record->id);
  record->device->note_released(*record);
  wake_room_waiter();
  throttle_.give_back(record->room);
  DirtyRecord::destroy(record);
}

}  // namespace sandbay::cache
