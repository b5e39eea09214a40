// check_map(): the whole map against itself.
//
// Owners are written down page by page of each store; then every kept version and every slot is
// visited through the same doors that operations use.
#include "pool/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace sandbay::pool {

namespace {

constexpr std::size_t kMostFindings = 100;

struct Checker {
  PoolMap& map;
  CheckReport report;
  std::map<StoreIndex, BitSet> owned;
  std::map<Place, SlotMap> slots;  // As the kept versions have them.

  template <class... Arguments>
  void find(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (report.wrong.size() < kMostFindings) {
      report.wrong.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
    }
  }

  void own(Place place, const std::string& owner) {
    const auto store = owned.find(place.store);
    if (store == owned.end() || place.page >= store->second.size()) {
      find("{}: page {} of store {}, which is none", owner, place.page, place.store);
      return;
    }
    if (store->second.test(place.page)) {
      find("{}: page {} of store {} has two owners", owner, place.page, place.store);
    }
    store->second.set(place.page);
  }

  Task<void> check_pages(const Branch* branch);
  Task<void> check_kept(const Branch* branch);
  void check_version(const Branch& branch, PageNumber page, const Kept& kept);
  Task<void> check_slots();
  void check_free();
};

Task<void> Checker::check_pages(const Branch* branch) {
  const PageNumber end = map.page_count_of(*branch);
  std::uint64_t placed = 0;
  for (PageNumber page = branch->pages.next(0, kNoPage); page != kNoPage;
       page = branch->pages.next(page + 1, kNoPage)) {
    const std::string owner = fmt::format("page {} of branch {}", page, branch->id());
    const PageEntry entry = branch->pages.at(page);
    if (page >= end && !entry.place().none()) find("{} lies behind its end", owner);
    auto chunks = co_await map.chunk_map({.branch = branch->id(), .page = page});
    if (!chunks.has_value()) {
      find("{}: its chunks cannot be read: {}", owner, describe(chunks.error()));
      continue;
    }
    const auto uniform = (*chunks)->uniform();
    const PageState state = uniform ? static_cast<PageState>(*uniform) : PageState::kMixed;
    if (state != entry.state) find("{}: its chunks are not as it says", owner);
    if (entry.place().none()) {
      if ((*chunks)->data_count() > 0) find("{} has data and no place", owner);
      continue;
    }
    if ((*chunks)->data_count() == 0 && !branch->record.thick) {
      find("{} has a place and no data", owner);
    }
    own(entry.place(), owner);
    ++placed;
  }
  report.pages += placed;
  if (placed != branch->pages.placed_count()) {
    find("branch {} counts {} pages, and has {}", branch->id(), branch->pages.placed_count(),
         placed);
  }
}

void Checker::check_version(const Branch& branch, PageNumber page, const Kept& kept) {
  ++report.kept_chunks;
  if (kept.state != ChunkState::kData) return;
  SlotMap& used = slots.try_emplace(kept.slot.place, map.page_chunks()).first->second;
  if (used.test(kept.slot.chunk)) {
    find("chunk {} of page {} of branch {}: its slot is used twice", kept.chunk, page, branch.id());
  }
  used.set(kept.slot.chunk);
}

// Pages with kept versions are found in the store: the caller has made a checkpoint.
Task<void> Checker::check_kept(const Branch* branch) {
  const std::string prefix = map.key_of({.branch = branch->id(), .page = 0}, 0)
                                 .substr(0, map.key('k').size() + sizeof(BranchId));
  KeptCounts data;
  GenerationCounts data_for;
  std::set<PageNumber> pages;
  std::string after;
  while (true) {
    const auto entries = co_await map.store().list(prefix, after, 256);
    if (!entries.has_value()) {
      find("branch {}: what it keeps cannot be read", branch->id());
      co_return;
    }
    for (const auto& [key, value] : *entries) {
      PageNumber page = 0;
      for (std::size_t i = prefix.size(); i < prefix.size() + 4; ++i) {
        page = page << 8U | static_cast<unsigned char>(key[i]);
      }
      pages.insert(page);
    }
    if (entries->size() < 256) break;
    after = entries->back().first;
  }
  for (const PageNumber page : pages) {
    auto kept = co_await map.kept({.branch = branch->id(), .page = page}, 0);
    if (!kept.has_value()) {
      find("page {} of branch {}: what it keeps cannot be read", page, branch->id());
      continue;
    }
    for (const KeptChunks::Generations& entry : (*kept)->generations()) {
      if (entry.generation > branch->record.last_generation) {
        find("page {} of branch {} keeps for a snapshot of the future", page, branch->id());
      }
      for (const Kept& version : entry.leaf.all()) {
        check_version(*branch, page, version);
        if (version.state != ChunkState::kData) continue;
        data.add(version.slot.place.store, 1);
        data_for.add(entry.generation, 1);
      }
    }
    const std::size_t useless = (*kept)->useless(branch->living).size();
    report.useless_chunks += useless;
    if (useless > 0 && !branch->record.sweeping) {
      find("page {} of branch {} keeps {} chunks that nobody needs", page, branch->id(), useless);
    }
  }
  if (data != branch->record.kept) {
    find("branch {} counts {} slots, and has {}, or in other stores", branch->id(),
         branch->record.kept.total(), data.total());
  }
  if (data_for != branch->kept_for) {
    find("branch {} counts its slots for other snapshots than it keeps them for", branch->id());
  }
}

Task<void> Checker::check_slots() {
  for (const auto& [place, used] : slots) {
    ++report.reserve_pages;
    const std::string owner = fmt::format("reserve page {} of store {}", place.page, place.store);
    own(place, owner);
    auto stored = co_await map.slot_map(place);
    if (!stored.has_value()) {
      find("{} cannot be read: {}", owner, describe(stored.error()));
    } else if (static_cast<const BitSet&>(**stored) != used) {
      find("{}: its slots are not those that are used", owner);
    }
    if (map.slots().used(place) != used.count()) {
      find("{} counts {} slots, and has {}", owner, map.slots().used(place), used.count());
    }
  }
  if (map.slots().page_count() != slots.size()) {
    find("{} reserve pages are counted, and {} are used", map.slots().page_count(), slots.size());
  }
}

// What is owned by nobody is free. What is not free may be claimed by an operation just now.
void Checker::check_free() {
  for (const auto& [index, store] : map.stores()) {
    const BitSet& pages = owned.at(index);
    for (PageNumber page = pages.find(0, true); page < pages.size();
         page = pages.find(page + 1, true)) {
      if (!store.pages.owned(page)) find("page {} of store {} is used and free", page, index);
    }
  }
}

}  // namespace

Task<CheckReport> check_map(PoolMap* map) {
  Checker checker{.map = *map, .report = {}, .owned = {}, .slots = {}};
  for (const auto& [index, store] : map->stores()) {
    checker.owned.emplace(index, BitSet(store.pages.page_count()));
  }
  for (const auto& [id, branch] : map->branches()) {
    ++checker.report.branches;
    checker.report.snapshots += branch->snapshots.size();
    for (const auto& [generation, snapshot] : branch->snapshots) {
      if (generation > branch->record.last_generation) {
        checker.find("branch {} has a snapshot of the future", id);
      }
    }
    if (branch->record.parent != 0 && map->find(branch->record.parent) == nullptr) {
      checker.find("branch {} hangs on branch {}, which is none", id, branch->record.parent);
    }
    co_await checker.check_pages(branch.get());
    co_await checker.check_kept(branch.get());
  }
  co_await checker.check_slots();
  checker.check_free();
  // Between changes nothing is claimed, but for the page that slots come from next.
  co_return std::move(checker.report);
}

}  // namespace sandbay::pool
