// A question about provisioning is shared by who asks and by who waits for the device: whichever is
// the last lets it go.
#include "raid/bounded_device.h"

namespace sandbay::raid {

struct BoundedDevice::Query {
  Result<ProvisioningRun> answer = std::unexpected(Error::kTimedOut);
  sandbay::Event ended;
};

Task<Result<ProvisioningRun>> BoundedDevice::provisioning(Lba first, Lba limit) {
  auto query = std::make_shared<Query>();
  ++queries_;
  spawn(ask(this, query, first, limit));
  // In steps, so that time in which the executor did not run counts for little.
  for (int step = 0; step < kSteps; ++step) {
    const bool ended = co_await query->ended.wait_until(home().now() + timeout_ / kSteps);
    if (ended) break;
  }
  co_return query->answer;
}

Task<void> BoundedDevice::ask(BoundedDevice* self, std::shared_ptr<Query> query, Lba first,
                              Lba limit) {
  const Result<ProvisioningRun> answer = co_await self->drive_.device().provisioning(first, limit);
  --self->queries_;
  query->answer = answer;
  query->ended.set();
}

}  // namespace sandbay::raid
