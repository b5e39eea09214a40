// The target's login (RFC 7143 sections 6.3, 11.12, 11.13): stages, partial PDUs, statuses, limits.
#include "iscsi/login.h"

#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "login_peer.h"

namespace sandbay::iscsi {

TEST_CASE("A login without security or keys is accepted in one exchange", "[iscsi][login]") {
  LoginPeer peer;
  CHECK(peer.send({.stage = 1, .next = 3}, LoginPeer::names()) == LoginOutcome::kPlace);
  peer.login.accept(77);
  const LoginResponse& response = peer.login.response();
  CHECK(response.status == LoginStatus::kSuccess);
  CHECK(response.transit);
  CHECK(response.current_stage == 1);
  CHECK(response.next_stage == 3);
  CHECK(response.tsih == 77);
  CHECK(response.isid == LoginPeer::isid());
  CHECK(response.initiator_task_tag == 0x55);
  CHECK(response.numbers == StatusNumbers{1000, 42, 42});
  CHECK(peer.value("TargetPortalGroupTag") == "3");
  CHECK(peer.value("TargetAlias") == "a disk");
  CHECK(peer.value("MaxRecvDataSegmentLength") == "262144");
  CHECK(peer.login.next_stat_sn() == 1001);
  CHECK(peer.policy.asked == 1);
  CHECK(peer.login.identity().initiator_name == "iqn.1999-07.com.os:hostid.77");
}

TEST_CASE("The portal group tag comes with the first response that may carry it",
          "[iscsi][login]") {
  LoginPeer peer;
  const std::string text = format_text(LoginPeer::names());
  CHECK(peer.send_text({.stage = 0, .transit = false, .continues = true}, text.substr(0, 20)) ==
        LoginOutcome::kRespond);
  CHECK(peer.login.response_text().empty());
  CHECK_FALSE(peer.login.response().transit);
  CHECK_FALSE(peer.login.response().continues);
  CHECK(peer.send_text({.stage = 0, .next = 1}, text.substr(20)) == LoginOutcome::kRespond);
  CHECK(peer.value("TargetPortalGroupTag") == "3");
  CHECK(peer.login.response().transit);
  CHECK(peer.login.response().next_stage == 1);
  CHECK(peer.send({.stage = 1, .next = 3}, {{"MaxBurstLength", "65536"}}) == LoginOutcome::kPlace);
  CHECK(peer.value("TargetPortalGroupTag").empty());
  CHECK(peer.value("MaxBurstLength") == "65536");
  CHECK(peer.login.parameters().session.max_burst_length == 65536);
}

TEST_CASE("Text cut at every place gives the same login", "[iscsi][login]") {
  auto pairs = LoginPeer::names();
  pairs.push_back({"HeaderDigest", "CRC32C,None"});
  pairs.push_back({"InitialR2T", "No"});
  const std::string text = format_text(pairs);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    CAPTURE(cut);
    LoginPeer peer;
    REQUIRE(peer.send_text({.stage = 1, .transit = false, .continues = true},
                           text.substr(0, cut)) == LoginOutcome::kRespond);
    REQUIRE(peer.send_text({.stage = 1, .next = 3}, text.substr(cut)) == LoginOutcome::kPlace);
    CHECK(peer.value("HeaderDigest") == "CRC32C");
    CHECK(peer.value("InitialR2T") == "No");
  }
}

TEST_CASE("An answer that does not fit goes out in parts with the C bit", "[iscsi][login]") {
  LoginPeer peer;
  auto pairs = LoginPeer::names();
  // Each is answered NotUnderstood, in more bytes than it took.
  for (int index = 0; index < 400; ++index) {
    pairs.push_back({"X-com.example.long.private.key." + std::to_string(index), "1"});
  }
  const std::string text = format_text(pairs);
  REQUIRE(peer.send_text({.stage = 1, .transit = false, .continues = true}, text.substr(0, 8192)) ==
          LoginOutcome::kRespond);
  LoginOutcome outcome = peer.send_text({.stage = 1, .next = 3}, text.substr(8192));
  std::string answer = peer.login.response_text();
  int parts = 1;
  while (outcome == LoginOutcome::kRespond) {
    REQUIRE(peer.login.response().continues);
    REQUIRE_FALSE(peer.login.response().transit);
    REQUIRE(peer.login.response_text().size() == 8192);
    outcome = peer.send_text({.stage = 1, .next = 3}, "");
    answer += peer.login.response_text();
    ++parts;
  }
  CHECK(outcome == LoginOutcome::kPlace);
  CHECK(parts == 3);
  CHECK_FALSE(peer.login.response().continues);
  const auto parsed = parse_text(answer);
  REQUIRE(parsed.has_value());
  CHECK(std::ranges::count(*parsed, "NotUnderstood", &KeyValue::value) == 400);
}

