// Goal: drives that have a profile take the time of that drive's model, to the nanosecond, and
// nothing above them takes any. Method: a whole group in a world whose files and links take no
// time, with a volume on one such drive; what a host's commands take through a session is held
// against the model alone, for every profile of conf/drives, with one executor and with two.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "group/drive_file.h"
#include "group/group.h"
#include "group/units.h"
#include "metadata/simulated_store.h"
#include "model/drive_type.h"
#include "model/model_clock.h"
#include "raid/superblock.h"
#include "runtime/simulation.h"
#include "tests/unit/group/host.h"
#include "tests/unit/model/closed_loop.h"

namespace sandbay::simtest {
namespace {

using group::testing::HostReply;
using group::testing::HostSession;
using std::chrono::seconds;

constexpr std::uint64_t kVolumeSectors = std::uint64_t{1} << 27;  // 64 GiB.
constexpr std::uint64_t kEach = 40;                               // Commands of a loop.
constexpr std::uint64_t kStrip = 128;                             // A set writes strip by strip.

struct Timed {
  std::string profile;  // A file.
  unsigned executors = 1;
  double time_scale = 1;
  bool faults = false;    // Enabled, though there is none: their layers take no time.
  Duration slow{};        // By a fault, before the model's time.
  Duration controller{};  // For each request, after the model's time.
};

group::Configuration configuration_of(const Timed& timed) {
  const std::string slow = timed.slow == Duration{}
                               ? ""
                               : fmt::format("rules = [\"at=drive:d do=slow latency={}\"]\n",
                                             group::format_duration(timed.slow));
  auto parsed = group::parse_configuration(
      fmt::format("[group]\nname = \"sim\"\nstate = \"/simulated\"\ntime_scale = {}\n"
                  "[limits]\nnop_in_interval = \"0s\"\n"
                  "[[portal]]\nlisten = \"127.0.0.1:3260\"\n"
                  "[[drive]]\nname = \"d\"\nfile = \"d.img\"\nprofile = \"{}\"\n"
                  "[[raid]]\nname = \"set\"\nlevel = \"jbod\"\ndrives = [\"d\"]\n"
                  "[[volume]]\nname = \"v\"\nraid = \"set\"\nsize = \"64GiB\"\n"
                  "[[volume.access]]\ninitiator = \"*\"\n[faults]\nenabled = {}\n{}"
                  "[controller]\nread_request = \"{}\"\nwrite_request = \"{}\"\n",
                  timed.time_scale, timed.profile, timed.faults, slow,
                  group::format_duration(timed.controller),
                  group::format_duration(timed.controller)),
      "sim.toml");
  if (!parsed) FAIL(parsed.error().front());
  return std::move(*parsed);
}

// Where the set's data begin on its drive, out of its superblock.
Task<std::uint64_t> data_offset(Executor* home) {
  auto file = co_await home->open_file("/simulated/d.img", {});
  REQUIRE(file.has_value());
  for (std::uint64_t offset = 0; offset < (std::uint64_t{1} << 20); offset += 4096) {
    std::vector<std::byte> bytes(raid::kSuperblockBytes);
    const IoSlice slice{bytes.data(), bytes.size()};
    const Error error = co_await (*file)->read(offset, {&slice, 1}, nullptr);
    if (error != Error::kNone) break;
    const auto found = raid::decode_superblock(bytes);
    if (found) co_return found->superblock.data_offset_blocks;
  }
  FAIL("the drive has no superblock");
  co_return 0;
}

// A command to the volume.
struct Host {
  iscsi::InitiatorSession* session = nullptr;
  Executor* home = nullptr;
  group::Group* group = nullptr;
  model::ModelClock clock;
  Duration slow{};
  Duration controller{};
  std::string wrong;

  TimePoint now() const { return clock.modelled(home->now()); }
  // A nanosecond of real time in modelled time, if that is longer.
  Duration step() const {
    return clock.time_scale() < 1 ? Duration(std::lround(1 / clock.time_scale())) : Duration{};
  }

