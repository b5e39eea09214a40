// Sending: one writer a connection, woken at the end of the turn, that gathers everything queued
// into as few sends as possible.

#include <algorithm>
#include <cstring>

#include "iscsi/bent_pdus.h"
#include "iscsi/digest.h"
#include "iscsi/target_connection.h"

namespace sandbay::iscsi {
namespace {

// Waits until something is queued; whoever queues it posts the handle to the turn's end.
struct WaitForWork {
  std::coroutine_handle<>& idle_writer;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) const noexcept { idle_writer = handle; }
  void await_resume() const noexcept {}
};

}  // namespace

void Connection::send(Bhs bhs, BufferList data, StatSnUse use) {
  if (closing_ || last_queued_) return;
  if (use != StatSnUse::kNone) {
    put_big_endian<std::uint32_t>(bhs, 24, stat_sn_);
    if (use == StatSnUse::kConsume) {
      answers_[stat_sn_ % kRememberedAnswers] = {.at = home_->now(),
                                                 .initiator_task_tag = initiator_task_tag(bhs)};
      ++stat_sn_;
    }
  }
  assert(data_segment_length(bhs) == data.byte_count());
  PduInterference::Verdict verdict;
  const bool interfered = is_interfered_with();
  if (interfered) [[unlikely]] {
    verdict = interfere_with_sending(bhs, data);
    if (verdict.fate == PduInterference::Fate::kLose) return;
  }
  Outgoing& outgoing = queue_.emplace_back();
  std::ranges::copy(bhs, outgoing.header.begin());
  outgoing.data = std::move(data);
  finish_outgoing(outgoing);
  if (interfered) [[unlikely]]
    spoil(outgoing, verdict);
  queued_bytes_ += cost_of(queue_.back());
  ++traffic_.pdus_out;
  if (idle_writer_) {
    home_->post_at_turn_end(std::exchange(idle_writer_, {}));
  } else if (writer_ended_) {
    writer_ended_ = false;
    spawn(write_loop());
  }
}

// Loses what is not to be sent, for whichever reason.
PduInterference::Verdict Connection::interfere_with_sending(const Bhs& bhs, BufferList& data) {
  using Fate = PduInterference::Fate;
  PduInterference::Verdict verdict =
      interference_->judge(bhs, {.sent = true,
                                 .data = !data.empty(),
                                 .header_digest = header_digest_,
                                 .data_digest = data_digest_ && !data.empty()});
  if (verdict.silent) note_silence();
  if (verdict.fate == Fate::kClose || verdict.fate == Fate::kReset) {
    break_by_rule(verdict.fate);
    verdict.fate = Fate::kLose;
  }
  const bool late = verdict.fate != Fate::kLose && verdict.delay > Duration::zero();
  if (late) queue_hold(home_->now() + verdict.delay);
  if (verdict.fate == Fate::kAltered) alter(data);
  return verdict;
}

// A copy where others use these bytes as well.
void Connection::alter(BufferList& data) {
  if (data.empty()) return;
  if (!data.unique()) {
    BufferList own = home_->buffers().try_allocate(data.byte_count());
    if (own.empty()) return;
    own.copy_from(data);
    data = std::move(own);
  }
  invert_bit(data, data.byte_count() / 2);
}

void Connection::spoil(Outgoing& outgoing, const PduInterference::Verdict& verdict) {
  using Fate = PduInterference::Fate;
  outgoing.piece_bytes = verdict.piece_bytes;
  if (verdict.fate == Fate::kHeaderDigest) outgoing.header.back() ^= std::byte{1};
  if (verdict.fate == Fate::kDataDigest) {
    outgoing.trailer.at(outgoing.trailer_bytes - 1U) ^= std::byte{1};
  }
  if (verdict.fate == Fate::kDamaged) alter(outgoing.data);
  if (verdict.fate == Fate::kCut) {
    const std::size_t half = outgoing.data.byte_count() / 2;
    if (half == 0) outgoing.header_bytes = kBhsBytes / 2;
    outgoing.data = outgoing.data.take_front(half);
    outgoing.trailer_bytes = 0;
    given_up_ = kBrokenByRule;
    last_queued_ = true;
    room_.notify_all();  // A hold before it ends.
  }
  if (verdict.fate == Fate::kTwice) {
    queued_bytes_ += cost_of(outgoing);
    ++traffic_.pdus_out;
    Outgoing again{.header = outgoing.header,
                   .trailer = outgoing.trailer,
                   .header_bytes = outgoing.header_bytes,
                   .trailer_bytes = outgoing.trailer_bytes,
                   .piece_bytes = outgoing.piece_bytes,
                   .data = outgoing.data.share()};
    queue_.push_back(std::move(again));
  }
}

void Connection::queue_hold(TimePoint until) {
  Outgoing& hold = queue_.emplace_back();
  std::memcpy(hold.header.data(), &until, sizeof until);
  queued_bytes_ += cost_of(hold);
}

TimePoint Connection::hold_of(const Outgoing& outgoing) {
  TimePoint until;
  std::memcpy(&until, outgoing.header.data(), sizeof until);
  return until;
}

bool Connection::has_answered(std::uint32_t initiator_task_tag, TimePoint since) const noexcept {
  return std::ranges::any_of(answers_, [initiator_task_tag, since](const Answer& answer) {
    return answer.initiator_task_tag == initiator_task_tag && answer.at >= since;
  });
}

