// SessionVolume: what a logical unit has below it where an experiment in virtual time has real
// sessions: a volume of the array behind the model of its controller. What is before that, hosts
// apart, is the sessions' own.
//
// It remembers when a request was where until who has the answer asks. What is read is undefined,
// what is written is forgotten.
#pragma once

#include <optional>
#include <vector>

#include "block/block_device.h"
#include "lab/served_request.h"
#include "lab/virtual_array.h"

namespace sandbay::lab {

class SessionVolume final : public BlockDevice {
 public:
  // Borrows both.
  SessionVolume(VirtualArray& array, VirtualVolume& volume) : array_(array), volume_(volume) {}

  Executor& home() const noexcept override { return array_.home(); }
  const Geometry& geometry() const noexcept override { return volume_.device->geometry(); }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "a volume of the lab"; }
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return volume_.device->provisioning(first, limit);
  }

  // When one like this, which has been answered, came to the array, was accepted, done and
  // answered; of its pieces, if it came in several, from the first to the last. Once.
  std::optional<ServedRequest> take(const Access& access);

 private:
  struct Done {
    Extent extent;
    bool write = false;
    ServedRequest served;
  };

  std::size_t longest_from(Lba at, Lba end, bool write) const;

  VirtualArray& array_;
  VirtualVolume& volume_;
  std::vector<Done> done_;  // As many as are on their way back to the host.
};

}  // namespace sandbay::lab
