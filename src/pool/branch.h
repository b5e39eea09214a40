// Branch: what a volume, a clone or a writable snapshot is in the map.
//
// A branch has pages of its own, versions of chunks that its snapshots keep, and perhaps a parent:
// another branch as a snapshot of it has it. Chunk c as generation e of branch B has it:
//
//   1. e is a snapshot's: the first kept version (c, g) of B with g >= e. Data: there. Zeros:
//      zeros. Through: step 3.
//   2. B's own page says what c is. Data: there. Zeros: zeros.
//   3. c lies before the end of what B reads through its parent: c as the parent's generation has
//      it. Otherwise zeros.
//
// That end is where the parent's generation ended when B was made, in pages. It only comes nearer:
// when the parent leaves the row, to the parent's own end. So no resize changes what B, its
// snapshots and its children read of the parents.
//
// A generation lives as long as there is a snapshot of that number or a branch hangs on it. What
// changes under a living generation is kept for it first, once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/chunk_locks.h"
#include "pool/map_records.h"
#include "pool/page_map.h"
#include "pool/place.h"

namespace sandbay::pool {

// A page on its way to another place; stands in the mover's frame.
struct PageMove {
  PageNumber page = 0;
  BitSet dirty;            // Chunks that were written since they were copied.
  bool cancelled = false;  // The page has got another place, or none.
};

struct Branch {
  explicit Branch(BranchRecord of) : record(std::move(of)) {}

  BranchRecord record;
  PageMap pages;
  std::map<Generation, SnapshotRecord> snapshots;
  std::vector<std::pair<Generation, BranchId>> children;  // That hang on it, ascending.
  std::vector<Generation> living;                         // Ascending, each once.
  std::uint64_t living_changes = 0;                       // How often they changed, or `dead`.
  GenerationCounts kept_for;                              // The slots of record.kept once more.

  ChunkLocks locks;
  WriteDoor door;
  PageMove* move = nullptr;
  unsigned users = 0;    // In the background: it is not erased meanwhile.
  bool erasing = false;  // That is being written: nobody begins to use it.
  bool warned = false;   // Of record.page_warning.
  // Stores with volatile caches that pages have been moved away from, and how many, since a flush
  // has covered what was written there before.
  std::map<StoreIndex, std::uint64_t> left;
  std::uint64_t pages_claimed = 0;  // For operations that have not recorded them yet.

  BranchId id() const noexcept { return record.id; }
  // The youngest living generation; 0 if there is none: nothing needs to be kept.
  Generation newest() const noexcept { return living.empty() ? 0 : living.back(); }
  bool has_parent() const noexcept { return record.parent != 0; }
  bool reads_through(PageNumber page) const noexcept { return page < record.through_pages; }
  // What a chunk is that reads as zeros and takes no space.
  ChunkState nothing() const noexcept {
    return has_parent() ? ChunkState::kZero : ChunkState::kThrough;
  }
  void find_living();
  // After a snapshot or a child of that generation was added or removed.
  void note_living(Generation generation);
  // Slots of what a living generation sees as the youngest of all: what nobody needs any more when
  // it is gone, but for what older ones see, too.
  std::uint64_t slots_of(Generation generation) const noexcept;
};

}  // namespace sandbay::pool
