// The controller's cache as JSON. Of latencies: how many, their mean, and how long the fastest half
// and the fastest 99 of 100 took at most, in seconds.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "mgmt/json.h"

namespace sandbay::mgmt {

using nlohmann::json;

namespace {

// Between two powers of two, as far as the place in its bucket says.
double quantile_of(const LatencyHistogram& histogram, std::uint64_t all, double share) {
  const double wanted = share * static_cast<double>(all);
  double before = 0;
  double least = 0;
  double most = 1e-6;
  for (const std::uint64_t count : histogram.count) {
    const auto here = static_cast<double>(count);
    if (count != 0 && before + here >= wanted) {
      return least + (most - least) * std::clamp((wanted - before) / here, 0.0, 1.0);
    }
    before += here;
    least = most;
    most *= 2;
  }
  return least;
}

json latency_json(const LatencyHistogram& histogram) {
  std::uint64_t all = 0;
  for (const std::uint64_t count : histogram.count) all += count;
  const double total = static_cast<double>(histogram.total_nanoseconds) / 1e9;
  return {{"count", all},
          {"mean", all == 0 ? 0.0 : total / static_cast<double>(all)},
          {"p50", all == 0 ? 0.0 : quantile_of(histogram, all, 0.5)},
          {"p99", all == 0 ? 0.0 : quantile_of(histogram, all, 0.99)}};
}

json counters_json(const cache::VolumeCounters& counters) {
  return {{"reads", counters.reads},
          {"read_bytes", counters.read_bytes},
          {"hits", counters.hits},
          {"partial_hits", counters.partial_hits},
          {"misses", counters.misses},
          {"late_hits", counters.late_hits},
          {"pass_throughs", counters.pass_throughs},
          {"read_ahead_bytes", counters.read_ahead_bytes},
          {"read_ahead_used_bytes", counters.read_ahead_used_bytes},
          {"read_ahead_wasted_bytes", counters.read_ahead_wasted_bytes},
          {"read_ahead_errors", counters.read_ahead_errors},
          {"advice_dropped_bytes", counters.advice_dropped_bytes},
          {"writes", counters.writes},
          {"written_bytes", counters.write_bytes},
          {"absorbed_bytes", counters.absorbed_bytes},
          {"write_throughs", counters.write_throughs},
          {"throttled_seconds", static_cast<double>(counters.throttled_nanoseconds) / 1e9},
          {"flushes", counters.flushes}};
}

json counters_json(const cache::DeviceCounters& counters) {
  return {{"destages", counters.destages},
          {"destage_bytes", counters.destage_bytes},
          {"full_stripes", counters.full_stripes},
          {"partial_stripes", counters.partial_stripes},
          {"destage_errors", counters.destage_errors},
          {"rounds", counters.rounds},
          {"discarded_bytes", counters.discarded_bytes},
          {"damaged_bytes", counters.damaged_bytes}};
}

json lost_json(const group::LostInfo& info) {
  return {{"volume", info.volume},
          {"of_set", info.of_set},
          {"first_block", info.first_block},
          {"blocks", info.block_count},
          {"why", info.why}};
}

json set_json(const group::CachedSetInfo& info) {
  json lost = json::array();
  for (const group::LostInfo& range : info.lost) lost.push_back(lost_json(range));
  return {{"name", info.name},
          {"uuid", info.uuid},
          {"dirty", info.dirty_bytes},
          {"waiting", info.waiting_bytes},
          {"stuck", info.stuck_bytes},
          {"failure", info.failure},
          {"barred", info.bar},
          {"lost", std::move(lost)},
          {"counters", counters_json(info.counters)}};
}

json volume_json(const group::CachedVolumeInfo& info) {
  const cache::VolumeCounters& counters = info.counters;
  return {{"name", info.name},
          {"cache", group::describe(info.mode)},
          {"hit_ratio", counters.reads == 0 ? 0.0
                                            : static_cast<double>(counters.hits) /
                                                  static_cast<double>(counters.reads)},
          {"counters", counters_json(counters)},
          {"streams_found", info.streams.found},
          {"reads_in_streams", info.streams.in_stream},
          {"miss_latency", latency_json(counters.miss_latency)},
          {"write_latency", latency_json(counters.write_latency)}};
}

}  // namespace

json to_json(const group::DiscardedWrites& given) {
  json ranges = json::array();
  for (const group::LostInfo& range : given.ranges) ranges.push_back(lost_json(range));
  json bytes = nullptr;
  if (const auto& count = given.byte_count) bytes = *count;
  return {{"discarded", std::move(bytes)},
          {"nvram", given.nvram},
          {"ranges", std::move(ranges)},
          {"more_ranges", given.more_ranges}};
}

json to_json(const group::CacheInfo& info) {
  json sets = json::array();
  for (const group::CachedSetInfo& set : info.sets) sets.push_back(set_json(set));
  json volumes = json::array();
  for (const group::CachedVolumeInfo& volume : info.volumes) volumes.push_back(volume_json(volume));
  return {{"configured", info.configured},
          {"memory",
           {{"size", info.counters.memory_limit_bytes},
            {"used", info.counters.memory_bytes},
            {"lines", info.counters.lines},
            {"evictions", info.counters.evictions}}},
          {"dirty",
           {{"limit", info.counters.dirty_limit_bytes},
            {"used", info.counters.dirty_bytes},
            {"stuck", info.counters.stuck_bytes},
            {"destage_rate", info.destage_bytes_per_second}}},
          {"read_ahead",
           {{"in_flight", info.counters.read_ahead_in_flight_bytes},
            {"unread", info.counters.read_ahead_unread_bytes}}},
          {"nvram",
           {{"size", info.nvram_bytes},
            {"writes", info.writes},
            {"fullness", info.fullness},
            {"battery", info.battery},
            {"mirror", info.mirror}}},
          {"non_volatile", info.non_volatile},
          {"notes", info.notes},
          {"sets", std::move(sets)},
          {"volumes", std::move(volumes)}};
}

}  // namespace sandbay::mgmt
