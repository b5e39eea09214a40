// Remembering hosts and their changes: the oldest host without a session gives way.
#include "scsi/writers.h"

#include <algorithm>

namespace sandbay::scsi {

std::shared_ptr<Writers::Writer> Writers::host_of(std::string_view initiator_port) {
  const std::string_view name = initiator_port.substr(0, initiator_port.find(",i,"));
  const auto known = hosts_.find(name);
  if (known != hosts_.end()) return known->second;
  forget_departed();
  return hosts_.emplace(name, std::make_shared<Writer>()).first->second;
}

void Writers::forget_departed() {
  const auto departed = [](const auto& host) { return host.second.use_count() == 1; };
  std::erase_if(hosts_, [&](const auto& host) { return departed(host) && !owed(*host.second); });
  while (std::ranges::count_if(hosts_, departed) >= static_cast<std::ptrdiff_t>(kMostDeparted)) {
    auto oldest = hosts_.end();
    for (auto each = hosts_.begin(); each != hosts_.end(); ++each) {
      if (!departed(*each)) continue;
      const bool older =
          oldest == hosts_.end() || each->second->last_change < oldest->second->last_change;
      if (older) oldest = each;
    }
    hosts_.erase(oldest);
  }
}

void Writers::flush_ended(Error error, const Flush& flush, const Writer* sender) noexcept {
  if (error == Error::kHardware) {
    for (const auto& [name, writer] : hosts_) {
      if (writer.get() != sender && writer->last_change > flush.settled) writer->lost = true;
    }
  }
  // Any other error leaves the changes where they are, for the next flush.
  if (error == Error::kNone || error == Error::kHardware) {
    settled_ = std::max(settled_, flush.covered);
  }
}

}  // namespace sandbay::scsi
