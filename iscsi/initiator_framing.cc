// Cutting the byte stream of a connection into PDUs: RFC 7143 sections 11.1 and 11.2.
//
// One buffer takes what arrives. The data segment of a Data-In goes to its command's buffers:
// copied from the buffer as far as it is there, received straight into them from there on. Other
// data segments are gathered in data_.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "iscsi/digest.h"
#include "iscsi/initiator_connection.h"

namespace sandbay::iscsi {
namespace {

// From this much missing data on, the next receive leaves little room behind it, so that the data
// after it, probably as large, is received in place too.
constexpr std::size_t kLargeData = 16 * 1024;
constexpr std::size_t kRoomBehindLargeData = 512;

}  // namespace

void InitiatorConnection::parse() {
  while (!failing_ && framing_ != Framing::kHeld) {
    if (framing_ == Framing::kHeader && !take_header()) return;
    if (framing_ == Framing::kData && !take_data()) return;
  }
}

// True when the header is in bhs_ and its data segment is next.
bool InitiatorConnection::take_header() {
  if (buffered() < kBhsBytes) return false;
  const std::span<const std::byte> bytes = buffered_bytes();
  const std::uint32_t ahs = ahs_byte_count(bytes.first<kBhsBytes>());
  const std::size_t checked = kBhsBytes + ahs;
  const std::size_t whole = checked + (limits_.header_digest ? kDigestBytes : 0);
  if (buffered() < whole) return false;
  if (limits_.header_digest &&
      load_digest(bytes.subspan(checked).first<kDigestBytes>()) != crc32c(bytes.first(checked))) {
    ++counters_.header_digest_errors;
    fail("header digest error");
    return false;
  }
  std::memcpy(bhs_.data(), bytes.data(), kBhsBytes);
  begin_ += whole;
  data_bytes_ = data_segment_length(bhs_);
  data_done_ = 0;
  framing_ = Framing::kData;
  if (data_bytes_ > limits_.receive_segment_bytes) {
    violate("data segment longer than MaxRecvDataSegmentLength");
    return false;
  }
  choose_sink();
  return !failing_;
}

// Where the data segment goes. A Data-In that does not fit its command ends the connection; one
// that belongs to no command any more is read and forgotten.
void InitiatorConnection::choose_sink() {
  sink_ = nullptr;
  if (opcode_of(bhs_) == Opcode::kDataIn && data_bytes_ != 0) {
    const std::uint32_t offset = buffer_offset_of(bhs_);
    InitiatorTask* task = find(initiator_task_tag(bhs_));
    if (task != nullptr) {
      if (task->kind != InitiatorTask::Kind::kScsi) return violate("Data-In for another task");
      auto& command = static_cast<InitiatorCommand&>(*task);
      const std::size_t room = command.data_in.byte_count();
      if (offset > room || data_bytes_ > room - offset) {
        return violate("Data-In beyond the expected length");
      }
      sink_ = &command;
      sink_offset_ = offset;
      return;
    }
  }
  data_.resize(data_bytes_);
}

// True when the PDU was complete and has been handled.
bool InitiatorConnection::take_data() {
  const std::size_t part =
      std::min<std::size_t>(buffered(), static_cast<std::size_t>(data_bytes_) - data_done_);
  if (part != 0) {
    const std::span<const std::byte> bytes = buffered_bytes().first(part);
    if (sink_ != nullptr) {
      sink_->data_in.copy_from(bytes, sink_offset_ + data_done_);
    } else {
      std::memcpy(data_.data() + data_done_, bytes.data(), part);
    }
    begin_ += part;
    data_done_ += static_cast<std::uint32_t>(part);
  }
  if (data_done_ < data_bytes_) return false;

  const std::uint32_t padding = padding_of(data_bytes_);
  const std::size_t digest = limits_.data_digest && data_bytes_ != 0 ? kDigestBytes : 0;
  if (buffered() < padding + digest) return false;
  if (digest != 0 && !data_digest_fits(buffered_bytes().first(padding),
                                       buffered_bytes().subspan(padding, digest))) {
    ++counters_.data_digest_errors;
    fail("data digest error");
    return false;
  }
  begin_ += padding + digest;
  framing_ = Framing::kHeader;
  if (interference_ != nullptr && !interference_->quiet()) [[unlikely]]
    return judge_pdu();
  handle_pdu();
  return true;
}

bool InitiatorConnection::data_digest_fits(std::span<const std::byte> padding,
                                           std::span<const std::byte> digest) {
  Crc32c crc;
  if (sink_ == nullptr) {
    crc.update(data_);
  } else {
    std::size_t skip = sink_offset_;
    std::size_t left = data_bytes_;
    for (std::size_t index = 0; left != 0; ++index) {
      const std::span<const std::byte> slice = sink_->data_in[index].bytes();
      if (skip >= slice.size()) {
        skip -= slice.size();
        continue;
      }
      const std::size_t part = std::min(left, slice.size() - skip);
      crc.update(slice.subspan(skip, part));
      left -= part;
      skip = 0;
    }
  }
  crc.update(padding);
  return load_digest(digest.first<kDigestBytes>()) == crc.value();
}

// Where the next bytes go. Everything that could be consumed has been.
std::size_t InitiatorConnection::receive_slices(std::array<IoSlice, 8>& slices) {
  std::size_t count = 0;
  std::size_t missing = data_bytes_ - data_done_;
  const bool in_place = framing_ == Framing::kData && sink_ != nullptr && missing != 0;
  if (in_place) {
    assert(buffered() == 0);
    large_pdus_ = missing >= kLargeData;
    std::size_t skip = sink_offset_ + data_done_;
    for (std::size_t index = 0; missing != 0 && count + 1 < slices.size(); ++index) {
      const Buffer& slice = sink_->data_in[index];
      if (skip >= slice.byte_count()) {
        skip -= slice.byte_count();
        continue;
      }
      const std::size_t part = std::min(missing, slice.byte_count() - skip);
      slices[count++] = {.data = slice.data() + skip, .byte_count = part};
      missing -= part;
      skip = 0;
    }
    if (missing != 0) return count;  // More slices than fit: no room for anything behind them.
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (buffer_.byte_count() - end_ < kMaximumAhsBytes + kBhsBytes + 2 * kDigestBytes) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  std::size_t room = buffer_.byte_count() - end_;
  if (large_pdus_) room = std::min(room, kRoomBehindLargeData);
  assert(room != 0);
  slices[count++] = {.data = buffer_.data() + end_, .byte_count = room};
  return count;
}

void InitiatorConnection::received(std::size_t byte_count) {
  if (framing_ == Framing::kData && sink_ != nullptr) {
    const std::size_t missing = data_bytes_ - data_done_;
    const std::size_t in_place = std::min(byte_count, missing);
    data_done_ += static_cast<std::uint32_t>(in_place);
    byte_count -= in_place;
  }
  end_ += byte_count;
  // Small PDUs again: a buffer that was filled to its short end held several of them.
  if (large_pdus_ && framing_ == Framing::kHeader) large_pdus_ = false;
}

}  // namespace sandbay::iscsi