TEST_CASE("Text in the middle of the target's own text is an error", "[iscsi][login]") {
  LoginPeer peer;
  auto pairs = LoginPeer::names();
  for (int index = 0; index < 300; ++index) {
    pairs.push_back({"X-com.example." + std::to_string(index), "1"});
  }
  REQUIRE(peer.send({.stage = 1, .next = 3}, pairs) == LoginOutcome::kRespond);
  REQUIRE(peer.login.response().continues);
  CHECK(peer.send({.stage = 1, .next = 3}, {{"InitialR2T", "No"}}) == LoginOutcome::kFail);
  CHECK(peer.login.response().status == LoginStatus::kInitiatorError);
}

TEST_CASE("Names may stand in every stage, as some initiators send them", "[iscsi][login]") {
  LoginPeer peer;
  REQUIRE(peer.send({.stage = 0, .next = 1}, LoginPeer::names({{"AuthMethod", "CHAP,None"}})) ==
          LoginOutcome::kRespond);
  CHECK(peer.value("AuthMethod") == "None");
  REQUIRE(peer.send({.stage = 1, .next = 3}, LoginPeer::names({{"IFMarker", "No"}})) ==
          LoginOutcome::kPlace);
  CHECK(peer.value("IFMarker") == "Reject");
}

TEST_CASE("A login fails with the status that section 11.13.5 has for it", "[iscsi][login]") {
  LoginPeer peer;
  using Pairs = std::vector<KeyValue>;
  const auto status = [&](LoginPeer::Header header, Pairs pairs) {
    REQUIRE(peer.send(header, pairs) == LoginOutcome::kFail);
    CHECK(peer.login.response().transit == false);
    CHECK_FALSE(peer.login.diagnosis().empty());
    return peer.login.response().status;
  };
  const LoginPeer::Header operational{.stage = 1, .next = 3};
  SECTION("0205: a version that is not 0") {
    CHECK(status({.stage = 1, .next = 3, .version_minimum = 1}, LoginPeer::names()) ==
          LoginStatus::kUnsupportedVersion);
    CHECK(peer.login.response().version_active == 0);
  }
  SECTION("0207: no InitiatorName") {
    CHECK(status(operational, {{"TargetName", "iqn.1999-07.com.example:t"}}) ==
          LoginStatus::kMissingParameter);
  }
  SECTION("0207: no TargetName in a normal session") {
    CHECK(status(operational, {{"InitiatorName", "iqn.1999-07.com.os:h"}}) ==
          LoginStatus::kMissingParameter);
  }
  SECTION("0207: nothing at all") {
    CHECK(status(operational, {}) == LoginStatus::kMissingParameter);
  }
  SECTION("0209: an unknown session type") {
    CHECK(status(operational, LoginPeer::names({{"SessionType", "Odd"}})) ==
          LoginStatus::kSessionTypeNotSupported);
  }
  SECTION("what the policy says") {
    for (const LoginStatus refused :
         {LoginStatus::kAuthorizationFailure, LoginStatus::kTargetNotFound,
          LoginStatus::kTargetRemoved, LoginStatus::kTooManyConnections,
          LoginStatus::kCannotIncludeInSession, LoginStatus::kSessionTypeNotSupported,
          LoginStatus::kSessionDoesNotExist, LoginStatus::kTargetError,
          LoginStatus::kServiceUnavailable, LoginStatus::kOutOfResources}) {
      CAPTURE(name_of(refused));
      LoginPeer other;
      other.policy.admission.status = refused;
      REQUIRE(other.send(operational, LoginPeer::names()) == LoginOutcome::kFail);
      CHECK(other.login.response().status == refused);
      CHECK(other.login.response_text().empty());
    }
  }
  SECTION("0101 and 0102 with the address") {
    peer.policy.admission.status = LoginStatus::kMovedTemporarily;
    peer.policy.admission.redirect_address = "192.0.2.8:3260";
    CHECK(status(operational, LoginPeer::names()) == LoginStatus::kMovedTemporarily);
    CHECK(peer.value("TargetAddress") == "192.0.2.8:3260");
    CHECK(peer.login.response().data_segment_length == peer.login.response_text().size());
  }
}

