// What the models of ports become where sessions are real: links, on which the bytes of connections
// travel.
#pragma once

#include <cstddef>

#include "model/port.h"
#include "runtime/clock.h"
#include "runtime/simulation.h"

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

}  // namespace sandbay::lab
