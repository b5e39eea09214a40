// Logins as the initiators that are in use send them: the keys of Linux' open-iscsi as it ships,
// and its CHAP preference list with everything that a target may be left with. RFC 7143
// sections 6.2, 12.1.3 and 13.
#include <catch2/catch.hpp>

#include "iscsi/chap.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

// What a normal session offers by default, in its order.
constexpr const char* kDefaultKeys =
    "InitiatorAlias=host;HeaderDigest=None;DataDigest=None;DefaultTime2Wait=2;"
    "DefaultTime2Retain=0;IFMarker=No;OFMarker=No;ErrorRecoveryLevel=0;InitialR2T=No;"
    "ImmediateData=Yes;MaxBurstLength=16776192;FirstBurstLength=262144;MaxOutstandingR2T=1;"
    "MaxConnections=1;DataPDUInOrder=Yes;DataSequenceInOrder=Yes;"
    "MaxRecvDataSegmentLength=262144";

Task<void> default_keys(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer = co_await peer.log_in({.keys = kDefaultKeys});
  CHECK(answer.login().status == LoginStatus::kSuccess);
  CHECK(answer.login().transit);
  for (const char* pair :
       {"HeaderDigest=None", "DataDigest=None", "DefaultTime2Wait=2", "DefaultTime2Retain=0",
        "ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192",
        "FirstBurstLength=262144", "MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes",
        "DataSequenceInOrder=Yes"}) {
    INFO(pair << " in " << answer.text());
    CHECK(answer.has(pair));
  }
  // Keys of older initiators (section 13.25) do not fail a login.
  CHECK(answer.text().find("IFMarker=") != std::string::npos);
  co_await bench.take_attentions(peer);
  const RawPdu ready = co_await answer_to(peer, {});
  CHECK(ready.status() == 0);
}

// Section 6.2: a key that is negotiated a second time ends the login.
Task<void> key_twice(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer = co_await peer.log_in({.keys = "InitialR2T=No;InitialR2T=No"});
  CHECK(answer.login().status == LoginStatus::kInitiatorError);
  const RawPdu end = co_await peer.next();
  CHECK(end.closed);
}

// Section 13.19: irrelevant when SessionType=Discovery.
Task<void> discovery_irrelevant(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer =
      co_await peer.log_in({.target = "", .keys = "DataSequenceInOrder=Yes;DataPDUInOrder=Yes"});
  CHECK(answer.login().status == LoginStatus::kSuccess);
  CHECK(answer.has("DataSequenceInOrder=Irrelevant"));
  CHECK(answer.has("DataPDUInOrder=Irrelevant"));
}

// A read in one Data-In that carries its status: place and number are filled in (section 11.7).
Task<void> status_with_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "MaxRecvDataSegmentLength=4096"});
  const std::uint32_t tag = co_await send_command(peer, reading(0, 20));
  for (const std::uint32_t data_sn : {0U, 1U, 2U}) {
    const RawPdu pdu = co_await peer.next_of(tag);
    REQUIRE(pdu.is(Opcode::kDataIn));
    CHECK(pdu.data_in().data_sn == data_sn);
    CHECK(pdu.data_in().buffer_offset == data_sn * 4096);
    CHECK(pdu.data_in().has_status == (data_sn == 2));
  }
}

Task<void> no_pings(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const RawPdu nothing = co_await peer.next(std::chrono::minutes(30));
  CHECK(nothing.silent);
}

Task<void> pings_every_seven_seconds(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  const TimePoint start = bench.now();
  const RawPdu ping = co_await peer.next(std::chrono::minutes(1));
  CHECK(ping.is(Opcode::kNopIn));
  CHECK(bench.now() - start >= std::chrono::seconds(7));
  CHECK(bench.now() - start < std::chrono::seconds(14));
}

BenchOptions pinging() {
  BenchOptions options;
  options.limits.nop_in_interval = std::chrono::seconds(7);
  return options;
}

}  // namespace

TEST_CASE("Linux: the default keys of open-iscsi") { on_bench({}, default_keys); }
TEST_CASE("Session rules: a key negotiated twice ends the login") { on_bench({}, key_twice); }
TEST_CASE("Session rules: DataSequenceInOrder is Irrelevant in discovery") {
  on_bench({}, discovery_irrelevant);
}
TEST_CASE("Windows: the Data-In that carries the status has its offset and DataSN") {
  on_bench({}, status_with_data);
}
TEST_CASE("Session rules: a NOP-In interval of 0 is none") { on_bench({}, no_pings); }
TEST_CASE("Session rules: the NOP-In interval is adjustable") {
  on_bench(pinging(), pings_every_seven_seconds);
}

TEST_CASE("Linux: the CHAP preference list 8,7,6,5 and what is left of it") {
  struct Case {
    const char* offered;
    const char* chosen;
  };
  for (const Case& one :
       {Case{"8,7,6,5", "8"}, Case{"7,6,5", "7"}, Case{"6,5", "6"}, Case{"5", "5"}}) {
    CAPTURE(one.offered);
    ChallengeRegistry registry;
    const auto algorithms = all_chap_algorithms();
    ChapTarget target({.credentials = {{.user = "host", .secret = "secretsecret"}},
                       .algorithms = {algorithms.begin(), algorithms.end()}},
                      registry, openssl_random());
    const std::vector<KeyValue> offer{{"CHAP_A", one.offered}};
    const auto answer = target.receive(offer);
    REQUIRE(answer.has_value());
    REQUIRE_FALSE(answer->empty());
    CHECK(answer->front().key == "CHAP_A");
    CHECK(answer->front().value == one.chosen);
  }
}

// A host gives one secret to all of its sessions; each has a challenge of its own.
TEST_CASE("Windows: one CHAP secret on all sessions of a host") {
  ChallengeRegistry registry;
  const auto algorithms = all_chap_algorithms();
  const ChapCredential host{.user = "host", .secret = "secretsecret"};
  std::vector<std::unique_ptr<ChapTarget>> targets;
  std::vector<std::string> challenges;
  for (int session = 0; session < 4; ++session) {
    targets.push_back(std::make_unique<ChapTarget>(
        ChapTarget::Options{.credentials = {host},
                            .algorithms = {algorithms.begin(), algorithms.end()}},
        registry, openssl_random()));
    ChallengeRegistry own;
    ChapInitiator initiator({.credential = host, .algorithms = {ChapAlgorithm::kSha256}}, own,
                            openssl_random());
    const auto challenge = targets.back()->receive(initiator.start());
    REQUIRE(challenge.has_value());
    for (const KeyValue& pair : *challenge) {
      if (pair.key == "CHAP_C") challenges.push_back(pair.value);
    }
    const auto response = initiator.receive(*challenge);
    REQUIRE(response.has_value());
    CHECK(targets.back()->receive(*response).has_value());
    CHECK(targets.back()->done());
  }
  REQUIRE(challenges.size() == 4);
  std::ranges::sort(challenges);
  CHECK(std::ranges::adjacent_find(challenges) == challenges.end());
}

}  // namespace sandbay::iscsi::test
