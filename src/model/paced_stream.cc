// A piece follows the one before without a gap if it came, or was made, while that one was on its
// way. Timers that are late do not slow a port down, for the next piece begins when the port was
// free.
#include "model/paced_stream.h"

#include <algorithm>

namespace sandbay::model {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
// Bytes wait no longer than this for somebody who takes them as they come. Where they do, the peer
// or the reader is slow, and the port was idle.
constexpr Duration kMostBehind = std::chrono::milliseconds(5);

}  // namespace

SharedPort::SharedPort(const PortProfile& profile, ModelClock clock)
    : length_(profile), clock_(clock) {}

TimePoint SharedPort::pass(Way way, TimePoint from, std::uint64_t bytes) noexcept {
  std::atomic<Nanoseconds>& busy_until = busy_until_[slot(way)];
  const Nanoseconds length =
      length_.transfer_length(bytes, std::max<std::uint64_t>(bytes, 1)).count();
  Nanoseconds free = busy_until.load(std::memory_order_relaxed);
  Nanoseconds end = 0;
  do {
    end = std::max(free, in_nanoseconds(from)) + length;
  } while (!busy_until.compare_exchange_weak(free, end, std::memory_order_relaxed));
  return at_nanoseconds(end);
}

Task<Result<std::size_t>> PacedStream::receive(std::span<const IoSlice> target) {
  incoming_.clear();
  std::size_t room = kPieceBytes;
  for (const IoSlice& slice : target) {
    const std::size_t part = std::min(room, slice.byte_count);
    if (part > 0) incoming_.push_back({.data = slice.data, .byte_count = part});
    room -= part;
  }
  const bool was_there = below_->readable();
  Result<std::size_t> received = co_await below_->receive(incoming_);
  if (!received || *received == 0) co_return received;
  const TimePoint from = was_there ? not_before(in_end_) : port_->clock().modelled(home().now());
  in_end_ = port_->pass(SharedPort::Way::kIn, from, *received);
  co_await ended_.wait_until(due(in_end_));
  co_return received;
}

TimePoint PacedStream::due(TimePoint passed) const {
  return port_->clock().real(passed + port_->profile().latency);
}

TimePoint PacedStream::not_before(TimePoint end) const {
  const TimePoint now = port_->clock().modelled(home().now());
  return std::clamp(end, now - port_->profile().latency - kMostBehind, now);
}

Task<Error> PacedStream::send(std::span<const IoSlice> source) {
  const bool follows = home().now() == sent_at_;
  TimePoint from = follows ? not_before(out_end_) : port_->clock().modelled(home().now());
  std::size_t slice = 0;
  std::size_t offset = 0;
  Error error = Error::kNone;
  while (slice < source.size() && error == Error::kNone) {
    outgoing_.clear();
    std::size_t bytes = 0;
    while (slice < source.size() && bytes < kPieceBytes) {
      const IoSlice& whole = source[slice];
      const std::size_t part = std::min(kPieceBytes - bytes, whole.byte_count - offset);
      if (part > 0) outgoing_.push_back({.data = whole.data + offset, .byte_count = part});
      bytes += part;
      offset += part;
      if (offset < whole.byte_count) continue;
      ++slice;
      offset = 0;
    }
    out_end_ = port_->pass(SharedPort::Way::kOut, from, bytes);
    held_until_ = due(out_end_);
    co_await ended_.wait_until(held_until_);
    error = co_await below_->send(outgoing_);
    from = not_before(out_end_);
  }
  sent_at_ = home().now();
  co_return error;
}

}  // namespace sandbay::model
