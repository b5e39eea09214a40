// Pool: where new pages come from.
//
// A page goes to the store that is most behind its share: shares are free pages, divided by the
// store's latency, among the stores that are there, are not being vacated and are of the branch's
// class; if no such store has room, of any class. A store that has just failed to answer is asked
// last of all. A branch with a fixed store gets its pages from that alone. Within a store the
// lowest free page is given, so that a volume in a fixed store lies in ascending order.
//
// The background claims some pages for a while: the target of a move, and what is being unmapped.
// A host that finds no other page waits until they come back. It waits under no lock, since the
// move may need one.
//
// Copies in the background that no host asked for leave a reserve of free pages: of the whole pool,
// and of the fixed store if the branch has one.
#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "pool/pool.h"
#include "runtime/known.h"

namespace sandbay::pool {

namespace {

constexpr Duration kSilence = std::chrono::seconds(1);
// Looks at stores in one turn; each takes some 50 ns.
constexpr std::size_t kSliceSteps = 4096;
// A write over the end of a page claims two pages, and another one for what it keeps.
constexpr std::uint64_t kLeastReserve = 3;

}  // namespace

bool Pool::may_allocate_on(StoreIndex store) const {
  const auto known = map_.stores().find(store);
  if (known == map_.stores().end() || device(store) == nullptr) return false;
  return known->second.record.state == StoreState::kActive;
}

// The owner learns a little later than whoever asks it that a store has gone.
void Pool::note_silence(StoreIndex store) { silent_until_[store] = home_.now() + kSilence; }

bool Pool::is_silent(StoreIndex store) const {
  const auto found = silent_until_.find(store);
  return found != silent_until_.end() && home_.now() < found->second;
}

std::optional<StoreIndex> Pool::choose_store(std::uint8_t placement, StoreIndex fixed) {
  const bool any_class = placement != 0 && fixed == kNoStore;
  for (const bool silent_too : {false, true}) {
    std::optional<StoreIndex> chosen = choose_among(placement, fixed, silent_too);
    if (!chosen.has_value() && any_class) chosen = choose_among(0, fixed, silent_too);
    if (chosen.has_value()) return chosen;
  }
  return std::nullopt;
}

std::optional<StoreIndex> Pool::choose_among(std::uint8_t placement, StoreIndex fixed,
                                             bool silent_too) {
  std::optional<StoreIndex> best;
  double total = 0;
  for (const auto& [index, store] : map_.stores()) {
    if (fixed != kNoStore && index != fixed) continue;
    if (placement != 0 && store.record.placement != placement) continue;
    if (store.pages.free_count() == 0 || !may_allocate_on(index)) continue;
    if (!silent_too && is_silent(index)) continue;
    StoreWeight& weight = weights_[index];
    const double share = store.pages.free_count() / weight.latency;
    weight.credit += share;
    total += share;
    if (!best.has_value() || weight.credit > weights_[*best].credit) best = index;
  }
  if (best.has_value()) weights_[*best].credit -= total;
  return best;
}

std::uint64_t Pool::room_for_copies(StoreIndex fixed) const {
  PoolSpace whole;
  PoolSpace own;
  for (const auto& [index, store] : map_.stores()) {
    if (!may_allocate_on(index)) continue;
    for (PoolSpace* const space : {&whole, &own}) {
      if (space == &own && index != fixed) continue;
      space->pages += store.pages.page_count();
      space->free_pages += store.pages.free_count();
    }
  }
  const auto room = [this](const PoolSpace& space) {
    const std::uint64_t share = (space.pages * options_.reserve_percent + 99) / 100;
    return space.free_pages - std::min(space.free_pages, std::max(share, kLeastReserve));
  };
  return fixed == kNoStore ? room(whole) : std::min(room(whole), room(own));
}

bool Pool::is_at_limit(const Branch& branch) noexcept {
  const BranchRecord& record = branch.record;
  return record.page_limit != 0 && !record.thick &&
         branch.pages.placed_count() + branch.pages_claimed >= record.page_limit;
}

Result<Place> Pool::claim_page(const Branch& branch, Reserve reserve) {
  const BranchRecord& record = branch.record;
  if (reserve == Reserve::kMustLeave && room_for_copies(record.fixed_store) == 0) {
    return std::unexpected(Error::kNoSpace);
  }
  const std::optional<StoreIndex> store = choose_store(record.placement, record.fixed_store);
  if (!store.has_value()) return std::unexpected(no_page(record.id, record.fixed_store));
  const std::optional<FreePages::Run> run = map_.claim_pages(*store, 1);
  assert(run.has_value());
  watch_free();
  return Place{.store = *store, .page = run->first};
}

// Where there is room as soon as a store comes back, hosts wait for that. A pool is not full while
// the background has a page that it gives back.
Error Pool::no_page(BranchId branch, StoreIndex fixed) {
  for (const auto& [index, store] : map_.stores()) {
    const bool concerned = fixed == kNoStore || index == fixed;
    const bool away = device(index) == nullptr && store.record.state == StoreState::kActive;
    if (!concerned || !away || store.pages.free_count() == 0) continue;
    tell({.kind = PoolEvent::Kind::kRoomAway, .branch = branch});
    return Error::kNotReady;
  }
  if (brief_claims_.empty()) tell({.kind = PoolEvent::Kind::kPoolFull, .branch = branch});
  return Error::kNoSpace;
}

Task<bool> Pool::wait_for_page(StoreIndex fixed) {
  if (free_pages_for(fixed) > 0) co_return true;
  if (brief_claims_.empty()) co_return false;
  brief_claims_.close();
  (void)co_await brief_claims_.wait_until_empty(kNever);
  brief_claims_.open();
  co_return true;
}

void Pool::watch_free() {
  if (options_.free_warning_percent == 0) return;
  std::uint64_t pages = 0;
  std::uint64_t free = 0;
  for (const auto& [index, store] : map_.stores()) {
    pages += store.pages.page_count();
    free += store.pages.free_count();
  }
  const bool few = free * 100 <= pages * options_.free_warning_percent;
  if (few && !few_free_) tell({.kind = PoolEvent::Kind::kFreeWarning});
  few_free_ = few;
}

// Slots -------------------------------------------------------------------------------------------

Task<Result<Pool::ClaimedSlots>> Pool::claim_slots(std::uint32_t most, Reserve reserve) {
  bool looked_for_others = false;
  while (true) {
    Result<Slots::Run> run = map_.claim_slots(most);
    const StoreIndex store = run.has_value() ? run->first.place.store : kNoStore;
    const bool silent = run.has_value() && is_silent(store);
    if (run.has_value() && (!may_allocate_on(store) || (silent && !looked_for_others))) {
      // It has gone, or is to be vacated, since the page was opened.
      looked_for_others = silent;
      map_.close_slot_page();
      map_.unclaim_slots(*run);
      continue;
    }
    if (run.has_value()) {
      auto pin = co_await map_.slot_map(run->first.place);
      if (pin.has_value()) co_return ClaimedSlots{.run = *run, .pin = std::move(*pin)};
      map_.unclaim_slots(*run);
      co_return std::unexpected(pin.error());
    }
    co_await slot_page_turn_.lock();
    const Error error = co_await open_slot_page(reserve);
    slot_page_turn_.unlock();
    if (error != Error::kNone) co_return std::unexpected(error);
  }
}

std::optional<Place> Pool::take_slot_page_candidate(bool silent_too) {
  std::vector<Place> unusable;
  std::optional<Place> place = map_.slot_page_candidate();
  while (place.has_value() &&
         (!may_allocate_on(place->store) || (!silent_too && is_silent(place->store)))) {
    unusable.push_back(*place);
    place = map_.slot_page_candidate();
  }
  for (const Place one : unusable) map_.add_slot_page_candidate(one);
  return place;
}

Task<Error> Pool::open_slot_page(Reserve reserve) {
  // Somebody else may have opened one.
  const Result<Slots::Run> there = map_.claim_slots(1);
  if (there.has_value()) {
    map_.unclaim_slots(*there);
    co_return Error::kNone;
  }
  std::optional<Place> place = take_slot_page_candidate(false);
  std::optional<StoreIndex> store;
  if (!place.has_value()) store = choose_store(0, kNoStore);
  const bool only_silent = !store.has_value() || is_silent(*store);
  if (!place.has_value() && only_silent) place = take_slot_page_candidate(true);
  const bool fresh = !place.has_value();
  if (fresh && reserve == Reserve::kMustLeave && room_for_copies(kNoStore) == 0) {
    co_return Error::kNoSpace;
  }
  if (fresh) {
    if (!store.has_value()) co_return no_page(0, kNoStore);
    place = Place{.store = *store, .page = known(map_.claim_pages(*store, 1)).first};
  }
  auto pin = co_await map_.slot_map(*place);
  if (!pin.has_value()) {
    if (fresh) {
      map_.unclaim_page(*place);
    } else {
      map_.add_slot_page_candidate(*place);
    }
    co_return pin.error();
  }
  // While it was loaded the last slot in use may have been given back, and the page with it.
  if (!fresh && !map_.slots().is_reserve(*place)) co_return Error::kNone;
  map_.open_slot_page(*place);
  co_return Error::kNone;
}

// Thick branches ----------------------------------------------------------------------------------

// Pages that the branch lacks from `first` on.
std::uint64_t Pool::lacking(const BranchRecord& record, PageNumber first) const {
  const std::uint64_t end = map_.page_count(record.byte_count);
  const Branch* const branch = map_.find(record.id);
  // All pages before `first` have a place; a failed expansion may have left more.
  const std::uint64_t placed = branch != nullptr ? branch->pages.placed_count() : 0;
  return end - std::min(end, std::max<std::uint64_t>(first, placed));
}

std::uint64_t Pool::free_pages_for(StoreIndex fixed) const {
  std::uint64_t free = 0;
  for (const auto& [index, store] : map_.stores()) {
    const bool concerned = fixed == kNoStore || index == fixed;
    if (concerned && may_allocate_on(index)) free += store.pages.free_count();
  }
  return free;
}

bool Pool::has_room_for(const BranchRecord& record, PageNumber first) const {
  return lacking(record, first) <= free_pages_for(record.fixed_store);
}

// Claims places for a group of pages from *next on that have no place, in runs.
Task<Error> Pool::claim_places(const BranchRecord* record, PageNumber* next,
                               std::vector<PlacePages>* places) {
  const PageNumber end = map_.page_count(record->byte_count);
  std::size_t steps = 0;
  for (std::uint32_t claimed = 0; *next < end && claimed < options_.group_pages; ++*next) {
    // A page takes a look at each store.
    steps += 1 + map_.stores().size();
    if (steps >= kSliceSteps) {
      steps = 0;
      co_await home_.turn_end();
    }
    const Branch* const branch = map_.find(record->id);
    if (branch != nullptr && !branch->pages.at(*next).place().none()) continue;
    const std::optional<StoreIndex> store = choose_store(record->placement, record->fixed_store);
    if (!store.has_value()) co_return Error::kNoSpace;
    const PageNumber at = known(map_.claim_pages(*store, 1)).first;
    ++claimed;
    PlacePages* const last = places->empty() ? nullptr : &places->back();
    if (last != nullptr && last->place.store == *store && last->place.page + last->count == at &&
        last->page + last->count == *next) {
      ++last->count;
      continue;
    }
    places->push_back(
        {.branch = record->id, .page = *next, .place = {.store = *store, .page = at}});
  }
  co_return Error::kNone;
}

void Pool::unclaim(const std::vector<PlacePages>& places) {
  for (const PlacePages& run : places) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      map_.unclaim_page({.store = run.place.store, .page = run.place.page + i});
    }
  }
}

