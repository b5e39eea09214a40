// LiveSystem: a system of the lab as an iSCSI target: its array, and for each worker of its volumes
// a logical unit with a LiveVolume below. All of it lives on executor 0 of its group but what the
// target places elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/target_server.h"
#include "lab/live_volume.h"
#include "lab/virtual_array.h"
#include "runtime/io.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::lab {

inline constexpr const char* kLiveTarget = "iqn.2026-11.org.sandbay:lab";

// The login keys that make a session one of the system's. `segment` is the greatest data segment
// that who sends them receives: the target's for what it answers, the initiator's for what it
// offers.
std::map<std::string, std::string> session_keys(const model::ExchangeParameters& parameters,
                                                std::uint64_t segment);

class LiveSystem {
 public:
  // Borrows the profile. On executor 0.
  LiveSystem(const ArrayProfile& profile, unsigned members, std::uint64_t seed, double time_scale);
  ~LiveSystem();  // After stop(), if start() has begun.

  // Listens on the loopback. The error is one line.
  Task<std::string> start(std::vector<VolumeGroup> groups);
  Task<void> stop();

  // Logical unit i there is that of the i-th worker, in the array's order.
  const Endpoint& endpoint() const noexcept { return endpoint_; }
  VirtualArray& array() noexcept { return array_; }
  // Requests that end in [from, until) of the executors' time.
  void measure(TimePoint from, TimePoint until);
  LayerTimes layers() const;

 private:
  struct Unit {
    std::unique_ptr<LiveVolume> device;
    std::unique_ptr<scsi::LogicalUnit> unit;
  };

  Task<std::string> add_units(const std::vector<VolumeGroup>* groups);
  Task<std::string> listen(std::uint32_t queue_depth);

  Executor& home_;
  VirtualArray array_;
  std::vector<Unit> units_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::unique_ptr<iscsi::TargetServer> server_;
  Endpoint endpoint_;
};

}  // namespace sandbay::lab
