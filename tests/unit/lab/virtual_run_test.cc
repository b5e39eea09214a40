// Runs in virtual time: repeatable, and bounded by what bounds the system.
#include "lab/virtual_run.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <variant>

#include "lab/plan_run.h"
#include "lab/report.h"
#include "small_system.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

constexpr double kMiB = 1 << 20;

VolumeGroup group(raid::Level level, unsigned drives, bool read) {
  VolumeGroup group;
  group.level = level;
  group.drives = drives;
  group.host = "host";
  group.outstanding = 4;
  group.access.lines = {{.bytes = 65536, .read_percent = read ? 100U : 0U}};
  return group;
}

CaseResult run(const ArrayProfile& profile, VolumeGroup what, std::uint64_t seed = 1) {
  auto result =
      run_case(profile, {.groups = {std::move(what)}, .ramp_up = 4s, .run_time = 5s, .seed = seed});
  INFO((result ? std::string() : result.error()));
  REQUIRE(result.has_value());
  return std::move(*result);
}

double mebibytes(const CaseResult& result) {
  return result.value({.figure = {}, .metric = Metric::kMebibytes});
}

}  // namespace

TEST_CASE("Requests take the connection with the least in flight, or all in turn", "[lab]") {
  model::Port adapter(model::PortProfile{});
  model::Port port(model::PortProfile{});
  VirtualVolume volume;
  for (const unsigned in_flight : {3U, 1U, 2U}) {
    volume.connections.push_back({.adapter = &adapter,
                                  .port = &port,
                                  .exchange = model::Exchange(adapter, port, {}),
                                  .receiving = {},
                                  .in_flight = in_flight});
  }
  const auto chosen = [&volume] {
    return std::distance(volume.connections.data(), &volume.choose_connection());
  };
  CHECK(chosen() == 1);
  CHECK(chosen() == 1);
  volume.in_turn = true;
  const auto first = chosen();
  CHECK(chosen() == (first + 1) % 3);
  CHECK(chosen() == (first + 2) % 3);
  CHECK(chosen() == first);
}

TEST_CASE("The same seed gives the same run to the last digit", "[lab][run]") {
  VolumeGroup what = group(raid::Level::kRaid10, 4, true);
  what.access.lines = {
      {.bytes = 8192, .read_percent = 60, .random_percent = 100, .align_bytes = 8192}};
  const CaseResult one = run(small_system(), what, 7);
  const CaseResult same = run(small_system(), what, 7);
  const CaseResult other = run(small_system(), what, 8);
  CHECK(one.volumes[0].requests > 1000);
  CHECK(one.volumes[0].requests == same.volumes[0].requests);
  CHECK(one.volumes[0].latency.mean() == same.volumes[0].latency.mean());
  CHECK(one.layers.storage == same.layers.storage);
  CHECK(one.drives.seeking == same.drives.seeking);
  CHECK(one.volumes[0].latency.mean() != other.volumes[0].latency.mean());
}

TEST_CASE("One drive reads at its own rate, several at the port's", "[lab][run]") {
  const double drive = mebibytes(run(small_system(), group(raid::Level::kJbod, 1, true)));
  CHECK(drive == Approx(100e6 / kMiB).epsilon(0.03));
  // 125 MB/s x 1460 / 1538 x 8192 / 8240
  const double port = mebibytes(run(small_system(), group(raid::Level::kRaid0, 4, true)));
  CHECK(port == Approx(118.0e6 / kMiB).epsilon(0.01));
}

TEST_CASE("A drive without a write cache loses a revolution with each strip", "[lab][run]") {
  const double drive = mebibytes(run(small_system(), group(raid::Level::kJbod, 1, false)));
  const double milliseconds = kMiB / 100e3 + 10;
  CHECK(drive == Approx(1000 / milliseconds).epsilon(0.03));
}

TEST_CASE("RAID 5 writes whole stripes, as fast as its data drives", "[lab][run]") {
  ArrayProfile profile = small_system();
  profile.port.rate = 1'250'000'000;
  const double four = mebibytes(run(profile, group(raid::Level::kRaid5, 4, false)));
  const double three = mebibytes(run(profile, group(raid::Level::kRaid0, 3, false)));
  CHECK(four == Approx(three).epsilon(0.05));
}

TEST_CASE("Hosts and their caps bound what they drive", "[lab][run]") {
  ArrayProfile profile = small_system();
  profile.hosts[0].profile.read_rate = 50 << 20;
  CHECK(mebibytes(run(profile, group(raid::Level::kRaid0, 4, true))) == Approx(50).epsilon(0.01));
}

