// Runs in virtual time with real sessions, beside the same runs with models of them.
#include "lab/real_sessions.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "lab/experiment.h"
#include "lab/session_links.h"
#include "lab/virtual_run.h"
#include "small_system.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

const Wanted kMebibytesOfAll{.figure = {}, .metric = Metric::kMebibytes};
const Wanted kIopsOfAll{.figure = {}, .metric = Metric::kIops};
const Wanted kMillisecondsOfAll{.figure = {}, .metric = Metric::kMilliseconds};

// RAID 0 whose drives are never the limit of one gigabit port.
VolumeGroup fast_group(AccessLine line) {
  VolumeGroup group;
  group.level = raid::Level::kRaid0;
  group.drives = 8;
  group.host = "host";
  group.outstanding = 4;
  group.access.lines = {line};
  return group;
}

// As small_system(), with the rules of the GigaStor's sessions.
ArrayProfile system_that_asks() {
  ArrayProfile profile = small_system();
  profile.exchange.initial_r2t = true;
  profile.exchange.immediate_data = false;
  return profile;
}

struct Both {
  CaseResult modelled;
  CaseResult real;
};

CaseResult run_one(const ArrayProfile& profile, Case what) {
  auto result = run_case(profile, std::move(what));
  INFO((result ? std::string() : result.error()));
  REQUIRE(result.has_value());
  return std::move(*result);
}

Both run_both(const ArrayProfile& profile, Case what) {
  what.real_sessions = false;
  CaseResult modelled = run_one(profile, what);
  what.real_sessions = true;
  return {.modelled = std::move(modelled), .real = run_one(profile, what)};
}

Both run_both(const ArrayProfile& profile, VolumeGroup group, Duration ramp_up = 1s,
              Duration run_time = 1s) {
  return run_both(profile,
                  {.groups = {std::move(group)}, .ramp_up = ramp_up, .run_time = run_time});
}

double latency_of(const ArrayProfile& profile, AccessLine line) {
  VolumeGroup group = fast_group(line);
  group.outstanding = 1;
  return run_one(profile, {.groups = {group}, .ramp_up = 1s, .run_time = 1s, .real_sessions = true})
      .value(kMillisecondsOfAll);
}

// The first row of the file with this name, with real sessions and without.
Both run_shipped(const std::string& file, const std::string& name, Duration ramp_up,
                 Duration run_time) {
  const auto plan = read_experiments("conf/lab/" + file);
  INFO((plan ? std::string() : plan.error()));
  REQUIRE(plan.has_value());
  const auto row = std::ranges::find(plan->rows, name, &Row::name);
  REQUIRE(row != plan->rows.end());
  return run_both(plan->system,
                  {.groups = row->sweep.empty() ? row->groups : row->groups_with(65536),
                   .ramp_up = ramp_up,
                   .run_time = run_time,
                   .seed = 2});
}

double differ(const Both& both, const Wanted& wanted) {
  return 100 * (both.real.value(wanted) / both.modelled.value(wanted) - 1);
}

}  // namespace

TEST_CASE("Real sessions read as fast as the port lets them, as modelled ones do",
          "[lab][sessions]") {
  const Both both = run_both(small_system(), fast_group({.bytes = 65536}));
  // 125 MB/s x 1460 / 1538 x 8192 / 8240
  CHECK(both.real.value(kMebibytesOfAll) == Approx(118.0e6 / (1 << 20)).epsilon(0.01));
  CHECK(std::abs(differ(both, kMebibytesOfAll)) < 0.2);
  CHECK(std::abs(differ(both, kMillisecondsOfAll)) < 0.2);
  // Each header of a small request is to be counted once.
  VolumeGroup small = fast_group({.bytes = 512});
  small.outstanding = 1;
  CHECK(std::abs(differ(run_both(small_system(), small), kMillisecondsOfAll)) < 0.5);
}

TEST_CASE("The same seed gives the same run of real sessions to the last digit",
          "[lab][sessions]") {
  VolumeGroup group = fast_group({.bytes = 8192, .read_percent = 60, .random_percent = 100});
  group.connections = 2;
  group.adapters = 2;
  const Case what{
      .groups = {group}, .ramp_up = 100ms, .run_time = 1s, .seed = 7, .real_sessions = true};
  const CaseResult one = run_one(system_that_asks(), what);
  const CaseResult same = run_one(system_that_asks(), what);
  CHECK(one.volumes[0].requests > 200);
  CHECK(one.volumes[0].requests == same.volumes[0].requests);
  CHECK(one.volumes[0].latency.mean() == same.volumes[0].latency.mean());
  CHECK(one.layers.link == same.layers.link);
  CHECK(one.layers.storage == same.layers.storage);
}

