// Requests of logical units, on their way through a system.
#include "lab/live_volume.h"

#include <utility>

namespace sandbay::lab {

void LiveVolume::measure(TimePoint from, TimePoint until) {
  from_ = from;
  until_ = until;
}

// When the worker asked for what has just come.
TimePoint LiveVolume::asked_at() {
  const TimePoint now = home().now();
  const TimePoint earliest = array_.clock().modelled(now - lag_);
  while (!ended_.empty() && ended_.front() < earliest) ended_.pop_front();
  if (ended_.empty()) return array_.clock().modelled(now);
  const TimePoint asked = ended_.front();
  ended_.pop_front();
  return asked;
}

Task<Completion> LiveVolume::submit(Request request) {
  const bool read = request.operation == Operation::kRead;
  if (!read && request.operation != Operation::kWrite) {
    co_return co_await volume_.device->submit(std::move(request));
  }
  const Access access{.offset = request.extent.first * kAccessSectorBytes,
                      .bytes = request.extent.block_count * kAccessSectorBytes,
                      .read = read};
  const TimePoint asked = asked_at();
  const ServedRequest served = co_await serve_request(&array_, &volume_, access, asked);
  if (lag_ > Duration{}) ended_.push_back(served.end);
  if (served.end >= from_ && served.end < until_) layers_.add(served);
  if (read) request.data.fill_zero();
  co_return Completion{.error = served.error, .data = std::move(request.data)};
}

}  // namespace sandbay::lab
