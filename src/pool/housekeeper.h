// Housekeeper: does what a pool has to do in the background, a bit of each in turn: empties stores
// that are vacating, frees what was deleted, makes clones whole, shortens long rows of parents,
// spreads pages, unmaps what is free.
//
// It copies at one of two paces: one while hosts use the pool, one while they do not. Everything
// that it does is read off the map, so after a restart it goes on where it stopped; only clones
// that are to be made whole are named again by the owner, and what they have is not copied twice.
//
// It lives on the pool's executor and is stopped before the pool is closed. The pool's observer is
// told of what has ended or cannot go on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "pool/balance.h"
#include "pool/pool.h"
#include "runtime/sync.h"

namespace sandbay::pool {

struct HousekeepingOptions {
  BalanceOptions balance;
  bool balances = true;
  bool trims = true;
  std::uint64_t busy_bytes_per_second = std::uint64_t{30} << 20;  // While hosts are there.
  std::uint64_t idle_bytes_per_second = 0;                        // 0: as fast as it can.
  std::uint32_t most_parents = 8;  // Rows of parents that are longer are shortened.
  Duration pause = std::chrono::milliseconds(250);  // When there was nothing to do.
};

// What is under way.
struct HousekeepingView {
  enum class Kind : std::uint8_t { kVacate, kSweep, kFill, kFlatten, kBalance, kTrim };
  Kind kind = Kind::kSweep;
  StoreIndex store = kNoStore;        // kVacate: which.
  BranchId branch = 0;                // kFill, kFlatten: which.
  std::uint64_t done_pages = 0;       // Since it began, or since the last start.
  std::uint64_t left_pages = 0;       // An estimate; 0 for those that do not know.
  std::optional<Duration> time_left;  // At the rate so far.
  Error stuck = Error::kNone;         // Why it does not go on now.
  std::uint64_t needed_pages = 0;     // kNoSpace: what it needs, if that was counted,
  std::uint64_t room_pages = 0;       // and what it may use now; the rest is reserved for hosts.
};

class Housekeeper {
 public:
  Housekeeper(Pool& pool, HousekeepingOptions options);
  ~Housekeeper();  // Stopped, or never started.
  Housekeeper(const Housekeeper&) = delete;
  Housekeeper& operator=(const Housekeeper&) = delete;

  void start();
  // What is under way ends at its next step. False: it still waits for a store at the deadline; it
  // may be asked again, and until it has ended neither this object nor the pool goes.
  Task<bool> stop(TimePoint deadline);
  // Copies what the branch has of its parent, until it needs none. kNotFound: no such branch.
  Error fill(BranchId branch);
  void stop_filling(BranchId branch) { fills_.erase(branch); }
  const HousekeepingOptions& options() const noexcept { return options_; }
  std::vector<HousekeepingView> views() const;

 private:
  struct Progress {
    TimePoint begun{};
    std::uint64_t done = 0;
    std::uint64_t left = 0;
    Error stuck = Error::kNone;
  };
  struct Fill {
    PageNumber next = 0;
    Progress progress;
  };

  Task<void> run();
  Task<bool> round();
  Task<bool> vacate();
  Task<bool> vacate_one(StoreIndex store);
  Task<bool> sweep();
  Task<bool> fill_some();
  Task<bool> fill_next();
  Task<bool> flatten();
  Task<bool> balance();
  Task<bool> trim();
  void choose_pace();
  HousekeepingView view(HousekeepingView::Kind kind, const Progress& progress) const;
  HousekeepingView view_of_copy(HousekeepingView::Kind kind, BranchId branch,
                                const Progress& progress) const;
  // The progress of something that may just begin.
  Progress& began(std::optional<Progress>& progress) const;

  Pool& pool_;
  HousekeepingOptions options_;
  Balance balance_;
  std::map<StoreIndex, Progress> vacating_;
  std::map<BranchId, Fill> fills_;
  BranchId filled_ = 0;  // Of those, the one that had its turn last.
  std::optional<Progress> sweeping_;
  std::optional<Progress> flattening_;
  BranchId flattened_ = 0;  // The branch that flatten() worked on last.
  std::optional<Progress> balancing_;
  std::optional<Progress> trimming_;
  std::uint64_t host_requests_ = 0;
  Gate gate_;
  Event stop_;
};

}  // namespace sandbay::pool
