// Rules at connections and links become verdicts: which PDUs each fault strikes, and what becomes
// of them. The connection's part of it is in target_interference_test.cc.
#include "group/connection_faults.h"

#include <catch2/catch.hpp>

#include "../block/on_executor.h"
#include "../scsi/fake_transport.h"
#include "fault/engine.h"
#include "runtime/simulation.h"

namespace sandbay::testing {
namespace {

using group::ConnectionFaults;
using iscsi::Bhs;
using iscsi::Opcode;
using Fate = iscsi::PduInterference::Fate;
using Verdict = iscsi::PduInterference::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kInitiator = "iqn.1993-08.org.debian:01:host";
const std::string kPortal = "127.0.0.1:3260";

Bhs header(Opcode opcode, std::uint32_t data_bytes = 0, bool status = false) {
  Bhs bhs{};
  bhs[0] = static_cast<std::byte>(opcode);
  if (status) bhs[1] = std::byte{1};
  put_big_endian_24(bhs, 5, data_bytes);
  return bhs;
}

class Rig {
 public:
  explicit Rig(Executor& home) : home_(home), engine_(home, {}), faults_(engine_) { renew(); }

  Task<void> rule(std::string text) {
    engine_.clear_all();
    const auto added = engine_.add(text);
    INFO(text);
    REQUIRE(added.has_value());
    co_await engine_.settle();
  }
  void renew() {
    session_ = faults_.of_session(kInitiator);
    connection_ =
        faults_.of_connection({.tsih = 3, .initiator_name = kInitiator, .portal = kPortal});
  }
  Verdict judge(const Bhs& bhs) {
    const bool sent = (std::to_integer<unsigned>(bhs[0]) & 0x20U) != 0;
    return connection_->judge(bhs, {.sent = sent,
                                    .data = iscsi::data_segment_length(bhs) > 0,
                                    .header_digest = true,
                                    .data_digest = true});
  }
  Fate fate(Opcode opcode, std::uint32_t data_bytes = 0, bool status = false) {
    return judge(header(opcode, data_bytes, status)).fate;
  }
  iscsi::SessionInterference& session() { return *session_; }
  ConnectionFaults& faults() { return faults_; }
  bool quiet() const { return connection_->quiet(); }
  std::uint64_t struck() const { return engine_.list().front().counters.struck; }
  Executor& home() { return home_; }

 private:
  Executor& home_;
  fault::FaultEngine engine_;
  ConnectionFaults faults_;
  std::unique_ptr<iscsi::PduInterference> connection_;
  std::unique_ptr<iscsi::SessionInterference> session_;
};

// A number is lost with the PDU that has it.
Task<void> gaps(Executor& home) {
  Rig rig(home);
  co_await rig.rule("at=conn:3.0 do=statsn.gap");
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kLose);
  CHECK(rig.fate(Opcode::kDataIn, 512, true) == Fate::kLose);
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kPass);
  CHECK(rig.fate(Opcode::kReadyToTransfer) == Fate::kPass);
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kPass);
  CHECK(rig.fate(Opcode::kNopIn) == Fate::kLose);
  Bhs ping = header(Opcode::kNopIn);
  put_big_endian<std::uint32_t>(ping, 16, iscsi::kReservedTag);
  CHECK(rig.judge(ping).fate == Fate::kPass);
  CHECK(rig.struck() == 3);
  co_await rig.rule("at=conn:3.0 do=datasn.gap");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kLose);
  CHECK(rig.fate(Opcode::kDataIn, 512, true) == Fate::kPass);
  CHECK(rig.fate(Opcode::kDataOut, 512) == Fate::kPass);
  co_await rig.rule("at=conn:3.0 do=r2tsn.gap");
  CHECK(rig.fate(Opcode::kReadyToTransfer) == Fate::kLose);
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kPass);
  CHECK(rig.struck() == 1);
}

Task<void> pdus(Executor& home) {
  Rig rig(home);
  co_await rig.rule("at=link do=pdu.dup dir=in");
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kTwice);
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kPass);
  co_await rig.rule("at=link do=pdu.truncate pdu=data-in");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kCut);
  co_await rig.rule("at=link do=corrupt");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kDamaged);
  CHECK(rig.fate(Opcode::kDataOut, 512) == Fate::kDamaged);
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kPass);
  CHECK(rig.struck() == 2);
  co_await rig.rule("at=link do=corrupt how=above");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kAltered);
  co_await rig.rule("at=link do=fragment");
  CHECK(rig.judge(header(Opcode::kDataIn, 512)).piece_bytes == 1);
  CHECK(rig.judge(header(Opcode::kScsiCommand)).piece_bytes == 0);
  co_await rig.rule("at=link do=fragment bytes=100000");
  CHECK(rig.judge(header(Opcode::kDataIn, 512)).piece_bytes == 65535);
  co_await rig.rule("at=link do=stall-window latency=3s");
  CHECK(rig.judge(header(Opcode::kScsiCommand)).delay == seconds(3));
  CHECK(rig.judge(header(Opcode::kDataIn, 512)).delay == Duration::zero());
  co_await rig.rule("at=session:* do=reorder.connections");
  Duration most{};
  for (int i = 0; i < 50; ++i) most = std::max(most, rig.judge(header(Opcode::kScsiCommand)).delay);
  CHECK(most > Duration::zero());
  CHECK(most <= milliseconds(2));
}

