// RangeLocks: who changes which blocks of a device just now, where that takes more than one step.
//
// Changes of overlapping extents take turns in the order of their arrival. Usually nobody is there,
// and a lock costs two stores. Used on one executor.
#pragma once

#include "block/block_device.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class RangeLocks {
 public:
  ~RangeLocks() { assert(first_ == nullptr); }

  // Stands in the frame of the one who locks.
  class Hold {
   public:
    Hold(RangeLocks& locks, Extent extent) noexcept : locks_(locks), extent_(extent) {
      locks_.append(*this);
    }
    ~Hold() { locks_.remove(*this); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    bool ready() const noexcept { return locks_.first_overlapping(extent_, this) == this; }

   private:
    friend class RangeLocks;
    RangeLocks& locks_;
    Extent extent_;
    Hold* next_ = nullptr;
    Hold* previous_ = nullptr;
  };

  // Awaited at once by the owner of `hold`.
  Task<void> wait(Hold& hold) {
    while (!hold.ready()) co_await changed_.wait();
  }
  bool overlaps(const Extent& extent) const noexcept {
    return first_ != nullptr && first_overlapping(extent, nullptr) != nullptr;
  }

 private:
  const Hold* first_overlapping(const Extent& extent, const Hold* self) const noexcept {
    for (const Hold* hold = first_; hold != nullptr; hold = hold->next_) {
      if (hold == self || hold->extent_.overlaps(extent)) return hold;
    }
    return nullptr;
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

}  // namespace sandbay::cache
