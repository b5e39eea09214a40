// Target port groups: what is reported and set, which commands each access state lets through, and
// who hears of a change (SPC-4 clause 5.15, 6.37 and 6.45).
#include <catch2/catch.hpp>

#include "fake_transport.h"

namespace sandbay::testing::port_groups_test {
namespace {

using scsi::AccessState;
using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

std::array<std::byte, 16> report(unsigned format = 0, std::uint32_t length = 1024) {
  return cdb_12(0xA3, 0, length, format << 5U | 0x0AU);
}

std::array<std::byte, 16> set_groups(std::size_t byte_count) {
  return cdb_12(0xA4, 0, static_cast<std::uint32_t>(byte_count), 0x0A);
}

// A unit with ports 1 and 2 and a login to each.
struct Paths {
  Paths(Executor& home)
      : devices(home, {.byte_count = kBenchBlocks * 512}),
        unit(devices.device, {.removable = false, .target_ports = {1, 2}}) {}

  Task<void> start() {
    co_await unit.start();
    const auto attach = [this](std::uint16_t port) {
      return unit.router.attach({.initiator_port = "iqn.2026-11.org.example:host,i,0x000000000001",
                                 .target_port = "iqn.2026-11.org.sandbay:test,t,0x0001",
                                 .relative_target_port = port,
                                 .target_port_group = port});
    };
    one = attach(1);
    two = attach(2);
    for (scsi::Nexus* nexus : {one.get(), two.get()}) {
      const Reply first = co_await send(unit.router, *nexus, {});
      REQUIRE(first.attention(Additional::kPowerOnResetOrBusDeviceReset));
    }
  }
  Task<void> stop() {
    co_await unit.router.detach(*one);
    co_await unit.router.detach(*two);
    co_await unit.stop();
  }
  Task<Reply> by(scsi::Nexus& nexus, std::array<std::byte, 16> cdb, Bytes out = {}) {
    return send(unit.router, nexus, cdb, {.out = std::move(out)});
  }