  Task<void> perform(Operation operation, std::uint64_t sector, std::uint64_t count) {
    const bool write = operation == Operation::kWrite;
    iscsi::ScsiRequest request;
    request.cdb[0] = write ? std::byte{0x8A} : std::byte{0x88};  // WRITE(16), READ(16)
    for (unsigned i = 0; i < 8; ++i) {
      request.cdb[2 + i] = static_cast<std::byte>(sector >> (56 - 8 * i));
    }
    for (unsigned i = 0; i < 4; ++i) {
      request.cdb[10 + i] = static_cast<std::byte>(count >> (24 - 8 * i));
    }
    BufferList data = home->buffers().try_allocate(count * 512);
    (write ? request.data_out : request.data_in) = std::move(data);
    const HostReply reply = co_await session->execute(std::move(request));
    if (!reply.result.good()) wrong = "a command failed";
  }
};

// Commands one after another, in a loop as testing::run_loop() has several of.
struct Loop {
  Host* host = nullptr;
  std::function<model::DriveCommand(std::uint64_t)> next;
  std::uint64_t issued = 0;
  std::vector<TimePoint> ends;
};

Task<void> work(Loop* loop, Gate* gate) {
  const GateHold hold(*gate);
  while (loop->issued < kEach) {
    const model::DriveCommand command = loop->next(loop->issued++);
    co_await loop->host->perform(command.operation, command.sector, command.sector_count);
    loop->ends.push_back(loop->host->now());
  }
}

// Where the model is busy no longer, its mechanism and cache are as this leaves them.
Task<void> bring_together(Host* host, model::DriveModel* alone, std::uint64_t offset) {
  co_await host->home->sleep_for(seconds(30));
  const TimePoint start = host->now();
  const auto read = [&](std::uint64_t) {
    return model::DriveCommand{
        .operation = Operation::kRead, .sector = offset + 4096, .sector_count = 8};
  };
  (void)testing::run_loop(*alone, 1, 1, read, {}, start + host->slow);
  co_await host->perform(Operation::kRead, 4096, 8);
  co_await host->home->sleep_for(seconds(17));
}

Task<std::uint64_t> metadata_operations(group::Group* group) {
  const auto drives = co_await group->list_drives();
  co_return drives.front().raid.counters.metadata_operations;
}

// False: the set has written its superblock meanwhile, as it does every minute, and the drive was
// not the host's alone.
Task<bool> compare(Host* host, model::DriveModel* alone, std::uint64_t offset, std::uint64_t depth,
                   std::function<model::DriveCommand(std::uint64_t)> next) {
  const std::uint64_t before = co_await metadata_operations(host->group);
  Loop loop{.host = host, .next = next};
  const TimePoint start = host->now();
  Gate gate;
  for (std::uint64_t i = 0; i < depth; ++i) {
    REQUIRE(gate.enter());
    spawn(work(&loop, &gate));
  }
  co_await gate.close();
  const auto moved = [&](std::uint64_t number) {
    model::DriveCommand command = next(number);
    command.sector += offset;
    return command;
  };
  std::vector<TimePoint> ends = testing::run_loop(*alone, depth, kEach, moved,
                                                  host->slow + host->controller, start + host->slow)
                                    .ends;
  std::ranges::sort(ends);
  const bool undisturbed = co_await metadata_operations(host->group) == before;
  for (std::uint64_t i = 0; undisturbed && i < kEach; ++i) {
    INFO(fmt::format("command {}", i));
    const Duration late = loop.ends[i] - ends[i] - host->controller;
    CHECK(late >= Duration{});
    CHECK(late <= static_cast<std::int64_t>(i + 1) * host->step());
  }
  co_return undisturbed;
}

Task<void> compare_undisturbed(Host* host, model::DriveModel* alone, std::uint64_t offset,
                               std::uint64_t depth,
                               std::function<model::DriveCommand(std::uint64_t)> next) {
  bool undisturbed = false;
  for (int tries = 0; tries < 3 && !undisturbed; ++tries) {
    undisturbed = co_await compare(host, alone, offset, depth, next);
    co_await bring_together(host, alone, offset);
  }
  CHECK(undisturbed);
}

Task<void> attach(Executor* home, const Timed* timed, group::Group* group, Host* host) {
  // As deep as a queue gets: no drive is slow for that.
  constexpr std::uint64_t kDepths[] = {1, 8, 40};
  const std::uint64_t offset = co_await data_offset(home);
  HostSession session =
      co_await group::testing::log_in("127.0.0.1:3260", "iqn.2026-11.org.sandbay:v");
  REQUIRE(session != nullptr);
  co_await group::testing::settle(session.get());
  host->session = session.get();
  host->home = home;
  host->group = group;
  host->slow = timed->slow;
  host->controller = timed->controller;
  const auto type = group::find_drive_type(timed->profile, "");
  REQUIRE(type.has_value());
  const auto alone = (*type)->make({.seed = 1, .background = {}});
  co_await bring_together(host, alone.get(), offset);
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    for (const std::uint64_t depth : kDepths) {
      if (depth > 1 && timed->slow + timed->controller > Duration{}) continue;
      INFO(fmt::format("{}, {}, {} executors, depth {}, faults {}, scale {}", timed->profile,
                       operation == Operation::kRead ? "reads" : "writes", timed->executors, depth,
                       timed->faults, timed->time_scale));
      testing::RandomPlaces places(depth, operation, 8192, kVolumeSectors);
      std::vector<model::DriveCommand> drawn;
      for (std::uint64_t i = 0; i < kEach; ++i) drawn.push_back(places(i));
      co_await compare_undisturbed(host, alone.get(), offset, depth,
                                   [&](std::uint64_t i) { return drawn[i]; });
      co_await compare_undisturbed(host, alone.get(), offset, depth, [&](std::uint64_t i) {
        return model::DriveCommand{
            .operation = operation, .sector = kStrip * (8000 + i), .sector_count = kStrip};
      });
    }
  }
  const auto drives = co_await group->list_drives();
  CHECK(drives.front().modelled_queue == 0);
  CHECK(drives.front().modelled_busy > Duration{});
  CHECK(drives.front().raid.counters.slow_reads == 0);
  CHECK(drives.front().raid.counters.timeouts == 0);
  co_await session->close();
}

Task<void> serve(Executor* home, const Timed* timed, Host* host) {
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  host->clock = model::ModelClock(timed->time_scale, home->now());
  auto group = co_await group::Group::start(configuration_of(*timed), **store);
  if (!group) FAIL(group.error().text);
  co_await attach(home, timed, group->get(), host);
  co_await (*group)->shutdown();
  co_await (*store)->close();
}

void run_timed(const Timed& timed) {
  const Duration none{};
  const auto world =
      sim::World::create({.seed = 1,
                          .executors = timed.executors,
                          .file_latency = {.least = none, .most = none},
                          .link = {.delay_least = none, .delay_most = none, .fragment = false}});
  Executor& home = *world->executors()[0];
  Host host;
  const bool ended = world->run([&] { return serve(&home, &timed, &host); }, std::chrono::hours(9));
  CHECK(host.wrong.empty());
  REQUIRE(ended);
}

// Ports. -----------------------------------------------------------------------------------------

constexpr std::uint64_t kPortRate = 125'000'000;
constexpr Duration kLatency = std::chrono::microseconds(30);

group::Configuration with_ports(unsigned portals) {
  std::string text = "[group]\nname = \"sim\"\nstate = \"/simulated\"\n";
  for (unsigned i = 0; i < portals; ++i) {
    text += fmt::format(
        "[[portal]]\nlisten = \"127.0.0.1:{}\"\nrate = \"1Gbit/s\"\nlatency = \"30us\"\n",
        3260 + i);
  }
  text +=
      "[[drive]]\nname = \"d\"\nmemory = true\nsize = \"64MiB\"\n"
      "[[raid]]\nname = \"set\"\nlevel = \"jbod\"\ndrives = [\"d\"]\n"
      "[[volume]]\nname = \"v\"\nraid = \"set\"\nsize = \"32MiB\"\n"
      "[[volume.access]]\ninitiator = \"*\"\n";
  auto parsed = group::parse_configuration(text, "sim.toml");
  if (!parsed) FAIL(parsed.error().front());
  return std::move(*parsed);
}

struct Stage {
  Executor* home = nullptr;
  unsigned portals = 1;
  std::vector<HostSession> sessions;
};

Task<void> transfer(Host* host, Operation operation, std::uint64_t sectors, int* left, Gate* gate) {
  const GateHold hold(*gate);
  while ((*left)-- > 0) co_await host->perform(operation, 0, sectors);
}

// MB of payload a second, with a queue at each session.
Task<double> rate_of(Stage* stage, Operation operation, std::uint64_t sectors, int count) {
  std::vector<Host> hosts(stage->sessions.size());
  std::vector<int> left(stage->sessions.size(), count);
  Gate gate;
  const TimePoint start = stage->home->now();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].session = stage->sessions[i].get();
    hosts[i].home = stage->home;
    for (int depth = 0; depth < 8; ++depth) {
      REQUIRE(gate.enter());
      spawn(transfer(&hosts[i], operation, sectors, &left[i], &gate));
    }
  }
  co_await gate.close();
  for (const Host& host : hosts) CHECK(host.wrong.empty());
  const double seconds = std::chrono::duration<double>(stage->home->now() - start).count();
  co_return static_cast<double>(sectors * 512 * hosts.size()) * count / seconds / 1e6;
}

