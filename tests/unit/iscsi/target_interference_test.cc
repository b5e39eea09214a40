// PDUs that somebody loses, delays or damages on a connection of the target: what the peer sees,
// and that no promise of memory is lost with them (a connection asserts that at its end).
#include <catch2/catch.hpp>

#include <deque>

#include "iscsi/interference.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

using Fate = PduInterference::Fate;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// The fate of the next PDUs of an opcode.
struct Plan {
  Opcode opcode = Opcode::kNopOut;
  PduInterference::Verdict verdict;
  unsigned times = 1;
};

class Scripted final : public Interferences {
 public:
  std::unique_ptr<PduInterference> of_connection(const ConnectionFacts& facts) override {
    seen.push_back(facts);
    return std::make_unique<One>(*this);
  }

  std::unique_ptr<SessionInterference> of_session(const std::string&) override {
    return std::make_unique<Answers>(*this);
  }
  Attempt judge_attempt(const AttemptFacts&) override {
    ++attempts;
    return std::exchange(attempt, Attempt{});
  }
  Login judge_login(const LoginFacts& facts) override {
    portal = facts.portal;
    return std::exchange(login, Login{});
  }

  void add(Opcode opcode, Fate fate, unsigned times = 1) {
    plans.push_back({.opcode = opcode, .verdict = {.fate = fate}, .times = times});
  }
  void delay(Opcode opcode, Duration time) {
    plans.push_back({.opcode = opcode, .verdict = {.delay = time}});
  }

  std::deque<Plan> plans;
  std::vector<ConnectionFacts> seen;
  PduInterference::Passing digests;  // As the last PDU had them.
  // Of the next one.
  SessionInterference::Response response;
  SessionInterference::Transfer transfer;
  SessionInterference::Management management;
  bool ignore_ping = false;
  Login login;
  Attempt attempt;
  unsigned attempts = 0;
  std::string portal;

 private:
  class One final : public PduInterference {
   public:
    explicit One(Scripted& script) : PduInterference(script.quiet_), script_(script) {}
    Verdict judge(BhsView bhs, Passing possible) override {
      for (Plan& plan : script_.plans) {
        if (plan.opcode != opcode_of(bhs) || plan.times == 0) continue;
        --plan.times;
        script_.digests = possible;
        return plan.verdict;
      }
      return {};
    }

   private:
    Scripted& script_;
  };
  class Answers final : public SessionInterference {
   public:
    explicit Answers(Scripted& script) : SessionInterference(script.quiet_), script_(script) {}
    Response judge_response(const scsi::Command&, Ending) override {
      return std::exchange(script_.response, Response{});
    }
    Transfer judge_transfer(const scsi::Command&) override {
      return std::exchange(script_.transfer, Transfer{});
    }
    Management judge_management(const TaskManagementRequest&) override {
      return std::exchange(script_.management, Management{});
    }
    bool ignores_ping() override { return std::exchange(script_.ignore_ping, false); }

   private:
    Scripted& script_;
  };
  bool quiet_ = false;
};

Scripted* script = nullptr;

Task<void> ping(RawInitiator& peer, std::uint32_t tag) {
  Bhs bhs;
  write_nop_out({.immediate = true,
                 .initiator_task_tag = tag,
                 .cmd_sn = peer.cmd_sn,
                 .exp_stat_sn = peer.exp_stat_sn},
                bhs);
  co_await peer.send(bhs);
}

// A command that is lost on the way in is a gap, which the initiator fills.
Task<void> lost_command(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  REQUIRE(script->seen.size() == 1);
  CHECK(script->seen[0].tsih == peer.tsih);
  CHECK(script->seen[0].initiator_name == "iqn.2026-11.org.sandbay:raw");
  CHECK(script->seen[0].portal == bench.endpoint().to_string());
  script->add(Opcode::kScsiCommand, Fate::kLose);
  const std::uint32_t first = peer.cmd_sn;
  const std::uint32_t lost = co_await send_command(peer, writing(5, 1, pattern_of(kBlock)));
  const std::uint32_t behind = co_await send_command(peer, reading(5, 1));
  RawPdu pdu = co_await peer.next(seconds(5));
  CHECK(pdu.silent);
  RawCommand again = writing(5, 1, pattern_of(kBlock));
  again.own_cmd_sn = true;
  again.cmd_sn = first;
  again.tag = lost;
  co_await send_command(peer, again);
  pdu = co_await peer.next_of(lost);
  CHECK(pdu.status() == 0);
  pdu = co_await peer.next_of(behind);
  CHECK(pdu.data == pattern_of(kBlock));
}

