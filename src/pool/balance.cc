// Balance: looks at a few thousand pages a call, from where the last call ended.
#include "pool/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "pool/pool.h"

namespace sandbay::pool {

namespace {

// Of one call.
constexpr std::uint32_t kMostLooked = 16384;
constexpr std::uint32_t kMostCompared = 4096;
constexpr std::uint32_t kMostCooled = 65536;
// What was refused is not asked for again so soon.
constexpr std::size_t kMostPassedOver = 64;
constexpr Duration kCoolingPeriod = std::chrono::seconds(10);

bool fits(const Branch& branch, std::uint8_t from, std::uint8_t to) {
  const std::uint8_t wish = branch.record.placement;
  return wish == 0 || wish == to || wish != from;
}

}  // namespace

Balance::Balance(Pool& pool, BalanceOptions options) : pool_(&pool), options_(options) {
  if (options_.cooling_period == Duration{}) options_.cooling_period = kCoolingPeriod;
}

// Stores that pages may go to and come from.
std::vector<Balance::Room> Balance::rooms() const {
  std::vector<Room> rooms;
  for (const auto& [index, store] : pool_->map().stores()) {
    if (!pool_->may_allocate_on(index)) continue;
    rooms.push_back({.store = index,
                     .placement = store.record.placement,
                     .pages = store.pages.page_count(),
                     .owned = store.pages.page_count() - store.pages.free_count(),
                     .latency = pool_->latency(index)});
  }
  return rooms;
}

std::optional<Balance::Move> Balance::next() {
  const std::vector<Room> all = rooms();
  if (all.size() < 2) return std::nullopt;
  std::optional<Move> move = look_around(all);
  if (!move.has_value()) move = make_room(all);
  return move;
}

void Balance::pass_over(const Move& move) {
  if (passed_over_.size() >= kMostPassedOver) passed_over_.erase(passed_over_.begin());
  passed_over_.push_back({.branch = move.branch, .page = move.page});
}

// Pages in the wrong class, and hot ones on slow stores.
std::optional<Balance::Move> Balance::look_around(const std::vector<Room>& rooms) {
  const auto& branches = pool_->map().branches();
  std::uint32_t left = kMostLooked;
  auto at = branches.lower_bound(look_.branch);
  for (; at != branches.end(); ++at) {
    const Branch& branch = *at->second;
    if (at->first != look_.branch) look_ = {.branch = at->first, .page = 0};
    if (branch.record.fixed_store != kNoStore) continue;
    for (PageNumber page = branch.pages.next(look_.page, kNoPage); page != kNoPage;
         page = branch.pages.next(page + 1, kNoPage)) {
      look_.page = page + 1;
      const std::optional<StoreIndex> target = better_for(branch, page, rooms);
      if (target.has_value()) return Move{.branch = at->first, .page = page, .target = *target};
      if (--left == 0) return std::nullopt;
    }
  }
  look_ = {};
  return std::nullopt;
}

std::optional<StoreIndex> Balance::better_for(const Branch& branch, PageNumber page,
                                              const std::vector<Room>& rooms) const {
  const PageEntry entry = branch.pages.at(page);
  const auto from = std::ranges::find(rooms, entry.place_store, &Room::store);
  if (from == rooms.end()) return std::nullopt;
  const std::uint8_t wish = branch.record.placement;
  const bool misplaced = wish != 0 && from->placement != wish;
  const bool hot = entry.heat >= options_.hot;
  if (!misplaced && !hot) return std::nullopt;
  const Room* best = nullptr;
  for (const Room& room : rooms) {
    if (room.store == from->store || room.owned == room.pages) continue;
    if (wish != 0 && room.placement != wish) continue;
    if (!misplaced && from->latency < options_.slow * room.latency) continue;
    if (best == nullptr || room.latency < best->latency) best = &room;
  }
  return best != nullptr ? std::optional(best->store) : std::nullopt;
}

double Balance::mean_fill(const std::vector<Room>& rooms) {
  std::uint64_t owned = 0;
  std::uint64_t pages = 0;
  for (const Room& room : rooms) {
    owned += room.owned;
    pages += room.pages;
  }
  return pages == 0 ? 0 : static_cast<double>(owned) / static_cast<double>(pages);
}

// From the fullest store to the emptiest, or the next pair of which some branch has a page to move.
std::optional<Balance::Move> Balance::make_room(const std::vector<Room>& rooms) {
  const double spread = options_.spread * mean_fill(rooms);
  std::vector<const Room*> order;
  for (const Room& room : rooms) order.push_back(&room);
  std::ranges::sort(order, std::ranges::greater{}, [](const Room* room) { return room->fill(); });
  for (const Room* const from : order) {
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      const Room& to = **at;
      const double page = 1.0 / static_cast<double>(to.pages);
      if (from->fill() - to.fill() <= std::max(spread, page)) break;
      const Branch* const branch = most_beyond_share(*from, to);
      if (branch == nullptr) continue;
      const std::optional<Move> move = coldest(*branch, *from, to);
      if (move.has_value()) return move;
    }
  }
  return std::nullopt;
}

