// RangeLocks: who does what to which blocks of a device just now, where that takes more than a
// step.
//
//              with: kRead   kRecord  kChange
//   kRead            yes     yes      no        reads of the device below
//   kRecord          yes     no       no        a write into the cache
//   kChange          no      no       no        a change of the device below, destaging apart
//
// So what is read below has been acknowledged, and is not put into the cache after it was changed.
// A hold waits for each earlier hold that it overlaps and does not go with: the order is that of
// arrival.
//
// The holds are a tree in order of address, balanced by chance. Each knows of its subtree where it
// ends and which sequences it has, by kind, so that a search looks at few of them. A hold that
// waits is listed with the newest one in its way, and is woken when that is removed. So each
// of n holds of one place is woken once. Usually nobody is there, and a lock costs a few stores.
// Used on one executor.
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

  ~RangeLocks() { assert(root_ == nullptr); }

  // Stands in the frame of the one who locks.
  class Hold {
   public:
    Hold(RangeLocks& locks, Kind kind, const Extent& extent) noexcept
        : locks_(locks), extent_(extent), sequence_(++locks.last_), kind_(kind) {
      locks_.insert(*this);
    }
    ~Hold() { locks_.remove(*this); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    bool ready() const noexcept {
      return locks_.newest_in_way(kind_, extent_, sequence_) == nullptr;
    }

   private:
    friend class RangeLocks;
    bool alone() const noexcept { return left_ == nullptr && right_ == nullptr; }
    // Sequences of holds that exclude some kind; 0 and kNoSequence if no hold does.
    struct Sequences {
      std::uint64_t oldest = kNoSequence;
      std::uint64_t newest = 0;
    };

    RangeLocks& locks_;
    const Extent extent_;
    const std::uint64_t sequence_;
    const Kind kind_;
    Hold* left_ = nullptr;
    Hold* right_ = nullptr;
    Lba subtree_end_ = 0;
    std::array<Sequences, 3> excluding_;  // In the subtree, by the kind that they exclude.
    // While it waits: for whom, and beside whom.
    Hold* in_way_ = nullptr;
    Hold* next_ = nullptr;
    Hold* previous_ = nullptr;
    Hold* first_waiter_ = nullptr;  // For this one.
    Condition turn_;
  };

  // Ends with kNone when it is his turn, or why he does not wait any longer. Awaited at once by the
  // owner of `hold`.
  Task<Error> wait(Hold& hold, Patience patience = {}) {
    for (;;) {
      Hold* const in_way = newest_in_way(hold.kind_, hold.extent_, hold.sequence_);
      if (in_way == nullptr) co_return Error::kNone;
      const Error end = patience.end();
      if (end != Error::kNone) co_return end;
      list(hold, *in_way);
      co_await patience.wait(&hold.turn_);
      unlist(hold);
    }
  }
  // Whether one of this kind would have to wait if it came now.
  bool blocked(Kind kind, const Extent& extent) const noexcept {
    return newest_in_way(kind, extent, kNoSequence) != nullptr;
  }

 private:
  static constexpr std::uint64_t kNoSequence = ~std::uint64_t{0};

  void insert(Hold& hold) noexcept {
    update(hold);
    if (root_ == nullptr) {
      root_ = &hold;
    } else {
      insert_into(root_, hold);
    }
  }
  void remove(Hold& hold) noexcept {
    unlist(hold);
    if (root_ == &hold && hold.alone()) {
      root_ = nullptr;
    } else {
      remove_from(root_, hold);
    }
    while (Hold* const waiter = hold.first_waiter_) {
      unlist(*waiter);
      waiter->turn_.notify_all();
    }
  }
  // Only holds that came before `sequence` count.
  Hold* newest_in_way(Kind kind, const Extent& extent, std::uint64_t sequence) const noexcept {
    Hold* found = nullptr;
    search(root_, kind, extent, sequence, found);
    return found;
  }

  static bool excludes(Kind one, Kind other) noexcept {
    if (one == Kind::kChange || other == Kind::kChange) return true;
    return one == Kind::kRecord && other == Kind::kRecord;
  }
  static std::uint64_t weight(const Hold& hold) noexcept;
  static bool before(const Hold& one, const Hold& other) noexcept;
  static void update(Hold& hold) noexcept;
  static void insert_into(Hold*& tree, Hold& hold) noexcept;
  static void remove_from(Hold*& tree, Hold& hold) noexcept;
  static void split(Hold* tree, const Hold& border, Hold*& less, Hold*& more) noexcept;
  static Hold* merge(Hold* less, Hold* more) noexcept;
  static void search(Hold* tree, Kind kind, const Extent& extent, std::uint64_t sequence,
                     Hold*& found) noexcept;

  static void list(Hold& waiter, Hold& in_way) noexcept {
    waiter.in_way_ = &in_way;
    waiter.next_ = in_way.first_waiter_;
    if (waiter.next_ != nullptr) waiter.next_->previous_ = &waiter;
    in_way.first_waiter_ = &waiter;
  }
  static void unlist(Hold& waiter) noexcept {
    if (waiter.in_way_ == nullptr) return;
    (waiter.previous_ != nullptr ? waiter.previous_->next_ : waiter.in_way_->first_waiter_) =
        waiter.next_;
    if (waiter.next_ != nullptr) waiter.next_->previous_ = waiter.previous_;
    waiter.in_way_ = waiter.next_ = waiter.previous_ = nullptr;
  }

  Hold* root_ = nullptr;
  std::uint64_t last_ = 0;  // Sequence of the newest hold.
};

}  // namespace sandbay::cache
