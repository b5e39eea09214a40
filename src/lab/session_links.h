// What the models of ports and sessions become where sessions are real: links, on which the bytes
// of connections travel, and the pace at which an array's ports take writes.
#pragma once

#include <cstdint>
#include <map>

#include "iscsi/transfer_pace.h"
#include "model/port.h"
#include "runtime/clock.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::lab {

// One way of a connection, from port to port; both are borrowed, and may be others' as well. What
// it carries are bytes of a TCP stream, in which PDUs have their headers already: ports are to have
// pdu_header = 0.
class PortWire final : public sim::Wire {
 public:
  PortWire(model::Port& from, model::Port& to) : from_(from), to_(to) {}
  TimePoint carry(TimePoint now, std::size_t byte_count) override;

 private:
  model::Port& from_;
  model::Port& to_;
};

// Connections on which so many R2Ts are under way at a time, each a while after it was its turn.
class PortPace final : public iscsi::TransferPace {
 public:
  explicit PortPace(std::uint64_t at_once) : at_once_(at_once) {}  // 0: any number.

  // Before anything is written in it.
  void add_session(std::uint16_t tsih, Duration turnaround) {
    sessions_[tsih].turnaround = turnaround;
  }
  Task<void> begin(std::uint16_t tsih, std::uint16_t cid) override;
  Task<void> prepare(std::uint16_t tsih) override;
  void end(std::uint16_t tsih, std::uint16_t cid) override;

 private:
  struct Line {
    std::uint64_t busy = 0;
    std::uint64_t waiting = 0;  // Each is handed the place of one that ends.
    Condition handed;
  };
  struct Session {
    Duration turnaround{};
    std::map<std::uint16_t, Line> lines;
  };

  std::uint64_t at_once_;
  std::map<std::uint16_t, Session> sessions_;
};

}  // namespace sandbay::lab
