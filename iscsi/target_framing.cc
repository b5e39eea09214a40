// Cutting the stream into PDUs.

#include "iscsi/target_framing.h"

#include <algorithm>
#include <cstring>

#include "iscsi/digest.h"

namespace sandbay::iscsi {

bool PduFramer::move_to(BufferPool& pool) {
  pool_ = &pool;
  if (staging_.empty()) return true;
  Buffer moved = pool.try_allocate_contiguous(std::max(staging_bytes_, available()));
  if (moved.empty()) return false;
  std::memcpy(moved.data(), staging_.data() + begin_, available());
  end_ -= begin_;
  begin_ = 0;
  staging_ = std::move(moved);
  return true;
}

PduFramer::Step PduFramer::next(IncomingPdu& pdu) {
  if (state_ == State::kHeader) {
    const Step step = parse_header(pdu);
    if (step != Step::kPdu) return step;
  }
  if ((state_ == State::kPayload || state_ == State::kDiscard) && !take_payload(pdu)) {
    return Step::kMore;
  }
  return take_trailer(pdu);
}

// kPdu: the header is complete and the state is the payload's.
PduFramer::Step PduFramer::parse_header(IncomingPdu& pdu) {
  if (available() < kBhsBytes) return Step::kMore;
  const auto bhs = staged(kBhsBytes).first<kBhsBytes>();
  const std::size_t ahs_bytes = ahs_byte_count(bhs);
  const std::size_t header_bytes = kBhsBytes + ahs_bytes + (header_digest_ ? kDigestBytes : 0);
  if (available() < header_bytes) return Step::kMore;
  std::ranges::copy(bhs, pdu.bhs.begin());
  const auto ahs = staged(kBhsBytes + ahs_bytes).subspan(kBhsBytes);
  pdu.ahs.assign(ahs.begin(), ahs.end());
  pdu.data_dropped = false;
  pdu.promised = 0;
  pdu.share = 0;
  pdu.data_digest_error = false;
  pdu.data.clear();
  if (header_digest_) {
    const auto digest = staged(header_bytes).last<kDigestBytes>();
    if (load_digest(digest) != header_digest(pdu.bhs, pdu.ahs)) return Step::kHeaderDigestError;
  }
  begin_ += header_bytes;
  payload_bytes_ = data_segment_length(pdu.bhs);
  payload_done_ = 0;
  large_payloads_ = payload_bytes_ >= kLargePayloadBytes;
  if (payload_bytes_ > limit_) return Step::kDataTooLong;
  state_ = State::kTrailer;
  if (payload_bytes_ == 0) return Step::kPdu;
  payload_ = payloads_.payload_for(pdu, payload_bytes_);
  pdu.data_dropped = payload_.empty();
  state_ = pdu.data_dropped ? State::kDiscard : State::kPayload;
  return Step::kPdu;
}

// Moves what is staged of the payload to where it belongs. True once it is complete.
bool PduFramer::take_payload(IncomingPdu& pdu) {
  const std::size_t taken = std::min(available(), payload_bytes_ - payload_done_);
  if (taken > 0) {
    if (state_ == State::kPayload) payload_.copy_from(staged(taken), payload_done_);
    payload_done_ += taken;
    begin_ += taken;
  }
  if (payload_done_ < payload_bytes_) return false;
  pdu.data = std::move(payload_);
  state_ = State::kTrailer;
  return true;
}

// Padding and data digest.
PduFramer::Step PduFramer::take_trailer(IncomingPdu& pdu) {
  const std::size_t padding = padding_of(static_cast<std::uint32_t>(payload_bytes_));
  const bool digest = data_digest_ && payload_bytes_ > 0;
  const std::size_t trailer_bytes = padding + (digest ? kDigestBytes : 0);
  if (available() < trailer_bytes) return Step::kMore;
  if (digest && !pdu.data_dropped) {
    const auto received = staged(trailer_bytes).last<kDigestBytes>();
    pdu.data_digest_error = load_digest(received) != data_digest(pdu.data);
  }
  begin_ += trailer_bytes;
  state_ = State::kHeader;
  return Step::kPdu;
}

// Leaves room behind what is staged; what is staged is less than a header or a trailer.
void PduFramer::make_room() {
  if (begin_ == end_) begin_ = end_ = 0;
  // A larger one for who sends much, as long as that takes nothing away from payloads.
  const bool plenty = pool_->used_bytes() < pool_->limit_bytes() / 4;
  if (begin_ == end_ && filled_ && plenty && staging_bytes_ < kMostStagingBytes) {
    Buffer larger = pool_->try_allocate_contiguous(staging_bytes_ * 4);
    if (!larger.empty()) {
      staging_bytes_ *= 4;
      staging_ = std::move(larger);
    }
  }
  filled_ = false;
  if (staging_.empty()) {
    staging_ = pool_->try_allocate_contiguous(staging_bytes_);
    return;
  }
  if (begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + begin_, available());
    end_ -= begin_;
    begin_ = 0;
  }
}

std::span<const IoSlice> PduFramer::targets() {
  targets_.clear();
  make_room();
  if (staging_.empty()) return {};
  if (state_ == State::kPayload) {
    std::size_t skip = payload_done_;
    for (std::size_t i = 0; i < payload_.slice_count(); ++i) {
      const Buffer& slice = payload_[i];
      if (skip >= slice.byte_count()) {
        skip -= slice.byte_count();
        continue;
      }
      targets_.push_back({slice.data() + skip, slice.byte_count() - skip});
      skip = 0;
    }
  }
  // Where payloads are large, only a header's worth is received behind this one: the next payload
  // then goes straight into its own buffers instead of being copied out of staging. What is dropped
  // is received into staging, as much at a time as it holds.
  const std::size_t room = staging_.byte_count() - end_;
  const bool peek = large_payloads_ && state_ != State::kDiscard;
  targets_.push_back({staging_.data() + end_, peek ? std::min(room, kPeekBytes) : room});
  return targets_;
}

void PduFramer::received(std::size_t byte_count) {
  if (state_ == State::kPayload) {
    const std::size_t direct = std::min(byte_count, payload_bytes_ - payload_done_);
    payload_done_ += direct;
    byte_count -= direct;
  }
  end_ += byte_count;
  filled_ = end_ == staging_.byte_count();
}

}  // namespace sandbay::iscsi