TEST_CASE("A host's latency is there twice in each request", "[lab][run]") {
  ArrayProfile profile = small_system();
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.outstanding = 1;
  const Wanted latency{.figure = {}, .metric = Metric::kMilliseconds};
  const double without = run(profile, what).value(latency);
  profile.hosts[0].profile.latency = 3ms;
  CHECK(run(profile, what).value(latency) == Approx(without + 6).epsilon(0.02));
}

TEST_CASE("Writes that wait for one another on a connection are bounded by their round trips",
          "[lab][run]") {
  ArrayProfile profile = small_system();
  profile.pace = {.at_once = 1, .turnaround = 500us};
  VolumeGroup what = group(raid::Level::kRaid0, 8, false);
  const double one = mebibytes(run(profile, what));
  // 64 KiB take 556 us on the wire.
  CHECK(one == Approx(65536 / 1.07e-3 / kMiB).epsilon(0.02));
  what.connections = 2;
  what.adapters = 2;
  CHECK(mebibytes(run(profile, what)) == Approx(2 * one).epsilon(0.02));
}

TEST_CASE("A volume's pages go round the members, and requests are cut at pages", "[lab][run]") {
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.access.lines = {{.bytes = 8192, .random_percent = 100, .align_bytes = 8192}};
  what.outstanding = 64;
  what.members = 1;
  const Wanted iops{.figure = {}, .metric = Metric::kIops};
  const double one = run(small_system(), what).value(iops);
  what.members = 4;
  what.outstanding = 256;
  CHECK(run(small_system(), what).value(iops) == Approx(4 * one).epsilon(0.1));
  ArrayProfile profile = small_system();
  profile.page_bytes = 12288;
  what.access.lines = {{.bytes = 65536}};
  what.outstanding = 4;
  CHECK(mebibytes(run(profile, what)) > 10);
}

TEST_CASE("What members read ahead counts together, as their caches do", "[lab][run]") {
  ArrayProfile profile = small_system();
  profile.port.rate = 1'250'000'000;
  profile.read_ahead_bytes = 4 << 20;
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.volumes = 4;
  what.members = 1;
  const double one = mebibytes(run(profile, what));
  what.volumes = 16;
  what.members = 4;
  // Not fourfold: streams go from member to member.
  CHECK(mebibytes(run(profile, what)) > 3 * one);
}

TEST_CASE("Controllers have caches, processors and ports of their own", "[lab][run]") {
  ArrayProfile profile = small_system();
  profile.controller_count = 2;
  profile.controller.read_rate = 50 << 20;
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.controllers = 1;
  CHECK(mebibytes(run(profile, what)) == Approx(50).epsilon(0.01));
  what.controllers = 2;
  const CaseResult both = run(profile, what);
  CHECK(mebibytes(both) == Approx(100).epsilon(0.01));
  CHECK(both.volumes.size() == 2);
  CHECK(both.value({.figure = {}, .least = true}) == Approx(50).epsilon(0.01));
  // Sets go round all of them.
  what.controllers = 0;
  what.sets = 2;
  CHECK(mebibytes(run(profile, what)) == Approx(100).epsilon(0.01));
}

TEST_CASE("Workers share a volume, whose pages go round the sets of its pool", "[lab][run]") {
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.access.lines = {{.bytes = 8192, .random_percent = 100, .align_bytes = 8192}};
  what.outstanding = 64;
  const Wanted iops{.figure = {}, .metric = Metric::kIops};
  const double one = run(small_system(), what).value(iops);
  what.sets = 4;
  what.spread = 4;
  what.workers = 4;
  const CaseResult result = run(small_system(), what);
  CHECK(result.volumes.size() == 4);
  CHECK(result.volumes[3].number == 0);
  CHECK(result.value(iops) == Approx(4 * one).epsilon(0.1));
  CHECK(result.value({.figure = {}, .metric = Metric::kIops, .least = true}) ==
        Approx(result.value(iops)));
  CHECK(result.value({.figure = {}, .metric = Metric::kIops, .divide_by = 2}) ==
        Approx(result.value(iops) / 2));
}

TEST_CASE("Writes stay in memory up to the flush mark", "[lab][run]") {
  ArrayProfile profile = small_system();
  const auto transferring = [&] {
    // 118 MB/s: 12 MB.
    const auto result =
        run_case(profile, {.groups = {group(raid::Level::kRaid0, 4, false)}, .run_time = 100ms});
    REQUIRE(result.has_value());
    CHECK(mebibytes(*result) == Approx(118.0e6 / kMiB).epsilon(0.1));
    return result->drives.transferring;
  };
  profile.flush_mark_percent = 25;  // Of 64 MiB.
  CHECK(transferring() == 0);
  profile.flush_mark_percent = 5;
  CHECK(transferring() > 0);
}