// Commits all places but those of the last group, in groups of their own. Until the last group no
// host can use them: a new branch is dead, and an expanded one has its old size. After an error or
// a crash a sweep frees the places.
Task<Error> Pool::place_in_groups(const BranchRecord* record, PageNumber* next,
                                  std::vector<PlacePages>* places) {
  const Branch* const before = map_.find(record->id);
  BranchRecord growing = before != nullptr ? before->record : *record;
  growing.dead = growing.dead || before == nullptr;
  growing.sweeping = true;
  while (true) {
    const Error claimed = co_await claim_places(record, next, places);
    if (claimed != Error::kNone) co_return claimed;
    if (*next * map_.page_bytes() >= record->byte_count) co_return Error::kNone;
    std::vector<MapRecord> records;
    records.emplace_back(growing);
    records.insert(records.end(), places->begin(), places->end());
    const Error error = co_await commit(std::move(records), {});
    if (error != Error::kNone) co_return error;
    places->clear();
  }
}

// Makes the branch, or makes it larger: pages from `first` on are new. If a thick one cannot get
// all its places, it stays as it was.
Task<Error> Pool::provision(BranchRecord record, PageNumber first, metadata::Batch extra,
                            std::vector<MapRecord> others) {
  if (record.thick && !has_room_for(record, first)) co_return Error::kNoSpace;
  const BranchId id = record.id;
  std::vector<PlacePages> places;
  making_.insert(id);
  Error error = Error::kNone;
  if (record.thick) error = co_await place_in_groups(&record, &first, &places);
  if (error == Error::kNone) {
    std::vector<MapRecord> records;
    records.emplace_back(std::move(record));
    records.insert(records.end(), places.begin(), places.end());
    std::ranges::move(others, std::back_inserter(records));
    error = co_await commit(std::move(records), std::move(extra));
  }
  making_.erase(id);
  if (error != Error::kNone) unclaim(places);
  co_return error;
}

}  // namespace sandbay::pool
