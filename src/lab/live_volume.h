// LiveVolume: what a logical unit has below it when a system of the lab is live: a volume of its
// array, with the models of everything that is in front of it: session, port, controller and host.
// It answers when the system would have. What is read is zeros, what is written is forgotten.
//
// Sockets, threads and late timers take real time, which is no part of the system. A worker makes a
// request when it has the answer to another, so a request is taken to be made when the last one
// ended by the models' clock, if that was not longer than `lag` ago: that much of the real time
// between an answer and the next request does not count.
#pragma once

#include <deque>

#include "block/block_device.h"
#include "lab/served_request.h"
#include "lab/virtual_array.h"

namespace sandbay::lab {

class LiveVolume final : public BlockDevice {
 public:
  // Borrows both. `lag`, in real time: 0 where workers wait of themselves before they ask.
  LiveVolume(VirtualArray& array, VirtualVolume& volume, Duration lag)
      : array_(array), volume_(volume), lag_(lag) {}

  Executor& home() const noexcept override { return array_.home(); }
  const Geometry& geometry() const noexcept override { return volume_.device->geometry(); }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "a volume of the lab"; }
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return volume_.device->provisioning(first, limit);
  }

  // From now on, requests count that end in [from, until) of the models' time.
  void measure(TimePoint from, TimePoint until);
  const LayerTimes& layers() const noexcept { return layers_; }

 private:
  TimePoint asked_at();

  VirtualArray& array_;
  VirtualVolume& volume_;
  Duration lag_;
  std::deque<TimePoint> ended_;  // Requests for each of which another one may come now.
  TimePoint from_ = kNever;
  TimePoint until_ = kNever;
  LayerTimes layers_;
};

}  // namespace sandbay::lab
