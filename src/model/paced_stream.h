// PacedStream: a TCP connection through an Ethernet port with a rate and a latency. What the peer
// has sent is given to the reader when its last byte has passed the port; what is to be sent leaves
// when it has. Both go in pieces of at most 64 KiB, so that connections share a port fairly.
//
// The bytes of a stream have the PDUs' headers already, so the port's profile has pdu_header = 0.
// Bytes that come, or are to be sent, while a piece waits for the port's latency count as having
// come behind that piece, up to one latency early.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/drive_model.h"
#include "model/model_clock.h"
#include "model/port.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay::model {

// A port that connections on several reactors share. Any thread.
class SharedPort {
 public:
  enum class Way : std::uint8_t { kIn, kOut };

  SharedPort(const PortProfile& profile, ModelClock clock);

  // Books a transfer that can begin at `from`; its last byte has passed the port when this says.
  // The calls count in their order: no transfer overtakes an earlier one.
  TimePoint pass(Way way, TimePoint from, std::uint64_t bytes) noexcept;

  const PortProfile& profile() const noexcept { return length_.profile(); }
  const ModelClock& clock() const noexcept { return clock_; }

 private:
  std::size_t slot(Way way) const noexcept {
    return way == Way::kOut && profile().full_duplex ? 1 : 0;
  }

  const Port length_;  // For what a transfer takes alone.
  ModelClock clock_;
  std::atomic<Nanoseconds> busy_until_[2] = {0, 0};
};

class PacedStream final : public Stream {
 public:
  PacedStream(std::unique_ptr<Stream> below, std::shared_ptr<SharedPort> port)
      : below_(std::move(below)), port_(std::move(port)) {}

  Executor& home() const noexcept override { return below_->home(); }
  const Endpoint& local() const noexcept override { return below_->local(); }
  const Endpoint& peer() const noexcept override { return below_->peer(); }
  Task<Result<std::size_t>> receive(std::span<const IoSlice> target) override;
  bool readable() const noexcept override { return below_->readable(); }
  TimePoint held_until() const noexcept override { return held_until_; }
  Task<Error> send(std::span<const IoSlice> source) override;
  void shutdown() noexcept override {
    below_->shutdown();
    ended_.set();
  }
  void reset() noexcept override {
    below_->reset();
    ended_.set();
  }
  void move_to(Executor& home) noexcept override { below_->move_to(home); }

 private:
  // When that is due by the port's clock, in real time.
  TimePoint due(TimePoint passed) const;
  // The earliest moment at which something that follows `end` can have begun.
  TimePoint not_before(TimePoint end) const;

  std::unique_ptr<Stream> below_;
  std::shared_ptr<SharedPort> port_;
  std::vector<IoSlice> incoming_;  // The part of the reader's memory that one piece may fill.
  std::vector<IoSlice> outgoing_;  // A piece.
  TimePoint in_end_{};             // The last piece's, in modelled time.
  TimePoint out_end_{};
  TimePoint sent_at_{};     // When the last send() ended, in real time,
  TimePoint held_until_{};  // and until when the port holds what is being sent.
  Event ended_;
};

}  // namespace sandbay::model
