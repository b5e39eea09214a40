// The examples of RFC 7143 appendix B as far as they use CHAP or no security, request by request.
// Those with Kerberos and SRP show, for a target that has neither, the next method in the list.
#include <catch2/catch.hpp>

#include "login_peer.h"

namespace sandbay::iscsi {
namespace {

// The flags of the last response, as appendix B writes them: "(CSG,NSG=0,1 T=1)".
std::string flags(LoginPeer& peer) {
  const LoginResponse& response = peer.login.response();
  REQUIRE(response.status == LoginStatus::kSuccess);
  return "(CSG,NSG=" + std::to_string(response.current_stage) + "," +
         std::to_string(response.next_stage) + " T=" + (response.transit ? "1" : "0") + ")";
}

constexpr LoginPeer::Header kSecurityOn{.stage = 0, .next = 0, .transit = false};
constexpr LoginPeer::Header kSecurityEnd{.stage = 0, .next = 1};
constexpr LoginPeer::Header kOperationalOn{.stage = 1, .next = 0, .transit = false};
constexpr LoginPeer::Header kOperationalEnd{.stage = 1, .next = 3};

// "... iSCSI parameters" and "And at the end" of every example.
void finish(LoginPeer& peer) {
  REQUIRE(peer.send(kOperationalOn, {{"FirstBurstLength", "8192"}}) == LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=1,0 T=0)");
  CHECK(peer.value("FirstBurstLength") == "8192");
  REQUIRE(peer.send(kOperationalOn, {{"MaxBurstLength", "8192"}}) == LoginOutcome::kRespond);
  CHECK(peer.value("MaxBurstLength") == "8192");
  REQUIRE(peer.send(kOperationalEnd, {{"DataDigest", "None"}}) == LoginOutcome::kPlace);
  peer.login.accept(1);
  CHECK(flags(peer) == "(CSG,NSG=1,3 T=1)");
  CHECK(peer.login.response().tsih == 1);
}

}  // namespace

TEST_CASE("Appendix B: initiator and target authenticate each other via CHAP",
          "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  peer.policy.require_chap();
  peer.policy.admission.mutual_chap = ChapCredential{.user = "array", .secret = "another secret"};
  REQUIRE(peer.send(kSecurityOn, LoginPeer::names({{"AuthMethod", "KRB5,CHAP,None"}})) ==
          LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,0 T=0)");
  CHECK(peer.value("AuthMethod") == "CHAP");
  REQUIRE(peer.send(kSecurityOn, {{"CHAP_A", "5,7"}}) == LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,0 T=0)");
  CHECK(peer.value("CHAP_A") == "7");
  CHECK_FALSE(peer.value("CHAP_I").empty());
  CHECK_FALSE(peer.value("CHAP_C").empty());

  SECTION("the initiator's authentication is successful") {
    auto answer = peer.chap_answer();
    answer.push_back({"CHAP_I", "9"});
    answer.push_back({"CHAP_C", "0x0123456789abcdef0123456789abcdef"});
    REQUIRE(peer.send(kSecurityEnd, answer) == LoginOutcome::kRespond);
    CHECK(flags(peer) == "(CSG,NSG=0,1 T=1)");
    CHECK(peer.value("CHAP_N") == "array");
    const auto challenge = parse_binary("0x0123456789abcdef0123456789abcdef", 16).value();
    CHECK(peer.value("CHAP_R") == format_hexadecimal(chap_response(ChapAlgorithm::kSha256, 9,
                                                                   "another secret", challenge)));
    finish(peer);
  }
  SECTION("it is not: login reject") {
    REQUIRE(peer.send(kSecurityEnd, peer.chap_answer("a guess")) == LoginOutcome::kFail);
    CHECK(peer.login.response().status == LoginStatus::kAuthenticationFailure);
    CHECK(peer.value("CHAP_R").empty());
  }
}

TEST_CASE("Appendix B: only the initiator is authenticated via CHAP",
          "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  peer.policy.require_chap();
  // Here the example has NSG 1 with T 0.
  const LoginPeer::Header first{.stage = 0, .next = 1, .transit = false};
  REQUIRE(peer.send(first, LoginPeer::names({{"AuthMethod", "KRB5,CHAP,None"}})) ==
          LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,0 T=0)");
  CHECK(peer.value("AuthMethod") == "CHAP");
  REQUIRE(peer.send(kSecurityOn, {{"CHAP_A", "5,6"}}) == LoginOutcome::kRespond);
  CHECK(peer.value("CHAP_A") == "6");
  REQUIRE(peer.send(kSecurityEnd, peer.chap_answer()) == LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,1 T=1)");
  CHECK(peer.login.response_text().empty());
  finish(peer);
}

TEST_CASE("Appendix B: the initiator does not offer any security parameters",
          "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  REQUIRE(peer.send(kOperationalEnd,
                    LoginPeer::names({{"InitialR2T", "No"}, {"MaxOutstandingR2T", "4"}})) ==
          LoginOutcome::kPlace);
  peer.login.accept(5);
  CHECK(flags(peer) == "(CSG,NSG=1,3 T=1)");
  CHECK(peer.value("InitialR2T") == "No");
  CHECK(peer.value("MaxOutstandingR2T") == "4");
}

TEST_CASE("Appendix B: the target chooses None", "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  REQUIRE(peer.send(kSecurityEnd, LoginPeer::names({{"AuthMethod", "KRB5,SRP,None"}})) ==
          LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,1 T=1)");
  CHECK(peer.value("AuthMethod") == "None");
  finish(peer);
}

TEST_CASE("Appendix B: Kerberos and SRP are offered where CHAP is required",
          "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  peer.policy.require_chap();
  REQUIRE(peer.send(kSecurityEnd, LoginPeer::names({{"AuthMethod", "KRB5,SRP,None"}})) ==
          LoginOutcome::kFail);
  CHECK(peer.login.response().status == LoginStatus::kAuthenticationFailure);
}

TEST_CASE("Section 6.3.1: no security is offered and none is needed",
          "[iscsi][login][appendix-b]") {
  LoginPeer peer;
  peer.policy.admission.target_alias.clear();
  REQUIRE(peer.send(kSecurityEnd, LoginPeer::names()) == LoginOutcome::kRespond);
  CHECK(flags(peer) == "(CSG,NSG=0,1 T=1)");
  // "The Login Response only contains the TargetPortalGroupTag key."
  CHECK(peer.received() == std::vector<KeyValue>{{"TargetPortalGroupTag", "3"}});
}

}  // namespace sandbay::iscsi