TEST_CASE("A login that breaks the rules fails with 0200, 0201 or 020b", "[iscsi][login]") {
  LoginPeer peer;
  using Pairs = std::vector<KeyValue>;
  const auto status = [&](LoginPeer::Header header, Pairs pairs) {
    REQUIRE(peer.send(header, pairs) == LoginOutcome::kFail);
    CHECK(peer.login.response().transit == false);
    CHECK_FALSE(peer.login.diagnosis().empty());
    return peer.login.response().status;
  };
  const LoginPeer::Header operational{.stage = 1, .next = 3};
  SECTION("0201: security is skipped where CHAP is required") {
    peer.policy.require_chap();
    CHECK(status(operational, LoginPeer::names()) == LoginStatus::kAuthenticationFailure);
  }
  SECTION("0201: None where CHAP is required") {
    peer.policy.require_chap();
    CHECK(status({.stage = 0, .next = 1}, LoginPeer::names({{"AuthMethod", "KRB5,None"}})) ==
          LoginStatus::kAuthenticationFailure);
  }
  SECTION("0200: a key in the wrong stage") {
    CHECK(status({.stage = 0, .next = 1}, LoginPeer::names({{"HeaderDigest", "None"}})) ==
          LoginStatus::kInitiatorError);
  }
  SECTION("0200: a key twice") {
    CHECK(status(operational, LoginPeer::names({{"InitialR2T", "No"}, {"InitialR2T", "No"}})) ==
          LoginStatus::kInitiatorError);
  }
  SECTION("0200: bad text") {
    CHECK(peer.send_text(operational, "InitiatorName") == LoginOutcome::kFail);
    CHECK(peer.login.response().status == LoginStatus::kInitiatorError);
  }
  SECTION("0200: a stage that cannot be") {
    CHECK(status({.stage = 2, .next = 3}, LoginPeer::names()) == LoginStatus::kInitiatorError);
  }
  SECTION("0200: a way that cannot be") {
    CHECK(status({.stage = 1, .next = 0}, LoginPeer::names()) == LoginStatus::kInitiatorError);
  }
  SECTION("0200: T and C together") {
    CHECK(status({.stage = 1, .next = 3, .continues = true}, LoginPeer::names()) ==
          LoginStatus::kInitiatorError);
  }
  SECTION("020b: another PDU") {
    CHECK(peer.login.fail(LoginStatus::kInvalidDuringLogin, 9, "a NOP-Out") == LoginOutcome::kFail);
    CHECK(peer.login.response().status == LoginStatus::kInvalidDuringLogin);
    CHECK(peer.login.response().initiator_task_tag == 9);
  }
}

TEST_CASE("What must stay the same during a login may not change", "[iscsi][login]") {
  const auto changed = [](auto change) {
    LoginPeer peer;
    REQUIRE(peer.send({.stage = 0, .next = 1}, LoginPeer::names()) == LoginOutcome::kRespond);
    LoginRequest request = LoginPeer::request({.stage = 1, .next = 3});
    change(request);
    REQUIRE(peer.login.receive(request, {}) == LoginOutcome::kFail);
    return peer.login.response().status == LoginStatus::kInitiatorError;
  };
  CHECK(changed([](LoginRequest& request) { request.isid.bytes[5] ^= std::byte{1}; }));
  CHECK(changed([](LoginRequest& request) { request.tsih = 9; }));
  CHECK(changed([](LoginRequest& request) { request.cid = 9; }));
  CHECK(changed([](LoginRequest& request) { request.initiator_task_tag = 9; }));
  CHECK(changed([](LoginRequest& request) { request.current_stage = 0; }));
}

TEST_CASE("A login is bounded in exchanges and in text", "[iscsi][login]") {
  SECTION("exchanges") {
    LoginPeer peer;
    REQUIRE(peer.send({.stage = 0, .transit = false}, LoginPeer::names()) ==
            LoginOutcome::kRespond);
    int exchanges = 1;
    while (peer.send({.stage = 0, .transit = false}, {}) == LoginOutcome::kRespond) ++exchanges;
    CHECK(exchanges == 64);
    CHECK(peer.login.response().status == LoginStatus::kInitiatorError);
  }
  SECTION("text") {
    LoginPeer peer;
    const std::string piece(8192, 'A');
    int pieces = 0;
    while (peer.send_text({.stage = 0, .transit = false, .continues = true}, piece) ==
           LoginOutcome::kRespond) {
      ++pieces;
    }
    CHECK(pieces == 8);
    CHECK(peer.login.response().status == LoginStatus::kInitiatorError);
  }
}

