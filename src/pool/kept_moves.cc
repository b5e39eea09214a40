// Pool: moving what is kept for snapshots: out of a store that is vacated, or out of a parent that
// the branch is to lose. The version is copied to another slot; that it was forgotten and kept anew
// is one group of records.
#include <algorithm>
#include <cassert>
#include <utility>

#include "pool/page_change.h"
#include "pool/page_io.h"
#include "pool/pool.h"

namespace sandbay::pool {

namespace {

// Of one change.
constexpr std::size_t kMostMoved = 64;

}  // namespace

Task<Error> Pool::rewrite_kept(Branch* branch, PageNumber page, StoreIndex from, Reserve reserve) {
  const PageKey key{.branch = branch->id(), .page = page};
  while (true) {
    auto kept = co_await map_.kept(key, 0);
    if (!kept.has_value()) co_return kept.error();
    std::vector<KeptChunks::Useless> due;
    for (const KeptChunks::Generations& entry : (*kept)->generations()) {
      for (const Kept& version : entry.leaf.all()) {
        const bool concerned = from == kNoStore ? version.state == ChunkState::kThrough
                                                : version.state == ChunkState::kData &&
                                                      version.slot.place.store == from;
        if (concerned && due.size() < kMostMoved) due.push_back({entry.generation, version});
      }
    }
    if (due.empty()) co_return Error::kNone;
    PageChange change(*this, *branch, page, reserve);
    for (const KeptChunks::Useless& version : due) {
      // A store that is to stay may get the version anew, and would never be without one.
      if (hurries_ || (from != kNoStore && !is_vacating(from))) co_return Error::kCancelled;
      const Error error = co_await rewrite_one(branch, page, &version, &change);
      if (error != Error::kNone) co_return error;
    }
    const Error error = co_await change.commit();
    if (error != Error::kNone) co_return error;
  }
}

Task<Error> Pool::rewrite_one(Branch* branch, PageNumber page, const KeptChunks::Useless* version,
                              PageChange* change) {
  const Kept& kept = version->kept;
  if (kept.state == ChunkState::kData) {
    co_return co_await change->move_version(version->generation, kept, kept.slot);
  }
  const ChunkRange range{.page = page, .first = kept.chunk, .count = 1};
  Branch* const parent = map_.find(branch->record.parent);
  ChunkLocks::Hold hold(parent->locks, ChunkLocks::Kind::kRead, range);
  if (!hold.ready()) co_await parent->locks.wait(hold);
  ReadPlan plan;
  const Error error =
      co_await plan_read(this, parent, branch->record.parent_generation, range, &plan);
  if (error != Error::kNone) co_return error;
  const Source& source = plan.sources.front();
  if (source.zeros) {
    co_return co_await change->replace_version(version->generation, kept, ChunkState::kZero, {});
  }
  co_return co_await change->move_version(version->generation, kept, source.slot);
}

}  // namespace sandbay::pool
