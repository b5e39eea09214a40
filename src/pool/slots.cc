// Slots: counts of uses, the open page, claims in flight.
//
// A slot of the open page that is given back is not claimed again before the page is opened anew:
// claimed_ only grows.
#include "pool/slots.h"

#include <algorithm>
#include <cassert>

namespace sandbay::pool {

std::optional<Slots::Run> Slots::claim(std::uint32_t most) {
  assert(most > 0);
  if (!has_open_) return std::nullopt;
  const std::uint32_t first = claimed_.find(0, false);
  if (first == page_chunks_) {
    leave_open();
    return std::nullopt;
  }
  const std::uint32_t count = std::min(most, claimed_.find(first, true) - first);
  claimed_.assign(first, count, true);
  std::vector<std::uint16_t>& flying = in_flight_[open_];
  for (std::uint32_t i = 0; i < count; ++i) flying.push_back(static_cast<std::uint16_t>(first + i));
  return Run{.first = {.place = open_, .chunk = static_cast<std::uint16_t>(first)}, .count = count};
}

std::optional<Place> Slots::candidate() {
  while (!candidates_.empty()) {
    const Place place = *candidates_.begin();
    candidates_.erase(candidates_.begin());
    if (used(place) > 0 && has_room(place)) return place;
  }
  return std::nullopt;
}

void Slots::open(Place place, const BitSet& used) {
  assert(used.size() == page_chunks_ && used.count() == this->used(place));
  if (has_open_) leave_open();
  candidates_.erase(place);
  has_open_ = true;
  open_ = place;
  claimed_ = used;
  const auto flying = in_flight_.find(place);
  if (flying == in_flight_.end()) return;
  for (const std::uint16_t chunk : flying->second) claimed_.set(chunk);
}

bool Slots::unclaim(Slot slot) {
  const auto flying = in_flight_.find(slot.place);
  assert(flying != in_flight_.end());
  const std::size_t erased = std::erase(flying->second, slot.chunk);
  assert(erased == 1);
  if (flying->second.empty()) in_flight_.erase(flying);
  if (is_open(slot.place)) claimed_.reset(slot.chunk);
  return settle(slot.place);
}

void Slots::use(Slot slot) {
  const auto flying = in_flight_.find(slot.place);
  if (flying != in_flight_.end()) {
    std::erase(flying->second, slot.chunk);
    if (flying->second.empty()) in_flight_.erase(flying);
  }
  std::uint16_t& count = count_of(slot.place);
  assert(count < page_chunks_);
  if (count++ == 0) ++page_count_;
  ++used_count_;
  if (!is_open(slot.place) && has_room(slot.place)) candidates_.insert(slot.place);
}

bool Slots::give_back(Slot slot) {
  std::uint16_t& count = count_of(slot.place);
  assert(count > 0);
  --used_count_;
  if (--count == 0) --page_count_;
  return settle(slot.place);
}

void Slots::add_page(Place place, std::uint32_t used) {
  assert(used > 0 && used <= page_chunks_);
  count_of(place) = static_cast<std::uint16_t>(used);
  used_count_ += used;
  ++page_count_;
  if (used < page_chunks_) candidates_.insert(place);
}

std::uint32_t Slots::used(Place place) const noexcept {
  if (place.store >= used_.size() || place.page >= used_[place.store].size()) return 0;
  return used_[place.store][place.page];
}

std::uint16_t& Slots::count_of(Place place) {
  if (place.store >= used_.size()) used_.resize(place.store + 1U);
  std::vector<std::uint16_t>& counts = used_[place.store];
  if (place.page >= counts.size()) counts.resize(place.page + 1U);
  return counts[place.page];
}

bool Slots::has_room(Place place) const {
  const auto flying = in_flight_.find(place);
  const std::size_t claims = flying == in_flight_.end() ? 0 : flying->second.size();
  return used(place) + claims < page_chunks_;
}

void Slots::leave_open() {
  has_open_ = false;
  if (used(open_) > 0 && has_room(open_)) candidates_.insert(open_);
}

// A slot of the page has become free.
bool Slots::settle(Place place) {
  if (used(place) == 0 && !in_flight_.contains(place)) {
    if (is_open(place)) has_open_ = false;
    candidates_.erase(place);
    return true;
  }
  if (!is_open(place)) candidates_.insert(place);
  return false;
}

}  // namespace sandbay::pool
