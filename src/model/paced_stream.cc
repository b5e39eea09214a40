// A piece follows the one before without a gap if it came, or was made, while that one was on its
// way. Timers that are late do not slow a port down, for the next piece begins when the port was
// free.
#include "model/paced_stream.h"

#include <algorithm>

namespace sandbay::model {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
// A reactor may need so long for bytes that had come when it was asked. A reader that waits for the
// peer's next command has asked long before.
constexpr Duration kAtOnce = std::chrono::microseconds(100);

}  // namespace

SharedPort::SharedPort(const PortProfile& profile, ModelClock clock)
    : length_(profile), clock_(clock) {}

TimePoint SharedPort::pass(Way way, TimePoint from, std::uint64_t bytes) noexcept {
  Slot& used = slots_[slot(way)];
  const Nanoseconds length =
      length_.transfer_length(bytes, std::max<std::uint64_t>(bytes, 1)).count();
  used.busy.fetch_add(length, std::memory_order_relaxed);
  Nanoseconds free = used.free.load(std::memory_order_relaxed);
  Nanoseconds end = 0;
  do {
    end = std::max(free, in_nanoseconds(from)) + length;
  } while (!used.free.compare_exchange_weak(free, end, std::memory_order_relaxed));
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
  const TimePoint asked = home().now();
  Result<std::size_t> received = co_await below_->receive(incoming_);
  if (!received || *received == 0) co_return received;
  const ModelClock& clock = port_->clock();
  TimePoint from = clock.modelled(home().now());
  const bool was_there = home().now() - asked <= kAtOnce && in_end_ != TimePoint{};
  if (was_there) from = std::min(from, in_end_);
  in_end_ = port_->pass(SharedPort::Way::kIn, from, *received);
  co_await clock.wait_until(in_end_ + port_->profile().latency, home());
  co_return received;
}

Task<Error> PacedStream::send(std::span<const IoSlice> source) {
  const ModelClock& clock = port_->clock();
  TimePoint from = home().now() == sent_at_ ? out_end_ : clock.modelled(home().now());
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
    out_end_ = from = port_->pass(SharedPort::Way::kOut, from, bytes);
    co_await clock.wait_until(out_end_ + port_->profile().latency, home());
    error = co_await below_->send(outgoing_);
  }
  sent_at_ = home().now();
  co_return error;
}

}  // namespace sandbay::model
