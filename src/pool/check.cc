// check_map(): the whole map against itself, in slices, while hosts change it.
//
// The check visits the pages of all branches in order, then the kept versions, and notes the owner
// of each place. When a group of records changes a page that was visited already, MapWatcher
// corrects the notes; the check sees a page that it has yet to visit as it is then. So between two
// turns the notes always agree with the visited part of the map. Between a look at the map and the
// note of it nothing is suspended.
#include "pool/check.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace sandbay::pool {

namespace {

constexpr std::size_t kMostFindings = 100;
// Pages that are looked at between two turns of the executor.
constexpr std::uint32_t kCheckedPages = 1024;
constexpr std::uint32_t kFreePages = 65536;
constexpr std::size_t kCheckedEntries = 256;

class Checker final : public MapWatcher {
 public:
  Checker(PoolMap& map, const DoubtfulChunks* doubtful)
      : map_(map), doubtful_(doubtful), home_(map.store().home()) {
    for (const auto& [index, store] : map.stores()) {
      owners_.emplace(index, std::vector<std::uint8_t>(store.pages.page_count()));
    }
    map_.watch(this);
  }
  ~Checker() { map_.watch(nullptr); }

  Task<void> run();
  CheckReport take_report() { return std::move(report_); }

 private:
  template <class... Arguments>
  void find(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (report_.wrong.size() < kMostFindings) {
      report_.wrong.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
    }
  }

  void placed(PageKey page, Place old, Place now) override;
  void kept(PageKey page, Generation generation, const Kept& version, bool there) override;

  std::uint8_t* owners_of(Place place);
  void own(Place place);
  void disown(Place place);
  void note_version(const Kept& version, const PageKey* page);
  bool is_slice_full() {
    if (++looked_ < kCheckedPages) return false;
    looked_ = 0;
    return true;
  }

  void check_branch(const Branch& branch);
  Task<void> check_pages(Branch* branch);
  Task<void> check_page(Branch* branch, PageNumber page);
  Task<void> count_doubtful(const Branch* branch, PageNumber page);
  Task<std::string> look_at_page(const Branch* branch, PageNumber page);
  Task<std::string> look_again(Branch* branch, PageNumber page);
  Task<void> check_kept(const Branch* branch);
  Task<void> check_kept_page(const Branch* branch, PageNumber page);
  Task<bool> list_kept(BranchId branch);
  Task<void> check_slots();
  Task<void> check_free();

