// The caches of several members as one: sums, and the worst of what cannot be summed.
#include "group/cache_info.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

namespace sandbay::group {

namespace {

template <std::size_t count>
std::string worst(const std::array<std::string_view, count>& from_best, const std::string& a,
                  const std::string& b) {
  return std::ranges::find(from_best, a) > std::ranges::find(from_best, b) ? a : b;
}

void add_counters(const cache::CacheCounters& more, cache::CacheCounters& sum) {
  sum.evictions += more.evictions;
  sum.lines += more.lines;
  sum.memory_bytes += more.memory_bytes;
  sum.memory_limit_bytes += more.memory_limit_bytes;
  sum.dirty_bytes += more.dirty_bytes;
  sum.dirty_limit_bytes += more.dirty_limit_bytes;
  sum.stuck_bytes += more.stuck_bytes;
  sum.read_ahead_in_flight_bytes += more.read_ahead_in_flight_bytes;
  sum.read_ahead_unread_bytes += more.read_ahead_unread_bytes;
}

void add_latencies(const LatencyHistogram& more, LatencyHistogram& sum) {
  std::ranges::transform(sum.count, more.count, sum.count.begin(), std::plus<>{});
  sum.total_nanoseconds += more.total_nanoseconds;
}

void add_counters(const cache::VolumeCounters& more, cache::VolumeCounters& sum) {
  using Counters = cache::VolumeCounters;
  constexpr std::array kCounters{&Counters::reads,
                                 &Counters::read_bytes,
                                 &Counters::hits,
                                 &Counters::partial_hits,
                                 &Counters::misses,
                                 &Counters::late_hits,
                                 &Counters::pass_throughs,
                                 &Counters::read_ahead_bytes,
                                 &Counters::read_ahead_used_bytes,
                                 &Counters::read_ahead_wasted_bytes,
                                 &Counters::read_ahead_errors,
                                 &Counters::advice_dropped_bytes,
                                 &Counters::writes,
                                 &Counters::write_bytes,
                                 &Counters::absorbed_bytes,
                                 &Counters::write_throughs,
                                 &Counters::throttled_nanoseconds,
                                 &Counters::flushes};
  static_assert(sizeof(Counters) ==
                kCounters.size() * sizeof(std::uint64_t) + 2 * sizeof(LatencyHistogram));
  for (const auto counter : kCounters) sum.*counter += more.*counter;
  add_latencies(more.miss_latency, sum.miss_latency);
  add_latencies(more.write_latency, sum.write_latency);
}

void add_volumes(std::vector<CachedVolumeInfo>& more, std::vector<CachedVolumeInfo>& all) {
  for (CachedVolumeInfo& volume : more) {
    const auto same = std::ranges::find(all, volume.name, &CachedVolumeInfo::name);
    if (same == all.end()) {
      all.push_back(std::move(volume));
    } else {
      add_counters(volume.counters, same->counters);
    }
  }
}

template <class Part>
void append(std::vector<Part>& more, std::vector<Part>& all) {
  std::ranges::move(more, std::back_inserter(all));
}

}  // namespace

void add(const std::string& member, CacheInfo more, CacheInfo& sum) {
  if (!member.empty()) {
    for (std::string& note : more.notes) note.insert(0, "member " + member + ": ");
  }
  append(more.sets, sum.sets);
  if (sum.volumes.empty()) {
    sum.volumes = std::move(more.volumes);
  } else {
    add_volumes(more.volumes, sum.volumes);
  }
  append(more.notes, sum.notes);
  if (!more.configured) return;
  sum.non_volatile = more.non_volatile && (!sum.configured || sum.non_volatile);
  sum.configured = true;
  add_counters(more.counters, sum.counters);
  sum.destage_bytes_per_second += more.destage_bytes_per_second;
  if (more.nvram_bytes == 0) return;
  const bool first = sum.nvram_bytes == 0;
  sum.nvram_bytes += more.nvram_bytes;
  sum.writes += more.writes;
  sum.fullness = std::max(sum.fullness, more.fullness);
  sum.battery = worst<4>({"", "good", "low", "dead"}, sum.battery, more.battery);
  sum.mirror = first ? more.mirror : worst<3>({"good", "none", "lost"}, sum.mirror, more.mirror);
}

}  // namespace sandbay::group