// Data-Outs that are lost: behind the last of the others the write fails, and so does one that gets
// none at all in time.
Task<void> lost_data_out(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  script->add(Opcode::kDataOut, Fate::kLose, 2);
  const Bytes data = pattern_of(64 * kBlock);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 64));
  const RawPdu r2t = co_await peer.next_of(tag);
  REQUIRE(r2t.is(Opcode::kReadyToTransfer));
  co_await answer_r2t(peer, r2t.r2t(), data, 8192);
  RawPdu pdu = co_await peer.next_of(tag, seconds(60));
  CHECK(pdu.status() == 2);
  CHECK(pdu.sense() >> 16U == 0xb);
  script->add(Opcode::kDataOut, Fate::kLose, 4);
  const std::uint32_t silent = co_await send_command(peer, writing(0, 64));
  const RawPdu asked = co_await peer.next_of(silent);
  co_await answer_r2t(peer, asked.r2t(), data, 8192);
  pdu = co_await peer.next_of(silent, minutes(3));
  CHECK(pdu.status() == 2);
  pdu = co_await answer_to(peer, writing(0, 64));
  co_await answer_r2t(peer, pdu.r2t(), data, 8192);
  pdu = co_await peer.next_of(pdu.tag());
  CHECK(pdu.status() == 0);
}

// A response that is lost on the way out has its StatSN.
Task<void> lost_response(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawPdu pdu = co_await answer_to(peer, {});
  const std::uint32_t before = pdu.numbers().stat_sn;
  script->add(Opcode::kScsiResponse, Fate::kLose);
  const std::uint32_t tag = co_await send_command(peer, {});
  pdu = co_await peer.next_of(tag, seconds(5));
  CHECK(pdu.silent);
  pdu = co_await answer_to(peer, {});
  CHECK(pdu.numbers().stat_sn == before + 2);
}

// It and what is behind it wait, and the connection is not given up meanwhile.
Task<void> delays(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  for (const Opcode opcode : {Opcode::kScsiCommand, Opcode::kScsiResponse}) {
    script->delay(opcode, minutes(2));
    const TimePoint begin = bench.now();
    const std::uint32_t late = co_await send_command(peer, {});
    if (opcode == Opcode::kScsiResponse) co_await bench.sleep(milliseconds(100));
    co_await ping(peer, 7000);
    RawPdu pdu = co_await peer.next(minutes(3));
    CHECK(pdu.tag() == late);
    CHECK(bench.now() - begin >= minutes(2));
    CHECK(bench.now() - begin < minutes(2) + seconds(1));
    pdu = co_await peer.next();
    CHECK(pdu.tag() == 7000);
  }
  // A peer or a server that ends waits for no delay.
  script->delay(Opcode::kScsiCommand, std::chrono::hours(10));
  script->delay(Opcode::kNopIn, std::chrono::hours(10));
  RawInitiator& other = *co_await bench.session({.isid = 2});
  co_await send_command(peer, {});
  co_await ping(other, 9);
  co_await bench.sleep(seconds(1));
  other.reset();
}

// What we send last is not held up, whatever a rule says: else nobody could end the session.
Task<void> held_at_the_end(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  peer.pause_reading();
  script->delay(Opcode::kReject, std::chrono::hours(10));
  Bhs bhs;
  write_login_request({.initiator_task_tag = 77, .cmd_sn = peer.cmd_sn}, bhs);
  co_await peer.send(bhs);
  co_await bench.sleep(seconds(2));
  const auto sessions = co_await bench.server().sessions();
  CHECK(sessions.empty());
  peer.resume_reading();
  const RawPdu pdu = co_await peer.next();
  CHECK(pdu.is(Opcode::kReject));
}

// A write whose status is held up by a rule keeps no share that others need.
Task<void> memory_of_late_writes(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const Bytes data = pattern_of(512 * kBlock);
  for (int i = 0; i < 20; ++i) {
    script->response = {.delay = std::chrono::minutes(30)};
    const TimePoint begin = bench.now();
    const std::uint32_t tag = co_await send_command(peer, writing(0, 512));
    for (std::uint32_t done = 0; done < data.size();) {
      const RawPdu r2t = co_await peer.next_of(tag);
      REQUIRE(r2t.is(Opcode::kReadyToTransfer));
      done += r2t.r2t().desired_data_transfer_length;
      co_await answer_r2t(peer, r2t.r2t(), data, 8192);
    }
    co_await bench.sleep(milliseconds(100));
    CHECK(bench.now() - begin < seconds(10));
  }
  RawPdu pdu = co_await managed(peer, {.function = TaskManagementFunction::kLogicalUnitReset});
  CHECK(pdu.managed() == kComplete);
  pdu = co_await peer.next(std::chrono::minutes(40));
  CHECK(pdu.silent);
}

