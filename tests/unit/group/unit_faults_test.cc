// Units answer as rules at their LUN say, through their own ways: attentions by nexus, task set and
// sense data.
#include "group/unit_faults.h"

#include <tuple>

#include "../scsi/fake_transport.h"
#include "fault/engine.h"

namespace sandbay::testing {
namespace {

using group::UnitFaults;
using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

constexpr unsigned kRead10 = 0x28;
constexpr unsigned kWrite10 = 0x2A;
const std::array<std::byte, 16> kInquiry = cdb_of({0x12, 0, 0, 0, 36});

// The bench's unit, as volume "v", with an engine.
struct Broken {
  explicit Broken(Bench& bench)
      : engine(bench.unit.home(), {}),
        faults(*engine.post(bench.unit.home()), "v"),
        unit(bench.unit) {
    unit.set_interference(&faults);
  }
  ~Broken() { unit.set_interference(nullptr); }
  Broken(const Broken&) = delete;
  Broken& operator=(const Broken&) = delete;

  Task<void> rule(std::string text) {
    engine.clear_all();
    const auto added = engine.add(text);
    INFO(text);
    REQUIRE(added.has_value());
    co_await engine.settle();
  }

  fault::FaultEngine engine;
  UnitFaults faults;
  scsi::LogicalUnit& unit;
};

Task<void> check_conditions(Bench& bench) {
  Broken broken(bench);
  co_await broken.rule("at=lun:v op=read lba=100+8 do=check key=3 code=11/00");
  Reply reply = co_await bench.send_to_unit(cdb_10(kRead10, 96, 8));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(reply.information() == 100U);
  CHECK(reply.data.empty());
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 107, 8));
  CHECK(reply.information() == 107U);
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 108, 8));
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(kWrite10, 100, 1), {.out = filled(512, 7)});
  CHECK(reply.good());
  // A write that is struck changes nothing.
  co_await broken.rule("at=lun:v op=write do=aborted count=1");
  reply = co_await bench.send_to_unit(cdb_10(kWrite10, 100, 1), {.out = filled(512, 9)});
  CHECK(reply.failed_with(SenseKey::kAbortedCommand, Additional::kNone));
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 100, 1));
  CHECK(reply.data == filled(512, 7));
  co_await broken.rule("at=lun:v do=notready code=04/02");
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kInitializingCommandRequired));
  reply = co_await bench.send_to_unit(kInquiry);
  CHECK(reply.good());
  co_await broken.rule("at=lun:v opcode=0x12 do=notready");
  reply = co_await bench.send_to_unit(kInquiry);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kBecomingReady));
  // As real sense data in the format that the host chose, and of operation codes without a row.
  co_await broken.rule("at=lun:v opcode=0xff do=check key=0xb code=47/03");
  reply = co_await bench.send_to_unit(cdb_of({0xff}));
  CHECK(reply.key() == SenseKey::kAbortedCommand);
  CHECK(reply.additional() == 0x4703);
}

Task<void> statuses(Bench& bench) {
  Broken broken(bench);
  co_await broken.rule("at=lun:v op=read do=reservation.conflict");
  Reply reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 8));
  CHECK(reply.status == Status::kReservationConflict);
  CHECK(bench.unit.counters().reservation_conflicts == 1);
  co_await broken.rule("at=lun:v opcode=0x28 do=busy");
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 8));
  CHECK(reply.status == Status::kBusy);
  CHECK(reply.sense.empty());
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  CHECK(bench.unit.counters().busy == 1);
  // The task set is full from its third command on.
  co_await broken.rule("at=lun:v depth=3.. do=taskfull");
  bench.hung.hang();
  std::vector<std::unique_ptr<FakeCommand>> reads;
  for (int i = 0; i < 4; ++i) {
    reads.push_back(make_command(*bench.nexus, cdb_10(kRead10, 0, 8), {.tag = 10U + i}));
    bench.router.execute(*reads.back());
  }
  for (const std::size_t i : {2U, 3U}) {
    co_await reads[i]->gone();
    CHECK(reads[i]->reply.status == Status::kTaskSetFull);
  }
  bench.hung.release();
  for (const std::size_t i : {0U, 1U}) {
    co_await reads[i]->gone();
    CHECK(reads[i]->reply.good());
  }
  CHECK(bench.unit.counters().task_set_full == 2);
}

// For the command's nexus alone, once, and behind one that was there before.
Task<void> attentions(Bench& bench) {
  Broken broken(bench);
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x2");
  co_await broken.rule("at=lun:v initiator=iqn.2026-11.org.example:two do=ua code=3f/0e count=1");
  Reply reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  reply = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(reply.attention(Additional::kReportedLunsDataHasChanged));
  reply = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(reply.good());
  co_await broken.rule("at=lun:v do=ua code=2a/09 count=1");
  bench.unit.establish(scsi::UnitAttention::kModeParametersChanged);
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.attention(Additional::kCapacityDataHasChanged));
  // INQUIRY reports none, and its answer is the rule's.
  co_await broken.rule("at=lun:v opcode=0x12 do=notready");
  reply = co_await bench.send_to_unit(kInquiry);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kBecomingReady));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.attention(Additional::kModeParametersChanged));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  co_await bench.router.detach(*other);
}

