// First fit from the job's arrival on.
#include "model/timeline.h"

#include <algorithm>
#include <cassert>

#include "model/drive_model.h"

namespace sandbay::model {

TimePoint Timeline::book(TimePoint arrival, Duration length) {
  assert(length >= Duration(0));
  booked_ += length;
  if (runs_.empty() || runs_.back().end <= arrival) return append(arrival, arrival + length);
  // The first run that ends after the arrival: mostly the last.
  std::size_t next = runs_.size() - 1;
  while (next > forgotten_ && runs_[next - 1].end > arrival) --next;
  TimePoint begin = arrival;
  if (next == forgotten_ && runs_.size() - forgotten_ > kMostGaps) {
    begin = std::max(begin, runs_[forgotten_].end);
  }
  for (; next < runs_.size() && begin + length > runs_[next].begin; ++next) {
    begin = runs_[next].end;
  }
  if (next == runs_.size()) return append(begin, begin + length);
  return insert(next, begin, begin + length);
}

// Behind all others.
TimePoint Timeline::append(TimePoint begin, TimePoint end) {
  if (begin == end) return end;
  if (!runs_.empty() && runs_.back().end == begin) {
    runs_.back().end = end;
  } else {
    runs_.push_back({begin, end});
    forget_surplus();
  }
  return end;
}

// Before a run.
TimePoint Timeline::insert(std::size_t next, TimePoint begin, TimePoint end) {
  if (begin == end) return end;
  const bool joins_before = next > forgotten_ && runs_[next - 1].end == begin;
  const bool joins_after = runs_[next].begin == end;
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
    forget_surplus();
  }
  return end;
}

// The oldest gap is closed, so that what comes that late waits until after it. Those forgotten are
// taken out many at a time, as all others move with each.
void Timeline::forget_surplus() {
  if (runs_.size() - forgotten_ <= kMostGaps + 1 || ++forgotten_ < kMostGaps) return;
  runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(forgotten_));
  forgotten_ = 0;
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