TEST_CASE("A discovery session needs no target name", "[iscsi][login]") {
  LoginPeer peer;
  const std::vector<KeyValue> pairs{{"InitiatorName", "iqn.1999-07.com.os:hostid.77"},
                                    {"SessionType", "Discovery"},
                                    {"MaxBurstLength", "512"},
                                    {"DataSequenceInOrder", "Yes"}};
  REQUIRE(peer.send({.stage = 1, .next = 3}, pairs) == LoginOutcome::kPlace);
  CHECK(peer.value("MaxBurstLength") == "Irrelevant");
  CHECK(peer.value("DataSequenceInOrder") == "Irrelevant");
  CHECK(peer.value("TargetPortalGroupTag") == "3");
  CHECK(peer.login.identity().discovery);
  CHECK(peer.login.parameters().session.discovery);
}

TEST_CASE("A connection that joins keeps the session's parameters", "[iscsi][login]") {
  LoginPeer peer;
  peer.policy.admission.session =
      SessionParameters{.max_connections = 4, .max_burst_length = 4096, .first_burst_length = 512};
  LoginPeer::Header header{.stage = 1, .next = 3, .tsih = 12};
  REQUIRE(peer.send(header, LoginPeer::names({{"MaxBurstLength", "65536"},
                                              {"DataDigest", "CRC32C"}})) == LoginOutcome::kPlace);
  CHECK(peer.value("MaxBurstLength") == "Reject");
  CHECK(peer.login.parameters().session.max_burst_length == 4096);
  CHECK(peer.login.parameters().connection.data_digest);
  CHECK(peer.login.identity().tsih == 12);
  peer.login.accept(12);
  CHECK(peer.login.response().tsih == 12);
}

TEST_CASE("A login can still be refused when it is placed", "[iscsi][login]") {
  LoginPeer peer;
  REQUIRE(peer.send({.stage = 1, .next = 3}, LoginPeer::names()) == LoginOutcome::kPlace);
  peer.login.refuse(LoginStatus::kOutOfResources, "no room for the session");
  CHECK(peer.login.response().status == LoginStatus::kOutOfResources);
  CHECK_FALSE(peer.login.response().transit);
  CHECK(peer.login.response().numbers.stat_sn == 1000);
  CHECK(peer.login.response_text().empty());
  CHECK(peer.send({.stage = 1, .next = 3}, {}) == LoginOutcome::kFail);
}

TEST_CASE("A target that cannot live with a default offers before it lets go", "[iscsi][login]") {
  const auto strict = KeyPreferences::for_target().with({{"MaxBurstLength", "65536"}});
  SECTION("in the operational stage") {
    LoginPeer peer;
    peer.policy.admission.preferences = strict.value();
    REQUIRE(peer.send({.stage = 1, .next = 3}, LoginPeer::names()) == LoginOutcome::kRespond);
    CHECK_FALSE(peer.login.response().transit);
    CHECK(peer.value("MaxBurstLength") == "65536");
    REQUIRE(peer.send({.stage = 1, .next = 3}, {{"MaxBurstLength", "65536"}}) ==
            LoginOutcome::kPlace);
    CHECK(peer.login.parameters().session.max_burst_length == 65536);
    CHECK(peer.login.response_text().empty());
  }
  SECTION("what needs no answer holds nobody up") {
    LoginPeer peer;
    peer.policy.admission.preferences =
        KeyPreferences::for_target().with({{"ImmediateData", "No"}}).value();
    REQUIRE(peer.send({.stage = 1, .next = 3}, LoginPeer::names()) == LoginOutcome::kPlace);
    CHECK(peer.value("ImmediateData") == "No");
    CHECK_FALSE(peer.login.parameters().session.immediate_data);
  }
  SECTION("by not skipping the operational stage") {
    LoginPeer peer;
    peer.policy.admission.preferences = strict.value();
    REQUIRE(peer.send({.stage = 0, .next = 3}, LoginPeer::names()) == LoginOutcome::kRespond);
    CHECK(peer.login.response().transit);
    CHECK(peer.login.response().next_stage == 1);
  }
  SECTION("otherwise it lets the initiator skip it") {
    LoginPeer peer;
    CHECK(peer.send({.stage = 0, .next = 3}, LoginPeer::names()) == LoginOutcome::kPlace);
  }
}