// How long one command takes, alone.
Task<Duration> time_of_one(Stage* stage, Operation operation, std::uint64_t sectors) {
  Host host;
  host.session = stage->sessions.front().get();
  host.home = stage->home;
  const TimePoint start = stage->home->now();
  co_await host.perform(operation, 0, sectors);
  CHECK(host.wrong.empty());
  co_return stage->home->now() - start;
}

Task<void> pass_ports(Stage* stage) {
  auto store = co_await metadata::open_simulated_store(*stage->home, "metadata");
  REQUIRE(store.has_value());
  auto group = co_await group::Group::start(with_ports(stage->portals), **store);
  if (!group) FAIL(group.error().text);
  for (unsigned i = 0; i < 2; ++i) {
    stage->sessions.push_back(co_await group::testing::log_in(
        fmt::format("127.0.0.1:{}", 3260 + i % stage->portals), "iqn.2026-11.org.sandbay:v"));
    REQUIRE(stage->sessions.back() != nullptr);
    co_await group::testing::settle(stage->sessions.back().get());
  }
  // A command of 48 bytes is a frame of 126 there; 4096 bytes and a header back are three. An R2T
  // takes a round trip more. However often one comes after another, none is faster.
  const auto wire = [](std::uint64_t bytes) {
    return Duration(static_cast<std::int64_t>(bytes) * 1'000'000'000 / kPortRate);
  };
  const Duration read = wire(126) + wire(4096 + 48 + 3 * 78) + 2 * kLatency;
  const Duration large = wire(262144) + 4 * kLatency;
  for (int i = 0; i < 50; ++i) {
    const Duration small = co_await time_of_one(stage, Operation::kRead, 8);
    CHECK(small >= read);
    CHECK(small <= read + Duration(2));
    const Duration solicited = co_await time_of_one(stage, Operation::kWrite, 512);
    CHECK(solicited >= large);
  }
  // Payload of whole frames, 1460 of 1538 bytes, less the headers of PDUs; both share a port.
  const double most = 118.7 * stage->portals;
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    INFO((operation == Operation::kRead ? "reads" : "writes") << ", portals: " << stage->portals);
    const double rate = co_await rate_of(stage, operation, 128, 200);
    CHECK(rate < most);
    CHECK(rate > most * 0.97);
  }
  for (const HostSession& session : stage->sessions) co_await session->close();
  stage->sessions.clear();
  co_await (*group)->shutdown();
  co_await (*store)->close();
}

