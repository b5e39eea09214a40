// Segments, and how far the one under way has come.
#include "model/look_ahead.h"

#include <algorithm>
#include <cassert>

namespace sandbay::model {

LookAhead::LookAhead(const DiskLayout& layout, Nanoseconds phase, std::uint64_t segments,
                     std::uint64_t segment_sectors)
    : layout_(layout), phase_(phase), segment_sectors_(segment_sectors), segments_(segments) {}

std::uint64_t LookAhead::position(Nanoseconds time) const noexcept {
  if (time <= from_time_) return from_;
  // The sector before the first that begins later is under the heads and not complete.
  const std::uint64_t next = layout_.sector_at(from_sweep_ + (time - from_time_) + 1);
  return std::clamp(next - 1, from_, limit_);
}

void LookAhead::move_limit(std::uint64_t limit, Nanoseconds time) {
  limit = std::min(limit, layout_.sector_count());
  if (limit <= limit_) return;
  const std::uint64_t at = position(time);
  if (at == limit_ && at < layout_.sector_count()) {
    // It had come to the end; the next sector has to come round again.
    const Nanoseconds revolution = layout_.revolution();
    from_ = at;
    from_sweep_ = layout_.place(at).sweep;
    const Nanoseconds gap = (from_sweep_ + phase_ - time) % revolution;
    from_time_ = time + (gap < 0 ? gap + revolution : gap);
  }
  limit_ = limit;
}

LookAhead::Finding LookAhead::find(std::uint64_t first, std::uint64_t end, Nanoseconds time) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = segments_[i];
    const bool current = active_ && i == current_;
    if (first < segment.first || (!current && end > segment.end)) continue;
    if (!current) {
      segment.last_used = ++use_;
      return Finding::kHeld;
    }
    const std::uint64_t at = position(time);
    if (first > at) continue;
    segment.last_used = ++use_;
    if (at > segment_sectors_) segment.first = std::max(segment.first, at - segment_sectors_);
    if (end <= at) {
      move_limit(end + segment_sectors_, time);
      return Finding::kHeld;
    }
    if (at == limit_) continue;  // It is longer than the segment and the heads have stopped.
    limit_ = std::min(std::max(limit_, end + segment_sectors_), layout_.sector_count());
    return Finding::kPassing;
  }
  return Finding::kNothing;
}

bool LookAhead::may_find(std::uint64_t first) const noexcept {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const std::uint64_t end = active_ && i == current_ ? limit_ : segments_[i].end;
    if (first >= segments_[i].first && first < end) return true;
  }
  return false;
}

void LookAhead::begin(std::uint64_t first, std::uint64_t end, Nanoseconds time, Nanoseconds sweep) {
  if (segments_.empty()) return;
  // The stream's segment, or that of the stream which is longest silent.
  std::size_t chosen = 0;
  bool continues = false;
  for (std::size_t i = 0; i < segments_.size() && !continues; ++i) {
    const Segment& segment = segments_[i];
    continues = segment.first <= first && first <= segment.end && segment.end > 0;
    if (continues || segment.last_used < segments_[chosen].last_used) chosen = i;
  }
  if (!continues) segments_[chosen].first = first;
  Segment& segment = segments_[chosen];
  segment.end = end;
  const std::uint64_t least = end > segment_sectors_ ? end - segment_sectors_ : 0;
  segment.first = std::max(segment.first, least);
  segment.last_used = ++use_;
  active_ = end < layout_.sector_count();
  if (!active_) return;
  current_ = chosen;
  from_ = end;
  from_time_ = time;
  from_sweep_ = sweep;
  limit_ = std::min(end + segment_sectors_, layout_.sector_count());
}

std::uint64_t LookAhead::stop(Nanoseconds time) {
  assert(active_);
  active_ = false;
  Segment& segment = segments_[current_];
  segment.end = position(time);
  const std::uint64_t least = segment.end > segment_sectors_ ? segment.end - segment_sectors_ : 0;
  segment.first = std::max(segment.first, least);
  return segment.end;
}

void LookAhead::invalidate(std::uint64_t first, std::uint64_t end) noexcept {
  assert(!active_);
  for (Segment& segment : segments_) {
    if (first < segment.end && segment.first < end) segment = Segment{};
  }
}

}  // namespace sandbay::model
