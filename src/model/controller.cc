// Costs by kind and size.
#include "model/controller.h"

#include <fmt/core.h>

#include <cassert>
#include <utility>

namespace sandbay::model {

namespace {

Duration in_proportion(Duration of_mib, std::uint64_t bytes) {
  const double share = static_cast<double>(bytes) / (1024.0 * 1024.0);
  return Duration(static_cast<Duration::rep>(static_cast<double>(of_mib.count()) * share + 0.5));
}

}  // namespace

std::string profile_error(const ControllerProfile& profile) {
  if (profile.processors < 1 || profile.processors > kMostProcessors) {
    return fmt::format("processors is {}; it must be 1 to {}", profile.processors, kMostProcessors);
  }
  for (const auto& [name, rate] :
       {std::pair("read_rate", profile.read_rate), std::pair("write_rate", profile.write_rate),
        std::pair("total_rate", profile.total_rate),
        std::pair("mirror_rate", profile.mirror_rate)}) {
    if (rate == 0 || (rate >= kLeastRate && rate <= kMostRate)) continue;
    return fmt::format("{} is {} B/s; it must be 1MB/s to 100GB/s", name, rate);
  }
  const auto wrong = [](Duration time) { return time < Duration(0) || time > kLongestCost; };
  if (wrong(profile.read_request) || wrong(profile.write_request) || wrong(profile.read_mib) ||
      wrong(profile.write_mib) || wrong(profile.mirror_latency)) {
    return "read_request, write_request, read_mib, write_mib and mirror_latency must be 0 to 10s";
  }
  return {};
}

Controller::Controller(const ControllerProfile& profile)
    : profile_(profile),
      processors_(profile.processors),
      reading_(profile.read_rate),
      writing_(profile.write_rate),
      total_(profile.total_rate),
      mirror_(profile.mirror_rate) {
  assert(profile_error(profile).empty());
}

TimePoint Controller::accept(bool write, std::uint64_t bytes, TimePoint arrival) {
  const Duration request = write ? profile_.write_request : profile_.read_request;
  const Duration mib = write ? profile_.write_mib : profile_.read_mib;
  TimePoint at = processors_.book(arrival, request + in_proportion(mib, bytes));
  if (!write) return at;
  at = writing_.pass(at, bytes);
  at = total_.pass(at, bytes);
  return mirror_.pass(at, bytes) + profile_.mirror_latency;
}

TimePoint Controller::answer(bool write, std::uint64_t bytes, TimePoint done) {
  if (write) return done;
  const TimePoint at = reading_.pass(done, bytes);
  return total_.pass(at, bytes);
}

}  // namespace sandbay::model