Task<void> digests(Bench& bench) {
  const std::string keys = "HeaderDigest=CRC32C;DataDigest=CRC32C";
  RawInitiator& peer = *co_await bench.session({.keys = keys});
  RawPdu pdu = co_await answer_to(peer, writing(5, 1, pattern_of(kBlock)));
  CHECK(pdu.status() == 0);
  // As if the data of a command had been damaged on their way.
  script->add(Opcode::kScsiCommand, Fate::kDataDigest);
  co_await send_command(peer, writing(5, 1, pattern_of(kBlock, 2)));
  pdu = co_await peer.next();
  CHECK(script->digests.header_digest);
  CHECK(script->digests.data_digest);
  CHECK(pdu.rejected_for() == static_cast<int>(RejectReason::kDataDigestError));
  pdu = co_await peer.next();
  CHECK(pdu.closed);
  RawInitiator& next = *co_await bench.session({.keys = keys, .isid = 2});
  pdu = co_await answer_to(next, reading(5, 1));
  CHECK(pdu.data == pattern_of(kBlock));
  CHECK(next.wrong_digests == 0);
  script->add(Opcode::kDataIn, Fate::kDataDigest);
  pdu = co_await answer_to(next, reading(5, 1));
  CHECK(pdu.data == pattern_of(kBlock));
  CHECK(next.wrong_digests == 1);
  script->add(Opcode::kDataIn, Fate::kHeaderDigest);
  pdu = co_await answer_to(next, reading(5, 1));
  CHECK(next.wrong_digests == 2);
  script->add(Opcode::kScsiCommand, Fate::kHeaderDigest);
  co_await send_command(next, {});
  pdu = co_await next.next();
  CHECK(pdu.closed);
}

// An answer that comes twice, a command that is executed once all the same, and a Data-Out that
// spoils its write alone.
Task<void> duplicates(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawPdu pdu = co_await answer_to(peer, writing(5, 1, pattern_of(kBlock)));
  for (const Opcode opcode : {Opcode::kDataIn, Opcode::kScsiResponse}) {
    script->add(opcode, Fate::kTwice);
    const bool reads = opcode == Opcode::kDataIn;
    const std::uint32_t tag = co_await send_command(peer, reads ? reading(5, 1) : RawCommand{});
    const RawPdu first = co_await peer.next_of(tag);
    const RawPdu second = co_await peer.next_of(tag);
    CHECK(first.status() == 0);
    CHECK(first.bhs == second.bhs);
    CHECK(first.data == second.data);
    CHECK(first.data.size() == (reads ? kBlock : 0));
  }
  script->add(Opcode::kScsiCommand, Fate::kTwice, 2);
  for (const unsigned seed : {4U, 5U}) {
    const std::uint32_t tag = co_await send_command(peer, writing(5, 1, pattern_of(kBlock, seed)));
    pdu = co_await peer.next_of(tag);
    CHECK(pdu.status() == 0);
    pdu = co_await peer.next(seconds(2));
    CHECK(pdu.silent);
  }
  script->add(Opcode::kNopOut, Fate::kTwice);
  co_await ping(peer, 7000);
  for (int i = 0; i < 2; ++i) {
    pdu = co_await peer.next_of(7000);
    CHECK(pdu.is(Opcode::kNopIn));
  }
  const Bytes data = pattern_of(64 * kBlock);
  for (const bool twice : {true, false}) {
    if (twice) script->add(Opcode::kDataOut, Fate::kTwice);
    const std::uint32_t tag = co_await send_command(peer, writing(0, 64));
    pdu = co_await peer.next_of(tag);
    co_await answer_r2t(peer, pdu.r2t(), data, 8192);
    pdu = co_await peer.next_of(tag);
    CHECK(pdu.status() == (twice ? 2 : 0));
  }
}

// Half of a PDU, and then the end.
Task<void> cut_pdus(Bench& bench) {
  for (const Opcode opcode : {Opcode::kDataIn, Opcode::kScsiResponse, Opcode::kScsiCommand}) {
    RawInitiator& peer = *co_await bench.session();
    RawPdu pdu = co_await answer_to(peer, {});
    const std::uint64_t before = peer.bytes_in();
    script->add(opcode, Fate::kCut);
    const bool reads = opcode == Opcode::kDataIn;
    co_await send_command(peer, reads ? reading(0, 4) : RawCommand{});
    pdu = co_await peer.next();
    CHECK(pdu.closed);
    const std::uint64_t half = opcode == Opcode::kScsiCommand ? 0 : kBhsBytes / 2;
    CHECK(peer.bytes_in() - before == (reads ? kBhsBytes + 2 * kBlock : half));
  }
}

