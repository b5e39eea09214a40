// Each failure doubles the time of the next one, up to the longest; after a while without one all
// is forgotten.
#include "iscsi/login_brake.h"

#include <algorithm>

namespace sandbay::iscsi {

Duration LoginBrake::failed(const Endpoint& peer, TimePoint now) {
  Entry entry{.address = peer.address()};
  const auto known = std::ranges::find(entries_, entry.address, &Entry::address);
  if (known != entries_.end()) {
    if (now - known->last < kForgetAfter) entry.next = known->next;
    entries_.erase(known);
  } else if (entries_.size() == kMostAddresses) {
    entries_.erase(entries_.begin());
  }
  const Duration wait = entry.next;
  entry.next = std::clamp(entry.next * 2, kSecondWaits, kLongest);
  entry.last = now;
  entries_.push_back(std::move(entry));
  return wait;
}

}  // namespace sandbay::iscsi
