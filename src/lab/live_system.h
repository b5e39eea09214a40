// LiveSystem: a system of the lab as an iSCSI target: its array, and for each worker of its volumes
// a logical unit with a LiveVolume below. All of it lives on executor 0 of its group but what the
// target places elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/lab_target.h"
#include "lab/live_volume.h"
#include "lab/virtual_array.h"

namespace sandbay::lab {

class LiveSystem {
 public:
  // Borrows the profile. On executor 0.
  LiveSystem(const ArrayProfile& profile, unsigned members, std::uint64_t seed, double time_scale);
  ~LiveSystem();  // After stop(), if start() has begun.

  // Listens on the loopback. The error is one line.
  Task<std::string> start(std::vector<VolumeGroup> groups);
  Task<void> stop();

  // Logical unit i of kLabTarget is that of the i-th worker, in the array's order.
  const Endpoint& endpoint() const noexcept { return target_->endpoint(); }
  VirtualArray& array() noexcept { return array_; }
  // Requests that end in [from, until) of the executors' time.
  void measure(TimePoint from, TimePoint until);
  LayerTimes layers() const;

 private:
  Task<std::string> add_units(const std::vector<VolumeGroup>* groups);

  Executor& home_;
  VirtualArray array_;
  std::vector<std::unique_ptr<LiveVolume>> volumes_;
  std::unique_ptr<LabTarget> target_;
};

}  // namespace sandbay::lab
