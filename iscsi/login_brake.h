// LoginBrake: how long a network (an address, or a /64 of IPv6) waits after a wrong CHAP response,
// so that secrets cannot be guessed at the speed of the network (RFC 7143 section 9.2.1 leaves that
// to the target).
//
// The answer to a wrong response waits, and until then the target checks no other response from
// that network: a peer that hangs up gains nothing. Other networks never wait. Memory is bounded:
// of more networks, the one that has failed the longest ago is forgotten.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/clock.h"
#include "runtime/io.h"

namespace sandbay::iscsi {

class LoginBrake {
 public:
  static constexpr std::size_t kMostNetworks = 1024;
  static constexpr Duration kSecondWaits = std::chrono::milliseconds(50);  // The first does not.
  static constexpr Duration kLongest = std::chrono::seconds(1);
  static constexpr Duration kForgetAfter = std::chrono::minutes(1);

  // Counts a failure from there; the time its answer waits.
  Duration failed(const Endpoint& peer, TimePoint now);
  // When the next response from there may be checked; in the past if it may be now.
  TimePoint free_at(const Endpoint& peer) const;
  std::size_t networks() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    Endpoint peer;
    Duration next{};
    TimePoint last;
    TimePoint free_at;
  };
  std::vector<Entry> entries_;  // The network that failed last is the last one.
};

}  // namespace sandbay::iscsi
