// Exchange: what a SCSI command and its data take on their way over one iSCSI connection, from the
// host's adapter to the target's port and back, under the session's negotiated parameters (RFC
// 7143, section 13: InitialR2T, ImmediateData, FirstBurstLength, MaxBurstLength, MaxOutstandingR2T
// and MaxRecvDataSegmentLength).
//
// A transfer is on both ports at the same time, but for the latency between. A write's data come
// unsolicited as far as they may, the rest in bursts, each after an R2T has gone to the host and
// back. Ports are borrowed and may be shared by any number of connections; this is pure
// calculation.
#pragma once

#include <cstdint>
#include <string>

#include "model/port.h"

namespace sandbay::model {

struct ExchangeParameters {
  bool initial_r2t = true;
  bool immediate_data = true;
  std::uint64_t first_burst = 65536;  // Bytes, as all of these.
  std::uint64_t max_burst = 262144;
  std::uint64_t outstanding_r2ts = 1;
  std::uint64_t target_segment = 8192;     // What the target receives in one PDU,
  std::uint64_t initiator_segment = 8192;  // and what the initiator does.
  Duration target_turnaround{};  // From the end of one burst until the R2T of another goes out,
  Duration host_turnaround{};    // and from an R2T until its data do.
};

std::string profile_error(const ExchangeParameters& parameters);

class Exchange {
 public:
  Exchange(Port& adapter, Port& target, const ExchangeParameters& parameters);

  // When the target has a command without data.
  TimePoint command(TimePoint issued) { return to_target(issued, 0); }
  // When it has a write's command and all of its data.
  TimePoint write(TimePoint issued, std::uint64_t bytes);
  // When the host has the answer: status, and of a read its data before.
  TimePoint answer(TimePoint done, std::uint64_t read_bytes);

  std::uint64_t r2ts() const noexcept { return r2ts_; }  // Sent so far.

 private:
  TimePoint to_target(TimePoint at, std::uint64_t bytes);
  TimePoint to_host(TimePoint at, std::uint64_t bytes);

  Port& adapter_;
  Port& target_;
  ExchangeParameters parameters_;
  std::uint64_t r2ts_ = 0;
};

}  // namespace sandbay::model
