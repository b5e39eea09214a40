// WriteMemory at work: placing, appending and releasing.
//
// Kill at any instruction: bytes first, then the primary's record, then the mirror's, then the
// answer; a release takes the mirror's record first. So what the mirror has, the primary has too or
// had lost.
#include "cache/write_memory.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "cache/write_record.h"
#include "runtime/in_time.h"

namespace sandbay::cache {
namespace {

// Descriptors of so many slices stand in the coroutine's frame.
constexpr std::size_t kFewSlices = 8;

}  // namespace

std::uint64_t default_log_bytes(std::uint64_t data_bytes) {
  const std::uint64_t bytes = data_bytes / 2048 * 128;
  return std::max<std::uint64_t>(
      64 * 1024, (bytes + nvram::kPageBytes - 1) / nvram::kPageBytes * nvram::kPageBytes);
}

Task<std::expected<WriteMemory::Half, std::string>> WriteMemory::claim(
    nvram::Nvram* nvram, const WriteMemoryOptions* options) {
  Half half;
  if (nvram == nullptr) co_return half;
  const std::uint64_t data_bytes = options->data_bytes / options->slab_bytes * options->slab_bytes;
  auto region = co_await nvram->claim(options->region, options->log_bytes + data_bytes);
  if (!region) co_return std::unexpected(region.error());
  half.nvram = nvram;
  half.region = std::move(*region);
  const nvram::RecordLogOptions log{.byte_count = options->log_bytes};
  half.log = std::make_unique<nvram::RecordLog>(*half.region, log);
  half.data = half.region->bytes().subspan(options->log_bytes, data_bytes);
  co_return half;
}

Task<std::expected<std::unique_ptr<WriteMemory>, std::string>> WriteMemory::open(
    nvram::Nvram* primary, nvram::Nvram* mirror, WriteMemoryOptions options) {
  assert(primary != nullptr && options.log_bytes % nvram::kPageBytes == 0);
  auto first = co_await claim(primary, &options);
  if (!first) co_return std::unexpected(first.error());
  auto second = co_await claim(mirror, &options);
  if (!second) co_return std::unexpected(second.error());
  co_return std::unique_ptr<WriteMemory>(
      new WriteMemory(std::move(*first), std::move(*second), std::move(options)));
}

bool WriteMemory::holds(const BufferList& data) const noexcept {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    if (!pool_.owns(data[i])) return false;
  }
  return true;
}

bool WriteMemory::holds_any(const BufferList& data) const noexcept {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    if (pool_.owns(data[i])) return true;
  }
  return false;
}

std::size_t WriteMemory::largest_write_bytes() const noexcept {
  return std::min<std::size_t>(kMostWriteBytes, pool_.limit_bytes() / 4);
}

Task<BufferList> WriteMemory::place(BufferList data) {
  assert(data.byte_count() <= largest_write_bytes());
  if (data.slice_count() <= kMostSlices && holds(data)) co_return std::move(data);
  BufferList copy = co_await pool_.allocate(data.byte_count());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    copy.copy_from(data[i].bytes(), offset);
    offset += data[i].byte_count();
  }
  co_return std::move(copy);
}

// Entries ---------------------------------------------------------------------------------------

