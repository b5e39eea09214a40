// Host: what the machine in front of an array costs, because in many a test it was the limit:
// processor time for every request, which may depend on how many network adapters share the load,
// time that keeps no processor busy, such as a hypervisor's way, and the bandwidth that its memory
// and buses carry. How many commands it keeps queued is for its workloads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/timeline.h"

namespace sandbay::model {

struct HostProfile {
  // Of one processor for a request, with 1, 2, … adapters in use; the last one counts for more.
  std::vector<Duration> request_times;
  std::uint64_t processors = 1;
  Duration latency{};           // Of a request on its way out, and of its answer on its way in.
  std::uint64_t read_rate = 0;  // Bytes a second; 0: no limit.
  std::uint64_t write_rate = 0;
  std::uint64_t total_rate = 0;
};

std::string profile_error(const HostProfile& profile);

class Host {
 public:
  // `adapters` are in use; at least 1.
  Host(const HostProfile& profile, std::uint64_t adapters);

  // When a request that an application makes goes out.
  TimePoint issue(TimePoint arrival);
  // When the application has what came back at `arrival`, after the payload has passed the host's
  // memory. Writes pass on their way out, too: what counts is how many pass.
  TimePoint complete(bool write, std::uint64_t bytes, TimePoint arrival);

  const HostProfile& profile() const noexcept { return profile_; }
  Duration processing() const noexcept { return processors_.booked(); }

 private:
  HostProfile profile_;
  Duration request_time_;
  Processors processors_;
  RateLimit reading_;
  RateLimit writing_;
  RateLimit total_;
};

}  // namespace sandbay::model
