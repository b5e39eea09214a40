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
  json seconds = nullptr;
  if (const auto& left = info.time_left) seconds = std::chrono::duration<double>(*left).count();
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
            {"seconds_left", std::move(seconds)}}},
          {"sets", std::move(sets)},
          {"portals", std::move(portals)}};
}

}  // namespace sandbay::mgmt
