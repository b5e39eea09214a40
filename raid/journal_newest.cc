// Goes from the newest update to the oldest and remembers which blocks newer ones write.

#include "raid/journal_newest.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>

namespace sandbay::raid {
namespace {

// Blocks of one drive: runs that neither overlap nor touch, by first block.
class Covered {
 public:
  // The next run of `extent` that is not covered, or an empty one at its end.
  Extent first_gap(Extent extent) const {
    auto run = runs_.upper_bound(extent.first);
    if (run != runs_.begin() && std::prev(run)->second > extent.first) {
      extent = {.first = std::min(std::prev(run)->second, extent.end()),
                .block_count = extent.end() - std::min(std::prev(run)->second, extent.end())};
    }
    if (run != runs_.end() && run->first < extent.end()) {
      extent.block_count = run->first - std::min(run->first, extent.first);
    }
    return extent;
  }

  void add(Extent extent) {
    Lba first = extent.first;
    Lba end = extent.end();
    auto run = runs_.upper_bound(first);
    if (run != runs_.begin() && std::prev(run)->second >= first) --run;
    while (run != runs_.end() && run->first <= end) {
      first = std::min(first, run->first);
      end = std::max(end, run->second);
      run = runs_.erase(run);
    }
    runs_[first] = end;
  }

 private:
  std::map<Lba, Lba> runs_;
};

void trim(RecoveredUpdate& update, std::map<unsigned, Covered>& covered,
          std::uint32_t block_bytes) {
  std::vector<JournalWrite> writes;
  std::vector<std::byte> payload;
  std::size_t offset = update.payload.size();
  // Backwards here too: where two writes of one update overlap, the later one counts.
  for (auto write = update.writes.rbegin(); write != update.writes.rend(); ++write) {
    Covered& newer = covered[write->role];
    const std::size_t bytes = write->zeroes ? 0 : write->extent.byte_count(block_bytes);
    offset -= bytes;
    for (Lba next = write->extent.first; next < write->extent.end();) {
      const Extent gap =
          newer.first_gap({.first = next, .block_count = write->extent.end() - next});
      next = gap.end();
      if (gap.block_count == 0) continue;
      writes.push_back({.role = write->role, .zeroes = write->zeroes, .extent = gap});
      if (write->zeroes) continue;
      const auto part = std::span(update.payload)
                            .subspan(offset + (gap.first - write->extent.first) * block_bytes,
                                     gap.byte_count(block_bytes));
      payload.insert(payload.end(), part.begin(), part.end());
    }
    newer.add(write->extent);
  }
  update.writes = std::move(writes);
  update.payload = std::move(payload);
}

}  // namespace

void give_up_before(std::uint64_t sequence, JournalRecovery& recovery) {
  for (RecoveredUpdate& update : recovery.updates) {
    if (update.sequence >= sequence) break;
    recovery.lost.push_back(
        {.sequence = update.sequence, .stripe = update.stripe, .writes = std::move(update.writes)});
  }
  std::erase_if(recovery.updates,
                [&](const RecoveredUpdate& update) { return update.sequence < sequence; });
  std::ranges::sort(recovery.lost, {}, &LostUpdate::sequence);
}

void keep_newest(std::vector<RecoveredUpdate>& updates, std::span<const LostUpdate> lost,
                 std::uint32_t block_bytes) {
  std::map<unsigned, Covered> covered;
  for (auto update = updates.rbegin(); update != updates.rend(); ++update) {
    for (; !lost.empty() && lost.back().sequence > update->sequence;
         lost = lost.first(lost.size() - 1)) {
      for (const JournalWrite& write : lost.back().writes) covered[write.role].add(write.extent);
    }
    trim(*update, covered, block_bytes);
  }
  std::erase_if(updates, [](const RecoveredUpdate& update) { return update.writes.empty(); });
}

}  // namespace sandbay::raid
