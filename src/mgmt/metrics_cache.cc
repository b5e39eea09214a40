// A family for each counter, a sample for each volume or set. Nothing where there is no cache.
#include "mgmt/metrics_cache.h"

namespace sandbay::mgmt {

namespace {

void add_whole(Text& text, const group::CacheInfo& cache) {
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help,
                       auto value) {
    text.family(name, type, help);
    text.sample("", value);
  };
  const cache::CacheCounters& counters = cache.counters;
  one("sandbay_cache_memory_limit_bytes", "gauge", "Memory for cached data.",
      counters.memory_limit_bytes);
  one("sandbay_cache_memory_used_bytes", "gauge", "What of it is in use.", counters.memory_bytes);
  one("sandbay_cache_lines", "gauge", "Lines of 64 KiB of which something is cached.",
      counters.lines);
  one("sandbay_cache_evictions_total", "counter", "Lines that made room.", counters.evictions);
  one("sandbay_cache_dirty_limit_bytes", "gauge", "Room for what is not on the drives yet.",
      counters.dirty_limit_bytes);
  one("sandbay_cache_dirty_bytes", "gauge",
      "Room that is taken by what is not on the drives yet; of a small write more than its size.",
      counters.dirty_bytes);
  one("sandbay_cache_stuck_bytes", "gauge", "Of it, what is of sets that fail.",
      counters.stuck_bytes);
  one("sandbay_cache_destage_bytes_per_second", "gauge", "The pace of destaging, lately.",
      cache.destage_bytes_per_second);
  one("sandbay_cache_read_ahead_in_flight_bytes", "gauge", "What is being read ahead.",
      counters.read_ahead_in_flight_bytes);
  one("sandbay_cache_read_ahead_unread_bytes", "gauge",
      "What was read ahead and not asked for yet.", counters.read_ahead_unread_bytes);
  one("sandbay_cache_non_volatile", "gauge", "1 if what is acknowledged survives as on a drive.",
      cache.non_volatile ? 1 : 0);
  if (cache.nvram_bytes == 0) return;
  one("sandbay_cache_nvram_bytes", "gauge", "NVRAM for data.", cache.nvram_bytes);
  one("sandbay_cache_nvram_writes", "gauge", "Writes that the NVRAM holds.", cache.writes);
  one("sandbay_cache_nvram_full_ratio", "gauge", "How full the NVRAM is.", cache.fullness);
  one("sandbay_cache_battery_good", "gauge", "1 if the NVRAM's battery is good.",
      cache.battery == "good" ? 1 : 0);
  one("sandbay_cache_mirror_good", "gauge", "1 if the NVRAM is mirrored.",
      cache.mirror == "good" ? 1 : 0);
}

class VolumeSamples {
 public:
  VolumeSamples(Text& text, const std::vector<group::CachedVolumeInfo>& volumes)
      : text_(text), volumes_(volumes) {}

  template <class Value>
  void each(std::string_view name, std::string_view help, Value value) {
    text_.family(name, "counter", help);
    for (const auto& volume : volumes_) text_.sample(label_of(volume), value(volume));
  }
  void counter(std::string_view name, std::string_view help,
               std::uint64_t cache::VolumeCounters::* member) {
    each(fmt::format("sandbay_cache_volume_{}_total", name), help,
         [member](const group::CachedVolumeInfo& volume) { return volume.counters.*member; });
  }
  void latency(std::string_view name, std::string_view help,
               LatencyHistogram cache::VolumeCounters::* member) {
    text_.family(fmt::format("sandbay_cache_volume_{}_seconds", name), "histogram", help);
    for (const auto& volume : volumes_) {
      text_.latency(label_of(volume), volume.counters.*member);
    }
  }

 private:
  static std::string label_of(const group::CachedVolumeInfo& volume) {
    return fmt::format("volume=\"{}\"", escape(volume.name));
  }