// The unit's own refusals come first, and the depth of the task set is known to all rules.
Task<void> precedence(Bench& bench) {
  Broken broken(bench);
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x2");
  co_await broken.rule("at=lun:v do=check key=3 code=11/00");
  Reply reply = co_await bench.send_to_unit(cdb_of({0xff}));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  auto wrong = cdb_10(kRead10, 0, 8);
  wrong[9] = std::byte{0xff};
  reply = co_await bench.send_to_unit(wrong);
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  co_await broken.rule("at=lun:v op=read depth=2.. do=aborted");
  reply = co_await send(bench.router, *other, cdb_of({0x16}));
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 8));
  CHECK(reply.status == Status::kReservationConflict);
  bench.hung.hang();
  const auto held = make_command(*other, cdb_10(kRead10, 0, 8), {.tag = 7});
  bench.router.execute(*held);
  reply = co_await send(bench.router, *other, cdb_10(kRead10, 0, 8));
  CHECK(reply.failed_with(SenseKey::kAbortedCommand, Additional::kNone));
  bench.hung.release();
  co_await held->gone();
  CHECK(held->reply.good());
  co_await bench.router.detach(*other);
}

// Which commands are which operations on blocks.
Task<void> operations(Bench& bench) {
  Broken broken(bench);
  const auto write = cdb_10(kWrite10, 0, 1);
  const auto forced = cdb_10(kWrite10, 0, 1, 0x08);
  const auto same = cdb_10(0x41, 0, 1);
  const auto freed = cdb_10(0x41, 0, 1, 0x08);
  const Bytes block = filled(512, 1);
  const std::vector<std::tuple<std::string, std::array<std::byte, 16>, Bytes, bool>> cases{
      {"op=write", write, block, true},
      {"fua=yes", write, block, false},
      {"fua=yes", forced, block, true},
      {"fua=yes", freed, block, false},
      {"op=write_zeroes lba=0", same, block, true},
      {"op=write_zeroes", freed, block, false},
      {"op=unmap", freed, block, true},
      {"op=advise", cdb_10(0x34, 0, 1), {}, true},
      {"op=flush", cdb_10(0x35, 0, 8), {}, true},
      {"op=flush lba=0", cdb_10(0x35, 0, 8), {}, false}};
  for (const auto& [words, cdb, out, expected] : cases) {
    INFO(words);
    co_await broken.rule("at=lun:v " + words + " do=busy");
    const Reply reply = co_await bench.send_to_unit(cdb, {.out = out});
    CHECK((reply.status == Status::kBusy) == expected);
  }
}

// As a LUN that leads nowhere, for some: the unit says and does nothing.
Task<void> vanishing(Bench& bench) {
  Broken broken(bench);
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x2");
  Reply reply = co_await send(bench.router, *other, kTestUnitReady);
  co_await broken.rule("at=lun:v initiator=iqn.2026-11.org.example:two do=lun.vanish");
  bench.unit.establish(scsi::UnitAttention::kModeParametersChanged);
  reply = co_await send(bench.router, *other, cdb_10(kWrite10, 0, 1), {.out = filled(512, 9)});
  CHECK(reply.illegal(Additional::kLogicalUnitNotSupported));
  reply = co_await send(bench.router, *other, kInquiry);
  CHECK(reply.good());
  CHECK(reply.data.at(0) == std::byte{0x7F});
  reply = co_await send(bench.router, *other, cdb_of({0x12, 1, 0x83, 0, 255}));
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await send(bench.router, *other, cdb_of({0x03, 0, 0, 0, 252}));
  CHECK(reply.good());
  CHECK(reply.data.at(12) == std::byte{0x25});
  reply = co_await send(bench.router, *other, cdb_of({0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0}));
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.attention(Additional::kModeParametersChanged));
  reply = co_await bench.send_to_unit(kInquiry);
  CHECK(reply.data.at(0) == std::byte{0});
  co_await broken.rule("at=lun:w do=lun.vanish");
  reply = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(reply.attention(Additional::kModeParametersChanged));
  reply = co_await send(bench.router, *other, cdb_10(kRead10, 0, 1));
  CHECK(reply.data == filled(512, 0));
  co_await bench.router.detach(*other);
}

// Each asymmetric access state serves some commands.
Task<void> access_states(Bench& bench) {
  Broken broken(bench);
  const auto mode_sense = cdb_of({0x1A, 0, 0x3F, 0, 255});
  co_await broken.rule("at=lun:v do=alua.state");
  Reply reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kAccessStateTransition));
  reply = co_await bench.send_to_unit(mode_sense);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kAccessStateTransition));
  co_await broken.rule("at=lun:v do=alua.state how=standby");
  reply = co_await bench.send_to_unit(mode_sense);
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 1));
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kPortStandby));
  co_await broken.rule("at=lun:v do=alua.state how=unavailable");
  reply = co_await bench.send_to_unit(mode_sense);
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kPortUnavailable));
  reply = co_await bench.send_to_unit(kInquiry);
  CHECK(reply.good());
}