// Data with a wrong bit, with a digest that fits and with one that does not; nobody else's copy of
// them changes.
Task<void> altered_data(Bench& bench) {
  const std::string keys = "HeaderDigest=CRC32C;DataDigest=CRC32C";
  RawInitiator& peer = *co_await bench.session({.keys = keys});
  const Bytes data = pattern_of(kBlock);
  Bytes wrong = data;
  wrong[kBlock / 2] ^= std::byte{1};
  RawPdu pdu = co_await answer_to(peer, writing(5, 1, data));
  for (const Fate fate : {Fate::kAltered, Fate::kDamaged}) {
    peer.wrong_digests = 0;
    script->add(Opcode::kDataIn, fate);
    pdu = co_await answer_to(peer, reading(5, 1));
    CHECK(pdu.data == wrong);
    CHECK(peer.wrong_digests == (fate == Fate::kAltered ? 0 : 1));
    pdu = co_await answer_to(peer, reading(5, 1));
    CHECK(pdu.data == data);
  }
  script->add(Opcode::kScsiCommand, Fate::kAltered);
  pdu = co_await answer_to(peer, writing(5, 1, data));
  CHECK(pdu.status() == 0);
  pdu = co_await answer_to(peer, reading(5, 1));
  CHECK(pdu.data == wrong);
  script->add(Opcode::kScsiCommand, Fate::kDamaged);
  co_await send_command(peer, writing(5, 1, data));
  pdu = co_await peer.next();
  CHECK(pdu.rejected_for() == static_cast<int>(RejectReason::kDataDigestError));
  RawInitiator& other = *co_await bench.session({.isid = 2});
  // Data that nobody had asked for have no memory.
  script->add(Opcode::kDataOut, Fate::kAltered);
  Bhs bhs;
  write_data_out({.final = true,
                  .data_segment_length = kBlock,
                  .initiator_task_tag = 999,
                  .target_transfer_tag = 999},
                 bhs);
  co_await other.send(bhs, data);
  script->add(Opcode::kScsiCommand, Fate::kDamaged);
  pdu = co_await answer_to(other, writing(6, 1, data));
  CHECK(pdu.status() == 0);
  pdu = co_await answer_to(other, reading(6, 1));
  CHECK(pdu.data == wrong);
}

Task<void> small_pieces(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const Bytes data = pattern_of(16 * kBlock);
  co_await answer_to(peer, writing(0, 16, data));
  for (const std::uint16_t piece : {1, 7, 4000}) {
    script->plans.push_back({.opcode = Opcode::kDataIn, .verdict = {.piece_bytes = piece}});
    const std::uint32_t tag = co_await send_command(peer, reading(0, 16));
    co_await ping(peer, 7000);
    RawPdu pdu = co_await peer.next();
    CHECK(pdu.tag() == tag);
    CHECK(pdu.data == data);
    pdu = co_await peer.next();
    CHECK(pdu.tag() == 7000);
  }
}

// Pings get no answer, and the connection stays; but not for ever.
Task<void> silence(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  script->plans.push_back(
      {.opcode = Opcode::kScsiCommand, .verdict = {.fate = Fate::kLose, .silent = true}});
  script->add(Opcode::kNopIn, Fate::kLose, 1000);
  co_await send_command(peer, {});
  RawPdu pdu = co_await peer.next(minutes(9));
  CHECK(pdu.silent);
  pdu = co_await peer.next(minutes(3));
  CHECK(pdu.closed);
}

// Whether a connection is refused, or ends at once.
Task<bool> is_kept_out(Bench& bench) {
  auto stream = co_await Executor::current().connect(bench.endpoint());
  if (!stream.has_value()) co_return true;
  std::array<std::byte, 1> byte{};
  const IoSlice slice{.data = byte.data(), .byte_count = byte.size()};
  const Result<std::size_t> got = co_await (*stream)->receive(std::span(&slice, 1));
  co_return !got.has_value() || *got == 0;
}

Task<void> attempts(Bench& bench) {
  script->attempt.reset = true;
  bool out = co_await is_kept_out(bench);
  CHECK(out);
  script->attempt.ignored = seconds(5);
  out = co_await is_kept_out(bench);
  CHECK(out);
  co_await bench.sleep(milliseconds(100));
  const unsigned seen = script->attempts;
  const TimePoint begin = bench.now();
  RawInitiator& late = *co_await bench.session();
  CHECK(bench.now() - begin > seconds(4));
  CHECK(script->attempts == seen + 1);
  const RawPdu pdu = co_await answer_to(late, {});
  CHECK(pdu.status() == 0);
  script->attempt.ignored = std::chrono::hours(5);  // The server's end waits for nothing.
  out = co_await is_kept_out(bench);
  CHECK(out);
}

