// LoginBrake: how long the answer to a wrong CHAP response waits, so that secrets cannot be guessed
// at the speed of the network (RFC 7143 section 9.2.1 leaves that to the target).
//
// Only the answer to a wrong response waits: a host that knows the secret is never held up by
// others of its address. Memory is bounded: of more addresses, the one that has failed the
// longest ago is forgotten.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/io.h"

namespace sandbay::iscsi {

class LoginBrake {
 public:
  static constexpr std::size_t kMostAddresses = 1024;
  static constexpr Duration kSecondWaits = std::chrono::milliseconds(50);  // The first does not.
  static constexpr Duration kLongest = std::chrono::seconds(1);
  static constexpr Duration kForgetAfter = std::chrono::minutes(1);

  // Counts a failure from there; the time its answer waits.
  Duration failed(const Endpoint& peer, TimePoint now);
  std::size_t addresses() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::string address;
    Duration next{};
    TimePoint last;
  };
  std::vector<Entry> entries_;  // The address that failed last is the last one.
};

}  // namespace sandbay::iscsi
