// Whether role and metadata agree.
#include "group/role.h"

#include <fmt/format.h>

#include <optional>

#include "group/event_log.h"
#include "group/lead_fence.h"

namespace sandbay::group {

Task<Started> role_fits(metadata::Store* store, RoleFacts facts) {
  if (facts.member) {
    std::vector<std::string> own;
    for (const std::string& name : facts.volumes) own.push_back(fmt::format("volume \"{}\"", name));
    for (const std::string& name : facts.pools) own.push_back(fmt::format("pool \"{}\"", name));
    if (own.empty()) co_return Started{};
    co_return fault_of_configuration(fmt::format(
        "role: as a member it would show its sets to a lead that writes over what is on them: {}; "
        "delete these while the role is \"lead\", or leave it at that",
        fmt::join(own, ", ")));
  }
  EventLog events;
  LeadFence fence(*store, events);
  const auto loaded = co_await fence.load(false);
  if (!loaded) co_return std::unexpected(loaded.error());
  const std::optional<iscsi::LeadRecord>& kept = fence.kept();
  if (!kept || kept->open) co_return Started{};
  co_return fault_of_configuration(fmt::format(
      "role: its sets are used by group {}, which leads it; take it out of that group first, then "
      "start it with role = \"member\" and --forget-lead once, and after that as a lead",
      format_uuid(kept->group)));
}

}  // namespace sandbay::group