void Connection::send_bytes(Bhs bhs, std::span<const std::byte> data, StatSnUse use) {
  put_big_endian_24(bhs, 5, static_cast<std::uint32_t>(data.size()));
  BufferList list;
  if (!data.empty()) {
    list = home_->buffers().try_allocate(data.size());
    if (list.empty()) {
      shutdown();  // Not even this much: the peer's answer cannot be given.
      return;
    }
    list.copy_from(data);
  }
  send(bhs, std::move(list), use);
}

// Digests and padding.
void Connection::finish_outgoing(Outgoing& outgoing) {
  const auto bhs = std::span<const std::byte>(outgoing.header).first<kBhsBytes>();
  outgoing.header_bytes = kBhsBytes;
  if (header_digest_) {
    store_digest(header_digest(bhs), std::span<std::byte>(outgoing.header).last<kDigestBytes>());
    outgoing.header_bytes += kDigestBytes;
  }
  const auto data_bytes = static_cast<std::uint32_t>(outgoing.data.byte_count());
  const std::uint32_t padding = padding_of(data_bytes);
  outgoing.trailer.fill(std::byte{0});
  outgoing.trailer_bytes = static_cast<std::uint8_t>(padding);
  if (data_digest_ && data_bytes > 0) {
    store_digest(data_digest(outgoing.data),
                 std::span<std::byte>(outgoing.trailer).subspan(padding).first<kDigestBytes>());
    outgoing.trailer_bytes += kDigestBytes;
  }
}

Task<void> Connection::write_loop() {
  co_await home_->turn_end();
  for (;;) {
    while (!queue_.empty() && !closing_) {
      std::swap(queue_, sending_);
      const Error error = co_await send_gathered();
      sending_.clear();
      send_started_ = kNever;
      if (error != Error::kNone) shutdown();
      sent_.notify_all();
      room_.notify_all();
    }
    if (last_queued_) shutdown();
    if (closing_ || moving_) break;
    co_await WaitForWork{idle_writer_};
    if (closing_ || moving_) break;
  }
  writer_ended_ = true;
  sent_.notify_all();
}

Task<Error> Connection::send_gathered() {
  std::size_t next = 0;
  while (next < sending_.size()) {
    if (sending_[next].header_bytes == 0) [[unlikely]] {
      send_started_ = kNever;
      co_await wait_by_rule(hold_of(sending_[next]), writes_wait_);
      if (closing_) co_return Error::kClosed;
      queued_bytes_ -= cost_of(sending_[next++]);
      continue;
    }
    if (sending_[next].piece_bytes != 0) [[unlikely]] {
      const Error error = co_await send_small(sending_[next++]);
      if (error != Error::kNone) co_return error;
      continue;
    }
    slices_.clear();
    std::size_t byte_count = 0;
    std::size_t cost = 0;
    while (next < sending_.size() && slices_.size() < kSlicesPerSend &&
           byte_count < kBytesPerSend) {
      Outgoing& outgoing = sending_[next];
      if (outgoing.header_bytes == 0 || outgoing.piece_bytes != 0) break;
      ++next;
      slices_.push_back({outgoing.header.data(), outgoing.header_bytes});
      byte_count += outgoing.header_bytes;
      for (std::size_t i = 0; i < outgoing.data.slice_count(); ++i) {
        slices_.push_back({outgoing.data[i].data(), outgoing.data[i].byte_count()});
      }
      byte_count += outgoing.data.byte_count() + outgoing.trailer_bytes;
      cost += cost_of(outgoing);
      if (outgoing.trailer_bytes > 0) {
        slices_.push_back({outgoing.trailer.data(), outgoing.trailer_bytes});
      }
    }
    send_started_ = home_->now();
    const Error error = co_await stream_->send(slices_);
    if (error != Error::kNone) co_return error;
    traffic_.bytes_out += byte_count;
    queued_bytes_ -= cost;
    room_.notify_all();
  }
  co_return Error::kNone;
}

Task<Error> Connection::send_small(Outgoing& outgoing) {
  slices_.clear();
  slices_.push_back({outgoing.header.data(), outgoing.header_bytes});
  for (std::size_t i = 0; i < outgoing.data.slice_count(); ++i) {
    slices_.push_back({outgoing.data[i].data(), outgoing.data[i].byte_count()});
  }
  if (outgoing.trailer_bytes > 0) {
    slices_.push_back({outgoing.trailer.data(), outgoing.trailer_bytes});
  }
  const Error error =
      co_await send_in_pieces(*stream_, slices_, outgoing.piece_bytes, send_started_);
  if (error != Error::kNone) co_return error;
  traffic_.bytes_out += outgoing.header_bytes + outgoing.data.byte_count() + outgoing.trailer_bytes;
  queued_bytes_ -= cost_of(outgoing);
  room_.notify_all();
  co_return Error::kNone;
}

Task<void> Connection::room() {
  while (!has_room()) co_await room_.wait();
}

Task<void> Connection::all_sent() {
  while (!is_all_sent()) co_await room_.wait();
}

Task<void> Connection::drain() {
  // Login and logout wait here, when no housekeeping looks after a peer that does not read.
  TimePoint deadline = home_->now() + limits_.send_stall_timeout;
  while (!closing_ && !writer_ended_ && !(idle_writer_ && queue_.empty())) {
    const bool sent = co_await sent_.wait_until(deadline);
    if (!sent && writes_wait_ > 0) {
      deadline = home_->now() + limits_.send_stall_timeout;  // A rule makes it late, not the peer.
    } else if (!sent) {
      shutdown();
    }
  }
}

}  // namespace sandbay::iscsi