Task<void> ends(Bench& bench) {
  for (const Fate fate : {Fate::kClose, Fate::kReset}) {
    for (const Opcode opcode : {Opcode::kScsiCommand, Opcode::kDataIn, Opcode::kDataOut}) {
      RawInitiator& peer = *co_await bench.session();
      script->add(opcode, fate);
      const bool writes = opcode == Opcode::kDataOut;
      const std::uint32_t tag =
          co_await send_command(peer, writes ? writing(0, 64) : reading(0, 64));
      RawPdu pdu = co_await peer.next_of(tag);
      if (writes) {
        co_await answer_r2t(peer, pdu.r2t(), pattern_of(64 * kBlock), 8192);
        pdu = co_await peer.next_of(tag);
      }
      CHECK(pdu.closed);
    }
  }
}

// A response that is late, and one that never comes: the command is out of the way when it has been
// aborted, and is not answered then.
Task<void> withheld_responses(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  script->response = {.delay = seconds(30)};
  TimePoint begin = bench.now();
  RawPdu pdu = co_await answer_to(peer, writing(5, 1, pattern_of(kBlock)));
  CHECK(pdu.silent);
  pdu = co_await peer.next(seconds(20));
  CHECK(pdu.status() == 0);
  CHECK(bench.now() - begin >= seconds(30));
  for (const bool lose : {false, true}) {
    script->response = {.lose = lose, .delay = std::chrono::hours(5)};
    const RawCommand command = lose ? writing(6, 1, pattern_of(kBlock, 3)) : reading(5, 1);
    const std::uint32_t cmd_sn = peer.cmd_sn;
    const std::uint32_t tag = co_await send_command(peer, command);
    pdu = co_await peer.next_of(tag, seconds(30));
    CHECK((pdu.silent || pdu.status() < 0));
    pdu = co_await managed(peer, {.referenced_task_tag = tag, .ref_cmd_sn = cmd_sn});
    CHECK(pdu.managed() == kComplete);
    pdu = co_await peer.next_of(tag, seconds(30));
    CHECK(pdu.silent);
  }
  pdu = co_await answer_to(peer, reading(6, 1));
  CHECK(pdu.data == pattern_of(kBlock, 3));
  // It ends with its connection, and with the server.
  for (const std::uint8_t isid : {3, 4}) {
    RawInitiator& other = *co_await bench.session({.isid = isid});
    script->response = {.delay = std::chrono::hours(5)};
    co_await send_command(other, {});
    co_await bench.sleep(seconds(1));
    if (isid == 3) other.reset();
  }
}

Task<void> management(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  bench.device(0).hang();
  const std::uint32_t cmd_sn = peer.cmd_sn;
  const std::uint32_t tag = co_await send_command(peer, writing(5, 1, pattern_of(kBlock)));
  const TaskManagementRequest abort{.referenced_task_tag = tag, .ref_cmd_sn = cmd_sn};
  script->management = {.refuse = TaskManagementResult::kFunctionRejected};
  RawPdu pdu = co_await managed(peer, abort);
  CHECK(pdu.managed() == static_cast<int>(TaskManagementResult::kFunctionRejected));
  script->management = {.delay = seconds(10)};
  TimePoint begin = bench.now();
  pdu = co_await managed(peer, abort);
  CHECK(pdu.managed() == kComplete);
  CHECK(bench.now() - begin >= seconds(10));
  // A reset that is said to be done, and takes a second.
  script->management = {.lie = true};
  begin = bench.now();
  pdu = co_await managed(peer, {.function = TaskManagementFunction::kLogicalUnitReset});
  CHECK(pdu.managed() == kComplete);
  CHECK(bench.now() - begin < milliseconds(500));
  co_await invoke_on(bench.device(0).home(), Bench::release(bench.device(0)));
  script->ignore_ping = true;
  co_await ping(peer, 9000);
  pdu = co_await peer.next_of(9000, seconds(5));
  CHECK(pdu.silent);
  co_await ping(peer, 9001);
  pdu = co_await peer.next_of(9001, seconds(5));
  CHECK(pdu.is(Opcode::kNopIn));
}