std::uint32_t WriteMemory::new_entry() {
  if (free_slots_.empty()) {
    entries_.emplace_back();
    return static_cast<std::uint32_t>(entries_.size() - 1);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void WriteMemory::link_newest(std::uint32_t slot) {
  Entry& entry = entries_[slot];
  entry.older = newest_;
  entry.newer = 0;
  (newest_ == 0 ? oldest_ : entries_[newest_].newer) = slot;
  newest_ = slot;
}

void WriteMemory::unlink(std::uint32_t slot) {
  const Entry& entry = entries_[slot];
  (entry.older == 0 ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == 0 ? newest_ : entries_[entry.newer].older) = entry.older;
}

void WriteMemory::free_entry(std::uint32_t slot) {
  finish(entries_[slot]);
  // The room for checksums stays: the next one needs it as well.
  std::vector<std::uint32_t> checksums = std::move(entries_[slot].checksums);
  checksums.clear();
  entries_[slot] = Entry{};
  entries_[slot].checksums = std::move(checksums);
  free_slots_.push_back(slot);
}

const WriteSubject& WriteMemory::subject(WriteId id) const noexcept {
  return entries_[std::to_underlying(id)].subject;
}

// Appending -------------------------------------------------------------------------------------

std::size_t WriteMemory::encode(const Entry& entry, std::span<std::byte> descriptor) const {
  const WriteSubject& subject = entry.subject;
  const WriteHeader header{.slice_count = static_cast<std::uint16_t>(entry.data.slice_count()),
                           .block_bytes = subject.block_bytes,
                           .order = entry.order,
                           .device = subject.device,
                           .volume = subject.volume,
                           .first_block = subject.extent.first,
                           .block_count = subject.extent.block_count};
  std::byte* target = descriptor.data();
  std::memcpy(target, &header, sizeof header);
  for (std::size_t i = 0; i < entry.data.slice_count(); ++i) {
    target += i == 0 ? sizeof header : sizeof(WriteSlice);
    const Buffer& bytes = entry.data[i];
    const WriteSlice slice{
        .offset = static_cast<std::uint64_t>(bytes.data() - primary_.data.data()),
        .byte_count = static_cast<std::uint32_t>(bytes.byte_count()),
        .checksum = entry.checksums[i]};
    std::memcpy(target, &slice, sizeof slice);
  }
  return descriptor_bytes(entry.data.slice_count());
}

// The sequence of the record.
Task<Result<std::uint64_t>> WriteMemory::append_to(Half* half, std::uint32_t slot) {
  const std::size_t byte_count = descriptor_bytes(entries_[slot].data.slice_count());
  std::array<std::byte, descriptor_bytes(kFewSlices)> few;
  std::vector<std::byte> many(byte_count > few.size() ? byte_count : 0);
  const std::span<std::byte> descriptor =
      many.empty() ? std::span<std::byte>(few).first(byte_count) : std::span<std::byte>(many);
  encode(entries_[slot], descriptor);
  const auto id = co_await half->log->append(descriptor, {});
  if (!id) co_return std::unexpected(id.error());
  co_return id->sequence;
}

void WriteMemory::copy_to_mirror(const BufferList& data) {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    const auto offset = static_cast<std::size_t>(data[i].data() - primary_.data.data());
    std::memcpy(mirror_.data.data() + offset, data[i].data(), data[i].byte_count());
  }
}

Task<Result<WriteId>> WriteMemory::append(WriteSubject subject, BufferList data, Patience patience,
                                          std::uint64_t* left) {
  assert(ready_ && holds(data) && data.slice_count() <= kMostSlices);
  assert(data.byte_count() == subject.extent.byte_count(subject.block_bytes) && !data.empty());
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(gate_);
  const std::uint64_t byte_count = log_bytes(data.slice_count());
  if (short_of_log() || !has_log_room(byte_count)) {
    const Error error = co_await wait_for_log(byte_count, patience);
    if (error != Error::kNone) co_return std::unexpected(error);
  }
  const std::uint32_t slot = new_entry();
  Entry& entry = entries_[slot];
  entry.order = next_order_++;
  entry.subject = subject;
  entry.data = std::move(data);
  seal(entry);
  held_bytes_ += entry.data.byte_count();
  if (left != nullptr) *left = entry.order;
  Error error = Error::kNone;
  if (to_host()) {
    error = co_await append_in_time(slot);
  } else {
    error = co_await append_entry(slot);
  }
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return WriteId{slot};
}

// An entry whose record is there is one of the live ones; otherwise it is free again. Who waits for
// it then, if anybody still does.
Task<Error> WriteMemory::append_entry(std::uint32_t slot, Append** waiting) {
  const std::uint64_t byte_count = log_bytes_of(entries_[slot]);
  promised_ += byte_count;
  const Result<std::uint64_t> first = co_await append_to(&primary_, slot);
  if (first) {
    entries_[slot].primary = *first;
    if (mirrored()) co_await append_to_mirror(slot);
  }
  promised_ -= byte_count;
  if (waiting != nullptr) *waiting = std::exchange(entries_[slot].waiting, nullptr);
  if (!first) {
    free_entry(slot);
    co_return first.error();
  }
  link_newest(slot);
  ++live_count_;
  live_log_bytes_ += byte_count;
  make_log_room();
  wake_log_waiter();
  co_return Error::kNone;
}

// A mirror that cannot take it is given up.
Task<void> WriteMemory::append_to_mirror(std::uint32_t slot) {
  copy_to_mirror(entries_[slot].data);
  const Result<std::uint64_t> second = co_await append_to(&mirror_, slot);
  if (second && mirrored()) {
    entries_[slot].mirror = *second;
  } else if (mirrored()) {
    drop_mirror();
  }
}

// Its log stays until the end: others may be waiting in it.
void WriteMemory::drop_mirror() {
  mirror_dropped_ = true;
  if (on_mirror_lost) on_mirror_lost();
}

// Releasing -------------------------------------------------------------------------------------

// Of a record that is being moved there are two for a while. Until the older has gone, the write
// would come back alone; so it waits, and whatever is released after it.
void WriteMemory::release(WriteId id) {
  const std::uint32_t slot = std::to_underlying(id);
  assert(ready_ && entries_[slot].order != 0);
  if (!held_releases_.empty() || entries_[slot].moving) {
    held_releases_.push_back(slot);
  } else {
    release_now(slot);
  }
}

void WriteMemory::release_now(std::uint32_t slot) {
  const Entry& entry = entries_[slot];
  if (mirrored() && entry.mirror != 0) mirror_.log->release({entry.mirror});
  if (entry.primary != 0) primary_.log->release({entry.primary});
  unlink(slot);
  --live_count_;
  live_log_bytes_ -= log_bytes_of(entry);
  free_entry(slot);
  wake_log_waiter();
}

// The kernel may still write the image of before a release: until that is final, the bytes stay.
void WriteMemory::finish(Entry& entry) {
  const bool at_once = !to_host();
  if (failure() != Error::kNone && !(at_once && primary_.nvram->cut_short())) doubt(entry);
  if (at_once) {
    held_bytes_ -= entry.data.byte_count();
    entry.data.clear();
    return;
  }
  released_.push_back(
      {.subject = entry.subject, .data = std::move(entry.data), .order = entry.order});
  if (!freeing_) spawn(free_released());
}

Task<void> WriteMemory::free_released() {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  freeing_ = true;
  // Whoever releases is told of nothing meanwhile, be it that the memory has failed.
  co_await primary_.nvram->home().yield();
  // Once it has failed, nothing can be known of the image: these bytes are never used again.
  while (!released_.empty() && failure() == Error::kNone) {
    std::swap(leaving_, released_);
    const Error error = co_await flush_releases();
    if (error != Error::kNone) break;
    for (const Released& released : leaving_) held_bytes_ -= released.data.byte_count();
    leaving_.clear();
    if (on_buffers_freed) on_buffers_freed();
    wake_log_waiter();
    final_changed_.notify_all();
  }
  freeing_ = false;
  final_changed_.notify_all();
}

void WriteMemory::doubt(const Entry& entry) {
  const Extent& extent = entry.subject.extent;
  doubtful_[entry.subject.device].emplace(extent.first,
                                          Doubt{.end = extent.end(), .order = entry.order});
}

Task<Error> WriteMemory::flush_releases() {
  while (!held_releases_.empty()) co_await releases_made_.wait();
  if (mirrored()) {
    const Error error = co_await mirror_.log->flush_releases();
    if (error != Error::kNone && mirrored()) drop_mirror();
  }
  co_return co_await primary_.log->flush_releases();
}

Task<Error> WriteMemory::flush_in_gate() {
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  co_return co_await flush_releases();
}

Task<Error> WriteMemory::flush_releases(TimePoint deadline) {
  co_return co_await in_time(flush_in_gate(), deadline);
}

void WriteMemory::look_at_mirror() {
  if (mirrored() && mirror_.nvram->failure() != Error::kNone) drop_mirror();
}

// State -----------------------------------------------------------------------------------------

bool WriteMemory::non_volatile() const noexcept {
  return primary_.nvram->non_volatile() && (mirrored() || !options_.mirror_required);
}

bool WriteMemory::takes_writes() const noexcept { return keeps_writes() && !stalled_; }

bool WriteMemory::keeps_writes() const noexcept {
  const bool good = primary_.nvram->battery().good() && failure() == Error::kNone;
  return good && (mirrored() || !options_.mirror_required);
}

// A quarter of the log is for moving records in.
std::uint64_t WriteMemory::room_for(std::uint64_t byte_count) const noexcept {
  const std::uint64_t share =
      (descriptor_bytes(1) + 2 * 64) * data_bytes() / (primary_.log->capacity_bytes() / 4 * 3);
  return std::max(byte_count, share);
}

double WriteMemory::fullness() const noexcept {
  const auto share = [](std::uint64_t used, std::uint64_t limit) {
    return static_cast<double>(used) / static_cast<double>(limit);
  };
  return std::max(share(held_bytes_, pool_.limit_bytes()),
                  share(live_log_bytes_, primary_.log->capacity_bytes()));
}

Task<void> WriteMemory::stop() {
  stopping_ = true;
  wake_log_waiter();
  co_await primary_.log->close();
  if (mirror_.log != nullptr) co_await mirror_.log->close();
  co_await gate_.close();
}

}  // namespace sandbay::cache
