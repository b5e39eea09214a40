// Members as JSON.
#include <nlohmann/json.hpp>

#include "mgmt/json.h"

namespace sandbay::mgmt {

using nlohmann::json;

json to_json(const group::MemberInfo& info) {
  json sets = json::array();
  for (const group::MemberSetInfo& set : info.sets) {
    sets.push_back({{"set", set.set},
                    {"level", set.level},
                    {"size", set.size_bytes},
                    {"free", set.free_bytes},
                    {"state", set.state},
                    {"reason", set.reason}});
  }
  json portals = json::array();
  for (const group::PortalInfo& portal : info.portals) portals.push_back(to_json(portal));
  const auto seconds = [](const std::optional<Duration>& time) -> json {
    if (!time) return nullptr;
    return std::chrono::duration<double>(*time).count();
  };
  return {{"name", info.name},
          {"place", info.place},
          {"pool", info.pool},
          {"state", info.state},
          {"health", info.health},
          {"reason", info.reason},
          {"drives", info.drives},
          {"size", info.size_bytes},
          {"free", info.free_bytes},
          {"leaving",
           {{"moved", info.moved_bytes},
            {"left", info.left_bytes},
            {"seconds_left", seconds(info.time_left)}}},
          {"modelled_busy", seconds(info.modelled_busy)},
          {"sets", std::move(sets)},
          {"portals", std::move(portals)}};
}

}  // namespace sandbay::mgmt