// Statuses that tell of more bytes than came, or of fewer; those are not sent.
Task<void> residuals(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const Bytes data = pattern_of(4 * kBlock);
  script->response = {.residual = Residual::kUnderflow, .residual_bytes = 100};
  RawPdu pdu = co_await answer_to(peer, writing(8, 4, data));
  CHECK(pdu.status() == 0);
  CHECK(pdu.response().residual == Residual::kUnderflow);
  CHECK(pdu.response().residual_count == 100);
  pdu = co_await answer_to(peer, reading(8, 4));
  CHECK(pdu.data == data);  // It was done whole.
  script->response = {.residual = Residual::kUnderflow, .residual_bytes = 700};
  pdu = co_await answer_to(peer, reading(8, 4));
  CHECK(pdu.data == Bytes(data.begin(), data.end() - 700));
  CHECK(pdu.data_in().residual == Residual::kUnderflow);
  CHECK(pdu.data_in().residual_count == 700);
  script->response = {.residual = Residual::kUnderflow, .residual_bytes = 1U << 20U};
  pdu = co_await answer_to(peer, reading(8, 4));
  CHECK(pdu.response().residual == Residual::kUnderflow);
  CHECK(pdu.response().residual_count == data.size());
  script->response = {.residual = Residual::kOverflow, .residual_bytes = 700};
  pdu = co_await answer_to(peer, reading(8, 4));
  CHECK(pdu.data == data);
  CHECK(pdu.data_in().residual == Residual::kOverflow);
  CHECK(pdu.data_in().residual_count == 700);
  script->response = {.residual = Residual::kOverflow, .residual_bytes = 1};
  pdu = co_await answer_to(peer, {});
  CHECK(pdu.response().residual == Residual::kOverflow);
}

// Serves what is asked for until the write is answered; where each R2T began, and how long it was.
Task<std::vector<ReadyToTransfer>> serve_write(RawInitiator& peer, std::uint32_t tag,
                                               const Bytes& data) {
  std::vector<ReadyToTransfer> asked;
  for (;;) {
    const RawPdu pdu = co_await peer.next_of(tag);
    if (!pdu.is(Opcode::kReadyToTransfer)) {
      CHECK(pdu.status() == 0);
      co_return asked;
    }
    asked.push_back(pdu.r2t());
    co_await answer_r2t(peer, pdu.r2t(), data, 8192);
  }
}

Task<void> transfers(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  std::vector<ReadyToTransfer> asked;
  for (unsigned seed = 1; seed < 4; ++seed) {
    const Bytes data = pattern_of(16 * kBlock, seed);
    if (seed == 1) script->transfer = {.most = 513};
    if (seed > 1) script->transfer = {.disorder = true};
    const std::uint32_t tag = co_await send_command(peer, writing(0, 16));
    asked = co_await serve_write(peer, tag, data);
    REQUIRE(asked.size() == 2);
    CHECK(asked[0].r2t_sn == 0);
    CHECK(asked[1].r2t_sn == 1);
    CHECK(asked[0].buffer_offset == (seed == 1 ? 0 : data.size() / 2));
    CHECK(asked[0].desired_data_transfer_length == (seed == 1 ? 513 : data.size() / 2));
    CHECK(asked[1].buffer_offset == (seed == 1 ? 513 : 0));
    const RawPdu pdu = co_await answer_to(peer, reading(0, 16));
    CHECK(pdu.data == data);
  }
  // Late; and never, until it is aborted, or its connection ends.
  script->transfer = {.delay = seconds(30)};
  const TimePoint begin = bench.now();
  std::uint32_t tag = co_await send_command(peer, writing(0, 16));
  RawPdu pdu = co_await peer.next_of(tag, minutes(1));
  CHECK(bench.now() - begin >= seconds(30));
  co_await answer_r2t(peer, pdu.r2t(), pattern_of(16 * kBlock), 8192);
  pdu = co_await peer.next_of(tag);
  CHECK(pdu.status() == 0);
  for (const bool half : {false, true}) {
    if (half) script->transfer = {.disorder = true};
    if (!half) script->transfer = {.delay = std::chrono::hours(5)};
    const std::uint32_t cmd_sn = peer.cmd_sn;
    tag = co_await send_command(peer, writing(0, 16));
    co_await bench.sleep(seconds(5));
    pdu = co_await managed(peer, {.referenced_task_tag = tag, .ref_cmd_sn = cmd_sn});
    CHECK(pdu.managed() == kComplete);
  }
  script->transfer = {.delay = std::chrono::hours(5)};
  RawInitiator& other = *co_await bench.session({.isid = 5});
  co_await send_command(other, writing(0, 16));
  co_await bench.sleep(seconds(1));
  other.reset();
}

// The window stays as it was, so that commands use it up; a NOP-In tells that it opens.
Task<void> closed_windows(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawPdu pdu = co_await answer_to(peer, {});
  const std::uint32_t last = pdu.numbers().max_cmd_sn;
  script->response = {.window_closes = seconds(30)};
  pdu = co_await answer_to(peer, {});
  CHECK(pdu.numbers().max_cmd_sn == last);
  while (peer.cmd_sn != last + 1) {
    pdu = co_await answer_to(peer, {});
    CHECK(pdu.numbers().max_cmd_sn == last);
  }
  // Beyond the window nothing is taken.
  const std::uint32_t behind = co_await send_command(peer, {});
  pdu = co_await peer.next_of(behind, seconds(20));
  CHECK(pdu.silent);
  pdu = co_await peer.next(seconds(20));
  CHECK(pdu.is(Opcode::kNopIn));
  CHECK(pdu.numbers().max_cmd_sn == last + 32);
  peer.cmd_sn = last + 1;
  pdu = co_await answer_to(peer, {});
  CHECK(pdu.status() == 0);
  // Neither its own end nor the initiator's next login waits for it.
  script->response = {.window_closes = std::chrono::hours(5)};
  co_await answer_to(peer, {});
  peer.reset();
  const TimePoint begin = bench.now();
  RawInitiator& next = *co_await bench.session();
  CHECK(bench.now() - begin < seconds(5));
  script->response = {.window_closes = std::chrono::hours(5)};
  co_await answer_to(next, {});
}

