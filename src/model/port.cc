// Bytes on the wire.
#include "model/port.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "model/drive_model.h"

namespace sandbay::model {

namespace {

constexpr std::uint64_t kLeastFrame = 84;  // With preamble and gap.

}  // namespace

std::string profile_error(const PortProfile& profile) {
  if (profile.rate < kLeastRate || profile.rate > kMostRate) {
    return fmt::format("rate is {} B/s; it must be 1MB/s to 100GB/s", profile.rate);
  }
  if (profile.mtu < 576 || profile.mtu > 65536) {
    return fmt::format("mtu is {}; it must be 576 to 65536", profile.mtu);
  }
  if (profile.packet_headers >= profile.mtu) {
    return fmt::format("packet_headers is {}; it must be less than mtu", profile.packet_headers);
  }
  if (profile.latency < Duration(0) || profile.latency > std::chrono::seconds(10)) {
    return "latency must be 0 to 10s";
  }
  return {};
}

Port::Port(const PortProfile& profile) : profile_(profile) {
  assert(profile_error(profile).empty());
}

std::uint64_t Port::wire_bytes(std::uint64_t payload_bytes,
                               std::uint64_t pdu_bytes) const noexcept {
  assert(pdu_bytes > 0);
  const std::uint64_t pdus =
      std::max<std::uint64_t>((payload_bytes + pdu_bytes - 1) / pdu_bytes, 1);
  const std::uint64_t stream = payload_bytes + pdus * profile_.pdu_header;
  const std::uint64_t segment = profile_.mtu - profile_.packet_headers;
  const std::uint64_t frames = (stream + segment - 1) / segment;
  const std::uint64_t each = profile_.packet_headers + profile_.frame_overhead;
  return std::max(stream + frames * each, kLeastFrame);
}

Duration Port::transfer_length(std::uint64_t payload_bytes,
                               std::uint64_t pdu_bytes) const noexcept {
  return Duration(transfer_time(wire_bytes(payload_bytes, pdu_bytes), profile_.rate));
}

TimePoint Port::transfer(Timeline& way, TimePoint arrival, std::uint64_t payload_bytes,
                         std::uint64_t pdu_bytes) {
  return way.book(arrival, transfer_length(payload_bytes, pdu_bytes)) + profile_.latency;
}

TimePoint Port::receive(TimePoint arrival, std::uint64_t payload_bytes, std::uint64_t pdu_bytes) {
  return transfer(receive_, arrival, payload_bytes, pdu_bytes);
}

TimePoint Port::send(TimePoint arrival, std::uint64_t payload_bytes, std::uint64_t pdu_bytes) {
  return transfer(profile_.full_duplex ? send_ : receive_, arrival, payload_bytes, pdu_bytes);
}

}  // namespace sandbay::model