  BenchDevices devices;
  ServedUnit unit;
  std::unique_ptr<scsi::Nexus> one;
  std::unique_ptr<scsi::Nexus> two;
};

void on_paths(Task<void> (*body)(Paths& paths)) {
  struct Run {
    static Task<void> go(Executor& home, Task<void> (*body)(Paths&)) {
      Paths paths(home);
      co_await paths.start();
      co_await body(paths);
      co_await paths.stop();
    }
  };
  run_in_world(1, [&](Executor& home) { return Run::go(home, body); });
}

Task<void> report_groups(Paths& paths) {
  Reply reply = co_await paths.by(*paths.one, report());
  CHECK(reply.data == bytes_of({0, 0, 0,    24,   0x00, 0x8F, 0, 1, 0, 0, 0, 1, 0, 0,
                                0, 1, 0x00, 0x8F, 0,    2,    0, 0, 0, 1, 0, 0, 0, 2}));
  paths.unit.unit.set_access_state(2, AccessState::kStandby);
  reply = co_await paths.by(*paths.one, cdb_of({0x00}));
  CHECK(reply.attention(Additional::kAccessStateChanged));
  reply = co_await paths.by(*paths.one, report(1));
  CHECK(reply.data == bytes_of({0, 0, 0, 28, 0x10, 0,    0, 0, 0x00, 0x8F, 0, 1, 0, 0, 0, 1,
                                0, 0, 0, 1,  0x02, 0x8F, 0, 2, 0,    2,    0, 1, 0, 0, 0, 2}));
  reply = co_await paths.by(*paths.one, report(0, 8));
  CHECK(reply.data.size() == 8);
  reply = co_await paths.by(*paths.one, report(2));
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await paths.by(*paths.one, cdb_of({0x12, 0, 0, 0, 96}));
  CHECK((reply.in(5) & 0x30U) == 0x30);
  // The same state again changes nothing.
  paths.unit.unit.set_access_state(2, AccessState::kStandby);
  reply = co_await paths.by(*paths.one, cdb_of({0x00}));
  CHECK(reply.good());
}

// By state, in this order: standby, unavailable, transitioning; S for served.
struct Served {
  std::array<std::byte, 16> cdb;
  const char* states;
};
const std::array kServed = {
    Served{cdb_of({0x00}), "---"},                          // TEST UNIT READY
    Served{cdb_of({0x03, 0, 0, 0, 18}), "SSS"},             // REQUEST SENSE
    Served{cdb_of({0x12, 0, 0, 0, 36}), "SSS"},             // INQUIRY
    Served{cdb_12(0xA0, 0, 256), "SSS"},                    // REPORT LUNS
    Served{report(), "SSS"},                                // REPORT TARGET PORT GROUPS
    Served{set_groups(0), "SS-"},                           // SET TARGET PORT GROUPS
    Served{cdb_of({0x1A, 0, 0x3F, 0, 192}), "S--"},         // MODE SENSE
    Served{cdb_of({0x15, 0x10, 0, 0, 0}), "S--"},           // MODE SELECT
    Served{cdb_of({0x5E, 0, 0, 0, 0, 0, 0, 0, 8}), "S--"},  // PERSISTENT RESERVE IN
    Served{cdb_of({0x25}), "---"},                          // READ CAPACITY
    Served{cdb_10(0x28, 0, 1), "---"},                      // READ
    Served{cdb_10(0x2A, 0, 0), "---"},                      // WRITE
    Served{cdb_10(0x35, 0, 1), "---"},                      // SYNCHRONIZE CACHE
};

Task<void> serve_by_state(Paths& paths) {
  constexpr std::array kStates = {
      std::pair{AccessState::kStandby, Additional::kPortStandby},
      std::pair{AccessState::kUnavailable, Additional::kPortUnavailable},
      std::pair{AccessState::kTransitioning, Additional::kAccessStateTransition}};
  for (std::size_t i = 0; i < kStates.size(); ++i) {
    const auto& [state, code] = kStates.at(i);
    paths.unit.unit.set_access_state(2, state);
    for (scsi::Nexus* nexus : {paths.one.get(), paths.two.get()}) {
      const Reply attention = co_await paths.by(*nexus, cdb_of({0x00}));
      CHECK(attention.attention(Additional::kAccessStateChanged));
    }
    const Reply sense = co_await paths.by(*paths.two, cdb_of({0x03, 0, 0, 0, 18}));
    CHECK(sense.in(2) == static_cast<unsigned>(SenseKey::kNotReady));
    CHECK(big_endian<std::uint16_t>(sense.data, 12) == static_cast<unsigned>(code));
    for (const Served& each : kServed) {
      CAPTURE(i, std::to_integer<unsigned>(each.cdb[0]));
      Reply reply = co_await paths.by(*paths.two, each.cdb);
      CHECK(reply.good() == (each.states[i] == 'S'));
      if (!reply.good()) CHECK(reply.failed_with(SenseKey::kNotReady, code));
      reply = co_await paths.by(*paths.one, each.cdb);
      CHECK(reply.good());
    }
  }
  // A path that is not optimized serves all.
  paths.unit.unit.set_access_state(2, AccessState::kActiveNonOptimized);
  const Reply attention = co_await paths.by(*paths.two, cdb_of({0x00}));
  CHECK(attention.attention(Additional::kAccessStateChanged));
  for (const Served& each : kServed) {
    const Reply reply = co_await paths.by(*paths.two, each.cdb);
    CHECK(reply.good());
  }
}

Task<void> set_by_host(Paths& paths) {
  const Bytes wish = bytes_of({0, 0, 0, 0, 0x01, 0, 0, 1, 0x03, 0, 0, 2});
  Reply reply = co_await paths.by(*paths.one, set_groups(wish.size()), wish);
  CHECK(reply.good());
  CHECK(reply.data_out_bytes == wish.size());
  // The host that asked knows it.
  reply = co_await paths.by(*paths.one, cdb_of({0x00}));
  CHECK(reply.good());
  reply = co_await paths.by(*paths.two, cdb_of({0x00}));
  CHECK(reply.attention(Additional::kAccessStateChanged));
  reply = co_await paths.by(*paths.one, report());
  CHECK(reply.in(4) == 0x01);
  CHECK(reply.in(9) == 1);
  CHECK(reply.in(16) == 0x03);
  struct Bad {
    Bytes list;
    Additional code;
  };
  const std::array bad = {
      Bad{bytes_of({0, 0, 0}), Additional::kParameterListLengthError},
      Bad{bytes_of({0, 0, 0, 0, 0, 0}), Additional::kParameterListLengthError},
      Bad{bytes_of({0, 0, 0, 0, 0x0F, 0, 0, 1}), Additional::kInvalidFieldInParameterList},
      Bad{bytes_of({0, 0, 0, 0, 0x04, 0, 0, 1}), Additional::kInvalidFieldInParameterList},
      Bad{bytes_of({0, 0, 0, 0, 0x02, 0, 0, 1, 0, 0, 0, 3}),
          Additional::kInvalidFieldInParameterList}};
  for (const Bad& each : bad) {
    reply = co_await paths.by(*paths.one, set_groups(each.list.size()), each.list);
    CHECK(reply.illegal(each.code));
  }
  reply = co_await paths.by(*paths.one, report());
  CHECK(reply.in(4) == 0x01);
}

TEST_CASE("REPORT TARGET PORT GROUPS lists every group", "[scsi][paths]") {
  on_paths(report_groups);
}

TEST_CASE("Each access state lets through what SPC-4 says", "[scsi][paths]") {
  on_paths(serve_by_state);
}

TEST_CASE("SET TARGET PORT GROUPS sets what it can", "[scsi][paths]") { on_paths(set_by_host); }

}  // namespace
}  // namespace sandbay::testing::port_groups_test
