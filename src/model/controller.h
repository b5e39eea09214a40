// Controller: what an array's controller costs: time of its processors for every request and every
// MiB, copying writes to the partner's cache, and a bandwidth that it does not exceed.
//
// A request costs processor time when it comes. A write is then mirrored, a read is counted against
// the bandwidth when its data go out. Everything is booked on timelines: pure calculation.
#pragma once

#include <cstdint>
#include <string>

#include "model/timeline.h"

namespace sandbay::model {

inline constexpr std::uint64_t kMostProcessors = 256;
inline constexpr Duration kLongestCost = std::chrono::seconds(10);

struct ControllerProfile {
  std::uint64_t processors = 1;
  Duration read_request{};  // Of one processor.
  Duration write_request{};
  Duration read_mib{};  // For every MiB of payload, in proportion.
  Duration write_mib{};
  std::uint64_t read_rate = 0;  // Caps, bytes a second; 0: none.
  std::uint64_t write_rate = 0;
  std::uint64_t total_rate = 0;   // Of both together.
  Duration mirror_latency{};      // Of a write to the partner's cache,
  std::uint64_t mirror_rate = 0;  // and what passes there a second; 0: it costs no bandwidth.
};

std::string profile_error(const ControllerProfile& profile);

class Controller {
 public:
  explicit Controller(const ControllerProfile& profile);

  // When it passes the request on: to its cache or its drives.
  TimePoint accept(bool write, std::uint64_t bytes, TimePoint arrival);
  // When the answer leaves, and with a read its data.
  TimePoint answer(bool write, std::uint64_t bytes, TimePoint done);

  const ControllerProfile& profile() const noexcept { return profile_; }
  Duration processing() const noexcept { return processors_.booked(); }  // Of all processors.

 private:
  ControllerProfile profile_;
  Processors processors_;
  RateLimit reading_;
  RateLimit writing_;
  RateLimit total_;
  RateLimit mirror_;
};

}  // namespace sandbay::model