Task<void> announcements(Bench& bench) {
  for (const auto event : {AsyncEventCode::kLogoutRequest, AsyncEventCode::kConnectionDrop,
                           AsyncEventCode::kSessionDrop, AsyncEventCode::kNegotiationRequest}) {
    const bool single = event == AsyncEventCode::kConnectionDrop;
    const bool stays = event == AsyncEventCode::kNegotiationRequest;
    const bool deadline = stays || event == AsyncEventCode::kLogoutRequest;
    RawInitiator& peer = *co_await bench.session({.keys = "MaxConnections=4"});
    RawInitiator& second = *co_await bench.connect();
    co_await second.log_in({.keys = "", .tsih = peer.tsih, .cid = 1, .cmd_sn = peer.cmd_sn});
    script->response = {.event = event, .event_time = seconds(7)};
    const TimePoint begin = bench.now();
    const std::uint32_t tag = co_await send_command(peer, {});
    RawPdu pdu = co_await peer.next();
    CHECK(pdu.event() == static_cast<int>(event));
    CHECK(pdu.async().parameter2 == (deadline ? 0 : 7));
    CHECK(pdu.async().parameter3 == (deadline ? 7 : 0));
    pdu = co_await peer.next_of(tag);
    CHECK(pdu.status() == 0);
    pdu = co_await peer.next(seconds(10));
    CHECK(pdu.closed != stays);
    if (event == AsyncEventCode::kLogoutRequest) CHECK(bench.now() - begin >= seconds(7));
    second.cmd_sn = peer.cmd_sn;
    if (single || stays) {
      const std::uint32_t alive = co_await send_command(second, {});
      pdu = co_await second.next_of(alive);
      CHECK(pdu.status() == 0);
    } else {
      pdu = co_await second.next_of(999, seconds(1));
      CHECK(pdu.closed);
    }
    peer.reset();
    second.reset();
    co_await bench.sleep(seconds(1));
  }
}

// Small values in small pieces of text; and numbers that wrap soon.
Task<void> odd_logins(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  script->login.odd = true;
  RawPdu pdu = co_await peer.log_in(
      {.keys = "MaxBurstLength=262144;InitialR2T=No;ImmediateData=Yes;FirstBurstLength=65536"});
  Bytes text;
  unsigned pieces = 1;
  for (; pdu.login().continues; ++pieces) {
    CHECK(pdu.data.size() == 60);
    text.insert(text.end(), pdu.data.begin(), pdu.data.end());
    LoginRequest request{.transit = true,
                         .current_stage = 1,
                         .next_stage = 3,
                         .initiator_task_tag = 1,
                         .cmd_sn = peer.cmd_sn,
                         .exp_stat_sn = peer.exp_stat_sn};
    request.isid.bytes = {std::byte{0x80}, {}, {}, {}, {}, std::byte{1}};
    Bhs bhs;
    write_login_request(request, bhs);
    co_await peer.send(bhs);
    pdu = co_await peer.next();
  }
  CHECK(pdu.login().status == LoginStatus::kSuccess);
  CHECK(pdu.login().transit);
  CHECK(pieces > 1);
  text.insert(text.end(), pdu.data.begin(), pdu.data.end());
  pdu.data = text;
  for (const char* const pair :
       {"MaxBurstLength=512", "InitialR2T=Yes", "MaxRecvDataSegmentLength=512"}) {
    INFO(pair);
    CHECK(pdu.has(pair));
  }
  co_await bench.take_attentions(peer);
  const Bytes data = pattern_of(4 * kBlock);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 4));
  const auto asked = co_await serve_write(peer, tag, data);
  CHECK(asked.size() == 4);

  RawInitiator& wrapping = *co_await bench.connect();
  script->login.near_wrap = true;
  pdu = co_await wrapping.log_in({.isid = 2});
  CHECK(pdu.numbers().stat_sn == 0xffff'fff0);
  co_await bench.take_attentions(wrapping);
  std::uint32_t stat_sn = wrapping.exp_stat_sn;
  for (unsigned i = 0; i < 40; ++i) {
    const std::uint32_t write = co_await send_command(wrapping, writing(0, 64));
    pdu = co_await wrapping.next_of(write);
    CHECK(pdu.r2t().target_transfer_tag != kReservedTag);
    co_await answer_r2t(wrapping, pdu.r2t(), pattern_of(64 * kBlock), 8192);
    pdu = co_await wrapping.next_of(write);
    CHECK(pdu.status() == 0);
    CHECK(pdu.numbers().stat_sn == stat_sn++);
  }
  CHECK(stat_sn < 100);
}