TEST_CASE("Sets of a pool take a volume's pages in turn, near one another or all over the drives",
          "[lab][run]") {
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.access.lines = {{.bytes = 8192, .random_percent = 100, .align_bytes = 8192}};
  what.outstanding = 4;
  what.sets = 4;
  what.spread = 4;
  what.volume_bytes = std::uint64_t{1} << 30;
  ArrayProfile profile = small_system();
  const CaseResult near = run(profile, what);
  CHECK(near.volumes.size() == 1);
  profile.scattered_pages = true;
  profile.page_bytes = 1 << 20;
  const CaseResult scattered = run(profile, what);
  CHECK(scattered.drives.seeking > 2 * near.drives.seeking);
  const Wanted iops{.figure = {}, .metric = Metric::kIops};
  CHECK(scattered.value(iops) < near.value(iops));
}

TEST_CASE("Of idle mirrors the nearest is read, or always the same", "[lab][run]") {
  VolumeGroup what = group(raid::Level::kRaid1, 2, true);
  what.access.lines = {{.bytes = 8192, .random_percent = 100, .align_bytes = 8192}};
  what.outstanding = 1;
  ArrayProfile profile = small_system();
  const CaseResult nearest = run(profile, what);
  profile.nearest_mirror = false;
  const CaseResult fixed = run(profile, what);
  const Wanted latency{.figure = {}, .metric = Metric::kMilliseconds};
  CHECK(fixed.value(latency) > nearest.value(latency) + 0.5);
  CHECK(fixed.value(latency) < nearest.value(latency) + 3);
}

TEST_CASE("A volume may lie anywhere on its set", "[lab][run]") {
  ArrayProfile profile = small_system();
  auto& disk = std::get<model::DiskProfile>(profile.drive.timing);
  disk.zones = 16;
  disk.inner_rate = 50'000'000;
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.volume_bytes = std::uint64_t{1} << 30;
  const double outer = mebibytes(run(profile, what));
  what.offset_bytes = std::uint64_t{45} << 30;
  CHECK(mebibytes(run(profile, what)) == Approx(outer / 2).epsilon(0.1));
}

TEST_CASE("A system may have a part of its drives alone, and no cache", "[lab][run]") {
  ArrayProfile profile = small_system();
  auto& disk = std::get<model::DiskProfile>(profile.drive.timing);
  disk.zones = 16;
  disk.inner_rate = 50'000'000;
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  profile.cache_bytes = 0;
  const double outer = mebibytes(run(profile, what));
  profile.first_byte = std::uint64_t{45} << 30;
  CHECK(mebibytes(run(profile, what)) == Approx(outer / 2).epsilon(0.1));
  // One write after another: each waits for the drive to come round.
  what = group(raid::Level::kJbod, 1, false);
  what.outstanding = 1;
  const Wanted latency{.figure = {}, .metric = Metric::kMilliseconds};
  CHECK(run(profile, what).value(latency) == Approx(10).epsilon(0.2));
}

TEST_CASE("What others do with the drives takes its share", "[lab][run]") {
  VolumeGroup what = group(raid::Level::kJbod, 1, true);
  what.access.lines = {{.bytes = 8192, .random_percent = 100, .align_bytes = 8192}};
  const Wanted iops{.figure = {}, .metric = Metric::kIops};
  const double alone = run(small_system(), what).value(iops);
  what.background = 20;
  const double shared = run(small_system(), what).value(iops);
  // Served as often as the worker's own, but for what the shortest way makes of it.
  CHECK(shared < alone - 10);
  CHECK(shared > alone - 30);
}

TEST_CASE("Written through, a write takes as long as the drives do", "[lab][run]") {
  ArrayProfile profile = small_system();
  VolumeGroup what = group(raid::Level::kRaid1, 2, false);
  what.access.lines = {
      {.bytes = 8192, .read_percent = 0, .random_percent = 100, .align_bytes = 8192}};
  what.outstanding = 1;
  const Wanted latency{.figure = {}, .metric = Metric::kMilliseconds};
  what.volume_bytes = 16 << 20;  // Which the cache holds without destaging.
  CHECK(run(profile, what).value(latency) < 1);
  what.volume_bytes = 0;
  profile.write_back = false;
  // A seek of 7 ms and half a turn, on the slower of two drives.
  const double through = run(profile, what).value(latency);
  CHECK(through > 12);
  CHECK(through < 18);
}