  PoolMap& map_;
  const DoubtfulChunks* doubtful_;
  Executor& home_;
  CheckReport report_;
  std::uint32_t looked_ = 0;
  // The number of owners of each page of a store: visited pages, and all slots in it as one owner.
  std::map<StoreIndex, std::vector<std::uint8_t>> owners_;
  std::map<Place, SlotMap> slots_;  // Slots of the visited kept versions.
  PageKey next_page_;               // All pages before it are visited.
  PageKey next_kept_;
  std::uint64_t placed_ = 0;  // These three: for the branch that is being visited.
  KeptCounts data_;
  GenerationCounts data_for_;
  std::set<PageKey> fresh_;        // With versions that the checkpoint does not have, not visited.
  std::deque<PageNumber> listed_;  // With versions in the store, the next ones.
  bool all_listed_ = false;
};

// Notes -------------------------------------------------------------------------------------------

// Null: there is no such page.
std::uint8_t* Checker::owners_of(Place place) {
  const auto store = owners_.find(place.store);
  if (store == owners_.end() || place.page >= store->second.size()) return nullptr;
  return &store->second[place.page];
}

void Checker::own(Place place) {
  std::uint8_t* const owners = owners_of(place);
  if (owners == nullptr) return;
  assert(*owners < 0xff);
  ++*owners;
}

void Checker::disown(Place place) {
  std::uint8_t* const owners = owners_of(place);
  if (owners == nullptr) return;
  assert(*owners > 0);
  --*owners;
}

void Checker::placed(PageKey page, Place old, Place now) {
  if (page >= next_page_) return;
  if (!old.none()) disown(old);
  if (!now.none()) own(now);
  if (page.branch != next_page_.branch) return;
  placed_ += static_cast<std::uint64_t>(!now.none());
  placed_ -= static_cast<std::uint64_t>(!old.none());
}

void Checker::kept(PageKey page, Generation generation, const Kept& version, bool there) {
  if (page >= next_kept_) {
    if (there) fresh_.insert(page);
    return;
  }
  if (version.state != ChunkState::kData) return;
  if (there) {
    note_version(version, nullptr);
  } else {
    const auto at = slots_.find(version.slot.place);
    if (at == slots_.end()) return;  // The kept versions of that page could not be read.
    at->second.reset(version.slot.chunk);
    if (at->second.count() == 0) {
      slots_.erase(at);
      disown(version.slot.place);
    }
  }
  if (page.branch != next_kept_.branch) return;
  if (there) {
    data_.add(version.slot.place.store, 1);
    data_for_.add(generation, 1);
  } else {
    data_.remove(version.slot.place.store);
    data_for_.remove(generation);
  }
}

// `page`: the owner, for a finding; null: the log has verified the version.
void Checker::note_version(const Kept& version, const PageKey* page) {
  const auto [at, added] = slots_.try_emplace(version.slot.place, map_.page_chunks());
  if (added) own(version.slot.place);
  if (page != nullptr && at->second.test(version.slot.chunk)) {
    find("chunk {} of page {} of branch {}: its slot is used twice", version.chunk, page->page,
         page->branch);
  }
  at->second.set(version.slot.chunk);
}

// Pages of branches -------------------------------------------------------------------------------

void Checker::check_branch(const Branch& branch) {
  ++report_.branches;
  report_.snapshots += branch.snapshots.size();
  for (const auto& [generation, snapshot] : branch.snapshots) {
    if (generation <= branch.record.last_generation) continue;
    find("branch {} has a snapshot of the future", branch.id());
  }
  if (branch.record.parent != 0 && map_.find(branch.record.parent) == nullptr) {
    find("branch {} hangs on branch {}, which is none", branch.id(), branch.record.parent);
  }
}

Task<void> Checker::check_pages(Branch* branch) {
  placed_ = 0;
  next_page_ = {.branch = branch->id(), .page = 0};
  while (true) {
    const PageNumber page = branch->pages.next(next_page_.page, kNoPage);
    if (page == kNoPage) break;
    // There is no page between, and one that comes while this one is looked at is noted.
    next_page_.page = page;
    co_await check_page(branch, page);
    if (is_slice_full()) co_await home_.turn_end();
  }
  report_.pages += placed_;
  if (placed_ != branch->pages.placed_count()) {
    find("branch {} counts {} pages, and has {}", branch->id(), branch->pages.placed_count(),
         placed_);
  }
}

// Half a sentence; empty: all is well. Nothing is suspended between the look and the answer.
Task<std::string> Checker::look_at_page(const Branch* branch, PageNumber page) {
  const PageKey key{.branch = branch->id(), .page = page};
  PoolMap::ChunkMaps::Pin chunks = map_.cached_chunks(key);
  if (!chunks && branch->pages.at(page).state == PageState::kMixed) {
    auto loaded = co_await map_.chunk_map(key);
    if (!loaded.has_value()) {
      co_return fmt::format("its chunks cannot be read: {}", describe(loaded.error()));
    }
    chunks = std::move(*loaded);
  }
  const PageEntry entry = branch->pages.at(page);
  const bool placed = !entry.place().none();
  if (placed && page >= map_.page_count_of(*branch) && !branch->record.sweeping) {
    co_return "lies behind its end";
  }
  if (placed && owners_of(entry.place()) == nullptr) {
    co_return fmt::format("is on page {} of unknown store {}", entry.place_page, entry.place_store);
  }
  bool has_data = entry.state == PageState::kData;
  if (chunks) {
    const auto uniform = chunks->uniform();
    const PageState state = uniform ? static_cast<PageState>(*uniform) : PageState::kMixed;
    if (state != entry.state) co_return "its chunks are not as it says";
    has_data = chunks->data_count() > 0;
  }
  if (has_data && !placed) co_return "has data and no place";
  if (placed && !has_data && !branch->record.thick) co_return "has a place and no data";
  co_return std::string();
}

// Two changes of a page at the same time may leave it in need of a third, which follows at once. So
// the check looks at the page again when no write is under way.
Task<std::string> Checker::look_again(Branch* branch, PageNumber page) {
  branch->door.close();
  const bool empty = co_await branch->door.wait_until_empty(home_.now() + WriteDoor::kPatience);
  std::string wrong = "cannot be verified: writes to it do not end";
  if (empty) wrong = co_await look_at_page(branch, page);
  branch->door.open();
  co_return wrong;
}

Task<void> Checker::check_page(Branch* branch, PageNumber page) {
  std::string wrong = co_await look_at_page(branch, page);
  if (!wrong.empty()) wrong = co_await look_again(branch, page);
  if (!wrong.empty()) find("page {} of branch {}: {}", page, branch->id(), wrong);
  next_page_ = {.branch = branch->id(), .page = page + 1};
  const Place place = branch->pages.at(page).place();
  if (place.none()) co_return;
  own(place);
  ++placed_;
  const std::uint8_t* const owners = owners_of(place);
  if (owners != nullptr && *owners > 1) {
    find("page {} of branch {}: page {} of store {} has two owners", page, branch->id(), place.page,
         place.store);
  }
  if (doubtful_ != nullptr && !doubtful_->empty()) co_await count_doubtful(branch, page);
}

Task<void> Checker::count_doubtful(const Branch* branch, PageNumber page) {
  const auto chunks = co_await map_.chunk_map({.branch = branch->id(), .page = page});
  const Place place = branch->pages.at(page).place();
  if (!chunks.has_value() || place.none()) co_return;
  for (ChunkIndex chunk = 0; chunk < map_.page_chunks();) {
    const ChunkIndex end = (*chunks)->end_of_run(chunk, map_.page_chunks());
    const ChunkIndex first = std::exchange(chunk, end);
    if ((*chunks)->state(first) != ChunkState::kData) continue;
    const Slot slot{.place = place, .chunk = static_cast<std::uint16_t>(first)};
    report_.doubtful_chunks += doubtful_->count_in(slot, end - first);
  }
}

// Kept versions -----------------------------------------------------------------------------------

// The next pages of the branch with kept versions in the store, from next_kept_ on.
Task<bool> Checker::list_kept(BranchId branch) {
  const std::string from = map_.key_of(next_kept_, 0);
  const std::string prefix = from.substr(0, map_.key('k').size() + sizeof branch);
  const auto entries = co_await map_.store().list(prefix, from, kCheckedEntries);
  if (!entries.has_value()) {
    find("branch {}: what it keeps cannot be read", branch);
    co_return false;
  }
  for (const auto& [key, value] : *entries) {
    PageNumber page = 0;
    for (std::size_t i = prefix.size(); i < prefix.size() + 4; ++i) {
      page = page << 8U | static_cast<unsigned char>(key[i]);
    }
    if (listed_.empty() || listed_.back() != page) listed_.push_back(page);
  }
  all_listed_ = entries->size() < kCheckedEntries;
  co_return true;
}

// The store lists the pages with kept versions as of the last checkpoint; the fresh ones are those
// since.
Task<void> Checker::check_kept(const Branch* branch) {
  data_ = {};
  data_for_ = {};
  listed_.clear();
  all_listed_ = false;
  next_kept_ = {.branch = branch->id(), .page = 0};
  while (true) {
    while (!listed_.empty() && listed_.front() < next_kept_.page) listed_.pop_front();
    if (listed_.empty() && !all_listed_) {
      const bool read = co_await list_kept(branch->id());
      if (!read) co_return;
      continue;
    }
    PageNumber page = listed_.empty() ? kNoPage : listed_.front();
    const auto fresh = fresh_.lower_bound(next_kept_);
    if (fresh != fresh_.end() && fresh->branch == branch->id()) page = std::min(page, fresh->page);
    if (page == kNoPage) break;
    co_await check_kept_page(branch, page);
    if (is_slice_full()) co_await home_.turn_end();
  }
  if (data_ != branch->record.kept) {
    find("branch {} counts {} slots, and has {}, or in other stores", branch->id(),
         branch->record.kept.total(), data_.total());
  }
  if (data_for_ != branch->kept_for) {
    find("branch {} counts its slots for other snapshots than it keeps them for", branch->id());
  }
}

Task<void> Checker::check_kept_page(const Branch* branch, PageNumber page) {
  const PageKey key{.branch = branch->id(), .page = page};
  auto kept = co_await map_.kept(key, 0);
  next_kept_ = {.branch = branch->id(), .page = page + 1};
  fresh_.erase(key);
  if (!kept.has_value()) {
    find("page {} of branch {}: what it keeps cannot be read", page, branch->id());
    co_return;
  }
  for (const KeptChunks::Generations& entry : (*kept)->generations()) {
    if (entry.generation > branch->record.last_generation) {
      find("page {} of branch {} keeps for a snapshot of the future", page, branch->id());
    }
    for (const Kept& version : entry.leaf.all()) {
      ++report_.kept_chunks;
      ++looked_;
      if (version.state != ChunkState::kData) continue;
      note_version(version, &key);
      if (doubtful_ != nullptr) report_.doubtful_chunks += doubtful_->count_in(version.slot, 1);
      data_.add(version.slot.place.store, 1);
      data_for_.add(entry.generation, 1);
    }
  }
  const std::size_t useless = (*kept)->useless(branch->living).size();
  report_.useless_chunks += useless;
  if (useless > 0 && !branch->record.sweeping) {
    find("page {} of branch {} keeps {} chunks that nobody needs", page, branch->id(), useless);
  }
}

// The slots together, and stores ------------------------------------------------------------------

Task<void> Checker::check_slots() {
  for (auto at = slots_.begin(); at != slots_.end();) {
    const Place place = at->first;
    const std::string owner = fmt::format("reserve page {} of store {}", place.page, place.store);
    auto stored = co_await map_.slot_map(place);
    const auto found = slots_.find(place);
    at = slots_.upper_bound(place);
    // The page may have been given back meanwhile.
    if (found == slots_.end()) continue;
    const SlotMap& used = found->second;
    const std::uint8_t* const owners = owners_of(place);
    if (owners == nullptr) {
      find("{}: unknown page {} of store {}", owner, place.page, place.store);
    } else if (*owners > 1) {
      find("{}: page {} of store {} has two owners", owner, place.page, place.store);
    }
    if (!stored.has_value()) {
      find("{} cannot be read: {}", owner, describe(stored.error()));
    } else if (static_cast<const BitSet&>(**stored) != used) {
      find("{}: its slots are not those that are used", owner);
    }
    if (map_.slots().used(place) != used.count()) {
      find("{} counts {} slots, and has {}", owner, map_.slots().used(place), used.count());
    }
    if (is_slice_full()) {
      co_await home_.turn_end();
      at = slots_.upper_bound(place);
    }
  }
  report_.reserve_pages = slots_.size();
  if (map_.slots().page_count() != slots_.size()) {
    find("{} reserve pages are counted, and {} are used", map_.slots().page_count(), slots_.size());
  }
}

// What is owned by nobody is free. What is not free may be claimed by an operation just now.
Task<void> Checker::check_free() {
  for (const auto& [index, store] : map_.stores()) {
    const std::vector<std::uint8_t>& owners = owners_.at(index);
    for (PageNumber page = 0; page < owners.size(); ++page) {
      if (owners[page] > 0 && !store.pages.owned(page)) {
        find("page {} of store {} is used and free", page, index);
      }
      if (page % kFreePages == kFreePages - 1) co_await home_.turn_end();
    }
  }
}

Task<void> Checker::run() {
  for (const auto& [id, branch] : map_.branches()) {
    check_branch(*branch);
    co_await check_pages(branch.get());
  }
  next_page_ = {.branch = ~BranchId{0}, .page = kNoPage};
  for (const auto& [id, branch] : map_.branches()) co_await check_kept(branch.get());
  next_kept_ = {.branch = ~BranchId{0}, .page = kNoPage};
  co_await check_slots();
  co_await check_free();
}

}  // namespace

Task<CheckReport> check_map(PoolMap* map, const DoubtfulChunks* doubtful) {
  Checker checker(*map, doubtful);
  co_await checker.run();
  co_return checker.take_report();
}

}  // namespace sandbay::pool
