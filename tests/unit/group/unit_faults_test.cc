// Units answer as rules at their LUN say, through their own ways: attentions by nexus, task set and
// sense data.
#include "group/unit_faults.h"

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
  CHECK(reply.attention(Additional::kModeParametersChanged));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.attention(Additional::kCapacityDataHasChanged));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  co_await bench.router.detach(*other);
}

}  // namespace

TEST_CASE("rules make units end commands with CHECK CONDITION", "[group]") {
  on_bench(check_conditions);
}
TEST_CASE("rules make units turn commands away", "[group]") { on_bench(statuses); }
TEST_CASE("rules establish unit attentions", "[group]") { on_bench(attentions); }

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
