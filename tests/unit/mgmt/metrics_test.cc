// The metrics text: well formed as Prometheus reads it, every name described once, all counters
// in it.
#include "mgmt/metrics.h"

#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace sandbay::mgmt {
namespace {

group::Measurements some_measurements() {
  group::Measurements all;
  all.group.name = "lab \"one\"";
  all.group.volumes = 1;
  all.group.portals.push_back({.listen = "127.0.0.1:1", .member = "two", .connections = 6});
  group::VolumeInfo volume;
  volume.name = "a\\b";
  volume.health = "failed";
  volume.specification.size_bytes = 1 << 20;
  volume.counters.of(scsi::CommandKind::kRead).commands = 7;
  volume.counters.of(scsi::CommandKind::kRead).bytes = 28672;
  volume.counters.of(scsi::CommandKind::kRead).latency.add(std::chrono::microseconds(3));
  volume.counters.of(scsi::CommandKind::kRead).latency.add(std::chrono::hours(1));
  volume.counters.held = 2;
  volume.snapshot_bytes = 65536;
  volume.reserve_bytes = 131072;
  volume.reserve_deleted = 4;
  volume.reserve_taken_offline = 5;
  all.volumes.push_back(volume);
  iscsi::SessionInfo session;
  session.tsih = 5;
  session.initiator_name = "iqn.x";
  session.commands = 99;
  session.connections.push_back({.cid = 1, .initiator_address = "127.0.0.1:5", .bytes_in = 11});
  all.sessions.push_back(session);
  all.server.logins_failed = 3;
  all.executors = {{.index = 0, .buffer_limit_bytes = 10}, {.index = 1, .buffer_used_bytes = 4}};
  all.cache.configured = true;
  all.cache.nvram_bytes = 30;
  all.cache.mirror = "good";
  group::CachedVolumeInfo cached{.name = "a\\b"};
  cached.counters.hits = 8;
  cached.counters.miss_latency.add(std::chrono::microseconds(3));
  all.cache.volumes.push_back(cached);
  group::CachedSetInfo set{.name = "r", .dirty_bytes = 5, .waiting_bytes = 6};
  set.counters.full_stripes = 9;
  set.lost.push_back({.block_count = 4});
  all.cache.sets.push_back(set);
  return all;
}

TEST_CASE("Metrics are well-formed and complete", "[metrics]") {
  const TurnedAway turned_away{.unknown = 3, .forbidden = 1};
  const std::string text = metrics_text(some_measurements(), turned_away);
  static const std::regex kSample(
      R"re(([a-z_]+)(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})? [0-9.e+-]+)re");
  std::map<std::string, std::string> types;
  std::set<std::string> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      std::string name;
      std::string type;
      words >> name >> type;
      CHECK(types.emplace(name, type).second);
      CHECK((type == "counter") == name.ends_with("_total"));
      continue;
    }
    std::smatch match;
    REQUIRE(std::regex_match(line, match, kSample));
    std::string family = match[1];
    if (!types.contains(family)) family = family.substr(0, family.rfind('_'));
    CHECK(types.contains(family));
    CHECK(samples.insert(line.substr(0, line.rfind(' '))).second);
  }
  CHECK_THAT(text, Catch::Contains("sandbay_info{group=\"lab \\\"one\\\"\""));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_commands_total{volume=\"a\\\\b\","
                                   "kind=\"read\"} 7\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_bytes_total{volume=\"a\\\\b\","
                                   "kind=\"read\"} 28672\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_healthy{volume=\"a\\\\b\"} 0\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_commands_held{volume=\"a\\\\b\"} 2\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_snapshot_bytes{volume=\"a\\\\b\"} 65536\n"));
  CHECK_THAT(text,
             Catch::Contains("sandbay_volume_snapshot_reserve_bytes{volume=\"a\\\\b\"} 131072\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_reserve_deleted_total{volume=\"a\\\\b\"} 4\n"));
  CHECK_THAT(text,
             Catch::Contains("sandbay_volume_reserve_taken_offline_total{volume=\"a\\\\b\"} 5\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_volume_latency_seconds_bucket{volume=\"a\\\\b\","
                                   "kind=\"read\",le=\"4e-06\"} 1\n"));
  CHECK_THAT(text, Catch::Contains("kind=\"read\",le=\"+Inf\"} 2\n"));
  CHECK_THAT(text, Catch::Contains("kind=\"read\"} 2\n"));  // _count
  CHECK_THAT(text, Catch::Contains("sandbay_session_commands_total{tsih=\"5\",initiator=\"iqn.x\","
                                   "target=\"\"} 99\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_connection_in_bytes_total{tsih=\"5\",cid=\"1\","
                                   "peer=\"127.0.0.1:5\"} 11\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_iscsi_logins_failed_total 3\n"));
  CHECK_THAT(text, Catch::Contains(
                       "sandbay_portal_connections{portal=\"127.0.0.1:1\",member=\"two\"} 6\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_cache_mirror_good 1\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_cache_volume_hits_total{volume=\"a\\\\b\"} 8\n"));
  CHECK_THAT(text,
             Catch::Contains("sandbay_cache_volume_miss_latency_seconds_bucket{volume=\"a\\\\b\","
                             "le=\"4e-06\"} 1\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_cache_set_dirty_bytes{set=\"r\"} 11\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_cache_set_full_stripes_total{set=\"r\"} 9\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_cache_set_healthy{set=\"r\"} 0\n"));
  CHECK_THAT(text, Catch::Contains("sandbay_buffer_used_bytes{reactor=\"1\"} 4\n"));
}

}  // namespace
}  // namespace sandbay::mgmt
