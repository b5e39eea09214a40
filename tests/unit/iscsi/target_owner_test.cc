// A session belongs to its CHAP user, although two users may use one initiator's name.
#include <catch2/catch.hpp>

#include "iscsi/chap.h"
#include "iscsi/text.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

const ChapCredential kAlice{.user = "alice", .secret = "alicesecret12345"};
const ChapCredential kBob{.user = "bob", .secret = "bobsecret1234567"};

// Logs in with CHAP in three requests, as the peer's only initiator name and ISID. Counts answers.
Task<LoginResponse> prove(RawInitiator& peer, ChapCredential user, std::uint16_t tsih,
                          int* answers = nullptr) {
  ChallengeRegistry own;
  ChapInitiator chap(
      {.credential = std::move(user), .mutual = {}, .algorithms = {ChapAlgorithm::kSha256}}, own,
      openssl_random());
  LoginRequest request{.next_stage = 3, .tsih = tsih, .initiator_task_tag = 9, .cid = 1};
  request.cmd_sn = 100;
  request.isid.bytes = {std::byte{0x80}, std::byte{0}, std::byte{0},
                        std::byte{0},    std::byte{0}, std::byte{1}};
  std::string text = text_of(
      "InitiatorName=iqn.2026-11.org.sandbay:raw;SessionType=Normal;AuthMethod=CHAP;TargetName=" +
      std::string(kBenchTarget));
  LoginResponse answer;
  for (int step = 0; step < 3; ++step) {
    Bhs bhs;
    request.transit = step == 2;
    write_login_request(request, bhs);
    co_await peer.send(bhs, bytes_of(text));
    const RawPdu pdu = co_await peer.next(std::chrono::seconds(60));
    answer = pdu.login();
    if (answers != nullptr) ++*answers;
    if (answer.status != LoginStatus::kSuccess || step == 2) break;
    request.exp_stat_sn = pdu.numbers().stat_sn + 1;
    const auto keys = parse_text(pdu.text());
    const auto reply = step == 0 ? chap.start() : chap.receive(keys.value()).value();
    text = format_text(reply);
  }
  peer.tsih = answer.tsih;
  co_return answer;
}

Task<void> another_user(Bench& bench) {
  const Error updated = co_await bench.server().update_target(
      {.name = kBenchTarget, .access = {AccessRecord{.chap = kAlice}, AccessRecord{.chap = kBob}}},
      nullptr);
  CHECK(updated == Error::kNone);
  RawInitiator& first = *co_await bench.connect();
  const LoginResponse alice = co_await prove(first, kAlice, 0);
  CHECK(alice.status == LoginStatus::kSuccess);
  RawInitiator& joining = *co_await bench.connect();
  const LoginResponse joined = co_await prove(joining, kBob, alice.tsih);
  CHECK(joined.status == LoginStatus::kAuthorizationFailure);
  RawInitiator& replacing = *co_await bench.connect();
  const LoginResponse replaced = co_await prove(replacing, kBob, 0);
  CHECK(replaced.status == LoginStatus::kAuthorizationFailure);
  CHECK_FALSE(first.ended());
  RawInitiator& again = *co_await bench.connect();
  const LoginResponse own = co_await prove(again, kAlice, 0);
  CHECK(own.status == LoginStatus::kSuccess);
  CHECK(own.tsih != alice.tsih);
}

// Which sessions exist is not told before the proof.
Task<void> no_session_before_proof(Bench& bench) {
  const Error updated = co_await bench.server().update_target(
      {.name = kBenchTarget, .access = {AccessRecord{.chap = kAlice}}}, nullptr);
  CHECK(updated == Error::kNone);
  int answers = 0;
  RawInitiator& guessing = *co_await bench.connect();
  const LoginResponse guessed = co_await prove(guessing, kBob, 4711, &answers);
  CHECK(guessed.status == LoginStatus::kAuthenticationFailure);
  CHECK(answers == 3);
  RawInitiator& proven = *co_await bench.connect();
  const LoginResponse told = co_await prove(proven, kAlice, 4711);
  CHECK(told.status == LoginStatus::kSessionDoesNotExist);
}

}  // namespace

TEST_CASE("Only a proven initiator hears whether a session exists", "[X9]") {
  on_bench({}, no_session_before_proof);
}

TEST_CASE("Another CHAP user neither joins nor reinstates a session", "[X5]") {
  on_bench({}, another_user);
}

}  // namespace sandbay::iscsi::test
