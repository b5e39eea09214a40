// RecordLog at work: appending, releasing, and what becomes durable when.
//
// With Durability::kProcess memory is all that counts: a killed process has executed its stores in
// program order. A record is payload, header, and last the word with magic and checksum; control
// block and seal, written after it, count it. A release is sealed and then marked, which is one
// store, release_check. Space is reused only after a control block says so.
//
// With Durability::kHost sectors reach the medium in any order until a sync ends. So the control
// block is written only as a round begins and never speaks of what is not durable yet: durable_head
// and durable_epoch are those of the round before. Space is reused only after the round that wrote
// the tail, and a release counts after a host crash only if a durable control block knows its
// epoch.
#include "nvram/record_log.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "nvram/record_layout.h"
#include "nvram/record_scan.h"

namespace sandbay::nvram {
namespace {

constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kLargestRecord = std::uint64_t{1} << 30;

}  // namespace

RecordLog::RecordLog(Region& region, RecordLogOptions options)
    : region_(region), nvram_(region.nvram()), seal_(nvram_, region.index_) {
  assert(std::ranges::none_of(nvram_.logs_,
                              [&](const RecordLog* log) { return &log->region_ == &region; }));
  const std::span<std::byte> all = region.bytes();
  assert(options.offset % kPageBytes == 0 && options.offset <= all.size());
  const std::uint64_t rest = all.size() - options.offset;
  const std::uint64_t byte_count = options.byte_count == 0 ? rest : options.byte_count;
  assert(byte_count % kPageBytes == 0 && byte_count >= kLeastLogBytes && byte_count <= rest);
  controls_ = all.subspan(options.offset, 2 * kPageBytes);
  ring_ = all.subspan(options.offset + 2 * kPageBytes, byte_count - 2 * kPageBytes);
  capacity_ = ring_.size();
  entries_.resize(64);
  nvram_.logs_.push_back(this);
}

RecordLog::~RecordLog() { std::erase(nvram_.logs_, this); }

std::uint64_t RecordLog::used_bytes() const noexcept {
  return head_position_ - (to_host() ? durable_tail_position_ : tail_position_);
}

std::uint64_t RecordLog::largest_payload_bytes(std::size_t descriptor_bytes) const noexcept {
  return std::min(capacity_ / 2, kLargestRecord) - payload_offset(descriptor_bytes);
}

// Appending -------------------------------------------------------------------------------------

Task<Result<RecordId>> RecordLog::append(std::span<const std::byte> descriptor,
                                         std::span<const IoSlice> payload) {
  assert(ready_ && region_.settled());
  std::uint64_t payload_bytes = 0;
  for (const IoSlice& slice : payload) payload_bytes += slice.byte_count;
  if (descriptor.size() > kMostDescriptorBytes ||
      payload_bytes > largest_payload_bytes(descriptor.size())) {
    co_return std::unexpected(Error::kInvalid);
  }
  if (!appends_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(appends_);
  const std::uint64_t byte_count = record_bytes(descriptor.size(), payload_bytes);
  // Nobody overtakes those who wait.
  if (turn_.locked() || place_for(byte_count) == kNowhere || nvram_.failure_ != Error::kNone) {
    const Error error = co_await wait_for_room(byte_count);
    if (error != Error::kNone) co_return std::unexpected(error);
  }
  const RecordId id = put(place_for(byte_count), descriptor, payload, payload_bytes);
  if (!to_host()) write_control();
  seal_.appended(id.sequence);
  // Before anybody relies on it: it may have been stored where the image is not any more.
  nvram_.fail_if_broken();
  Error error = nvram_.failure_;
  if (to_host()) error = co_await nvram_.commit();
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return id;
}

// Ends, with room for the record, in the turn in which the caller goes on and takes it.
Task<Error> RecordLog::wait_for_room(std::uint64_t byte_count) {
  ++waiting_;
  co_await turn_.lock();
  Error error = Error::kNone;
  for (;;) {
    error = closed_ ? Error::kClosed : nvram_.failure_;
    if (error == Error::kNone && place_for(byte_count) == kNowhere) error = refusal_;
    if (error != Error::kNone || place_for(byte_count) != kNowhere) break;
    if (to_host() && durable_tail_position_ != tail_position_) {
      co_await nvram_.commit();  // Released space becomes free; an error shows above.
    } else {
      co_await room_.wait();
    }
  }
  --waiting_;
  turn_.unlock();
  co_return error;
}

// A record stands in one piece: where the ring's end is too near, it begins the next lap.
std::uint64_t RecordLog::place_for(std::uint64_t byte_count) const {
  std::uint64_t position = head_position_;
  const std::uint64_t to_end = capacity_ - position % capacity_;
  if (byte_count > to_end) position += to_end;
  const std::uint64_t tail = to_host() ? durable_tail_position_ : tail_position_;
  return position + byte_count - tail <= capacity_ ? position : kNowhere;
}

void RecordLog::make_room_for_entry() {
  if (head_sequence_ - tail_sequence_ < entries_.size()) return;
  std::vector<Entry> larger(entries_.size() * 2);
  for (std::uint64_t sequence = tail_sequence_; sequence < head_sequence_; ++sequence) {
    larger[sequence % larger.size()] = entry(sequence);
  }
  entries_ = std::move(larger);
}

std::uint32_t RecordLog::put_payload(std::byte* target, std::span<const IoSlice> payload) {
  Crc32c crc;
  for (const IoSlice& slice : payload) {
    if (slice.byte_count == 0) continue;
    crc.update({slice.data, slice.byte_count});
    nvram_.store(target, slice.data, slice.byte_count);
    target += slice.byte_count;
  }
  return crc.value();
}

RecordId RecordLog::put(std::uint64_t position, std::span<const std::byte> descriptor,
                        std::span<const IoSlice> payload, std::uint64_t payload_bytes) {
  const std::uint64_t byte_count = record_bytes(descriptor.size(), payload_bytes);
  assert(position != kNowhere && position % kRecordAlignment == 0);
  // The image must say that what stands there is released before it is overwritten.
  if (position + byte_count - durable_tail_position_ > capacity_) write_control();
  assert(position + byte_count - durable_tail_position_ <= capacity_);
  make_room_for_entry();

  std::byte* const target = ring_.data() + position % capacity_;
  RecordHeader header{.magic = kRecordMagic,
                      .sequence = head_sequence_,
                      .position = position,
                      .log_id = static_cast<std::uint32_t>(log_id_),
                      .descriptor_bytes = static_cast<std::uint32_t>(descriptor.size()),
                      .payload_bytes = static_cast<std::uint32_t>(payload_bytes)};
  // Without its first word nothing of an older record there counts.
  nvram_.store_word(target, 0);
  header.payload_checksum = put_payload(target + payload_offset(descriptor.size()), payload);
  if (!descriptor.empty()) {
    nvram_.store(target + sizeof header, descriptor.data(), descriptor.size());
  }
  header.checksum = checksum_of(header, descriptor);
  std::uint64_t first_word = 0;
  std::memcpy(&first_word, &header, sizeof first_word);
  nvram_.store(target + sizeof first_word,
               reinterpret_cast<const std::byte*>(&header) + sizeof first_word,
               sizeof header - sizeof first_word);
  nvram_.store_word(target, first_word);

  entry(head_sequence_) = {.position = position, .byte_count = byte_count, .live = true};
  head_position_ = position + byte_count;
  ++live_count_;
  changed_ = true;
  return RecordId{head_sequence_++};
}

// Releasing -------------------------------------------------------------------------------------

void RecordLog::release(RecordId id) {
  assert(ready_);
  assert(id.sequence >= tail_sequence_ && id.sequence < head_sequence_);
  assert(entry(id.sequence).live);
  seal_.released(id.sequence);
  mark_released(entry(id.sequence).position);
  entry(id.sequence).live = false;
  --live_count_;
  released_epoch_ = epoch_;
  changed_ = true;
  advance_tail();
}

void RecordLog::mark_released(std::uint64_t position) {
  std::byte* const target = ring_.data() + position % capacity_;
  RecordHeader header{};
  std::memcpy(&header, target, sizeof header);
  nvram_.store_word(target + offsetof(RecordHeader, release_epoch), epoch_);
  nvram_.store_word(target + offsetof(RecordHeader, release_check), release_check(header, epoch_));
}

void RecordLog::advance_tail() {
  const std::uint64_t before = tail_sequence_;
  while (tail_sequence_ < head_sequence_ && !entry(tail_sequence_).live) {
    tail_position_ = entry(tail_sequence_).position + entry(tail_sequence_).byte_count;
    ++tail_sequence_;
  }
  if (tail_sequence_ != before) room_.notify_all();
}

// Twice: the first round makes the marks durable, the second a control block that says so.
Task<Error> RecordLog::flush_releases() {
  const std::uint64_t wanted = released_epoch_;
  while (to_host() && confirmed_epoch_ < wanted) {
    const Error error = co_await nvram_.commit();
    if (error != Error::kNone) co_return error;
  }
  nvram_.fail_if_broken();
  co_return nvram_.failure_;
}

// Control blocks --------------------------------------------------------------------------------

void RecordLog::write_control() {
  ControlBlock block{.magic = kControlMagic,
                     .generation = ++generation_,
                     .log_id = log_id_,
                     .capacity = capacity_,
                     .head_sequence = head_sequence_,
                     .head_position = head_position_,
                     .tail_sequence = tail_sequence_,
                     .tail_position = tail_position_,
                     .durable_head = to_host() ? durable_head_ : head_sequence_,
                     .durable_epoch = durable_epoch_,
                     .epoch = epoch_,
                     .forgiven_first = forgiven_first_,
                     .forgiven_end = forgiven_end_};
  block.checksum = checksum_of(block);
  slot_ = 1 - slot_;
  nvram_.store(controls_.data() + slot_ * kPageBytes, &block, sizeof block);
  seal_.control_written(generation_);
  if (!to_host()) durable_tail_position_ = tail_position_;
}

void RecordLog::begin_round() {
  round_.wrote = ready_ && to_host() && (changed_ || confirmed_epoch_ != durable_epoch_);
  if (!round_.wrote) return;
  write_control();
  round_ = {.head_sequence = head_sequence_,
            .tail_position = tail_position_,
            .epoch = epoch_,
            .durable_epoch = durable_epoch_,
            .wrote = true};
  // Releases from here on may miss the sync.
  ++epoch_;
  changed_ = false;
}

void RecordLog::end_round() {
  if (!round_.wrote) return;
  round_.wrote = false;
  durable_head_ = round_.head_sequence;
  durable_epoch_ = round_.epoch;
  confirmed_epoch_ = round_.durable_epoch;
  if (durable_tail_position_ == round_.tail_position) return;
  durable_tail_position_ = round_.tail_position;
  room_.notify_all();
}

// Waiting ---------------------------------------------------------------------------------------

void RecordLog::refuse_waiting(Error error) {
  refusal_ = error;
  wake_all();
}

void RecordLog::wake_all() { room_.notify_all(); }

Task<void> RecordLog::close() {
  closed_ = true;
  wake_all();
  co_await appends_.close();
}

}  // namespace sandbay::nvram