// Each direction has the rate, and what is behind waits for what is before.
Task<void> rates(Executor& home) {
  Rig rig(home);
  co_await rig.rule("at=link do=rate bandwidth=1000B/s");
  CHECK(rig.judge(header(Opcode::kDataIn, 952)).delay == seconds(1));
  CHECK(rig.judge(header(Opcode::kDataIn, 952)).delay == seconds(2));
  CHECK(rig.judge(header(Opcode::kDataOut, 452)).delay == milliseconds(500));
  co_await home.sleep_for(seconds(5));
  CHECK(rig.judge(header(Opcode::kDataIn, 952)).delay == seconds(1));
}

Task<void> mute_links(Executor& home) {
  Rig rig(home);
  co_await rig.rule("at=link do=half-open count=1");
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kPass);
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kLose);
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kPass);
  // It stays so without the rule, and others are well.
  co_await rig.rule("at=lun do=nothing");
  CHECK_FALSE(rig.quiet());
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kLose);
  // A mute connection is not made mute again, and other rules strike it.
  co_await rig.rule("at=link do=half-open how=out");
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kPass);
  CHECK(rig.struck() == 0);
  co_await rig.rule("at=lun do=nothing");
  rig.renew();
  CHECK(rig.quiet());
  co_await rig.rule("at=link do=half-open how=out count=1");
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kPass);
  CHECK(rig.fate(Opcode::kScsiResponse) == Fate::kLose);
  rig.renew();
  co_await rig.rule("at=link do=drop how=silence count=1");
  for (const Opcode opcode : {Opcode::kScsiCommand, Opcode::kScsiResponse}) {
    const Verdict verdict = rig.judge(header(opcode));
    CHECK(verdict.fate == Fate::kLose);
    CHECK(verdict.silent);
  }
  CHECK(rig.struck() == 1);
}

Task<void> flaps(Executor& home) {
  Rig rig(home);
  co_await home.sleep_for(seconds(7));
  co_await rig.rule("at=link:127.0.0.1:* do=flap up=3s down=1s");
  for (int second = 0; second < 12; ++second) {
    INFO(second);
    co_await home.sleep_for(second == 0 ? milliseconds(500) : milliseconds(1000));
    const bool down = second % 4 == 3;
    CHECK((rig.fate(Opcode::kScsiCommand) == Fate::kReset) == down);
    CHECK(rig.faults().judge_attempt({.peer = "10.0.0.7", .portal = kPortal}).reset == down);
    CHECK_FALSE(rig.faults().judge_attempt({.peer = "10.0.0.7", .portal = "[::1]:3260"}).reset);
  }
  co_await rig.rule("at=link do=blackhole for=9s");
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kPass);
  const auto attempt = rig.faults().judge_attempt({.peer = "10.0.0.7", .portal = kPortal});
  CHECK(attempt.ignored == seconds(9));
  CHECK(attempt.holds());
  co_await rig.rule("at=lun do=nothing");
  CHECK_FALSE(attempt.holds());
}

Task<void> digests(Executor& home) {
  Rig rig(home);
  co_await rig.rule("at=link do=digest.header");
  CHECK(rig.fate(Opcode::kScsiCommand) == Fate::kHeaderDigest);
  co_await rig.rule("at=link do=digest.data");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kDataDigest);
  co_await rig.rule("at=link pdu=data-in do=pdu.drop");
  CHECK(rig.fate(Opcode::kDataIn, 512) == Fate::kLose);
  co_await rig.rule("at=link do=pdu.delay latency=3s");
  CHECK(rig.judge(header(Opcode::kDataIn, 512)).delay == seconds(3));
  co_await rig.rule("at=link do=drop");
  CHECK(rig.fate(Opcode::kDataIn) == Fate::kReset);
  co_await rig.rule("at=link do=drop how=close");
  CHECK(rig.fate(Opcode::kDataIn) == Fate::kClose);
}

