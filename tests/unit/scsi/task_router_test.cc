// The task router: LUN formats, units that are not there, the list of LUNs, and units whose home is
// another executor than the session's (SAM-5 clause 4.7, SPC-4 6.6.2 and 6.33).
#include <set>

#include "fake_transport.h"

namespace sandbay::testing {
namespace {

using scsi::Additional;
using scsi::TaskManagementFunction;
using scsi::TaskManagementResponse;

std::set<std::uint64_t> luns_of(const Reply& reply) {
  std::set<std::uint64_t> result;
  for (std::size_t at = 8; at < reply.data.size(); at += 8) {
    result.insert(big_endian<std::uint64_t>(reply.data, at));
  }
  CHECK(big_endian<std::uint32_t>(reply.data, 0) + 8 == reply.data.size());
  return result;
}

std::array<std::byte, 16> report_luns(unsigned select = 0, std::uint32_t length = 4096) {
  auto cdb = cdb_12(0xA0, 0, length);
  cdb[2] = static_cast<std::byte>(select);
  return cdb;
}

Task<void> missing_unit(Bench& bench) {
  const Sending elsewhere{.lun = scsi::encode_lun(9)};
  const Reply described = co_await bench.send_to_unit(inquiry(255), elsewhere);
  CHECK(described.good());
  CHECK(described.in(0) == 0x7F);
  CHECK(described.data.size() == described.in(4) + 5U);
  const Reply pages = co_await bench.send_to_unit(inquiry(255, 0), elsewhere);
  CHECK(pages.good());
  CHECK(pages.in(0) == 0x7F);
  for (const auto& cdb : {kTestUnitReady, cdb_10(0x28, 0, 1), report_luns(), cdb_of({0xFF})}) {
    const Reply reply = co_await bench.send_to_unit(cdb, elsewhere);
    CHECK(reply.illegal(Additional::kLogicalUnitNotSupported));
  }
  const Reply sense = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 18}), elsewhere);
  CHECK(sense.good());
  CHECK(big_endian<std::uint16_t>(sense.data, 12) == 0x2500);
}

Task<void> without_lun_0(Bench& bench) {
  const Error removed = co_await bench.router.remove(0);
  CHECK(removed == Error::kNone);
  const Error added = co_await bench.router.add(3, &bench.unit);
  CHECK(added == Error::kNone);
  const Reply luns = co_await bench.send_to_unit(report_luns());
  CHECK(luns_of(luns) == std::set<std::uint64_t>{scsi::encode_lun(3)});
  const Reply described = co_await bench.send_to_unit(inquiry(255));
  CHECK(described.in(0) == 0x7F);
  const Reply ready = co_await bench.send_to_unit(kTestUnitReady, {.lun = scsi::encode_lun(3)});
  CHECK(ready.attention(Additional::kPowerOnResetOrBusDeviceReset));
}

Task<void> well_known(Bench& bench) {
  const Sending there{.lun = scsi::kReportLunsUnit};
  const Reply luns = co_await bench.send_to_unit(report_luns(2), there);
  CHECK(luns_of(luns) == std::set<std::uint64_t>{0, scsi::kReportLunsUnit});
  const Reply only = co_await bench.send_to_unit(report_luns(1), there);
  CHECK(luns_of(only) == std::set<std::uint64_t>{scsi::kReportLunsUnit});
  const Reply described = co_await bench.send_to_unit(inquiry(255), there);
  CHECK(described.in(0) == 0x1E);
  const Reply ready = co_await bench.send_to_unit(kTestUnitReady, there);
  CHECK(ready.good());
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 1), there);
  CHECK(read.illegal(Additional::kInvalidOperationCode));
}