TEST_CASE("With real sessions drives do as many requests, and time goes where it did",
          "[lab][sessions]") {
  ArrayProfile profile = small_system();
  profile.controller.read_request = 100us;
  const AccessLine line{
      .bytes = 8192, .read_percent = 100, .random_percent = 100, .align_bytes = 8192};
  const Both both = run_both(profile, fast_group(line), 1s, 20s);
  CHECK(std::abs(differ(both, kIopsOfAll)) < 2);
  const auto of = [](Duration part, const CaseResult& result) {
    return static_cast<double>(part.count()) / static_cast<double>(result.volumes[0].requests);
  };
  const CaseResult& modelled = both.modelled;
  const CaseResult& real = both.real;
  CHECK(of(real.layers.host, real) == Approx(of(modelled.layers.host, modelled)).epsilon(0.01));
  CHECK(of(real.layers.link, real) == Approx(of(modelled.layers.link, modelled)).epsilon(0.05));
  CHECK(of(real.layers.controller, real) ==
        Approx(of(modelled.layers.controller, modelled)).epsilon(0.01));
  CHECK(of(real.layers.storage, real) ==
        Approx(of(modelled.layers.storage, modelled)).epsilon(0.03));
}

// At one place.
TEST_CASE("With real sessions requests of several sizes at one place keep their times",
          "[lab][sessions]") {
  VolumeGroup group = fast_group(
      {.bytes = 65536, .share_percent = 50, .random_percent = 100, .align_bytes = 16 << 20});
  group.access.lines.push_back(group.access.lines[0]);
  group.access.lines[1].bytes = 131072;
  group.volume_bytes = 16 << 20;
  group.outstanding = 16;
  group.connections = group.adapters = 4;
  group.in_turn = true;
  ArrayProfile profile = small_system();
  profile.controller.read_request = 200us;
  const Both both = run_both(profile, group);
  const auto in_controller = [](const CaseResult& result) {
    return static_cast<double>(result.layers.controller.count()) /
           static_cast<double>(result.volumes[0].requests);
  };
  CHECK(std::abs(differ(both, kIopsOfAll)) < 3);
  CHECK(in_controller(both.real) == Approx(in_controller(both.modelled)).epsilon(0.02));
}

TEST_CASE("Requests take a session's connections as the group's path says, both ways",
          "[lab][sessions]") {
  VolumeGroup group = fast_group({.bytes = 4096, .share_percent = 90});
  group.access.lines.push_back({.bytes = 1 << 20, .share_percent = 10});
  group.connections = group.adapters = 2;
  const Both least = run_both(small_system(), group);
  group.in_turn = true;
  const Both turn = run_both(small_system(), group);
  // Small ones wait behind large ones.
  CHECK(turn.modelled.value(kIopsOfAll) < 0.95 * least.modelled.value(kIopsOfAll));
  CHECK(turn.real.value(kIopsOfAll) < 0.95 * least.real.value(kIopsOfAll));
  // Where there is one request, all are equal, and it goes on to the next.
  group.in_turn = false;
  group.access.lines.resize(1);
  group.access.lines[0] = {.bytes = 65536};
  group.outstanding = 1;
  CHECK(std::abs(differ(run_both(small_system(), group), kIopsOfAll)) < 1);
}

TEST_CASE("A longer way costs a write that is asked for its data twice what it costs a read",
          "[lab][sessions]") {
  const AccessLine reading{.bytes = 8192};
  const AccessLine writing{.bytes = 8192, .read_percent = 0};
  ArrayProfile near = system_that_asks();
  ArrayProfile far = near;
  far.port.latency += 500us;
  // Command and data; command, R2T, data and answer.
  CHECK(latency_of(far, reading) - latency_of(near, reading) == Approx(1.0).epsilon(0.01));
  CHECK(latency_of(far, writing) - latency_of(near, writing) == Approx(2.0).epsilon(0.01));
  // Data that come with the command.
  near.exchange.immediate_data = far.exchange.immediate_data = true;
  CHECK(latency_of(far, writing) - latency_of(near, writing) == Approx(1.0).epsilon(0.01));
}

TEST_CASE("A write goes in bursts, of which so many are asked for at a time", "[lab][sessions]") {
  const AccessLine writing{.bytes = 1 << 20, .read_percent = 0};
  ArrayProfile profile = system_that_asks();
  profile.port.latency = 1ms;
  profile.exchange.max_burst = 131072;
  VolumeGroup group = fast_group(writing);
  group.outstanding = 1;
  for (const std::uint64_t at_once : {1U, 2U, 4U}) {
    profile.exchange.outstanding_r2ts = at_once;
    const Both both = run_both(profile, group, 200ms, 2s);
    CAPTURE(at_once, both.modelled.value(kMillisecondsOfAll), both.real.value(kMillisecondsOfAll));
    CHECK(std::abs(differ(both, kMillisecondsOfAll)) < 1);
  }
}