TEST_CASE("CHAP that the target asks for is taken up", "[iscsi][login]") {
  LoginPeer peer;
  peer.policy.require_chap();
  REQUIRE(peer.send({.stage = 0, .next = 1}, LoginPeer::names()) == LoginOutcome::kRespond);
  CHECK(peer.value("AuthMethod") == "CHAP");
  CHECK_FALSE(peer.login.response().transit);
  SECTION("at once, with the first step (section 12.1)") {
    REQUIRE(peer.send({.stage = 0, .transit = false}, {{"AuthMethod", "CHAP"}, {"CHAP_A", "5"}}) ==
            LoginOutcome::kRespond);
    CHECK(peer.value("AuthMethod").empty());
    CHECK(peer.value("CHAP_A") == "5");
    REQUIRE(peer.send({.stage = 0, .next = 1}, peer.chap_answer()) == LoginOutcome::kRespond);
    CHECK(peer.login.response().transit);
    CHECK(peer.login.chap_user() == "user");
  }
  SECTION("or the login ends") {
    REQUIRE(peer.send({.stage = 0, .next = 1}, {}) == LoginOutcome::kFail);
    CHECK(peer.login.response().status == LoginStatus::kAuthenticationFailure);
  }
}

TEST_CASE("Nobody gets past CHAP by asking for the next stage", "[iscsi][login]") {
  LoginPeer peer;
  peer.policy.require_chap();
  REQUIRE(peer.send({.stage = 0, .next = 3}, LoginPeer::names({{"AuthMethod", "CHAP"}})) ==
          LoginOutcome::kRespond);
  CHECK_FALSE(peer.login.response().transit);
  REQUIRE(peer.send({.stage = 0, .next = 3}, {{"CHAP_A", "5"}}) == LoginOutcome::kRespond);
  CHECK_FALSE(peer.login.response().transit);
  REQUIRE(peer.send({.stage = 0, .next = 3}, {}) == LoginOutcome::kRespond);
  CHECK_FALSE(peer.login.response().transit);
  CHECK(peer.send({.stage = 1, .next = 3}, {}) == LoginOutcome::kFail);
}

TEST_CASE("Who offers None where None will do is not asked for CHAP", "[iscsi][login]") {
  LoginPeer peer;
  peer.policy.require_chap();
  peer.policy.admission.chap_required = false;
  REQUIRE(peer.send({.stage = 0, .next = 1}, LoginPeer::names({{"AuthMethod", "CHAP,None"}})) ==
          LoginOutcome::kRespond);
  CHECK(peer.value("AuthMethod") == "None");
  LoginPeer other;
  other.policy.require_chap();
  other.policy.admission.chap_required = false;
  REQUIRE(other.send({.stage = 0, .next = 1}, LoginPeer::names({{"AuthMethod", "CHAP"}})) ==
          LoginOutcome::kRespond);
  CHECK(other.value("AuthMethod") == "CHAP");
}

TEST_CASE("No sequence of requests makes a login misbehave", "[iscsi][login]") {
  REQUIRE(rc::check([] {
    LoginPeer peer;
    if (*rc::gen::arbitrary<bool>()) peer.policy.require_chap();
    for (int round = 0; round < 6; ++round) {
      LoginPeer::Header header{.stage = static_cast<std::uint8_t>(*rc::gen::inRange(0, 3)),
                               .next = static_cast<std::uint8_t>(*rc::gen::inRange(0, 4)),
                               .transit = *rc::gen::arbitrary<bool>(),
                               .continues = *rc::gen::inRange(0, 5) == 0};
      std::vector<KeyValue> pairs;
      if (*rc::gen::arbitrary<bool>()) pairs = LoginPeer::names();
      const int count = *rc::gen::inRange(0, 4);
      for (int index = 0; index < count; ++index) {
        const auto& row = key_table()[*rc::gen::inRange<std::size_t>(0, kKeyCount)];
        pairs.push_back(
            {std::string(row.name), *rc::gen::element<std::string>("Yes", "No", "None", "CHAP", "5",
                                                                   "65536", "0x00", "Reject", "")});
      }
      const LoginOutcome outcome = peer.send(header, pairs);
      const LoginResponse& response = peer.login.response();
      RC_ASSERT(!(response.transit && response.continues));
      RC_ASSERT((outcome == LoginOutcome::kFail) == (response.status != LoginStatus::kSuccess));
      RC_ASSERT(!response.transit || header.transit);
      RC_ASSERT(response.data_segment_length == peer.login.response_text().size());
      if (outcome != LoginOutcome::kRespond) return;
    }
  }));
}

}  // namespace sandbay::iscsi
