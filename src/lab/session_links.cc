// Links made of two ports.
#include "lab/session_links.h"

#include <algorithm>

namespace sandbay::lab {

// As model::Exchange: a transfer is on both ports at the same time, but for the latency between.
TimePoint PortWire::carry(TimePoint now, std::size_t byte_count) {
  const std::uint64_t bytes = byte_count;
  const std::uint64_t whole = std::max<std::uint64_t>(bytes, 1);
  const TimePoint sent = from_.send(now, bytes, whole);
  const TimePoint begins = std::max(now, sent - to_.transfer_length(bytes, whole));
  return to_.receive(begins, bytes, whole);
}

}  // namespace sandbay::lab
