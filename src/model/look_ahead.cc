// Segments, and how far the one under way has come.
#include "model/look_ahead.h"

#include <algorithm>
#include <cassert>

namespace sandbay::model {

LookAhead::LookAhead(const DiskLayout& layout, Nanoseconds phase, std::uint64_t segments,
                     std::uint64_t segment_sectors)
    : layout_(layout),
      phase_(phase),
      segment_sectors_(segment_sectors),
      segments_(segments),
      first_(segments),
      reach_(segments) {
  for (std::size_t i = 0; i < segments; ++i) {
    segments_[i].before = (i + segments - 1) % segments;
    segments_[i].after = (i + 1) % segments;
  }
}

// Makes it the youngest: the ring of segments begins with the oldest.
void LookAhead::use(std::size_t index) noexcept {
  if (index == oldest_) {
    oldest_ = segments_[index].after;
    return;
  }
  Segment& segment = segments_[index];
  segments_[segment.before].after = segment.after;
  segments_[segment.after].before = segment.before;
  segment.before = segments_[oldest_].before;
  segment.after = oldest_;
  segments_[segment.before].after = index;
  segments_[oldest_].before = index;
}

std::uint64_t LookAhead::position(Nanoseconds time) const noexcept {
  if (time <= from_time_) return from_;
  // The sector before the first that begins later is under the heads and not complete.
  const std::uint64_t next = layout_.sector_at(from_sweep_ + (time - from_time_) + 1);
  return std::clamp(next - 1, from_, limit_);
}

void LookAhead::set_limit(std::uint64_t limit) noexcept {
  limit_ = std::min(limit, layout_.sector_count());
  reach_[current_] = static_cast<std::int64_t>(limit_);
}

void LookAhead::forget_before(std::size_t index, std::uint64_t end) noexcept {
  const auto least = static_cast<std::int64_t>(end) - static_cast<std::int64_t>(segment_sectors_);
  first_[index] = std::max(first_[index], least);
}

void LookAhead::move_limit(std::uint64_t limit, Nanoseconds time) {
  if (std::min(limit, layout_.sector_count()) <= limit_) return;
  const std::uint64_t at = position(time);
  if (at == limit_) {
    // It had come to the end; the next sector has to come round again.
    const Nanoseconds revolution = layout_.revolution();
    from_ = at;
    from_sweep_ = layout_.place(at).sweep;
    const Nanoseconds gap = (from_sweep_ + phase_ - time) % revolution;
    from_time_ = time + (gap < 0 ? gap + revolution : gap);
  }
  set_limit(limit);
}

bool LookAhead::may_find(std::uint64_t first) const noexcept {
  const auto sector = static_cast<std::int64_t>(first);
  const std::int64_t* const begins = first_.data();
  const std::int64_t* const reaches = reach_.data();
  std::int64_t found = 0;
  for (std::size_t i = 0; i < first_.size(); ++i) {
    found |= static_cast<std::int64_t>(begins[i] <= sector) & -(sector < reaches[i]);
  }
  return found != 0;
}

LookAhead::Finding LookAhead::find(std::uint64_t first, std::uint64_t end, Nanoseconds time) {
  if (!may_find(first)) return Finding::kNothing;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const bool current = active_ && i == current_;
    if (std::cmp_less(first, first_[i]) || (!current && end > segments_[i].end)) continue;
    if (!current) {
      use(i);
      return Finding::kHeld;
    }
    const std::uint64_t at = position(time);
    if (first > at) continue;
    use(i);
    forget_before(i, at);
    if (end <= at) {
      move_limit(end + segment_sectors_, time);
      return Finding::kHeld;
    }
    if (at == limit_) continue;  // It is longer than the segment and the heads have stopped.
    set_limit(std::max(limit_, end + segment_sectors_));
    return Finding::kPassing;
  }
  return Finding::kNothing;
}

void LookAhead::begin(std::uint64_t first, std::uint64_t end, Nanoseconds time, Nanoseconds sweep) {
  assert(!active_ && end > first);
  if (segments_.empty()) return;
  // The stream's segment, or that of the stream which is longest silent.
  std::size_t chosen = oldest_;
  bool continues = false;
  // A stream goes on where its segment ends, which is the last place where something may be found.
  if (may_find(first > 0 ? first - 1 : 0)) {
    for (std::size_t i = 0; i < segments_.size() && !continues; ++i) {
      continues = std::cmp_less_equal(first_[i], first) && first <= segments_[i].end;
      if (continues) chosen = i;
    }
  }
  if (!continues) first_[chosen] = static_cast<std::int64_t>(first);
  use(chosen);
  segments_[chosen].end = end;
  reach_[chosen] = static_cast<std::int64_t>(end);
  forget_before(chosen, end);
  active_ = end < layout_.sector_count();
  if (!active_) return;
  current_ = chosen;
  from_ = end;
  from_time_ = time;
  from_sweep_ = sweep;
  set_limit(end + segment_sectors_);
}

std::uint64_t LookAhead::stop(Nanoseconds time) {
  assert(active_);
  active_ = false;
  const std::uint64_t end = position(time);
  segments_[current_].end = end;
  reach_[current_] = static_cast<std::int64_t>(end);
  forget_before(current_, end);
  return end;
}

void LookAhead::invalidate(std::uint64_t first, std::uint64_t end) noexcept {
  assert(!active_);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (first >= segments_[i].end || std::cmp_less_equal(end, first_[i])) continue;
    segments_[i].end = 0;
    first_[i] = reach_[i] = 0;
  }
}

}  // namespace sandbay::model
