// Pools and snapshots as JSON.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "mgmt/json.h"

namespace sandbay::mgmt {

using nlohmann::json;

json to_json(const group::PoolInfo& info) {
  json stores = json::array();
  for (const group::PoolStoreInfo& store : info.stores) {
    stores.push_back({{"set", store.set},
                      {"uuid", store.uuid},
                      {"member", store.member},
                      {"level", store.level},
                      {"size", store.size_bytes},
                      {"free", store.free_bytes},
                      {"state", store.state},
                      {"reason", store.reason}});
  }
  json outside = json::array();
  for (const group::PoolOutsideInfo& set : info.outside) {
    outside.push_back({{"set", set.set}, {"reason", set.reason}});
  }
  return {{"name", info.name},
          {"uuid", info.uuid},
          {"members", info.members},
          {"leaving", info.leaving},
          {"page", info.page_bytes},
          {"block_size", info.block_bytes},
          {"reason", info.reason},
          {"size", info.size_bytes},
          {"free", info.free_bytes},
          {"snapshot_reserve", info.snapshot_bytes},
          {"provisioned", info.provisioned_bytes},
          {"volumes", info.volumes},
          {"snapshots", info.snapshots},
          {"declared", info.declared},
          {"map_in_nvram", info.map_in_nvram},
          {"stores", std::move(stores)},
          {"outside", std::move(outside)},
          {"counters",
           {{"pages_allocated", info.counters.pages_allocated},
            {"pages_freed", info.counters.pages_freed},
            {"pages_moved", info.counters.pages_moved},
            {"chunks_kept", info.counters.chunks_kept},
            {"chunks_filled", info.counters.chunks_filled}}}};
}

json to_json(const group::ScheduleInfo& info) {
  json last = nullptr;
  if (info.last != group::WallTime{}) last = group::utc_text(info.last);
  return {{"name", info.name},
          {"volume", info.volume},
          {"every", std::chrono::duration<double>(info.every).count()},
          {"keep", info.keep},
          {"snapshots", info.snapshots},
          {"last", std::move(last)}};
}

json to_json(const group::SnapshotInfo& info) {
  return {{"name", info.name},         {"volume", info.volume},
          {"uuid", info.uuid},         {"time", group::utc_text(info.time)},
          {"size", info.size_bytes},   {"kept", info.kept_bytes},
          {"schedule", info.schedule}, {"online", info.online},
          {"writable", info.writable}, {"target", info.target},
          {"reason", info.reason}};
}

json to_json(const group::TaskInfo& info) {
  json seconds = nullptr;
  if (const auto& left = info.time_left) seconds = std::chrono::duration<double>(*left).count();
  return {{"kind", info.kind},       {"pool", info.pool},
          {"object", info.object},   {"done", info.done_bytes},
          {"left", info.left_bytes}, {"seconds_left", std::move(seconds)},
          {"stuck", info.stuck}};
}

json to_json(const group::PoolCheckInfo& info) {
  return {{"pool", info.pool},
          {"branches", info.branches},
          {"snapshots", info.snapshots},
          {"pages", info.pages},
          {"kept_chunks", info.kept_chunks},
          {"wrong", info.wrong},
          {"doubtful_chunks", info.doubtful_chunks},
          {"verified", info.verified}};
}

json to_json(const group::DiscardedMap& given) {
  return {{"reason", given.reason},
          {"missing", given.missing},
          {"forgotten", given.forgotten},
          {"check", to_json(given.check)}};
}

}  // namespace sandbay::mgmt
