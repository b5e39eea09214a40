// Port: an Ethernet port as a bottleneck: its rate, what frames and headers take of it, its
// latency. Several connections share one; its two directions do not slow each other unless it is
// half duplex.
//
// Payload travels in PDUs, these in a TCP stream, the stream in frames. Of 125 MB/s, with an MTU of
// 1500 and PDUs of 8192 bytes, 125 * 1460 / 1538 * 8192 / 8240 = 118.0 MB/s are payload. A transfer
// is booked as a whole, so that transfers do not interleave frame by frame; on the average it is
// the same.
#pragma once

#include <cstdint>
#include <string>

#include "model/timeline.h"

namespace sandbay::model {

struct PortProfile {
  std::uint64_t rate = 125'000'000;  // Bytes a second on the wire.
  std::uint64_t mtu = 1500;
  // Beside the MTU: preamble 8, Ethernet header 14, check sequence 4, gap 12 (IEEE 802.3).
  std::uint64_t frame_overhead = 38;
  std::uint64_t packet_headers = 40;  // IPv4 and TCP; 12 more with timestamps.
  std::uint64_t pdu_header = 48;      // Of iSCSI without digests (RFC 7143, section 11.2).
  Duration latency{};                 // Of one way: wire, switch, interrupts.
  bool full_duplex = true;
};

std::string profile_error(const PortProfile& profile);  // Empty: there can be such a port.

class Port {
 public:
  explicit Port(const PortProfile& profile);

  // The wire's bytes for a payload in PDUs of at most `pdu_bytes`, which is positive. Without
  // payload it is one PDU.
  std::uint64_t wire_bytes(std::uint64_t payload_bytes, std::uint64_t pdu_bytes) const noexcept;

  // How long a transfer occupies one direction.
  Duration transfer_length(std::uint64_t payload_bytes, std::uint64_t pdu_bytes) const noexcept;

  // When the last byte has arrived at the other end.
  TimePoint receive(TimePoint arrival, std::uint64_t payload_bytes, std::uint64_t pdu_bytes);
  TimePoint send(TimePoint arrival, std::uint64_t payload_bytes, std::uint64_t pdu_bytes);

  const PortProfile& profile() const noexcept { return profile_; }
  Duration receiving() const noexcept { return receive_.booked(); }  // Half duplex: both.
  Duration sending() const noexcept { return send_.booked(); }

 private:
  TimePoint transfer(Timeline& way, TimePoint arrival, std::uint64_t payload_bytes,
                     std::uint64_t pdu_bytes);

  PortProfile profile_;
  Timeline receive_;
  Timeline send_;
};

}  // namespace sandbay::model
