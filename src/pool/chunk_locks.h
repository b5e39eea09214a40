// ChunkLocks: who does what to which chunks of a branch just now.
//
//              with: kRead   kWrite  kChange
//   kRead            yes     yes      no        reads what the map says, here or for a child
//   kWrite           yes     yes      no        overwrites in place; the map stays as it is
//   kChange          no      no       no        changes what the map says of the chunks
//
// So what a reader found in the map stays true until it has read, and where it found a chunk in
// place that has yet to be kept for it, nobody overwrites it meanwhile. Who overlaps one that he
// does not go with waits for him, in the order of arrival. Whoever holds a lock of a branch asks
// only for locks of the branches above it, so nobody waits in a circle.
//
// WriteDoor: what is done to a branch between two writes. A snapshot closes it, waits for the
// writes that are inside, and opens it when the snapshot is in the map.
#pragma once

#include <array>
#include <cassert>
#include <chrono>
#include <cstdint>

#include "pool/place.h"
#include "runtime/frame_pool.h"
#include "runtime/sync.h"

namespace sandbay::pool {

// Of one page.
struct ChunkRange {
  PageNumber page = 0;
  ChunkIndex first = 0;
  std::uint32_t count = 0;

  ChunkIndex end() const noexcept { return first + count; }
  bool overlaps(const ChunkRange& other) const noexcept {
    return page == other.page && first < other.end() && other.first < end();
  }
};

class ChunkLocks {
 public:
  enum class Kind : std::uint8_t { kRead, kWrite, kChange };

  ~ChunkLocks() { assert(first_ == nullptr); }

  // Stands in the frame of the one who locks.
  class Hold : public FramePooled {
   public:
    Hold(ChunkLocks& locks, Kind kind, const ChunkRange& range) noexcept
        : locks_(locks), kind_(kind), range_(range) {
      locks_.append(*this);
    }
    ~Hold() { locks_.remove(*this); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    bool ready() const noexcept { return !locks_.blocked(*this); }

   private:
    friend class ChunkLocks;
    ChunkLocks& locks_;
    Kind kind_;
    ChunkRange range_;
    Hold* next_ = nullptr;
    Hold* previous_ = nullptr;
  };

  // Awaited at once by the owner of `hold`, if it is not ready.
  Task<void> wait(Hold& hold) {
    while (!hold.ready()) co_await changed_.wait();
  }
  bool idle() const noexcept { return first_ == nullptr; }

 private:
  bool blocked(const Hold& one) const noexcept {
    for (const Hold* hold = first_; hold != &one; hold = hold->next_) {
      const bool excludes = one.kind_ == Kind::kChange || hold->kind_ == Kind::kChange;
      if (excludes && hold->range_.overlaps(one.range_)) return true;
    }
    return false;
  }
  void append(Hold& hold) noexcept {
    hold.previous_ = last_;
    (last_ != nullptr ? last_->next_ : first_) = &hold;
    last_ = &hold;
  }
  void remove(Hold& hold) noexcept {
    (hold.previous_ != nullptr ? hold.previous_->next_ : first_) = hold.next_;
    (hold.next_ != nullptr ? hold.next_->previous_ : last_) = hold.previous_;
    changed_.notify_all();
  }

  Hold* first_ = nullptr;
  Hold* last_ = nullptr;
  Condition changed_;
};

class WriteDoor {
 public:
  // The time for which a closed door may hold up hosts while requests inside do not end; then the
  // closer gives up and opens it. Slow stores get more time, up to the maximum: initiators give a
  // command 30 s or longer, and a request that waited has yet to be served.
  static constexpr Duration kPatience = std::chrono::seconds(2);
  static constexpr Duration kMostPatience = std::chrono::seconds(15);

  // Enters at once if it can; otherwise await enter(). Make a DoorHold at once.
  bool try_enter() noexcept {
    if (closed_ > 0) return false;
    ++inside_[round_];
    return true;
  }
  Task<void> enter() {
    while (!try_enter()) co_await changed_.wait();
  }
  unsigned round() const noexcept { return round_; }
  bool empty() const noexcept { return inside() == 0; }
  bool is_closed() const noexcept { return closed_ > 0; }
  // `round`: the round of the entry.
  void leave(unsigned round) {
    assert(inside_[round] > 0);
    if (--inside_[round] == 0) changed_.notify_all();
  }
  // Nobody enters from now on, until open().
  void close() noexcept { ++closed_; }
  // False: a request was still inside at the deadline.
  Task<bool> wait_until_empty(TimePoint deadline) {
    while (inside() > 0) {
      const bool notified = co_await changed_.wait_until(deadline);
      if (!notified) co_return inside() == 0;
    }
    co_return true;
  }
  // Ends when all requests that are inside now have left. Holds up no other.
  Task<void> drain() {
    while (inside_[1 - round_] > 0) co_await changed_.wait();
    const unsigned before = round_;
    round_ = 1 - round_;
    while (inside_[before] > 0) co_await changed_.wait();
  }
  void open() {
    assert(closed_ > 0);
    if (--closed_ == 0) changed_.notify_all();
  }

 private:
  unsigned inside() const noexcept { return inside_[0] + inside_[1]; }

  std::array<unsigned, 2> inside_{};  // By round: drain() begins another.
  unsigned round_ = 0;
  unsigned closed_ = 0;
  Condition changed_;
};

// Leaves the door when it goes out of scope.
class DoorHold {
 public:
  explicit DoorHold(WriteDoor& entered) noexcept : door_(entered), round_(entered.round()) {}
  ~DoorHold() { door_.leave(round_); }
  DoorHold(const DoorHold&) = delete;
  DoorHold& operator=(const DoorHold&) = delete;

 private:
  WriteDoor& door_;
  unsigned round_;
};

}  // namespace sandbay::pool