Task<void> listing(Bench& bench) {
  const Reply luns = co_await bench.send_to_unit(report_luns());
  CHECK(luns_of(luns) == std::set<std::uint64_t>{0});
  const Reply tiny = co_await bench.send_to_unit(report_luns(0, 15));
  CHECK(tiny.illegal(Additional::kInvalidFieldInCdb));
  const Reply strange = co_await bench.send_to_unit(report_luns(7));
  CHECK(strange.illegal(Additional::kInvalidFieldInCdb));
  scsi::LogicalUnit second(bench.device, {});
  const Error added = co_await bench.router.add(300, &second);
  CHECK(added == Error::kNone);
  const Error again = co_await bench.router.add(300, &second);
  CHECK(again == Error::kExists);
  const Error beyond = co_await bench.router.add(scsi::kMostUnits, &second);
  CHECK(beyond == Error::kOutOfRange);
  const Reply told = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(told.attention(Additional::kReportedLunsDataHasChanged));
  const Reply both = co_await bench.send_to_unit(report_luns());
  CHECK(luns_of(both) == std::set<std::uint64_t>{0, 0x412C'0000'0000'0000});
  const Sending there{.lun = 0x412C'0000'0000'0000};
  const Reply first = co_await bench.send_to_unit(kTestUnitReady, there);
  CHECK(first.attention(Additional::kPowerOnResetOrBusDeviceReset));
  const Error removed = co_await bench.router.remove(300);
  CHECK(removed == Error::kNone);
  const Error missing = co_await bench.router.remove(300);
  CHECK(missing == Error::kNotFound);
  const Reply gone = co_await bench.send_to_unit(kTestUnitReady, there);
  CHECK(gone.illegal(Additional::kLogicalUnitNotSupported));
  CHECK(second.counters().nexuses == 0);
  const bool closed = co_await second.close(second.home().now());
  CHECK(closed);
}

// More units than one byte can number: each is reached at the address that the list gives, in
// either method of addressing, and the list is in order.
Task<void> many_units(Bench& bench) {
  const std::vector<std::uint32_t> numbers{1, 7, 8, 9, 15, 16, 63, 64, 255, 256, 257, 16383};
  std::vector<std::unique_ptr<scsi::LogicalUnit>> units;
  for (const std::uint32_t number : numbers) {
    scsi::LogicalUnitOptions options{.serial = std::to_string(number)};
    options.uuid[0] = static_cast<std::uint8_t>(units.size() + 1);
    units.push_back(std::make_unique<scsi::LogicalUnit>(bench.device, options));
    const Error added = co_await bench.router.add(number, units.back().get());
    CHECK(added == Error::kNone);
  }
  const Reply list = co_await bench.send_to_unit(report_luns());
  REQUIRE(list.data.size() == 8 + 8 * (numbers.size() + 1));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint64_t listed = big_endian<std::uint64_t>(list.data, 8 + 8 * (i + 1));
    CHECK(scsi::decode_lun(listed) == numbers[i]);
    for (const std::uint64_t lun : {listed, std::uint64_t{0x4000U | numbers[i]} << 48U}) {
      const Reply serial = co_await bench.send_to_unit(inquiry(255, 0x80), {.lun = lun});
      CHECK(serial.good());
      std::string text;
      for (std::size_t at = 4; at < serial.data.size(); ++at) {
        text += static_cast<char>(serial.in(at));
      }
      CHECK(text == std::to_string(numbers[i]));
    }
  }
  for (const std::uint32_t absent : {2U, 10U, 254U, 258U}) {
    const Sending there{.lun = scsi::encode_lun(absent)};
    const Reply described = co_await bench.send_to_unit(inquiry(255), there);
    CHECK(described.in(0) == 0x7F);
  }
  for (const std::uint32_t number : numbers) co_await bench.router.remove(number);
  for (const auto& unit : units) {
    const bool closed = co_await unit->close(unit->home().now());
    CHECK(closed);
  }
}

// One list tells about all units: the others need not report the change as well.
Task<void> one_report_is_enough(Bench& bench) {
  scsi::LogicalUnit second(bench.device, {});
  scsi::LogicalUnit third(bench.device, {});
  co_await bench.router.add(1, &second);
  const Sending there{.lun = scsi::encode_lun(1)};
  co_await bench.send_to_unit(kTestUnitReady, there);
  co_await bench.router.add(2, &third);
  const Reply told = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(told.attention(Additional::kReportedLunsDataHasChanged));
  co_await bench.send_to_unit(report_luns());
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  const Reply quiet = co_await bench.send_to_unit(kTestUnitReady, there);
  CHECK(quiet.good());
  for (const std::uint32_t lun : {1U, 2U}) co_await bench.router.remove(lun);
  for (scsi::LogicalUnit* unit : {&second, &third}) {
    const bool closed = co_await unit->close(unit->home().now());
    CHECK(closed);
  }
}

Task<void> stuck_unit_leaves(Bench& bench) {
  bench.hung.hang();
  auto stuck = make_command(*bench.nexus, cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  bench.router.execute(*stuck);
  const TimePoint before = bench.unit.home().now();
  const Error removed = co_await bench.router.remove(0);
  CHECK(removed == Error::kNone);
  CHECK(bench.unit.home().now() - before <= scsi::kTaskManagementBound);
  CHECK(stuck->answered);
  const bool closed = co_await bench.unit.close(bench.unit.home().now() + std::chrono::seconds(1));
  CHECK(!closed);
  bench.hung.release();
  co_await stuck->gone();
}

Task<void> abort_report_luns(Bench& bench) {
  auto slow = make_command(*bench.nexus, report_luns(), {.lun = scsi::kReportLunsUnit, .tag = 4});
  slow->stall_data_in = true;
  bench.router.execute(*slow);
  const TaskManagementResponse none = co_await bench.router.manage(
      *bench.nexus,
      {.function = TaskManagementFunction::kAbortTask, .lun = scsi::kReportLunsUnit, .tag = 5});
  CHECK(none == TaskManagementResponse::kTaskDoesNotExist);
  const TaskManagementResponse done = co_await bench.router.manage(
      *bench.nexus,
      {.function = TaskManagementFunction::kAbortTask, .lun = scsi::kReportLunsUnit, .tag = 4});
  CHECK(done == TaskManagementResponse::kComplete);
  CHECK(slow->reply.silent);
  co_await slow->gone();
}

// The session lives on executor 0, the unit on executor 1.
Task<void> drive_from_afar(Bench& bench, std::uint64_t seed) {
  Executor& session = Executor::current();
  co_await bench.start();
  Random random(seed);
  Bytes expected = filled(64 * 512, 0);
  for (unsigned round = 0; round < 50; ++round) {
    const auto lba = static_cast<std::uint32_t>(random.below(60));
    const Bytes block = filled(4 * 512, static_cast<unsigned>(random.below(256)));
    const Reply written = co_await bench.send_to_unit(cdb_10(0x2A, lba, 4), {.out = block});
    CHECK(written.good());
    std::ranges::copy(block, expected.begin() + lba * 512);
    CHECK(&Executor::current() == &session);
  }
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 64));
  CHECK(read.data == expected);

  bench.hung.hang_only(Operation::kWrite);
  auto stuck = make_command(*bench.nexus, cdb_10(0x2A, 0, 1), {.out = filled(512, 1), .tag = 9});
  bench.router.execute(*stuck);
  const TaskManagementResponse done = co_await bench.manage(TaskManagementFunction::kAbortTask, 9);
  CHECK(done == TaskManagementResponse::kComplete);
  const TaskManagementResponse reset =
      co_await bench.manage(TaskManagementFunction::kTargetWarmReset);
  CHECK(reset == TaskManagementResponse::kComplete);
  co_await SwitchTo(bench.unit.home());
  bench.hung.release();
  co_await SwitchTo(session);
  co_await stuck->gone();
  const Error removed = co_await bench.router.remove(0);
  CHECK(removed == Error::kNone);
  co_await bench.router.detach(*bench.nexus);
  bench.nexus.reset();
  auto closing = bench.unit.close(session.now() + std::chrono::seconds(5));
  const bool closed = co_await invoke_on(bench.unit.home(), std::move(closing));
  CHECK(closed);
  co_await bench.router.close();
}

}  // namespace