  Text& text_;
  const std::vector<group::CachedVolumeInfo>& volumes_;
};

void add_volumes(Text& text, const std::vector<group::CachedVolumeInfo>& list) {
  if (list.empty()) return;
  VolumeSamples volumes(text, list);
  using Counters = cache::VolumeCounters;
  volumes.counter("reads", "Reads.", &Counters::reads);
  volumes.counter("read_bytes", "Bytes read.", &Counters::read_bytes);
  volumes.counter("hits", "Reads that found all blocks in the cache.", &Counters::hits);
  volumes.counter("partial_hits", "Reads that found a part of their blocks in the cache.",
                  &Counters::partial_hits);
  volumes.counter("misses", "Reads that found no block in the cache.", &Counters::misses);
  volumes.counter("late_hits", "Misses and partial hits whose blocks were being read ahead.",
                  &Counters::late_hits);
  volumes.counter("pass_throughs", "Reads that passed the cache by.", &Counters::pass_throughs);
  volumes.counter("read_ahead_bytes", "Bytes read ahead.", &Counters::read_ahead_bytes);
  volumes.counter("read_ahead_used_bytes", "Of them, those that were asked for.",
                  &Counters::read_ahead_used_bytes);
  volumes.counter("read_ahead_wasted_bytes", "Of them, those that went before that.",
                  &Counters::read_ahead_wasted_bytes);
  volumes.counter("read_ahead_errors", "Errors of reading ahead.", &Counters::read_ahead_errors);
  volumes.counter("advice_dropped_bytes", "What was not read ahead, for too much was on its way.",
                  &Counters::advice_dropped_bytes);
  volumes.counter("writes", "Writes.", &Counters::writes);
  volumes.counter("written_bytes", "Bytes written.", &Counters::write_bytes);
  volumes.counter("absorbed_bytes", "Bytes overwritten before they went to the drives.",
                  &Counters::absorbed_bytes);
  volumes.counter("write_throughs", "Writes that were on the drives before they were acknowledged.",
                  &Counters::write_throughs);
  volumes.counter("flushes", "Flushes.", &Counters::flushes);
  volumes.each("sandbay_cache_volume_throttled_seconds_total", "Time that writes waited for room.",
               [](const auto& volume) {
                 return static_cast<double>(volume.counters.throttled_nanoseconds) / 1e9;
               });
  volumes.each("sandbay_cache_volume_streams_found_total", "Streams found among the reads.",
               [](const auto& volume) { return volume.streams.found; });
  volumes.each("sandbay_cache_volume_reads_in_streams_total", "Reads that belonged to a stream.",
               [](const auto& volume) { return volume.streams.in_stream; });
  volumes.latency("miss_latency", "Reads that did not find all blocks in the cache.",
                  &Counters::miss_latency);
  volumes.latency("write_latency", "Writes.", &Counters::write_latency);
}

void add_sets(Text& text, const std::vector<group::CachedSetInfo>& sets) {
  if (sets.empty()) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        auto value) {
    text.family(name, type, help);
    for (const group::CachedSetInfo& set : sets) {
      const std::string& label = set.name.empty() ? set.uuid : set.name;
      text.sample(fmt::format("set=\"{}\"", escape(label)), value(set));
    }
  };
  const auto counter = [&](std::string_view name, std::string_view help,
                           std::uint64_t cache::DeviceCounters::* member) {
    each(fmt::format("sandbay_cache_set_{}_total", name), "counter", help,
         [member](const group::CachedSetInfo& set) { return set.counters.*member; });
  };
  each("sandbay_cache_set_dirty_bytes", "gauge", "What is not on the set's drives yet.",
       [](const auto& set) { return set.dirty_bytes + set.waiting_bytes; });
  each("sandbay_cache_set_stuck_bytes", "gauge", "What cannot be brought to the set's drives now.",
       [](const auto& set) { return set.stuck_bytes; });
  each("sandbay_cache_set_healthy", "gauge",
       "1 if what is acknowledged can be brought to the set's drives, and none was lost.",
       [](const auto& set) {
         return set.failure.empty() && set.bar.empty() && set.lost.empty() ? 1 : 0;
       });
  each("sandbay_cache_set_lost_ranges", "gauge", "Ranges of blocks with writes that were lost.",
       [](const auto& set) { return set.lost.size(); });
  using Counters = cache::DeviceCounters;
  counter("destages", "Writes to the set.", &Counters::destages);
  counter("destage_bytes", "Bytes written to the set.", &Counters::destage_bytes);
  counter("full_stripes", "Stripes written as a whole.", &Counters::full_stripes);
  counter("partial_stripes", "Stripes written in part.", &Counters::partial_stripes);
  counter("destage_errors", "Writes and flushes of the set that failed.",
          &Counters::destage_errors);
  counter("rounds", "Flushes of the set.", &Counters::rounds);
  counter("discarded_bytes", "Bytes given up by operators.", &Counters::discarded_bytes);
  counter("damaged_bytes", "Bytes lost for damage of the NVRAM.", &Counters::damaged_bytes);
}

}  // namespace

void add_cache(Text& text, const group::CacheInfo& cache) {
  if (cache.configured) add_whole(text, cache);
  add_volumes(text, cache.volumes);
  add_sets(text, cache.sets);
}

}  // namespace sandbay::mgmt
