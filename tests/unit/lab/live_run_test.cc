// Live runs: real sessions between our initiator and our target, on simulated links and in virtual
// time, so that what they measure can be compared with a run without sessions.
#include "lab/live_run.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/memory_device.h"
#include "iscsi/target_server.h"
#include "lab/live_system.h"
#include "lab/plan_run.h"
#include "lab/report.h"
#include "lab/scsi_transfer.h"
#include "runtime/buffer.h"
#include "runtime/simulation.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"
#include "small_system.h"

namespace sandbay::lab {
namespace {

using namespace std::chrono_literals;

constexpr const char* kForeignTarget = "iqn.2026-11.org.example:foreign";
constexpr const char* kForeignUrl =
    "iscsi://somebody%a-secret-of-ours@127.0.0.1:3260/iqn.2026-11.org.example:foreign/0";

ArrayProfile live_profile() {
  ArrayProfile profile = small_system();
  profile.controller.read_request = 20us;
  return profile;
}

VolumeGroup live_group(raid::Level level, unsigned drives, AccessLine line) {
  VolumeGroup group;
  group.level = level;
  group.drives = drives;
  group.host = "host";
  group.outstanding = 4;
  group.access.lines = {line};
  return group;
}

AccessLine random_reads() { return {.bytes = 8192, .random_percent = 100, .align_bytes = 8192}; }

struct LiveTest {
  ArrayProfile profile = live_profile();
  Case what;
  LiveOptions options;
  std::atomic<bool> stop{false};
  std::expected<CaseResult, LiveFailure> result = std::unexpected(LiveFailure{"not run"});
  Duration took{};  // Of the world's time.
};

std::unique_ptr<sim::World> live_world() {
  return sim::World::create({.seed = 3,
                             .executors = 2,
                             .memory_limit_bytes = std::size_t{512} << 20,
                             .link = {.fragment = false}});
}

Task<void> live_main(LiveTest* test, std::span<Executor* const> executors) {
  test->result =
      co_await run_live(&test->profile, test->what, &test->options, executors, &test->stop);
}

void run_in_world(LiveTest& test) {
  const auto world = live_world();
  const TimePoint start = world->now();
  const bool ended = world->run([&] { return live_main(&test, world->executors()); }, 24h);
  REQUIRE(ended);
  test.took = world->now() - start;
}

CaseResult live(const ArrayProfile& profile, Case what, double time_scale = 1) {
  LiveTest test{.profile = profile, .what = std::move(what), .options = {.time_scale = time_scale}};
  run_in_world(test);
  INFO((test.result ? std::string() : test.result.error().what));
  REQUIRE(test.result.has_value());
  CHECK(test.took >= std::chrono::duration_cast<Duration>((test.what.ramp_up + test.what.run_time) *
                                                          time_scale));
  return std::move(*test.result);
}

CaseResult in_virtual_time(const ArrayProfile& profile, const Case& what) {
  auto result = run_case(profile, what);
  REQUIRE(result.has_value());
  return std::move(*result);
}

double iops_of(const CaseResult& result) {
  return result.value({.figure = {}, .metric = Metric::kIops});
}

double milliseconds_of(const CaseResult& result) {
  return result.value({.figure = {}, .metric = Metric::kMilliseconds});
}

// A logical unit of somebody else's, on executor 0.
class ForeignTarget {
 public:
  Task<void> start(std::uint64_t byte_count, std::uint32_t block_bytes) {
    auto memory = MemoryDevice::create(Executor::current(),
                                       {.byte_count = byte_count, .block_bytes = block_bytes});
    memory_ = std::move(*memory);
    unit_ = std::make_unique<scsi::LogicalUnit>(*memory_, scsi::LogicalUnitOptions{});
    router_ = std::make_unique<scsi::TaskRouter>(Executor::current().peers());
    Error error = co_await router_->add(0, unit_.get());
    server_ = iscsi::TargetServer::create({});
    std::string message;
    if (error == Error::kNone) {
      error = co_await server_->add_target(
          {.name = kForeignTarget,
           .device = router_.get(),
           .access = {{.chap = iscsi::ChapCredential{"somebody", "a-secret-of-ours"}}},
           .keys = {{"MaxConnections", "2"}}},
          &message);
    }
    const auto portal = server_->add_portal({.listen = Endpoint::ipv4(0x7F000001, 3260)});
    CHECK(error == Error::kNone);
    CHECK(portal.has_value());
  }
  // Whether the MiB there is as it was.
  Task<bool> untouched(std::uint64_t first_byte) {
    BufferList data = co_await Executor::current().buffers().allocate(1 << 20);
    const std::uint32_t block_bytes = memory_->geometry().block_bytes;
    const Extent extent{.first = first_byte / block_bytes, .block_count = (1 << 20) / block_bytes};
    Completion completion = co_await memory_->submit(
        {.operation = Operation::kRead, .extent = extent, .data = std::move(data)});
    std::vector<std::byte> bytes(1 << 20);
    completion.data.copy_to(bytes);
    co_return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }
  Task<void> stop() {
    co_await server_->shutdown();
    co_await router_->remove(0);
    co_await router_->close();
    const bool closed = co_await unit_->close(kNever);
    CHECK(closed);
  }

