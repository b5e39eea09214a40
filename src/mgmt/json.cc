// Field by field; the test compares what comes out with the document's schemas.
#include "mgmt/json.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace sandbay::mgmt {

using nlohmann::json;

namespace {

json counters_json(const scsi::LogicalUnitCounters& counters) {
  using scsi::CommandKind;
  std::uint64_t errors = 0;
  for (const scsi::CommandCounters& kind : counters.by_kind) errors += kind.errors;
  return {{"reads", counters.of(CommandKind::kRead).commands},
          {"writes", counters.of(CommandKind::kWrite).commands},
          {"flushes", counters.of(CommandKind::kFlush).commands},
          {"unmaps", counters.of(CommandKind::kUnmap).commands},
          {"other",
           counters.of(CommandKind::kOther).commands + counters.of(CommandKind::kVerify).commands},
          {"read_bytes", counters.of(CommandKind::kRead).bytes},
          {"written_bytes", counters.of(CommandKind::kWrite).bytes},
          {"errors", errors},
          {"aborted", counters.aborted},
          {"in_flight", counters.in_flight}};
}

}  // namespace

json to_json(const group::PortalInfo& info) {
  json rate = nullptr;
  if (info.rate) rate = *info.rate;
  return {{"listen", info.listen},
          {"advertised", info.advertised},
          {"group_tag", info.group_tag},
          {"access_state", info.access_state},
          {"member", info.member},
          {"rate", std::move(rate)},
          {"connections", info.connections},
          {"recent_bytes", info.recent_bytes},
          {"takes_logins", info.takes_logins}};
}

json to_json(const group::GroupInfo& info) {
  json portals = json::array();
  for (const group::PortalInfo& portal : info.portals) portals.push_back(to_json(portal));
  return {{"name", info.name},
          {"uuid", info.uuid},
          {"version", info.version},
          {"state", info.state},
          {"portals", std::move(portals)},
          {"reactors", info.reactors},
          {"memory_limit", info.memory_limit_bytes},
          {"provisioned", info.provisioned_bytes},
          {"volumes", info.volumes},
          {"targets", info.targets},
          {"sessions", info.sessions},
          {"uptime", std::chrono::duration<double>(info.uptime).count()}};
}

namespace {

// Empty: it works.
std::string_view waits_of(Error error) {
  return error == Error::kNone ? std::string_view() : describe(error);
}

}  // namespace

json to_json(const group::VolumeInfo& info) {
  const group::VolumeSpecification& s = info.specification;
  json value{{"name", info.name},
             {"uuid", info.uuid},
             {"size", s.size_bytes},
             {"block_size", s.block_bytes},
             {"physical_block_size", s.physical_block_bytes},
             {"backing", group::describe(s.backing)},
             {"raid", s.raid},
             {"pool", s.pool},
             {"on", s.on},
             {"raid_level", s.raid_level},
             {"online", info.online},
             {"allocated", info.allocated_bytes},
             {"snapshots", info.snapshots},
             {"thin_warning", s.thin_warning},
             {"thin_limit", s.thin_limit},
             {"snapshot_reserve", group::format_reserve(s.snapshot_reserve)},
             {"reserve_policy", group::describe(s.reserve_policy)},
             {"reserve_bytes", info.reserve_bytes},
             {"snapshot_bytes", info.snapshot_bytes},
             {"reserve_deleted", info.reserve_deleted},
             {"reserve_taken_offline", info.reserve_taken_offline},
             {"operations_limit", s.operations_limit},
             {"bytes_limit", s.bytes_limit},
             {"path", info.path},
             {"thin", s.thin},
             {"preallocate", s.preallocate},
             {"read_only", s.read_only},
             {"write_cache", s.write_cache},
             {"cache", group::describe(s.cache)},
             {"serial", s.serial},
             {"naa", s.naa ? group::format_naa(*s.naa) : ""},
             {"eui64", s.eui64 ? group::format_eui64(*s.eui64) : ""},
             {"removable", s.removable},
             {"rotation", s.rotation},
             {"unmap_limit", s.unmap_limit_bytes},
             {"write_same_limit", s.write_same_limit_bytes},
             {"vendor", s.vendor},
             {"product", s.product},
             {"revision", s.revision},
             {"target", s.target},
             {"lun", s.lun.value_or(0)},
             {"health", info.health},
             {"reason", info.reason},
             {"declared", info.declared},
             {"reactor", info.executor},
             {"sessions", info.sessions},
             {"uncleared", info.uncleared_bytes},
             {"counters", counters_json(info.counters)}};
  if (info.sanitize) {
    value["sanitize"] = {{"method", scsi::describe(info.sanitize->method)},
                         {"progress", info.sanitize->progress / 65536.0},
                         {"failed", info.sanitize->failed},
                         {"waits", waits_of(info.sanitize->waits)}};
  }
  return value;
}

json to_json(const group::AccessInfo& info) {
  return {{"id", info.id},
          {"initiator", info.initiator},
          {"address", info.address},
          {"chap_user", info.chap_user},
          {"declared", info.declared}};
}

json to_json(const group::TargetInfo& info) {
  json units = json::array();
  for (const auto& unit : info.units) units.push_back({{"lun", unit.lun}, {"volume", unit.volume}});
  json access = json::array();
  for (const auto& record : info.access) access.push_back(to_json(record));
  return {{"name", info.name},
          {"alias", info.alias},
          {"luns", std::move(units)},
          {"access", std::move(access)},
          {"portal_groups", info.portal_groups},
          {"keys", info.keys},
          {"mutual_chap_user", info.mutual_chap_user},
          {"redirect", info.redirect},
          {"redirect_permanent", info.redirect_permanent},
          {"queue_depth", info.queue_depth},
          {"maximum_sessions", info.maximum_sessions},
          {"exclusive", info.exclusive},
          {"declared", info.declared},
          {"sessions", info.sessions}};
}

json to_json(const iscsi::SessionInfo& info) {
  json connections = json::array();
  for (const iscsi::ConnectionInfo& connection : info.connections) {
    connections.push_back({{"cid", connection.cid},
                           {"initiator_address", connection.initiator_address},
                           {"target_address", connection.target_address},
                           {"member", connection.member},
                           {"reactor", connection.executor},
                           {"state", connection.state},
                           {"header_digest", connection.header_digest},
                           {"data_digest", connection.data_digest},
                           {"bytes_in", connection.bytes_in},
                           {"bytes_out", connection.bytes_out}});
  }
  return {{"tsih", info.tsih},
          {"isid", info.isid},
          {"initiator", info.initiator_name},
          {"initiator_alias", info.initiator_alias},
          {"target", info.target_name},
          {"state", info.state},
          {"reactor", info.executor},
          {"parameters", info.parameters},
          {"connections", std::move(connections)},
          {"commands", info.commands},
          {"commands_in_flight", info.commands_in_flight}};
}

json error_json(std::string_view code, std::string_view message) {
  return {{"error", {{"code", code}, {"message", message}}}};
}

}  // namespace sandbay::mgmt