Task<void> logins(Bench& bench) {
  for (const auto& [status, address] :
       {std::pair{LoginStatus::kServiceUnavailable, std::string()},
        std::pair{LoginStatus::kMovedTemporarily, std::string("192.0.2.7:3260")}}) {
    RawInitiator& peer = *co_await bench.connect();
    script->login = {.status = status, .address = address, .delay = {}};
    const RawPdu pdu = co_await peer.log_in();
    CHECK(pdu.login().status == status);
    CHECK(script->portal == bench.endpoint().to_string());
    if (!address.empty()) CHECK(pdu.has("TargetAddress=" + address));
  }
  RawInitiator& slow = *co_await bench.connect();
  script->login.delay = seconds(5);
  const TimePoint begin = bench.now();
  RawPdu pdu = co_await slow.log_in();
  CHECK(pdu.login().status == LoginStatus::kSuccess);
  CHECK(bench.now() - begin >= seconds(5));
  // Longer than a login may take.
  RawInitiator& stalled = *co_await bench.connect();
  script->login.delay = minutes(5);
  pdu = co_await stalled.log_in({.isid = 2});
  CHECK(pdu.closed);
  CHECK(bench.now() - begin < minutes(1));
}

void with_script(Task<void> (*test)(Bench&), ServerLimits limits = quiet_limits()) {
  Scripted scripted;
  script = &scripted;
  for (const unsigned executors : {1U, 2U}) {
    INFO("executors: " << executors);
    scripted.plans.clear();
    scripted.seen.clear();
    BenchOptions options{.executors = executors, .limits = limits, .interferences = &scripted};
    auto bench = std::make_unique<Bench>(options);
    const bool ended =
        bench->world().run([&] { return bench->whole(test); }, std::chrono::hours(1));
    if (!ended) static_cast<void>(bench.release());
    REQUIRE(ended);
  }
}

}  // namespace

TEST_CASE("a lost command leaves a gap", "[iscsi]") { with_script(lost_command); }
TEST_CASE("lost data are waited for", "[iscsi]") { with_script(lost_data_out); }
TEST_CASE("a lost response has a StatSN", "[iscsi]") { with_script(lost_response); }
TEST_CASE("PDUs are late, and connections stay", "[iscsi]") { with_script(delays); }
TEST_CASE("nothing is held up at the end", "[iscsi]") { with_script(held_at_the_end); }
TEST_CASE("late writes keep no memory", "[iscsi]") { with_script(memory_of_late_writes); }
TEST_CASE("digests are wrong on purpose", "[iscsi]") { with_script(digests); }
TEST_CASE("responses are late, or never come", "[iscsi]") { with_script(withheld_responses); }
TEST_CASE("task management is refused, late and untrue", "[iscsi]") { with_script(management); }
TEST_CASE("logins are refused, sent on and slow", "[iscsi]") { with_script(logins); }
TEST_CASE("residuals are what a rule says", "[iscsi]") { with_script(residuals); }
TEST_CASE("R2Ts are late, small and out of order", "[iscsi]") { with_script(transfers); }
TEST_CASE("a command window stays closed", "[iscsi]") { with_script(closed_windows); }
TEST_CASE("events are announced and come", "[iscsi]") { with_script(announcements); }
TEST_CASE("logins are odd, and numbers near their wrap", "[iscsi]") { with_script(odd_logins); }
TEST_CASE("PDUs come twice", "[iscsi]") { with_script(duplicates); }
TEST_CASE("PDUs are cut in their middle", "[iscsi]") { with_script(cut_pdus); }
TEST_CASE("data have a wrong bit", "[iscsi]") { with_script(altered_data); }
TEST_CASE("PDUs are sent in small pieces", "[iscsi]") { with_script(small_pieces); }
TEST_CASE("a connection is silent", "[iscsi]") {
  ServerLimits limits;
  limits.nop_in_interval = seconds(5);
  with_script(silence, limits);
}
TEST_CASE("connections are not taken, and get no answer", "[iscsi]") { with_script(attempts); }
TEST_CASE("connections end at a PDU", "[iscsi]") { with_script(ends); }

}  // namespace sandbay::iscsi::test