// Controllers. -----------------------------------------------------------------------------------

// Two sets without modelled drives, behind one controller.
Task<void> share_controller(Executor* home, unsigned processors) {
  std::string text = fmt::format(
      "[group]\nname = \"sim\"\nstate = \"/simulated\"\n"
      "[[portal]]\nlisten = \"127.0.0.1:3260\"\n"
      "[controller]\nprocessors = {}\nread_request = \"250us\"\n"
      "write_request = \"250us\"\n",
      processors);
  for (const char* const name : {"a", "b"}) {
    text += fmt::format(
        "[[drive]]\nname = \"{0}\"\nmemory = true\nsize = \"64MiB\"\n"
        "[[raid]]\nname = \"{0}\"\nlevel = \"jbod\"\ndrives = [\"{0}\"]\n"
        "[[volume]]\nname = \"{0}\"\nraid = \"{0}\"\nsize = \"32MiB\"\n"
        "[[volume.access]]\ninitiator = \"*\"\n",
        name);
  }
  auto configuration = group::parse_configuration(text, "sim.toml");
  if (!configuration) FAIL(configuration.error().front());
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  auto group = co_await group::Group::start(std::move(*configuration), **store);
  if (!group) FAIL(group.error().text);
  Stage stage{.home = home};
  for (const char* const name : {"a", "b"}) {
    stage.sessions.push_back(co_await group::testing::log_in(
        "127.0.0.1:3260", fmt::format("iqn.2026-11.org.sandbay:{}", name)));
    REQUIRE(stage.sessions.back() != nullptr);
    co_await group::testing::settle(stage.sessions.back().get());
  }
  // 400 requests of 250 us each.
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    const TimePoint start = home->now();
    (void)co_await rate_of(&stage, operation, 8, 200);
    CHECK(home->now() - start == std::chrono::milliseconds(100) / processors);
  }
  const auto members = co_await (*group)->list_members();
  CHECK(members.front().modelled_busy >= std::chrono::milliseconds(200));
  for (const HostSession& session : stage.sessions) co_await session->close();
  stage.sessions.clear();
  co_await (*group)->shutdown();
  co_await (*store)->close();
}

}  // namespace

