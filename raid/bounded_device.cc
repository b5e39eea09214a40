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
  const TimePoint deadline = home().now() + timeout_;
  ++queries_;
  spawn(ask(this, query, first, limit));
  co_await query->ended.wait_until(deadline);
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
