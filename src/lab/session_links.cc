// Links made of two ports, and turns.
#include "lab/session_links.h"

#include <algorithm>
#include <cassert>

namespace sandbay::lab {

// As model::Exchange: a transfer is on both ports at the same time, but for the latency between.
TimePoint PortWire::carry(TimePoint now, std::size_t byte_count) {
  const std::uint64_t bytes = byte_count;
  const std::uint64_t whole = std::max<std::uint64_t>(bytes, 1);
  const TimePoint sent = from_.send(now, bytes, whole);
  const TimePoint begins = std::max(now, sent - to_.transfer_length(bytes, whole));
  return to_.receive(begins, bytes, whole);
}

Task<void> PortPace::begin(std::uint16_t tsih, std::uint16_t cid) {
  Line& line = sessions_[tsih].lines[cid];
  if (at_once_ == 0 || line.busy < at_once_) {
    ++line.busy;
  } else {
    ++line.waiting;
    co_await line.handed.wait();
  }
}

Task<void> PortPace::prepare(std::uint16_t tsih) {
  co_await Executor::current().sleep_for(sessions_[tsih].turnaround);
}

void PortPace::end(std::uint16_t tsih, std::uint16_t cid) {
  Line& line = sessions_[tsih].lines[cid];
  if (line.waiting > 0) {
    --line.waiting;
    line.handed.notify_one();
    return;
  }
  assert(line.busy > 0);
  --line.busy;
}

}  // namespace sandbay::lab
