// Drives, RAID sets, faults and events as JSON.
#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "mgmt/json.h"

namespace sandbay::mgmt {

using nlohmann::json;

namespace {

json counters_json(const raid::DriveCounters& counters) {
  return {{"reads", counters.reads},
          {"writes", counters.writes},
          {"flushes", counters.flushes},
          {"read_bytes", counters.read_bytes},
          {"written_bytes", counters.written_bytes},
          {"metadata_operations", counters.metadata_operations},
          {"metadata_bytes", counters.metadata_bytes},
          {"medium_errors", counters.medium_errors},
          {"other_errors", counters.other_errors},
          {"retries", counters.retries},
          {"timeouts", counters.timeouts},
          {"slow_reads", counters.slow_reads},
          {"probes", counters.probes}};
}

json counters_json(const raid::SetCounters& counters) {
  return {{"host_reads", counters.host_reads},
          {"host_writes", counters.host_writes},
          {"host_read_bytes", counters.host_read_bytes},
          {"host_written_bytes", counters.host_written_bytes},
          {"full_stripe_writes", counters.full_stripe_writes},
          {"read_modify_writes", counters.read_modify_writes},
          {"reconstruct_writes", counters.reconstruct_writes},
          {"recover_writes", counters.recover_writes},
          {"merged_writes", counters.merged_writes},
          {"reconstructions", counters.reconstructions},
          {"reads_around", counters.reads_around},
          {"corrections", counters.corrections},
          {"lost_blocks", counters.lost_blocks},
          {"mismatches", counters.mismatches},
          {"corruptions", counters.corruptions},
          {"false_entries", counters.false_entries},
          {"entries_mended", counters.entries_mended},
          {"flushes", counters.flushes}};
}

json roles_json(const raid::SetInfo& set) {
  json roles = json::array();
  for (const raid::RoleInfo& role : set.roles) {
    roles.push_back({{"drive", role.drive},
                     {"replacement", role.replacement},
                     {"state", describe(role.state)},
                     {"stale_regions", role.stale_regions}});
  }
  return roles;
}

json progress_json(const group::SetInfo& info) {
  const raid::MaintenanceProgress& progress = info.raid.progress;
  json value{{"kind", describe(progress.kind)},
             {"role", nullptr},
             {"done_stripes", progress.done_stripes},
             {"all_stripes", progress.all_stripes},
             {"mismatches", progress.mismatches},
             {"seconds", std::chrono::duration<double>(info.progress_age).count()}};
  if (progress.role != raid::kNoRole) value["role"] = progress.role;
  return value;
}

}  // namespace

json to_json(const group::DriveInfo& info) {
  const raid::DriveInfo& drive = info.raid;
  json value{{"name", drive.name},
             {"use", describe(drive.use)},
             {"health", group::describe(drive.health)},
             {"why", drive.why},
             {"size", drive.byte_count},
             {"block_size", drive.block_bytes},
             {"medium", info.medium},
             {"path", info.path},
             {"enclosure", info.enclosure},
             {"serial", info.serial},
             {"member", info.member},
             {"rotational", info.rotational},
             {"profile", info.profile},
             {"modelled_busy", std::chrono::duration<double>(info.modelled_busy).count()},
             {"modelled_queue", info.modelled_queue},
             {"set", drive.set},
             {"role", nullptr},
             {"stale_regions", drive.stale_regions},
             {"unreadable_blocks", info.unreadable_blocks},
             {"recovered_errors", info.recovered_errors},
             {"wear", info.wear_percent},
             {"temperature", info.temperature_celsius},
             {"counters", counters_json(drive.counters)}};
  if (drive.role) value["role"] = *drive.role;
  return value;
}

json to_json(const group::SetInfo& info) {
  const raid::SetInfo& set = info.raid;
  json lost = json::array();
  for (const Extent& extent : set.lost) {
    lost.push_back({{"first_block", extent.first}, {"blocks", extent.block_count}});
  }
  return {{"name", set.name},
          {"uuid", format_uuid(set.uuid)},
          {"level", describe(set.level)},
          {"drives", set.drive_count},
          {"groups", set.group_count},
          {"strip", set.strip_bytes},
          {"size", set.byte_count},
          {"free", info.free_bytes},
          {"integrity", set.integrity},
          {"running", set.running},
          {"health", group::describe(set.health)},
          {"reason", set.refusal},
          {"member", info.member},
          {"declared", info.declared},
          {"notes", info.notes},
          {"roles", roles_json(set)},
          {"spares", set.spares},
          {"volumes", info.volumes},
          {"regions", set.regions},
          {"unverified_regions", set.unverified_regions},
          {"lost", std::move(lost)},
          {"progress", progress_json(info)},
          {"journal",
           {{"size", set.journal_size_bytes},
            {"used", set.journal_used_bytes},
            {"written_bytes", set.journal_written_bytes}}},
          {"counters", counters_json(set.counters)}};
}

json to_json(const fault::RuleView& rule) {
  return {{"id", rule.id},
          {"rule", rule.text},
          {"enabled", rule.enabled},
          {"active", rule.active},
          {"held", rule.held},
          {"matched", rule.counters.matched},
          {"fired", rule.counters.fired},
          {"struck", rule.counters.struck},
          {"spared", rule.counters.spared}};
}

json to_json(const group::FaultsInfo& info) {
  json rules = json::array();
  for (const fault::RuleView& rule : info.rules) rules.push_back(to_json(rule));
  return {{"enabled", info.enabled},
          {"seed", info.seed},
          {"firings", info.firings},
          {"faults", std::move(rules)}};
}

json to_json(const fault::Replay& replay) {
  return {{"seed", replay.seed}, {"complete", replay.complete}, {"rules", replay.rules}};
}

json to_json(const group::FiringInfo& info) {
  const fault::Firing& firing = info.firing;
  return {{"number", firing.number},
          {"time", group::utc_text(info.time)},
          {"rule", firing.rule},
          {"fault", fault::fault_name(firing.fault)},
          {"target", firing.target},
          {"operation", firing.operation},
          {"first_block", firing.extent.first},
          {"blocks", firing.extent.block_count},
          {"effect", firing.effect}};
}

json to_json(const group::EventInfo& info) {
  return {{"number", info.number},
          {"time", group::utc_text(info.time)},
          {"severity", describe(info.severity)},
          {"kind", info.kind},
          {"set", info.set},
          {"drive", info.drive},
          {"text", info.text}};
}

json to_json(const group::AuditEntry& entry) {
  return {{"number", entry.number},       {"time", group::utc_text(entry.time)},
          {"caller", entry.caller},       {"address", entry.address},
          {"operation", entry.operation}, {"target", entry.target},
          {"request", entry.request},     {"status", entry.status},
          {"refusal", entry.refusal}};
}

}  // namespace sandbay::mgmt
