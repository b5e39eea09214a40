// LookAhead: a disk's read cache. It has segments, one a stream; after a read from the medium the
// heads stay and go on reading into its segment, until the mechanism is given something else to do
// or the segment is full of what nobody has asked for yet.
//
// How far it has come is computed from the time when somebody asks; nothing happens in between.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/disk_layout.h"

namespace sandbay::model {

class LookAhead {
 public:
  // Borrows the layout. `phase` is when sector 0 first passes the heads.
  LookAhead(const DiskLayout& layout, Nanoseconds phase, std::uint64_t segments,
            std::uint64_t segment_sectors);

  enum class Finding : std::uint8_t {
    kNothing,
    kHeld,     // All of it is in the cache,
    kPassing,  // or will be soon: the heads are on their way through it.
  };
  // Of the sectors [first, end) at `time`. A run that is held makes room in its segment.
  Finding find(std::uint64_t first, std::uint64_t end, Nanoseconds time);
  // Whether find() may have something in the near future.
  bool may_find(std::uint64_t first) const noexcept;
  // The same of the segment under way alone; not while it is not active().
  bool current_may_have(std::uint64_t first) const noexcept {
    return std::cmp_less_equal(first_[current_], first) && first < limit_;
  }
  // When the heads have come to `sweep`; after find() said kPassing.
  Nanoseconds passed_at(Nanoseconds sweep) const noexcept {
    return from_time_ + sweep - from_sweep_;
  }

  // [first, end) was read from the medium until `time`, up to `sweep`, and it goes on from there.
  void begin(std::uint64_t first, std::uint64_t end, Nanoseconds time, Nanoseconds sweep);
  // The mechanism is needed elsewhere. The first sector that it has not read; only while active().
  std::uint64_t stop(Nanoseconds time);
  bool active() const noexcept { return active_; }

  void invalidate(std::uint64_t first, std::uint64_t end) noexcept;  // It was written.

 private:
  struct Segment {
    std::uint64_t end = 0;  // Without what the look-ahead under way has added.
    // In the order of their last use.
    std::size_t before = 0;
    std::size_t after = 0;
  };
  std::uint64_t position(Nanoseconds time) const noexcept;
  void move_limit(std::uint64_t limit, Nanoseconds time);
  void set_limit(std::uint64_t limit) noexcept;
  // What it holds of a stream that has come to `end`: the last of it.
  void forget_before(std::size_t index, std::uint64_t end) noexcept;
  void use(std::size_t index) noexcept;

  const DiskLayout& layout_;
  Nanoseconds phase_;
  std::uint64_t segment_sectors_;
  std::vector<Segment> segments_;
  std::size_t oldest_ = 0;
  // Where each segment begins, and until where something may be found in it now or soon. Apart
  // from the rest, and signed, so that looking through all of them is a few vector instructions.
  std::vector<std::int64_t> first_;
  std::vector<std::int64_t> reach_;

  bool active_ = false;
  std::size_t current_ = 0;    // The segment that it reads into,
  std::uint64_t from_ = 0;     // from here,
  Nanoseconds from_time_ = 0;  // where it was then,
  Nanoseconds from_sweep_ = 0;
  std::uint64_t limit_ = 0;  // to there.
};

}  // namespace sandbay::model