TEST_CASE("A volume on a modelled drive takes that drive's time", "[sim][model]") {
  std::vector<std::string> profiles;
  for (const auto& entry : std::filesystem::directory_iterator("conf/drives")) {
    if (entry.path().extension() == ".toml") profiles.push_back(entry.path().string());
  }
  REQUIRE(profiles.size() >= 8);
  std::ranges::sort(profiles);
  for (const std::string& profile : profiles) {
    for (const unsigned executors : {1U, 2U}) {
      run_timed({.profile = profile, .executors = executors});
      run_timed({.profile = profile, .executors = executors, .faults = true});
    }
  }
  const std::string& disk = profiles.back();
  run_timed({.profile = disk, .faults = true, .slow = std::chrono::milliseconds(3)});
  run_timed({.profile = disk, .controller = std::chrono::microseconds(250)});
  for (const double scale : {0.05, 2.5, 40.0}) run_timed({.profile = disk, .time_scale = scale});
}

TEST_CASE("The sets of a member share its controller", "[sim][model]") {
  for (const unsigned processors : {1U, 2U}) {
    const Duration none{};
    const auto world =
        sim::World::create({.seed = 1,
                            .file_latency = {.least = none, .most = none},
                            .link = {.delay_least = none, .delay_most = none, .fragment = false}});
    Executor& home = *world->executors()[0];
    REQUIRE(world->run([&] { return share_controller(&home, processors); }));
  }
}

TEST_CASE("Connections share the rate of a portal's port", "[sim][model]") {
  for (const unsigned executors : {1U, 2U}) {
    for (const unsigned portals : {1U, 2U}) {
      const Duration none{};
      const auto world = sim::World::create(
          {.seed = 1,
           .executors = executors,
           .file_latency = {.least = none, .most = none},
           .link = {.delay_least = none, .delay_most = none, .fragment = false}});
      Stage stage{.home = world->executors()[0], .portals = portals};
      REQUIRE(world->run([&] { return pass_ports(&stage); }));
    }
  }
}

}  // namespace sandbay::simtest
