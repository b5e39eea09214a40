// Balance: which page should move, and where to, so that a pool's stores are used evenly.
//
// Three reasons, in this order: a page is in another class of stores than its branch wishes, and
// there is room in that class; a page that is used much is on a store that is much slower than
// another; a store is fuller than another by more than `spread`, so that what they hold, and with
// it the load, is shared nearly as their sizes are. What is moved for room is what is used least,
// of the branch that has most there beyond its share. Pages of a branch that is fixed to a store
// stay.
//
// It decides from the map and from what was measured, and keeps nothing but the places where its
// looks go on; so after a restart it goes on where the pages are. Moving is Pool::move_page().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pool/place.h"
#include "runtime/clock.h"

namespace sandbay::pool {

class Pool;
struct Branch;

struct BalanceOptions {
  double spread = 0.05;     // Of what the stores hold on average, that is let be.
  double slow = 2;          // A store with so many times the latency of the fastest is slow.
  std::uint8_t hot = 64;    // Uses since it was cooled, from which a page is hot.
  Duration cooling_period;  // In which uses are halved; 0: ten seconds.
};

class Balance {
 public:
  struct Move {
    BranchId branch = 0;
    PageNumber page = 0;
    StoreIndex target = kNoStore;
  };

  Balance(Pool& pool, BalanceOptions options);

  // The next page to move, from a look at a bounded number of pages. Nothing: all is well as far as
  // that look went.
  std::optional<Move> next();
  // The store said no, or the page is not there any more: another one comes first.
  void pass_over(const Move& move);
  // Pages that still have to move for room: an estimate.
  std::uint64_t pages_left() const;
  // Halves the uses of a bounded number of pages, when it is time.
  void cool(TimePoint now);

 private:
  struct Room {
    StoreIndex store = kNoStore;
    std::uint8_t placement = 0;
    std::uint64_t pages = 0;
    std::uint64_t owned = 0;
    double latency = 1;

    double fill() const noexcept {
      return pages == 0 ? 1 : static_cast<double>(owned) / static_cast<double>(pages);
    }
  };
  std::vector<Room> rooms() const;
  static double mean_fill(const std::vector<Room>& rooms);
  std::optional<Move> look_around(const std::vector<Room>& rooms);
  std::optional<StoreIndex> better_for(const Branch& branch, PageNumber page,
                                       const std::vector<Room>& rooms) const;
  std::optional<Move> make_room(const std::vector<Room>& rooms);
  std::optional<Move> coldest(const Branch& branch, const Room& from, const Room& to) const;
  const Branch* most_beyond_share(const Room& from, const Room& to) const;

  Pool* pool_;  // Never null.
  BalanceOptions options_;
  PageKey look_;  // Where look_around() goes on.
  PageKey cool_;
  TimePoint cooled_{};
  std::vector<PageKey> passed_over_;
};

}  // namespace sandbay::pool
