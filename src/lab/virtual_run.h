// One case of an experiment in virtual time: an array from a cold start, its workers for the
// ramp-up and then for as long as is measured.
//
// The same profile, groups and seed give the same result to the last digit. Cases share nothing and
// may run on threads of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "lab/array_profile.h"
#include "lab/experiment.h"
#include "lab/histogram.h"
#include "lab/served_request.h"

namespace sandbay::lab {

struct Case {
  std::vector<VolumeGroup> groups;
  Duration ramp_up{};
  Duration run_time{};
  // With steady_percent, as in Row: what is looked at. No variations and trends.
  std::vector<Wanted> wanted;
  double steady_percent = 0;
  std::uint64_t seed = 1;
  bool real_sessions = false;  // As in Row.
};

// Of the metrics that are about samples.
inline constexpr std::size_t kSampleSeconds = 10;

// Of one worker.
struct VolumeResult {
  std::size_t group = 0;
  unsigned number = 0;
  std::uint64_t requests = 0;  // That ended while it was measured.
  std::uint64_t bytes = 0;
  Histogram latency;  // Nanoseconds.
  std::vector<std::uint64_t> requests_by_second;
};

// What the drives' mechanisms did, of their time.
struct DriveShares {
  double seeking = 0;
  double rotating = 0;
  double transferring = 0;
};
// `drive_seconds`: of all drives together.
DriveShares shares_of(const model::DriveCounters& before, const model::DriveCounters& after,
                      double drive_seconds);

struct CaseResult {
  double seconds = 0;  // Measured: the run time, or less once it was steady.
  std::vector<VolumeResult> volumes;
  LayerTimes layers;  // Of all requests measured.
  DriveShares drives;
  std::uint64_t simulated_requests = 0;  // The ramp-up's as well.
  double virtual_seconds = 0;
  double processor_seconds = 0;  // Of the thread that ran it.

  // Of the volumes that are wanted, by the metric.
  double value(const Wanted& wanted) const;
  // Requests of all volumes in each whole sample of so many seconds.
  std::vector<double> samples(std::size_t sample_seconds) const;
};

// The error is one line. `stop`, if any, ends it early: then it is an error, too.
std::expected<CaseResult, std::string> run_case(const ArrayProfile& profile, Case what,
                                                const std::atomic<bool>* stop = nullptr);

}  // namespace sandbay::lab
