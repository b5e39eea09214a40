// First fit from the job's arrival on.
#include "model/timeline.h"

#include <algorithm>
#include <cassert>

#include "model/drive_model.h"

namespace sandbay::model {

TimePoint Timeline::book(TimePoint arrival, Duration length) {
  assert(length >= Duration(0));
  booked_ += length;
  // The first run that ends after the arrival: mostly the last or none.
  std::size_t next = runs_.size();
  while (next > 0 && runs_[next - 1].end > arrival) --next;
  TimePoint begin = arrival;
  if (next == 0 && runs_.size() > kMostGaps) begin = std::max(begin, runs_.front().end);
  for (; next < runs_.size() && begin + length > runs_[next].begin; ++next) {
    begin = runs_[next].end;
  }
  const TimePoint end = begin + length;
  if (length == Duration(0)) return end;

  const bool joins_before = next > 0 && runs_[next - 1].end == begin;
  const bool joins_after = next < runs_.size() && runs_[next].begin == end;
  const auto at = runs_.begin() + static_cast<std::ptrdiff_t>(next);
  if (joins_before && joins_after) {
    runs_[next - 1].end = runs_[next].end;
    runs_.erase(at);
  } else if (joins_before) {
    runs_[next - 1].end = end;
  } else if (joins_after) {
    runs_[next].begin = begin;
  } else {
    runs_.insert(at, {begin, end});
    // The oldest gap is closed, so that what comes that late waits until after it.
    if (runs_.size() > kMostGaps + 1) runs_.erase(runs_.begin());
  }
  return end;
}

TimePoint RateLimit::pass(TimePoint arrival, std::uint64_t bytes) {
  if (rate_ == 0 || bytes == 0) return arrival;
  return way_.book(arrival, Duration(transfer_time(bytes, rate_)));
}

TimePoint Processors::book(TimePoint arrival, Duration length) {
  if (length == Duration(0)) return arrival;
  return std::ranges::min_element(processors_, {}, &Timeline::free_after)->book(arrival, length);
}

Duration Processors::booked() const noexcept {
  Duration sum{};
  for (const Timeline& processor : processors_) sum += processor.booked();
  return sum;
}

}  // namespace sandbay::model