const Branch* Balance::most_beyond_share(const Room& from, const Room& to) const {
  const Branch* best = nullptr;
  double most = -std::numeric_limits<double>::infinity();
  for (const auto& [id, branch] : pool_->map().branches()) {
    const double here = branch->pages.count_on(from.store);
    if (here == 0 || branch->record.fixed_store != kNoStore) continue;
    if (!fits(*branch, from.placement, to.placement)) continue;
    const double there = branch->pages.count_on(to.store);
    // As many pages as it should give the other store for both to have their share of it.
    const auto from_pages = static_cast<double>(from.pages);
    const double share = from_pages / (from_pages + static_cast<double>(to.pages));
    const double beyond = here - (here + there) * share;
    if (beyond > most) {
      most = beyond;
      best = branch.get();
    }
  }
  return best;
}

std::optional<Balance::Move> Balance::coldest(const Branch& branch, const Room& from,
                                              const Room& to) const {
  std::optional<Move> best;
  unsigned least = std::numeric_limits<unsigned>::max();
  std::uint32_t left = kMostCompared;
  for (PageNumber page = branch.pages.next(0, kNoPage); page != kNoPage && left > 0 && least > 0;
       page = branch.pages.next(page + 1, kNoPage)) {
    const PageEntry entry = branch.pages.at(page);
    if (entry.place_store != from.store) continue;
    --left;
    const bool passed =
        std::ranges::find(passed_over_, PageKey{branch.id(), page}) != passed_over_.end();
    if (passed || entry.heat >= least) continue;
    least = entry.heat;
    best = Move{.branch = branch.id(), .page = page, .target = to.store};
  }
  return best;
}

std::uint64_t Balance::pages_left() const {
  const std::vector<Room> all = rooms();
  const double fill = mean_fill(all);
  double left = 0;
  for (const Room& room : all) {
    const double beyond = room.fill() - fill * (1 + options_.spread / 2);
    if (beyond > 0) left += beyond * static_cast<double>(room.pages);
  }
  return static_cast<std::uint64_t>(std::ceil(left));
}

void Balance::cool(TimePoint now) {
  if (cool_ == PageKey{}) {
    if (now - cooled_ < options_.cooling_period) return;
    cooled_ = now;
    passed_over_.clear();
  }
  std::uint32_t left = kMostCooled / PageMap::kLeafPages;
  const auto& branches = pool_->map().branches();
  for (auto at = branches.lower_bound(cool_.branch); at != branches.end(); ++at) {
    PageMap& pages = at->second->pages;
    std::uint32_t leaf = at->first == cool_.branch ? cool_.page : 0;
    for (; leaf < pages.leaf_end() && left > 0; ++leaf, --left) pages.cool(leaf);
    if (left == 0) {
      cool_ = {.branch = at->first, .page = leaf};
      return;
    }
  }
  cool_ = {};
}

}  // namespace sandbay::pool