// The answers of a session to a write.
Task<void> answers(Executor& home) {
  using iscsi::AsyncEventCode;
  using iscsi::Residual;
  Rig rig(home);
  scsi::TaskRouter router(home.peers());
  const auto nexus = router.attach({});
  const auto command = make_command(*nexus, cdb_10(0x2A, 0, 8), {.lun = 7ULL << 48U});
  const auto judge = [&](bool moved_data = true, bool announces = false) {
    return rig.session().judge_response(*command,
                                        {.moved_data = moved_data, .announces = announces});
  };
  co_await rig.rule("at=session opcode=0x2a lun=7 do=response.drop");
  CHECK(judge().lose);
  co_await rig.rule("at=session lun=8 do=response.drop");
  CHECK_FALSE(judge().lose);
  co_await rig.rule("at=session do=response.delay latency=4s");
  CHECK(judge().delay == seconds(4));
  co_await rig.rule("at=session do=residual");
  CHECK(judge(false).residual == Residual::kNone);
  CHECK(judge().residual == Residual::kUnderflow);
  CHECK(judge().residual_bytes == 512);
  co_await rig.rule("at=session do=residual how=over bytes=3");
  CHECK(judge().residual == Residual::kOverflow);
  CHECK(judge().residual_bytes == 3);
  co_await rig.rule("at=session do=window.close latency=2s");
  CHECK(judge().window_closes == seconds(2));
  for (const auto& [word, event] :
       {std::pair{"logout", AsyncEventCode::kLogoutRequest},
        std::pair{"connection", AsyncEventCode::kConnectionDrop},
        std::pair{"session", AsyncEventCode::kSessionDrop},
        std::pair{"negotiation", AsyncEventCode::kNegotiationRequest}}) {
    co_await rig.rule(std::string("at=session do=async wait=9s how=") + word);
    CHECK_FALSE(judge(true, true).event);
    CHECK(judge().event == event);
    CHECK(judge().event_time == seconds(9));
  }
  co_await rig.rule("at=session do=r2t.withhold latency=2s");
  CHECK(rig.session().judge_transfer(*command).delay == seconds(2));
  co_await rig.rule("at=session do=r2t.small bytes=77");
  CHECK(rig.session().judge_transfer(*command).most == 77);
  co_await rig.rule("at=session do=r2t.disorder");
  CHECK(rig.session().judge_transfer(*command).disorder);
  CHECK_FALSE(judge().lose);
  co_await router.detach(*nexus);
  co_await router.close();
}

Task<void> functions(Executor& home) {
  using iscsi::TaskManagementResult;
  Rig rig(home);
  const iscsi::TaskManagementRequest request{.lun = 7ULL << 48U};
  co_await rig.rule("at=session do=tmf.reject result=5");
  CHECK(rig.session().judge_management(request).refuse ==
        TaskManagementResult::kFunctionNotSupported);
  co_await rig.rule("at=session do=tmf.slow latency=3s lun=7");
  CHECK(rig.session().judge_management(request).delay == seconds(3));
  co_await rig.rule("at=session do=tmf.lie");
  CHECK(rig.session().judge_management(request).lie);
  CHECK_FALSE(rig.session().ignores_ping());
  co_await rig.rule("at=session do=nop.ignore");
  CHECK(rig.session().ignores_ping());
}

Task<void> logins(Executor& home) {
  using iscsi::LoginStatus;
  Rig rig(home);
  const auto judge = [&] {
    return rig.faults().judge_login({.initiator_name = kInitiator, .portal = kPortal});
  };
  co_await rig.rule("at=link:[::1]:3260 do=login.reject");
  CHECK(judge().status == LoginStatus::kSuccess);
  co_await rig.rule("at=link initiator=*:host do=login.reject status=0x0201");
  CHECK(judge().status == LoginStatus::kAuthenticationFailure);
  co_await rig.rule("at=link do=login.slow latency=3s");
  CHECK(judge().delay == seconds(3));
  co_await rig.rule("at=link do=login.stall");
  CHECK(judge().delay > std::chrono::hours(1));
  co_await rig.rule("at=link do=redirect address=192.0.2.7:3260 permanent=yes");
  CHECK(judge().status == LoginStatus::kMovedPermanently);
  CHECK(judge().address == "192.0.2.7:3260");
  co_await rig.rule("at=link do=nego.odd");
  CHECK(judge().odd);
  co_await rig.rule("at=link do=counter.near.wrap");
  CHECK(judge().near_wrap);
}

}  // namespace

TEST_CASE("rules damage digests, and end connections", "[group]") { run_in_world(1, digests); }
TEST_CASE("rules at sessions become answers", "[group]") { run_in_world(1, answers); }
TEST_CASE("rules at sessions concern functions and pings", "[group]") {
  run_in_world(1, functions);
}
TEST_CASE("rules at links concern logins", "[group]") { run_in_world(1, logins); }
TEST_CASE("numbers are lost with their PDUs", "[group]") { run_in_world(1, gaps); }
TEST_CASE("rules at links become fates of PDUs", "[group]") { run_in_world(1, pdus); }
TEST_CASE("links have a rate", "[group]") { run_in_world(1, rates); }
TEST_CASE("links are open halfway, or mute", "[group]") { run_in_world(1, mute_links); }
TEST_CASE("links flap, and attempts are ignored", "[group]") { run_in_world(1, flaps); }

}  // namespace sandbay::testing