// Late, unless it is aborted or the rule goes; and acknowledged without being done.
Task<void> late_and_lost(Bench& bench) {
  Broken broken(bench);
  co_await broken.rule("at=lun:v op=read do=slow latency=3s");
  Executor& home = Executor::current();
  TimePoint begin = home.now();
  Reply reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 1));
  CHECK(reply.good());
  CHECK(home.now() - begin >= std::chrono::seconds(3));
  co_await broken.rule("at=lun:v op=read do=slow latency=5h");
  begin = home.now();
  const auto late = make_command(*bench.nexus, cdb_10(kRead10, 0, 1), {.tag = 7});
  bench.router.execute(*late);
  const auto aborted = make_command(*bench.nexus, cdb_10(kRead10, 0, 1), {.tag = 8});
  bench.router.execute(*aborted);
  const auto answer = co_await bench.router.manage(
      *bench.nexus, {.function = scsi::TaskManagementFunction::kAbortTask, .tag = 8});
  CHECK(answer == scsi::TaskManagementResponse::kComplete);
  co_await aborted->gone();
  co_await broken.rule("at=lun:w do=lost");
  co_await late->gone();
  CHECK(late->reply.good());
  CHECK(home.now() - begin < std::chrono::seconds(3));
  co_await broken.rule("at=lun:v op=write do=lost");
  reply = co_await bench.send_to_unit(cdb_10(kWrite10, 0, 1), {.out = filled(512, 9)});
  CHECK(reply.good());
  co_await broken.rule("at=lun:w do=lost");
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 1));
  CHECK(reply.data == filled(512, 0));
}

// WRITE SAME and UNMAP are lost, too; what the unit refuses is refused, and a lock is not lost.
Task<void> lost_changes(Bench& bench) {
  Broken broken(bench);
  Reply reply = co_await bench.send_to_unit(cdb_10(kWrite10, 0, 1), {.out = filled(512, 9)});
  CHECK(reply.good());
  co_await broken.rule("at=lun:v op=write,write_zeroes,unmap do=lost");
  reply = co_await bench.send_to_unit(cdb_10(0x41, 0, 1), {.out = filled(512, 3)});
  CHECK(reply.good());
  Bytes unmap(24);
  unmap[1] = std::byte{22};
  unmap[3] = std::byte{16};
  unmap[19] = std::byte{1};
  reply = co_await bench.send_to_unit(cdb_10(0x42, 0, 24), {.out = unmap});
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(kWrite10, 1U << 30U, 1), {.out = filled(512, 9)});
  CHECK(reply.illegal(scsi::Additional::kLbaOutOfRange));
  reply = co_await bench.send_to_unit(cdb_10(kRead10, 0, 1));
  CHECK(reply.data == filled(512, 9));
  reply = co_await bench.send_to_unit(cdb_16(0x89, 0, 1), {.out = filled(1024, 8)});
  CHECK(reply.key() == scsi::SenseKey::kMiscompare);
}

// Two seconds of three it works.
Task<void> phases(Bench& bench) {
  Broken broken(bench);
  co_await broken.rule("at=lun:v up=2s down=1s do=busy");
  for (int second = 0; second < 9; ++second) {
    INFO(second);
    co_await Executor::current().sleep_for(std::chrono::milliseconds(second == 0 ? 500 : 1000));
    const Reply reply = co_await bench.send_to_unit(kTestUnitReady);
    CHECK((reply.status == Status::kBusy) == (second % 3 == 2));
  }
}

}  // namespace

TEST_CASE("rules make commands late, and lose writes", "[group]") { on_bench(late_and_lost); }
TEST_CASE("rules lose every change of blocks", "[group]") { on_bench(lost_changes); }
TEST_CASE("rules hold for a time and not for another", "[group]") { on_bench(phases); }
TEST_CASE("rules make a unit vanish", "[group]") { on_bench(vanishing); }
TEST_CASE("rules put a unit into an access state", "[group]") { on_bench(access_states); }
TEST_CASE("rules make units end commands with CHECK CONDITION", "[group]") {
  on_bench(check_conditions);
}
TEST_CASE("rules make units turn commands away", "[group]") { on_bench(statuses); }
TEST_CASE("rules establish unit attentions", "[group]") { on_bench(attentions); }

TEST_CASE("rules come after a unit's own refusals", "[group]") { on_bench(precedence); }
TEST_CASE("rules know commands by their operations", "[group]") { on_bench(operations); }

TEST_CASE("units establish the attentions that they know", "[group]") {
  const auto error = [](std::string_view code) {
    const auto rule = fault::parse_rule("at=lun do=ua code=" + std::string(code));
    REQUIRE(rule.has_value());
    return group::answer_error(*rule).value_or("");
  };
  CHECK(error("3f/0e").empty());
  CHECK(error("2a/09").empty());
  CHECK(error("2a/0a") ==
        "code=2a/0a: units establish 29/00, 28/00, 2a/09, 2a/01, 3f/0e, 38/07; do=check key=6 "
        "reports any other");
}

}  // namespace sandbay::testing
