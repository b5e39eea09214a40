// The host's processors and its bandwidth.
#include "model/host.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

namespace sandbay::model {

std::string profile_error(const HostProfile& profile) {
  if (profile.request_times.empty()) {
    return "request_times is empty; it must have the time of a request with one adapter";
  }
  for (const Duration time : profile.request_times) {
    if (time < Duration(0) || time > std::chrono::seconds(1)) {
      return "request_times must be 0 to 1s each";
    }
  }
  if (profile.latency < Duration(0) || profile.latency > std::chrono::seconds(1)) {
    return "latency must be 0 to 1s";
  }
  if (profile.processors < 1 || profile.processors > 256) {
    return fmt::format("processors is {}; it must be 1 to 256", profile.processors);
  }
  return {};
}

Host::Host(const HostProfile& profile, std::uint64_t adapters)
    : profile_(profile),
      processors_(profile.processors),
      reading_(profile.read_rate),
      writing_(profile.write_rate),
      total_(profile.total_rate) {
  assert(profile_error(profile).empty() && adapters >= 1);
  const std::size_t last = profile_.request_times.size() - 1;
  request_time_ = profile_.request_times[std::min<std::size_t>(adapters - 1, last)];
}

TimePoint Host::issue(TimePoint arrival) {
  return processors_.book(arrival, request_time_) + profile_.latency;
}

TimePoint Host::complete(bool write, std::uint64_t bytes, TimePoint arrival) {
  const TimePoint at = (write ? writing_ : reading_).pass(arrival, bytes);
  return total_.pass(at, bytes) + profile_.latency;
}

}  // namespace sandbay::model
