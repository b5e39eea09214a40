// Each failure doubles the time of the next one, up to the longest; after a while without one all
// is forgotten.
#include "iscsi/login_brake.h"

#include <algorithm>

#include "iscsi/login_room.h"

namespace sandbay::iscsi {

Duration LoginBrake::failed(const Endpoint& peer, TimePoint now) {
  Entry entry{.peer = peer};
  const auto known = std::ranges::find_if(
      entries_, [&](const Entry& each) { return same_network(each.peer, peer); });
  if (known != entries_.end()) {
    if (now - known->last < kForgetAfter) entry.next = known->next;
    entries_.erase(known);
  } else if (entries_.size() == kMostNetworks) {
    entries_.erase(entries_.begin());
  }
  const Duration wait = entry.next;
  entry.next = std::clamp(entry.next * 2, kSecondWaits, kLongest);
  entry.last = now;
  entry.free_at = now + wait;
  entries_.push_back(std::move(entry));
  return wait;
}

TimePoint LoginBrake::free_at(const Endpoint& peer) const {
  const auto known = std::ranges::find_if(
      entries_, [&](const Entry& each) { return same_network(each.peer, peer); });
  return known == entries_.end() ? TimePoint() : known->free_at;
}

}  // namespace sandbay::iscsi