 private:
  std::unique_ptr<MemoryDevice> memory_;
  std::unique_ptr<scsi::LogicalUnit> unit_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::unique_ptr<iscsi::TargetServer> server_;
};

struct ForeignTest : LiveTest {
  std::uint64_t byte_count = std::uint64_t{64} << 20;
  std::uint32_t block_bytes = 512;
  std::vector<std::uint64_t> looked_at = {0};  // MiBs from there on.
  std::vector<bool> untouched;
  // While it is measured: its connections break; or nothing comes from it any more, and perhaps
  // the run is stopped then.
  bool goes = false;
  bool falls_silent = false;
  bool is_stopped = false;
};

Task<void> disturb(ForeignTest* test, sim::World* world) {
  co_await Executor::current().sleep_for(500ms);
  if (test->goes) world->reset_streams(3260);
  if (test->falls_silent) world->set_partitioned(true);
  if (test->is_stopped) test->stop = true;
}

Task<void> foreign_main(ForeignTest* test, sim::World* world) {
  const std::span<Executor* const> executors = world->executors();
  ForeignTarget target;
  co_await target.start(test->byte_count, test->block_bytes);
  const TimePoint start = world->now();
  if (test->goes || test->falls_silent) spawn(disturb(test, world));
  co_await live_main(test, executors);
  test->took = world->now() - start;
  world->set_partitioned(false);
  for (const std::uint64_t first_byte : test->looked_at) {
    const bool untouched = co_await target.untouched(first_byte);
    test->untouched.push_back(untouched);
  }
  co_await target.stop();
}

// The error; empty if there is none.
std::string run_foreign(ForeignTest& test, VolumeGroup group) {
  if (test.options.urls.empty()) test.options.urls = {kForeignUrl};
  test.what = {.groups = {std::move(group)}, .ramp_up = 100ms, .run_time = 1s};
  const auto world = live_world();
  const bool ended = world->run([&] { return foreign_main(&test, world.get()); }, 1h);
  REQUIRE(ended);
  return test.result ? std::string() : test.result.error().what;
}

}  // namespace

TEST_CASE("Live, a drive does as many random reads as in virtual time", "[lab][live]") {
  const Case what{.groups = {live_group(raid::Level::kJbod, 1, random_reads())},
                  .ramp_up = 1s,
                  .run_time = 30s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  const CaseResult found = live(live_profile(), what);
  CHECK(iops_of(found) == Approx(iops_of(expected)).epsilon(0.02));
  CHECK(milliseconds_of(found) == Approx(milliseconds_of(expected)).epsilon(0.02));
  CHECK(found.seconds == expected.seconds);
  CHECK(found.drives.seeking == Approx(expected.drives.seeking).epsilon(0.03));
  CHECK(found.layers.storage.count() ==
        Approx(static_cast<double>(expected.layers.storage.count())).epsilon(0.03));
}

TEST_CASE("Live, what sockets take between two requests is no part of the system", "[lab][live]") {
  // A request takes half a millisecond, and the simulated link nearly as long.
  VolumeGroup group = live_group(raid::Level::kRaid0, 4, {.bytes = 65536});
  group.outstanding = 1;
  const Case what{.groups = {group}, .ramp_up = 2s, .run_time = 4s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  const CaseResult found = live(live_profile(), what);
  CHECK(iops_of(found) == Approx(iops_of(expected)).epsilon(0.03));
  CHECK(milliseconds_of(found) == Approx(milliseconds_of(expected)).epsilon(0.03));
}

TEST_CASE("Live, results of stretched time are those of time as it is", "[lab][live]") {
  const Case what{.groups = {live_group(raid::Level::kRaid10, 4, random_reads())},
                  .ramp_up = 1s,
                  .run_time = 20s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  const CaseResult found = live(live_profile(), what, 5);
  CHECK(iops_of(found) == Approx(iops_of(expected)).epsilon(0.02));
  CHECK(milliseconds_of(found) == Approx(milliseconds_of(expected)).epsilon(0.02));
  std::uint64_t counted = 0;
  for (const std::uint64_t second : found.volumes[0].requests_by_second) counted += second;
  CHECK(counted == found.volumes[0].requests);
  CHECK(found.volumes[0].requests_by_second[19] > 0);
}

TEST_CASE("Live, writes go at the pace of the drives", "[lab][live]") {
  VolumeGroup group = live_group(raid::Level::kRaid5, 4, {.bytes = 65536, .read_percent = 0});
  const Case what{.groups = {group}, .ramp_up = 4s, .run_time = 6s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  CHECK(iops_of(live(live_profile(), what)) == Approx(iops_of(expected)).epsilon(0.03));
}

TEST_CASE("Live, a worker that waits before its requests does so", "[lab][live]") {
  // Less than what is overlooked where none waits; the request takes a millisecond on the wire.
  const AccessLine line{.bytes = 131072, .delay = 600us};
  VolumeGroup group = live_group(raid::Level::kRaid0, 4, line);
  group.outstanding = 1;
  const Case what{.groups = {group}, .ramp_up = 1s, .run_time = 30s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  const CaseResult found = live(live_profile(), what);
  // What the sockets take counts here, but nothing else does.
  const double sockets = milliseconds_of(found) - milliseconds_of(expected);
  CHECK(sockets > 0);
  CHECK(sockets < 0.5);
  CHECK(1000 / iops_of(found) == Approx(1000 / iops_of(expected) + sockets).epsilon(0.01));
}

TEST_CASE("Live, every worker has a session, and its own part of its volume", "[lab][live]") {
  VolumeGroup first = live_group(raid::Level::kRaid0, 2, random_reads());
  first.workers = 2;
  first.volumes = 2;
  first.connections = 2;
  first.adapters = 2;
  VolumeGroup second = live_group(raid::Level::kJbod, 1, random_reads());
  const Case what{.groups = {first, second}, .ramp_up = 1s, .run_time = 20s};
  const CaseResult expected = in_virtual_time(live_profile(), what);
  const CaseResult found = live(live_profile(), what);
  REQUIRE(found.volumes.size() == 5);
  for (std::size_t i = 0; i < found.volumes.size(); ++i) {
    CHECK(found.volumes[i].group == expected.volumes[i].group);
    CHECK(found.volumes[i].number == expected.volumes[i].number);
    CHECK(static_cast<double>(found.volumes[i].requests) ==
          Approx(static_cast<double>(expected.volumes[i].requests)).epsilon(0.1));
  }
}

namespace {

struct ReadBack {
  ArrayProfile profile = live_profile();
  bool good = true;
  std::vector<std::byte> bytes;
};

Task<void> write_and_read(ReadBack* test) {
  LiveSystem system(test->profile, 1, 1, 1);
  const std::string wrong =
      co_await system.start({live_group(raid::Level::kJbod, 1, random_reads())});
  CHECK(wrong.empty());
  auto session = co_await iscsi::InitiatorSession::login(
      {.endpoint = system.endpoint(), .target_name = kLabTarget});
  for (const bool write : {true, false}) {
    iscsi::ScsiRequest request;
    request.cdb[0] = write ? std::byte{0x8A} : std::byte{0x88};
    request.cdb[13] = std::byte{8};
    BufferList data = co_await Executor::current().buffers().allocate(4096);
    const std::vector<std::byte> pattern(4096, std::byte{0x5A});
    data.copy_from(pattern);
    (write ? request.data_out : request.data_in) = std::move(data);
    iscsi::InitiatorSession::Reply reply = co_await (*session)->execute(std::move(request));
    while (!reply.result.good() && reply.result.sense_key() == scsi::SenseKey::kUnitAttention) {
      iscsi::ScsiRequest again;
      again.cdb[0] = write ? std::byte{0x8A} : std::byte{0x88};
      again.cdb[13] = std::byte{8};
      again.data_out = std::move(reply.data_out);
      again.data_in = std::move(reply.data_in);
      reply = co_await (*session)->execute(std::move(again));
    }
    test->good = test->good && reply.result.good();
    test->bytes.resize(4096);
    if (!write) reply.data_in.copy_to(test->bytes);
  }
  co_await (*session)->close();
  session->reset();
  co_await system.stop();
}

}  // namespace

TEST_CASE("A live system answers writes and forgets them: it reads as zeros", "[lab][live]") {
  ReadBack test;
  const auto world = live_world();
  const bool ended = world->run([&] { return write_and_read(&test); });
  REQUIRE(ended);
  CHECK(test.good);
  CHECK(test.bytes == std::vector<std::byte>(4096));
}

namespace {

Task<void> negotiate(const ArrayProfile* profile, std::map<std::string, std::string> offered,
                     std::map<std::string, std::string>* found) {
  LiveSystem system(*profile, 1, 1, 1);
  const std::string wrong =
      co_await system.start({live_group(raid::Level::kJbod, 1, random_reads())});
  CHECK(wrong.empty());
  auto session = co_await iscsi::InitiatorSession::login(
      {.endpoint = system.endpoint(), .target_name = kLabTarget, .keys = std::move(offered)});
  *found = (*session)->parameters();
  co_await (*session)->close();
  session->reset();
  co_await system.stop();
}

}  // namespace

TEST_CASE("Sessions of a live system are its own, whoever logs in", "[lab][live]") {
  ArrayProfile profile = live_profile();
  profile.exchange = {.immediate_data = false,
                      .first_burst = 4096,
                      .max_burst = 131072,
                      .target_segment = 8192,
                      .initiator_segment = 16384};
  std::map<std::string, std::string> found;
  auto world = live_world();
  REQUIRE(world->run([&] { return negotiate(&profile, {}, &found); }));
  for (const auto& [key, value] : std::map<std::string, std::string>{{"InitialR2T", "Yes"},
                                                                     {"ImmediateData", "No"},
                                                                     {"MaxBurstLength", "131072"},
                                                                     {"MaxOutstandingR2T", "1"}}) {
    CAPTURE(key);
    CHECK(found[key] == value);
  }
  // Nothing of ours is less than what a system has.
  profile.exchange = {.initial_r2t = false,
                      .first_burst = 2 << 20,
                      .max_burst = 8 << 20,
                      .outstanding_r2ts = 20,
                      .target_segment = 4 << 20,
                      .initiator_segment = 2 << 20};
  world = live_world();
  const auto offered = session_keys(profile.exchange, profile.exchange.initiator_segment);
  REQUIRE(world->run([&] { return negotiate(&profile, offered, &found); }));
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"InitialR2T", "No"},
                                          {"ImmediateData", "Yes"},
                                          {"FirstBurstLength", "2097152"},
                                          {"MaxBurstLength", "8388608"},
                                          {"MaxOutstandingR2T", "20"}}) {
    CAPTURE(key);
    CHECK(found[key] == value);
  }
}

TEST_CASE("A run that is stopped says so", "[lab][live]") {
  LiveTest test;
  test.what = {.groups = {live_group(raid::Level::kJbod, 1, random_reads())}, .run_time = 1h};
  test.stop = true;
  run_in_world(test);
  REQUIRE_FALSE(test.result.has_value());
  CHECK(test.result.error().what == "it was stopped");
  CHECK(test.took < 1min);
}

TEST_CASE("A live run has reactors and sockets of its own", "[lab][live]") {
  VolumeGroup group = live_group(raid::Level::kRaid0, 2, random_reads());
  group.workers = 2;
  const auto result =
      run_live_case(live_profile(), {.groups = {group}, .ramp_up = 100ms, .run_time = 300ms}, {});
  INFO((result ? std::string() : result.error().what));
  REQUIRE(result.has_value());
  CHECK(result->volumes.size() == 2);
  CHECK(result->simulated_requests > 0);
}

TEST_CASE("Experiments run against targets elsewhere, which they only read", "[lab][live]") {
  ForeignTest test;
  const std::string wrong = run_foreign(test, live_group(raid::Level::kRaid5, 4, random_reads()));
  CHECK(wrong == "");
  CHECK(test.untouched == std::vector{true});
  CHECK(iops_of(*test.result) > 100);
  CHECK(test.result->layers.storage == Duration{});
}

TEST_CASE("Experiments that write do so, everywhere on the volume and nowhere else",
          "[lab][live]") {
  constexpr std::uint64_t kMebi = 1 << 20;
  ForeignTest whole;
  whole.looked_at = {0, 63 * kMebi};
  const AccessLine line{.bytes = 65536, .read_percent = 0, .random_percent = 100};
  VolumeGroup group = live_group(raid::Level::kJbod, 1, line);
  group.workers = 2;
  CHECK(run_foreign(whole, group) == "");
  CHECK(whole.untouched == std::vector{false, false});
  ForeignTest part;
  part.looked_at = {0, kMebi, 31 * kMebi, 32 * kMebi};
  group.workers = 1;
  group.members = 1;
  group.volume_bytes = 32 * kMebi;
  group.offset_bytes = kMebi;
  CHECK(run_foreign(part, group) == "");
  CHECK(part.untouched == std::vector{true, false, false, true});
}

TEST_CASE("Targets that do not do are refused in one line that names them", "[lab][live]") {
  const auto refused = [](VolumeGroup group, std::uint32_t block_bytes = 512,
                          const std::string& url = kForeignUrl) {
    ForeignTest test;
    test.block_bytes = block_bytes;
    test.options.urls = {url};
    const std::string wrong = run_foreign(test, std::move(group));
    // What is wrong with the URL is so for all cases.
    CHECK(test.result.error().of_case == (url == kForeignUrl));
    CHECK(wrong.find("iscsi://127.0.0.1:3260/iqn.2026-11.org.example:") == 0);
    CHECK(wrong.find("secret") == std::string::npos);
    CHECK(wrong.find('\n') == std::string::npos);
    return wrong;
  };
  VolumeGroup group = live_group(raid::Level::kJbod, 1, random_reads());
  group.volume_bytes = std::uint64_t{1} << 30;
  CHECK_THAT(refused(group), Catch::Contains("has 64.0 MiB") && Catch::Contains("1.00 GiB"));
  group.volume_bytes = 0;
  group.workers = 128;
  CHECK_THAT(refused(group), Catch::Contains("too little for 128 workers"));
  group.workers = 1;
  group.access.lines[0].align_bytes = 0;
  CHECK_THAT(refused(group, 4096), Catch::Contains("blocks of 4096 bytes"));
  group.access.lines[0] = {.bytes = 512};
  CHECK_THAT(refused(group, 4096), Catch::Contains("requests of 512 bytes"));
  group = live_group(raid::Level::kJbod, 1, random_reads());
  group.connections = 3;
  CHECK_THAT(refused(group), Catch::Contains("grants 2 connections, but the experiment has 3"));
  group.connections = 2;
  ForeignTest both;
  CHECK(run_foreign(both, group) == "");
  CHECK_THAT(
      refused(group, 512,
              "iscsi://somebody%a-secret-of-ours@127.0.0.1:3260/iqn.2026-11.org.example:other/0"),
      Catch::Contains("target"));
  CHECK_THAT(
      refused(group, 512,
              "iscsi://somebody%a-secret-of-ours@127.0.0.1:3260/iqn.2026-11.org.example:foreign/7"),
      Catch::Contains("the target has no such logical unit; it has 0"));
  group.members = 1;
  group.volume_bytes = 32 << 20;
  group.offset_bytes = 1536;
  group.access.lines[0].align_bytes = 4096;
  CHECK_THAT(refused(group, 4096), Catch::Contains("volumes begin at byte 1536"));
}

TEST_CASE("What a target says of a request is told in words", "[lab][live]") {
  iscsi::ScsiResult result;
  result.status = scsi::Status::kCheckCondition;
  const std::array fixed = {std::byte{0x70}, std::byte{0}, std::byte{7}, std::byte{0},
                            std::byte{0},    std::byte{0}, std::byte{0}, std::byte{10},
                            std::byte{0},    std::byte{0}, std::byte{0}, std::byte{0},
                            std::byte{0x27}, std::byte{0}};
  std::ranges::copy(fixed, result.sense.begin());
  result.sense_bytes = fixed.size();
  CHECK(explain(result) ==
        "it is write-protected, or has no space left: status 02h, sense key 7h, additional sense "
        "2700h");
  result.status = scsi::Status::kReservationConflict;
  CHECK_THAT(explain(result), Catch::StartsWith("another host has reserved it: status 18h"));
}

TEST_CASE("A target that goes meanwhile ends the run in one line that names it", "[lab][live]") {
  ForeignTest test;
  test.goes = true;
  const std::string wrong = run_foreign(test, live_group(raid::Level::kJbod, 1, random_reads()));
  CHECK_THAT(wrong, Catch::Contains("example:foreign/0: read of 8192 bytes at byte "));
  CHECK_FALSE(test.result.error().of_case);
  CHECK(wrong.find("secret") == std::string::npos);
}

TEST_CASE("Of a target that does not answer any more that is said", "[lab][live]") {
  ForeignTest test;
  test.falls_silent = true;
  const std::string wrong = run_foreign(test, live_group(raid::Level::kJbod, 1, random_reads()));
  CHECK_THAT(wrong, Catch::Contains("example:foreign/0: read of 8192 bytes at byte ") &&
                        Catch::EndsWith(": no answer came in 20 s"));
}

TEST_CASE("A stopped run soon leaves a target that does not answer", "[lab][live]") {
  ForeignTest test;
  test.falls_silent = true;
  test.is_stopped = true;
  VolumeGroup group = live_group(raid::Level::kJbod, 1, random_reads());
  group.connections = 2;
  CHECK(run_foreign(test, group) == "it was stopped");
  CHECK(test.took < 4s);
}

TEST_CASE("What cannot be live is refused before anything is connected", "[lab][live]") {
  Plan plan;
  plan.rows = {
      {.experiment = "reads", .groups = {live_group(raid::Level::kJbod, 1, random_reads())}}};
  CHECK(check_live(plan, {}) == "");
  CHECK(check_live(plan, {.urls = {kForeignUrl}}) == "");
  CHECK_THAT(check_live(plan, {.urls = {"iscsi://a%secret@nowhere/"}}),
             Catch::Contains("--live iscsi://nowhere/") && !Catch::Contains("secret"));
  CHECK_THAT(check_live(plan, {.urls = {"iscsi://127.0.0.1"}}), Catch::Contains("names no target"));
  CHECK_THAT(check_live(plan, {.time_scale = 0.5}), Catch::Contains("--time-scale is 0.5"));
  CHECK(check_live(plan, {.time_scale = 2}) == "");
  // The same unit by another of its portals.
  CHECK_THAT(
      check_live(plan, {.urls = {"iscsi://127.0.0.1:1,127.0.0.1:2/iqn.2026-11.org.sandbay:a/0",
                                 "iscsi://127.0.0.1:2/iqn.2026-11.org.sandbay:a/0"}}),
      Catch::Contains("is given twice"));
  CHECK(check_live(plan, {.urls = {kForeignUrl}, .time_scale = 2}) == "");
  plan.rows[0].groups[0].sets = 2;
  CHECK_THAT(check_live(plan, {.urls = {kForeignUrl}}),
             Catch::Contains("--live has URLs for 1 volumes, but reads has 2"));
  plan.rows[0].groups[0].sets = 1;
  plan.rows[0].groups[0].access.lines[0].read_percent = 60;
  CHECK(check_live(plan, {}) == "");
  CHECK_THAT(check_live(plan, {.urls = {kForeignUrl}}),
             Catch::Contains("reads writes") && Catch::Contains("--write"));
  CHECK(check_live(plan, {.urls = {kForeignUrl}, .write = true}) == "");
  const std::string by_another = "iscsi://127.0.0.1:3260/iqn.2026-11.org.example:foreign/0";
  CHECK_THAT(check_live(plan, {.urls = {kForeignUrl, by_another}, .write = true}),
             Catch::Contains("example:foreign/0 is given twice"));
  const std::string other = "iscsi://127.0.0.1:3260/iqn.2026-11.org.example:foreign/1";
  CHECK_THAT(check_live(plan, {.urls = {kForeignUrl, other}, .write = true}),
             Catch::Contains("URLs for 2 volumes, but no row that is run has more than 1"));
  plan.rows[0].groups[0].outstanding = 5000;
  CHECK_THAT(check_live(plan, {}),
             Catch::Contains("reads: has 5000 requests outstanding in a session; one that is no "
                             "model has at most 4096"));
  plan.rows[0].groups[0].outstanding = 4;
  plan.rows[0].real_sessions = true;
  CHECK_THAT(check_live(plan, {}),
             Catch::Contains("reads: sessions = \"real\" is for virtual time"));
}

TEST_CASE("Reports of live runs say so with every figure", "[lab][live]") {
  Plan plan;
  plan.figures = {
      .document = "a paper",
      .figures = {{.id = "one", .unit = "IOPS", .value = 100, .role = Role::kFit, .tolerance = 3}}};
  PlanResult result;
  result.live = true;
  result.time_scale = 4;
  result.measured["one"] = 101;
  Report report = make_report(plan, result);
  CHECK_THAT(to_text(report), Catch::Contains("IOPS   x4 ") &&
                                  Catch::Contains("Live over iSCSI, time scale 4, seed 1"));
  CHECK_THAT(to_json(report), Catch::Contains("\"time_scale\": 4.0,\n      \"tolerance") &&
                                  Catch::Contains("\"live\": true"));
  CHECK_THAT(to_csv(report), Catch::Contains("one,fit,IOPS,100,101,1,3,3 %,pass,4,1\n"));
  CHECK_THAT(to_html(report), Catch::Contains("<td>x4") && Catch::Contains("time scale 4"));
  CHECK_THAT(to_text(report), Catch::Contains("Parameters"));
  result.targets = {"iscsi://elsewhere/iqn/0"};
  CHECK_THAT(to_text(report),
             Catch::Contains("Against iscsi://elsewhere/iqn/0") && !Catch::Contains("Parameters"));
}

}  // namespace sandbay::lab