TEST_CASE("Connections take as many writes at a time as the system's ports do, and in its time",
          "[lab][sessions]") {
  ArrayProfile profile = system_that_asks();
  profile.port_count = 8;
  profile.pace = {.at_once = 1, .turnaround = 200us, .per_connection = 50us};
  VolumeGroup group = fast_group({.bytes = 65536, .read_percent = 0});
  group.outstanding = 2;
  group.per_connection = true;
  for (const unsigned connections : {1U, 2U, 4U}) {
    group.connections = group.adapters = connections;
    const Both both = run_both(profile, group, 500ms, 500ms);
    CAPTURE(connections, both.modelled.value(kMebibytesOfAll), both.real.value(kMebibytesOfAll));
    // The command of the next write is there already, which in the model sets out only then.
    CHECK(differ(both, kMebibytesOfAll) > 0);
    CHECK(differ(both, kMebibytesOfAll) < 3);
  }
}

TEST_CASE("Requests may be longer than what the target moves at a time", "[lab][sessions]") {
  for (const unsigned read_percent : {0U, 100U}) {
    const CaseResult result =
        run_one(system_that_asks(),
                {.groups = {fast_group({.bytes = 4 << 20, .read_percent = read_percent})},
                 .ramp_up = 200ms,
                 .run_time = 1s,
                 .real_sessions = true});
    CHECK(result.value(kMebibytesOfAll) == Approx(118.0e6 / (1 << 20)).epsilon(0.03));
    const LayerTimes& layers = result.layers;
    const Duration all = layers.host + layers.link + layers.controller + layers.storage;
    const VolumeResult& volume = result.volumes[0];
    CHECK(static_cast<double>(all.count()) ==
          Approx(volume.latency.mean() * static_cast<double>(volume.requests)));
  }
}

TEST_CASE("Every worker has its session and its part, and hosts share what they share",
          "[lab][sessions]") {
  VolumeGroup first = fast_group({.bytes = 65536});
  first.volumes = 2;
  first.drives = 4;
  first.workers = 2;
  first.hosts = 1;
  first.outstanding = 2;
  VolumeGroup second = fast_group({.bytes = 65536});
  second.drives = 4;
  const Both both =
      run_both(small_system(), {.groups = {first, second}, .ramp_up = 1s, .run_time = 2s});
  REQUIRE(both.real.volumes.size() == 5);
  for (const Wanted& wanted :
       {Wanted{.figure = {}, .group = 0}, Wanted{.figure = {}, .group = 1}}) {
    CHECK(std::abs(differ(both, wanted)) < 3);
  }
}

TEST_CASE("A steady run with real sessions ends early, and a stop ends it", "[lab][sessions]") {
  Case what{.groups = {fast_group({.bytes = 65536})},
            .ramp_up = 1s,
            .run_time = 4s,
            .wanted = {kMebibytesOfAll},
            .steady_percent = 1,
            .real_sessions = true};
  CHECK(run_one(small_system(), what).seconds == 2);
  const std::atomic<bool> stop{true};
  const auto stopped = run_case(small_system(), what, &stop);
  REQUIRE_FALSE(stopped.has_value());
  CHECK(stopped.error() == "it was stopped");
}

TEST_CASE("A link between two ports takes the time of both at once", "[lab][sessions]") {
  model::PortProfile profile{.rate = 1'000'000, .pdu_header = 0};
  model::Port slow(profile);
  profile.rate = 2'000'000;
  model::Port another(profile);
  profile.latency = 3ms;
  model::Port fast(profile);
  PortWire one(slow, fast);
  PortWire other(another, fast);
  const TimePoint start{1s};
  // 1460 bytes are a frame of 1538; the faster port receives while the slower one sends.
  CHECK(one.carry(start, 1460) == start + 1538us + 3ms);
  // The same again is behind it, and from another port it finds the gap.
  CHECK(one.carry(start, 1460) == start + 2 * 1538us + 3ms);
  CHECK(other.carry(start, 1460) == start + 769us + 3ms);
  // What has no bytes is a frame, too.
  CHECK(other.carry(start + 10ms, 0) == start + 10ms + 42us + 3ms);
}

TEST_CASE("The GigaStor's connections carry as much with real sessions",
          "[lab][sessions][shipped]") {
  for (const char* connections : {"1", "2", "4"}) {
    CAPTURE(connections);
    const std::string suffix = std::string(", connections ") + connections;
    const Both reads = run_shipped("istor-gigastor.toml", "wide, read" + suffix, 3s, 1s);
    CHECK(std::abs(differ(reads, kMebibytesOfAll)) < 1);
    const Both writes = run_shipped("istor-gigastor.toml", "wide, write" + suffix, 3s, 1s);
    CHECK(std::abs(differ(writes, kMebibytesOfAll)) < 2);
  }
}

TEST_CASE("EqualLogic members do as many requests with real sessions", "[lab][sessions][shipped]") {
  const Both both = run_shipped("equallogic-ps3800xv.toml", "one volume", 1s, 1s);
  CHECK(std::abs(differ(both, kIopsOfAll)) < 1);
  CHECK(std::abs(differ(both, kMillisecondsOfAll)) < 1);
}

}  // namespace sandbay::lab
