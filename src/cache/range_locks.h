// RangeLocks: who does what to which blocks of a device just now, where that takes more than a
// step.
//
//              with: kRead   kRecord  kChange
//   kRead            yes     yes      no        reads of the device below
//   kRecord          yes     no       no        a write into the cache
//   kChange          no      no       no        a change of the device below, destaging apart
//
// So what is read below has been acknowledged, and is not put into the cache after it was changed.
// Who overlaps one that he does not go with waits for him, in the order of arrival. Usually nobody
// is there, and a lock costs a few stores. Used on one executor.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "block/block_device.h"
#include "cache/patience.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class RangeLocks {
 public:
  enum class Kind : std::uint8_t { kRead, kRecord, kChange };

  ~RangeLocks() { assert(first_ == nullptr); }

  // Stands in the frame of the one who locks.
  class Hold {
   public:
    Hold(RangeLocks& locks, Kind kind, const Extent& extent) noexcept
        : locks_(locks), kind_(kind), extent_(extent) {
      locks_.append(*this);
    }
    ~Hold() { locks_.remove(*this); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    bool ready() const noexcept { return !locks_.blocked(kind_, extent_, this); }

   private:
    friend class RangeLocks;
    RangeLocks& locks_;
    Kind kind_;
    Extent extent_;
    Hold* next_ = nullptr;
    Hold* previous_ = nullptr;
  };

  // Ends with kNone when it is his turn, or why he does not wait any longer. Awaited at once by the
  // owner of `hold`.
  Task<Error> wait(Hold& hold, Patience patience = {}) {
    while (!hold.ready()) {
      const Error end = patience.end();
      if (end != Error::kNone) co_return end;
      co_await patience.wait(&changed_);
    }
    co_return Error::kNone;
  }
  // Whether one of this kind would have to wait, for those before `before` or for anybody.
  bool blocked(Kind kind, const Extent& extent, const Hold* before = nullptr) const noexcept {
    if (!any_excludes(kind, before)) return false;
    for (const Hold* hold = first_; hold != before; hold = hold->next_) {
      if (excludes(hold->kind_, kind) && hold->extent_.overlaps(extent)) return true;
    }
    return false;
  }

 private:
  static bool excludes(Kind one, Kind other) noexcept {
    if (one == Kind::kChange || other == Kind::kChange) return true;
    return one == Kind::kRecord && other == Kind::kRecord;
  }
  // However many reads there are, one more does not look at each of them. Who is before somebody is
  // one of those here.
  bool any_excludes(Kind kind, const Hold* before) const noexcept {
    std::size_t count = 0;
    for (const Kind other : {Kind::kRead, Kind::kRecord, Kind::kChange}) {
      if (excludes(other, kind)) count += counts_[std::to_underlying(other)];
    }
    return count > (before != nullptr && excludes(kind, kind) ? 1 : 0);
  }
  void append(Hold& hold) noexcept {
    ++counts_[std::to_underlying(hold.kind_)];
    hold.previous_ = last_;
    (last_ != nullptr ? last_->next_ : first_) = &hold;
    last_ = &hold;
  }
  void remove(Hold& hold) noexcept {
    --counts_[std::to_underlying(hold.kind_)];
    (hold.previous_ != nullptr ? hold.previous_->next_ : first_) = hold.next_;
    (hold.next_ != nullptr ? hold.next_->previous_ : last_) = hold.previous_;
    changed_.notify_all();
  }

  Hold* first_ = nullptr;
  Hold* last_ = nullptr;
  std::array<std::size_t, 3> counts_{};  // By kind.
  Condition changed_;
};

}  // namespace sandbay::cache