TEST_CASE("A steady run varies little and has no trend", "[lab][run]") {
  auto result = run_case(
      small_system(),
      {.groups = {group(raid::Level::kJbod, 1, true)}, .ramp_up = 1s, .run_time = 40s, .seed = 1});
  REQUIRE(result.has_value());
  CHECK(result->value({.figure = {}, .metric = Metric::kVariation}) < 1);
  CHECK(std::abs(result->value({.figure = {}, .metric = Metric::kTrend})) < 1);
  // A quarter less in each half of the time than in the one before.
  std::vector<std::uint64_t>& by_second = result->volumes[0].requests_by_second;
  for (std::size_t i = 0; i < by_second.size(); ++i) by_second[i] = i < 20 ? 400 : 300;
  CHECK(result->value({.figure = {}, .metric = Metric::kVariation}) ==
        Approx(16.496).epsilon(1e-3));
  CHECK(result->samples(10) == std::vector<double>{4000, 4000, 3000, 3000});
  CHECK(result->samples(1).size() == 40);  // The last second is not whole.
  CHECK(result->value({.figure = {}, .metric = Metric::kTrend}) == Approx(-34.286).epsilon(1e-3));
}

TEST_CASE("A set that does not fit is refused, and a stop ends a run", "[lab][run]") {
  const auto wrong =
      run_case(small_system(), {.groups = {group(raid::Level::kRaid6, 2, true)}, .run_time = 1s});
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().find("raid6") != std::string::npos);
  // What is there already is taken apart in order.
  const auto second = run_case(small_system(), {.groups = {group(raid::Level::kRaid10, 4, true),
                                                           group(raid::Level::kRaid6, 2, true)},
                                                .run_time = 1s});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().find("raid6") != std::string::npos);
  const std::atomic<bool> stop{true};
  const auto stopped = run_case(
      small_system(), {.groups = {group(raid::Level::kJbod, 1, true)}, .run_time = 1s}, &stop);
  CHECK_FALSE(stopped.has_value());
}

TEST_CASE("A plan's figures are the peaks of its sweeps, on any number of threads", "[lab][run]") {
  Plan plan;
  plan.name = "test";
  plan.system = small_system();
  plan.figures = {
      .document = "a paper",
      .figures = {{.id = "peak", .unit = "MB/s", .value = 95, .role = Role::kFit, .tolerance = 3}}};
  plan.rows = {{.experiment = "sweep",
                .wanted = {{.figure = "peak"}},
                .sweep = {4096, 65536},
                .groups = {group(raid::Level::kJbod, 1, true)},
                .ramp_up = 1s,
                .run_time = 2s}};
  plan.rows[0].groups[0].outstanding = 1;
  std::size_t told = 0;
  const PlanResult one = run_plan(plan, 1, {.progress = [&](std::size_t, std::size_t) { ++told; }});
  const PlanResult two = run_plan(plan, 2, {});
  CHECK(told == 2);
  REQUIRE(one.complete);
  CHECK(one.rows[0].best == 1);
  CHECK(one.measured.at("peak") == two.measured.at("peak"));
  const Report report = make_report(plan, one);
  CHECK(to_json(report).find("\"difference_pct\"") != std::string::npos);
  CHECK(to_csv(report).find("peak,fit,MB/s,95,") != std::string::npos);
  CHECK(to_html(report).find("<svg") != std::string::npos);
  CHECK(to_text(report).find("seed 1") != std::string::npos);
}

TEST_CASE("A run that is steady ends after half of its time, one that is not at its end",
          "[lab][run]") {
  Case what{.groups = {group(raid::Level::kJbod, 1, true)},
            .ramp_up = 4s,
            .run_time = 10s,
            .wanted = {{.figure = {}, .metric = Metric::kMebibytes}}};
  const auto whole = run_case(small_system(), what);
  what.steady_percent = 1;
  const auto steady = run_case(small_system(), what);
  what.steady_percent = 1e-9;
  const auto never = run_case(small_system(), what);
  REQUIRE((whole && steady && never));
  CHECK(whole->seconds == 10);
  CHECK(steady->seconds == 5);
  CHECK(never->seconds == 10);
  CHECK(mebibytes(*never) == mebibytes(*whole));
  CHECK(mebibytes(*steady) == Approx(mebibytes(*whole)).epsilon(0.01));
  CHECK(steady->virtual_seconds < whole->virtual_seconds - 4);
}

}  // namespace sandbay::lab