TEST_CASE("LUN: peripheral addressing below 256, flat space above, both understood", "[scsi]") {
  CHECK(scsi::encode_lun(0) == 0);
  CHECK(scsi::encode_lun(255) == 0x00FF'0000'0000'0000);
  CHECK(scsi::encode_lun(256) == 0x4100'0000'0000'0000);
  CHECK(scsi::encode_lun(16383) == 0x7FFF'0000'0000'0000);
  for (std::uint32_t number = 0; number < scsi::kMostUnits; ++number) {
    CHECK(scsi::decode_lun(scsi::encode_lun(number)) == number);
    CHECK(scsi::decode_lun((0x4000ULL | number) << 48U) == number);
  }
  CHECK(!scsi::decode_lun(scsi::kReportLunsUnit));
  CHECK(!scsi::decode_lun(0x0101'0000'0000'0000));
  CHECK(!scsi::decode_lun(0x0001'0001'0000'0000));
  CHECK(!scsi::decode_lun(0x8001'0000'0000'0000));
}
TEST_CASE("Windows: LUNs beyond 8 follow SAM", "[scsi]") { on_bench(many_units); }
TEST_CASE("Router: a LUN without a unit", "[scsi]") { on_bench(missing_unit); }
TEST_CASE("Router: LUN 0 answers for the target even without a unit", "[scsi]") {
  on_bench(without_lun_0);
}
TEST_CASE("Router: the REPORT LUNS well known logical unit", "[scsi]") { on_bench(well_known); }
TEST_CASE("REPORT LUNS: units come and go, REPORTED LUNS DATA HAS CHANGED", "[scsi]") {
  on_bench(listing);
}
TEST_CASE("REPORT LUNS: clears the change on every unit", "[scsi]") {
  on_bench(one_report_is_enough);
}
TEST_CASE("Router: a unit with a dead device can be removed", "[scsi]") {
  on_bench(stuck_unit_leaves);
}
TEST_CASE("Router: a command of the well known unit can be aborted", "[scsi]") {
  on_bench(abort_report_luns);
}
TEST_CASE("Router: session and unit on different executors", "[scsi][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 17));
  CAPTURE(seed);
  const auto world = sim::World::create({.seed = seed, .executors = 2});
  Bench bench(*world->executors()[1]);
  const bool ended = world->run([&] { return drive_from_afar(bench, seed); });
  REQUIRE(ended);
}

}  // namespace sandbay::testing
