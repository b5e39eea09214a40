// Gathering and sending an initiator's PDUs: RFC 7143 section 11.1 (padding) and 11.2.3 (digests).
#include "iscsi/initiator_outgoing.h"

#include <algorithm>
#include <cassert>

#include "iscsi/bent_pdus.h"

namespace sandbay::iscsi {
namespace {

// What Stream::send takes at once.
constexpr std::size_t kSlicesPerSend = 1024;

Crc32c crc_of(const BufferList& data, std::size_t offset, std::size_t byte_count) {
  Crc32c crc;
  for (std::size_t index = 0; byte_count != 0; ++index) {
    const std::span<const std::byte> slice = data[index].bytes();
    if (offset >= slice.size()) {
      offset -= slice.size();
      continue;
    }
    const std::size_t part = std::min(byte_count, slice.size() - offset);
    crc.update(slice.subspan(offset, part));
    byte_count -= part;
    offset = 0;
  }
  return crc;
}

}  // namespace

void InitiatorOutgoing::Batch::clear() {
  bytes.clear();
  pieces.clear();
  tasks.clear();
  delay = Duration{};
  piece_bytes = 0;
  reset_behind = false;
}

// Bytes at the end of the batch; adjoining ones form one piece.
std::span<std::byte> InitiatorOutgoing::Batch::grow(std::size_t byte_count) {
  const std::size_t start = bytes.size();
  bytes.resize(start + byte_count);
  if (!pieces.empty() && pieces.back().data == nullptr) {
    pieces.back().byte_count += byte_count;
  } else {
    pieces.push_back({.data = nullptr, .offset = start, .byte_count = byte_count});
  }
  return std::span(bytes).subspan(start, byte_count);
}

void InitiatorOutgoing::open(Stream& stream, bool header_digest, bool data_digest,
                             std::vector<Misbehaviour> misbehaviour, std::uint64_t pdus_before,
                             PduInterference* interference) {
  assert(stream_ == nullptr);
  stream_ = &stream;
  header_digest_ = header_digest;
  data_digest_ = data_digest;
  misbehaviour_ = std::move(misbehaviour);
  pdus_ = pdus_before;
  interference_ = interference;
}

void InitiatorOutgoing::put_header(const Bhs& bhs) {
  assert(ahs_byte_count(bhs) == 0);
  const std::span<std::byte> header = building_.grow(header_digest_ ? 52 : 48);
  std::ranges::copy(bhs, header.begin());
  if (header_digest_) store_digest(header_digest(bhs), header.last<kDigestBytes>());
}

// Padding and digest behind a data segment whose running CRC is given.
void InitiatorOutgoing::put_data_end(std::uint32_t byte_count, Crc32c crc) {
  const std::uint32_t padding = padding_of(byte_count);
  const std::size_t extra = padding + (data_digest_ ? kDigestBytes : 0);
  if (extra == 0) return;
  const std::span<std::byte> end = building_.grow(extra);
  std::ranges::fill(end, std::byte{0});
  if (!data_digest_) return;
  crc.update(std::span(kPadding).first(padding));
  store_digest(crc.value(), end.last<kDigestBytes>());
}

void InitiatorOutgoing::add(const Bhs& bhs, const BufferList& data, std::size_t offset,
                            InitiatorTask& task) {
  const std::uint32_t byte_count = data_segment_length(bhs);
  if (closed_) return;
  if (bends()) [[unlikely]] {
    std::vector<std::byte> copy(byte_count);
    if (byte_count != 0) data.copy_to(copy, offset);
    return add_misbehaving(bhs, std::move(copy));
  }
  ++pdus_;
  put_header(bhs);
  if (byte_count != 0) {
    std::size_t left = byte_count;
    std::size_t skip = offset;
    for (std::size_t index = 0; left != 0; ++index) {
      const Buffer& slice = data[index];
      if (skip >= slice.byte_count()) {
        skip -= slice.byte_count();
        continue;
      }
      const std::size_t part = std::min(left, slice.byte_count() - skip);
      building_.pieces.push_back({.data = slice.data() + skip, .offset = 0, .byte_count = part});
      left -= part;
      skip = 0;
    }
    put_data_end(byte_count, data_digest_ ? crc_of(data, offset, byte_count) : Crc32c());
    building_.tasks.push_back(&task);
    ++task.sends_in_flight;
  }
  wake();
}

void InitiatorOutgoing::add(const Bhs& bhs, std::span<const std::byte> data) {
  assert(data_segment_length(bhs) == data.size());
  if (closed_) return;
  if (bends()) [[unlikely]]
    return add_misbehaving(bhs, {data.begin(), data.end()});
  ++pdus_;
  put_header(bhs);
  if (!data.empty()) {
    std::ranges::copy(data, building_.grow(data.size()).begin());
    Crc32c crc;
    if (data_digest_) crc.update(data);
    put_data_end(static_cast<std::uint32_t>(data.size()), crc);
  }
  wake();
}

void InitiatorOutgoing::wake() {
  if (flushing_) return;
  flushing_ = true;
  spawn(flush());
}

Task<void> InitiatorOutgoing::flush() {
  co_await executor_.turn_end();
  while (!closed_ && !building_.empty()) {
    std::swap(building_, sending_);
    const Error error = co_await send_batch();
    release(sending_);
    if (error != Error::kNone && !closed_) owner_.outgoing_failed("sending failed");
    co_await executor_.turn_end();
  }
  if (closed_) release(building_);
  flushing_ = false;
  owner_.outgoing_idle();
}

Task<Error> InitiatorOutgoing::send_batch() {
  if (sending_.delay > Duration::zero()) [[unlikely]] {
    const TimePoint until = executor_.now() + sending_.delay;
    while (!closed_ && executor_.now() < until && bends()) {
      (void)co_await hurry_.wait_until(std::min(until, executor_.now() + kLookAtRules));
    }
  }
  slices_.clear();
  for (const Piece& piece : sending_.pieces) {
    auto* data = piece.data != nullptr ? const_cast<std::byte*>(piece.data)
                                       : sending_.bytes.data() + piece.offset;
    slices_.push_back({.data = data, .byte_count = piece.byte_count});
  }
  if (sending_.piece_bytes != 0) [[unlikely]] {
    TimePoint started;  // Nobody asks.
    const Error error = co_await send_in_pieces(*stream_, slices_, sending_.piece_bytes, started);
    if (error != Error::kNone) co_return error;
    slices_.clear();
  }
  std::span<const IoSlice> rest = slices_;
  while (!rest.empty() && !closed_) {
    const std::span<const IoSlice> part = rest.first(std::min(rest.size(), kSlicesPerSend));
    const Error error = co_await stream_->send(part);
    if (error != Error::kNone) co_return error;
    rest = rest.subspan(part.size());
  }
  if (sending_.reset_behind) stream_->reset();
  co_return Error::kNone;
}

void InitiatorOutgoing::release(Batch& batch) {
  // Telling the owner may add to `building_`, never to `batch`: it is either the one that was sent
  // or the queue is closed.
  for (InitiatorTask* task : batch.tasks) {
    assert(task->sends_in_flight > 0);
    --task->sends_in_flight;
    owner_.sent(*task);
  }
  batch.clear();
}

void InitiatorOutgoing::close() {
  if (closed_) return;
  closed_ = true;
  held_.clear();
  hurry_.notify_all();
  if (!flushing_) release(building_);
}

}  // namespace sandbay::iscsi
