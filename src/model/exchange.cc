// Bursts and what they wait for.
#include "model/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <string_view>

#include "runtime/frame_vector.h"

namespace sandbay::model {

namespace {

constexpr std::uint64_t kLeastBytes = 512;  // RFC 7143, sections 13.12 to 13.14.
constexpr std::uint64_t kMostBytes = 16'777'215;
constexpr std::uint64_t kMostR2ts = 65535;

}  // namespace

std::string profile_error(const ExchangeParameters& parameters) {
  const auto bytes_error = [](std::string_view key, std::uint64_t value) -> std::string {
    if (value >= kLeastBytes && value <= kMostBytes) return {};
    return fmt::format("{} is {}; it must be {} to {}", key, value, kLeastBytes, kMostBytes);
  };
  std::string error = bytes_error("max_burst", parameters.max_burst);
  if (error.empty()) error = bytes_error("first_burst", parameters.first_burst);
  if (error.empty()) error = bytes_error("target_segment", parameters.target_segment);
  if (error.empty()) error = bytes_error("initiator_segment", parameters.initiator_segment);
  if (!error.empty()) return error;
  if (parameters.first_burst > parameters.max_burst) {
    return fmt::format("first_burst is {}; it must not be more than max_burst, which is {}",
                       parameters.first_burst, parameters.max_burst);
  }
  if (parameters.outstanding_r2ts < 1 || parameters.outstanding_r2ts > kMostR2ts) {
    return fmt::format("outstanding_r2ts is {}; it must be 1 to {}", parameters.outstanding_r2ts,
                       kMostR2ts);
  }
  return {};
}

Exchange::Exchange(Port& adapter, Port& target, const ExchangeParameters& parameters)
    : adapter_(adapter), target_(target), parameters_(parameters) {
  assert(profile_error(parameters).empty());
}

TimePoint Exchange::to_target(TimePoint at, std::uint64_t bytes) {
  const std::uint64_t pdu = parameters_.target_segment;
  const TimePoint sent = adapter_.send(at, bytes, pdu);
  const TimePoint begins = std::max(at, sent - target_.transfer_length(bytes, pdu));
  return target_.receive(begins, bytes, pdu);
}

TimePoint Exchange::to_host(TimePoint at, std::uint64_t bytes) {
  const std::uint64_t pdu = parameters_.initiator_segment;
  const TimePoint sent = target_.send(at, bytes, pdu);
  const TimePoint begins = std::max(at, sent - adapter_.transfer_length(bytes, pdu));
  return adapter_.receive(begins, bytes, pdu);
}

TimePoint Exchange::write(TimePoint issued, std::uint64_t bytes) {
  const ExchangeParameters& p = parameters_;
  std::uint64_t unsolicited = p.immediate_data ? std::min(p.first_burst, p.target_segment) : 0;
  if (!p.initial_r2t) unsolicited = p.first_burst;
  unsolicited = std::min(unsolicited, bytes);
  const TimePoint there = to_target(issued, unsolicited);

  // The R2T of a burst waits for the command and for the burst so many before it.
  FrameVector<TimePoint> ends(p.outstanding_r2ts, there);
  TimePoint last = there;
  std::size_t slot = 0;
  for (std::uint64_t left = bytes - unsolicited; left > 0;) {
    const std::uint64_t burst = std::min(left, p.max_burst);
    left -= burst;
    ++r2ts_;
    const TimePoint asked = to_host(ends[slot] + p.target_turnaround, 0);
    ends[slot] = to_target(asked + p.host_turnaround, burst);
    last = std::max(last, ends[slot]);
    slot = (slot + 1) % ends.size();
  }
  return last;
}

TimePoint Exchange::answer(TimePoint done, std::uint64_t read_bytes) {
  // The status of a good read is in its last Data-In PDU.
  return to_host(done, read_bytes);
}

}  // namespace sandbay::model
