// Each failure doubles the pause of its address, each new failing address the delay of its network,
// up to the longest; after a while without a failure both are forgotten.
#include "iscsi/login_brake.h"

#include <algorithm>

namespace sandbay::iscsi {
namespace {

constexpr std::size_t kIpv4NetworkBytes = 15;  // A /24, in the mapped form.
constexpr std::size_t kIpv6NetworkBytes = 8;

PeerAddress braked_network_of(const PeerAddress& address) {
  return prefix_of(address, is_ipv4(address) ? kIpv4NetworkBytes : kIpv6NetworkBytes);
}

}  // namespace

template <typename Value>
const Value* LoginBrake::Table<Value>::find(const PeerAddress& key) const {
  const auto place = places_.find(key);
  return place == places_.end() ? nullptr : &place->second->value;
}

template <typename Value>
Value& LoginBrake::Table<Value>::touch(const PeerAddress& key) {
  const auto place = places_.find(key);
  if (place != places_.end()) {
    rows_.splice(rows_.end(), rows_, place->second);
    return rows_.back().value;
  }
  if (rows_.size() == kMostRemembered) {
    places_.erase(rows_.front().key);
    rows_.pop_front();
  }
  rows_.push_back({.key = key, .value = {}});
  places_.emplace(key, std::prev(rows_.end()));
  return rows_.back().value;
}

LoginBrake::Pause LoginBrake::recent(const Table<Pause>& table, const PeerAddress& key,
                                     TimePoint now) {
  const Pause* const pause = table.find(key);
  return pause != nullptr && now - pause->last < kForgetAfter ? *pause : Pause{};
}

bool LoginBrake::is_proven(const PeerAddress& address, TimePoint now) const {
  const TimePoint* const last = proven_.find(address);
  return last != nullptr && now - *last < kProvenFor;
}

std::size_t LoginBrake::remembered() const noexcept {
  return addresses_.size() + networks_.size() + proven_.size();
}

// Addresses that have failed lately leave half of the places of their network to others.
bool LoginBrake::has_room(const Turn& turn, TimePoint now) const {
  const auto of_address = std::ranges::count(turns_, turn.address_, &Turn::address_);
  if (of_address > 0) return static_cast<std::size_t>(of_address) < kMostOfAddress;
  if (is_proven(turn.address_, now)) return true;
  const auto of_network = std::ranges::count_if(turns_, [&](const Turn* each) {
    return each->first_ && each->network_ == turn.network_ && !is_proven(each->address_, now);
  });
  const bool has_failed = recent(addresses_, turn.address_, now).length > Duration::zero();
  const std::size_t most = has_failed ? kMostOfNetwork / 2 : kMostOfNetwork;
  return static_cast<std::size_t>(of_network) < most;
}

LoginBrake::Turn::Turn(LoginBrake& brake, const Endpoint& peer, TimePoint now)
    : brake_(brake), address_(address_of(peer)), network_(braked_network_of(address_)) {
  refused_ = !brake_.has_room(*this, now);
  if (refused_) return;
  first_ = std::ranges::find(brake_.turns_, address_, &Turn::address_) == brake_.turns_.end();
  brake_.turns_.push_back(this);
}

LoginBrake::Turn::~Turn() {
  if (refused_) return;
  brake_.turns_.remove(this);
  if (!first_) return;
  const auto next = std::ranges::find(brake_.turns_, address_, &Turn::address_);
  if (next == brake_.turns_.end()) return;
  (*next)->first_ = true;
  brake_.changed_.notify_all();
}

TimePoint LoginBrake::Turn::due(TimePoint now) {
  assert(!refused_);
  if (!first_) return kNever;
  if (!since_) since_ = now;
  const Pause pause = recent(brake_.addresses_, address_, now);
  const TimePoint after_pause = pause.last + pause.length;
  if (brake_.is_proven(address_, now)) return after_pause;
  return std::max(after_pause, *since_ + recent(brake_.networks_, network_, now).length);
}

// A failure of a known address keeps the delay of its network and does not add to it: one host with
// a wrong secret does not slow its neighbours.
void LoginBrake::Turn::failed(TimePoint now) {
  Pause pause = recent(brake_.addresses_, address_, now);
  const bool is_new = pause.length == Duration::zero();
  pause = {.length = std::clamp(pause.length * 2, kFirstPause, kLongestPause), .last = now};
  brake_.addresses_.touch(address_) = pause;
  Pause delay = recent(brake_.networks_, network_, now);
  if (is_new) delay.length = std::clamp(delay.length * 2, kFirstDelay, kLongestDelay);
  delay.last = now;
  brake_.networks_.touch(network_) = delay;
}

void LoginBrake::Turn::proved(TimePoint now) { brake_.proven_.touch(address_) = now; }

}  // namespace sandbay::iscsi
