// Offers and answers for every login key, from the rules of RFC 7143 sections 6.2 and 13, and the
// rules on repetition, stages, senders and reserved values.
#include "iscsi/negotiation.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace sandbay::iscsi {
namespace {

using Pairs = std::vector<KeyValue>;

Negotiator target_in(NegotiationPhase phase, const std::map<std::string, std::string>& keys = {}) {
  Negotiator target(Role::kTarget, KeyPreferences::for_target().with(keys).value());
  target.enter(phase);
  return target;
}

Negotiator operational_target(const std::map<std::string, std::string>& keys = {}) {
  return target_in(NegotiationPhase::kOperational, keys);
}

Negotiator operational_initiator(const std::map<std::string, std::string>& keys = {}) {
  Negotiator initiator(Role::kInitiator, KeyPreferences::for_initiator().with(keys).value());
  initiator.enter(NegotiationPhase::kOperational);
  return initiator;
}

// The answer to one offer; "(failed)" if it ends the negotiation, "(none)" if none is given.
std::string answer_of(Negotiator& target, const std::string& key, const std::string& value) {
  const Pairs offer{{key, value}};
  const auto reply = target.receive(offer);
  if (!reply.has_value()) return "(failed)";
  return reply->answers.empty() ? "(none)" : reply->answers[0].value;
}

NegotiationError error_of(Negotiator& negotiator, const Pairs& pairs) {
  const auto reply = negotiator.receive(pairs);
  REQUIRE_FALSE(reply.has_value());
  return reply.error().error;
}

struct Case {
  const char* key;
  const char* ours;  // The target's configured value; "": its default.
  const char* offer;
  const char* answer;
};

// Written from section 13: result functions, ranges, and what may be answered to what is not
// admissible (section 6.2.2).
constexpr Case kCases[] = {
    // 13.1: the first value of the offer that is supported and allowed.
    {"HeaderDigest", "", "None", "None"},
    {"HeaderDigest", "", "CRC32C", "CRC32C"},
    {"HeaderDigest", "", "CRC32C,None", "CRC32C"},
    {"HeaderDigest", "", "None,CRC32C", "None"},
    {"HeaderDigest", "", "Y-com.example.sum,CRC32C", "CRC32C"},
    {"HeaderDigest", "", "Y-com.example.sum", "Reject"},
    {"HeaderDigest", "None", "CRC32C,None", "None"},
    {"HeaderDigest", "CRC32C", "None,CRC32C", "CRC32C"},
    {"HeaderDigest", "CRC32C", "None", "Reject"},
    {"DataDigest", "", "CRC32C,None", "CRC32C"},
    {"DataDigest", "", "None", "None"},
    {"DataDigest", "", "", "Reject"},
    // 13.2: Minimum, 1 to 65535.
    {"MaxConnections", "", "1", "1"},
    {"MaxConnections", "", "8", "8"},
    {"MaxConnections", "", "65535", "32"},
    {"MaxConnections", "4", "8", "4"},
    {"MaxConnections", "", "0", "Reject"},
    {"MaxConnections", "", "many", "Reject"},
    // 13.10: OR.
    {"InitialR2T", "", "Yes", "Yes"},
    {"InitialR2T", "", "No", "No"},
    {"InitialR2T", "Yes", "No", "Yes"},
    {"InitialR2T", "Yes", "Yes", "Yes"},
    {"InitialR2T", "", "maybe", "Reject"},
    // 13.11: AND.
    {"ImmediateData", "", "Yes", "Yes"},
    {"ImmediateData", "", "No", "No"},
    {"ImmediateData", "No", "Yes", "No"},
    {"ImmediateData", "No", "No", "No"},
    // 13.12: declared, hence no answer.
    {"MaxRecvDataSegmentLength", "", "512", "(none)"},
    {"MaxRecvDataSegmentLength", "", "16777215", "(none)"},
    {"MaxRecvDataSegmentLength", "", "511", "(failed)"},
    {"MaxRecvDataSegmentLength", "", "lots", "(failed)"},
    // 13.13: Minimum, 512 to 2^24 - 1.
    {"MaxBurstLength", "", "16776192", "16776192"},
    {"MaxBurstLength", "", "16777215", "16777215"},
    {"MaxBurstLength", "", "0x100000", "1048576"},
    {"MaxBurstLength", "", "512", "512"},
    {"MaxBurstLength", "", "511", "Reject"},
    {"MaxBurstLength", "", "16777216", "16777215"},
    {"MaxBurstLength", "65536", "262144", "65536"},
    {"MaxBurstLength", "", "1~512", "Reject"},
    // 13.14: Minimum, and never above MaxBurstLength (here its default, 262144).
    {"FirstBurstLength", "", "8192", "8192"},
    {"FirstBurstLength", "", "262144", "262144"},
    {"FirstBurstLength", "", "16777215", "262144"},
    {"FirstBurstLength", "32768", "65536", "32768"},
    {"FirstBurstLength", "", "100", "Reject"},
    // 13.15: Maximum, 0 to 3600.
    {"DefaultTime2Wait", "", "0", "2"},
    {"DefaultTime2Wait", "", "2", "2"},
    {"DefaultTime2Wait", "", "3600", "3600"},
    {"DefaultTime2Wait", "0", "0", "0"},
    {"DefaultTime2Wait", "", "3601", "Reject"},
    // 13.16: Minimum, 0 to 3600.
    {"DefaultTime2Retain", "", "0", "0"},
    {"DefaultTime2Retain", "", "20", "20"},
    {"DefaultTime2Retain", "", "3600", "20"},
    {"DefaultTime2Retain", "60", "3600", "60"},
    // 13.17: Minimum, 1 to 65535.
    {"MaxOutstandingR2T", "", "1", "1"},
    {"MaxOutstandingR2T", "", "4", "4"},
    {"MaxOutstandingR2T", "", "65535", "8"},
    {"MaxOutstandingR2T", "", "0", "Reject"},
    // 13.18, 13.19: OR; both ways are supported.
    {"DataPDUInOrder", "", "Yes", "Yes"},
    {"DataPDUInOrder", "", "No", "No"},
    {"DataPDUInOrder", "Yes", "No", "Yes"},
    {"DataSequenceInOrder", "", "Yes", "Yes"},
    {"DataSequenceInOrder", "", "No", "No"},
    {"DataSequenceInOrder", "Yes", "No", "Yes"},
    // 13.20: Minimum, 0 to 2.
    {"ErrorRecoveryLevel", "", "0", "0"},
    {"ErrorRecoveryLevel", "", "2", "0"},
    {"ErrorRecoveryLevel", "2", "1", "1"},
    // 13.23: a list.
    {"TaskReporting", "", "RFC3720,ResponseFence,FastAbort", "RFC3720"},
    {"TaskReporting", "", "FastAbort,ResponseFence,RFC3720", "RFC3720"},
    {"TaskReporting", "RFC3720,ResponseFence,FastAbort", "FastAbort,ResponseFence,RFC3720",
     "FastAbort"},
    {"TaskReporting", "", "FastAbort", "Reject"},
    // RFC 7144 section 7.1.1: Minimum, 0 to 31; section 13.24: 1 is ours.
    {"iSCSIProtocolLevel", "", "1", "1"},
    {"iSCSIProtocolLevel", "", "0", "0"},
    {"iSCSIProtocolLevel", "", "2", "1"},
    {"iSCSIProtocolLevel", "2", "31", "2"},
    // 13.25: Reject; for the marker keys No is the alternative.
    {"IFMarker", "", "No", "Reject"},
    {"OFMarker", "", "Yes", "Reject"},
    {"OFMarker", "No", "Yes", "No"},
    {"IFMarkInt", "", "2048~8192", "Reject"},
    {"OFMarkInt", "", "2048", "Reject"},
    // 13.26: declared.
    {"X#NodeArchitecture", "", "ExampleOS/v1234,CPU_Arch/i686", "(none)"},
    // 6.2: what is not understood.
    {"X-com.example.key", "", "1", "NotUnderstood"},
    {"X-com.example.key", "configured", "1", "configured"},
    {"SomeLaterKey", "", "a,b", "NotUnderstood"},
    // Answers as configured, whatever is offered.
    {"MaxConnections", "Reject", "8", "Reject"},
    {"InitialR2T", "Irrelevant", "No", "Irrelevant"},
    {"iSCSIProtocolLevel", "NotUnderstood", "2", "NotUnderstood"},
};

}  // namespace

TEST_CASE("Offers are answered as section 13 has it", "[iscsi][negotiation]") {
  for (const Case& one : kCases) {
    CAPTURE(one.key, one.ours, one.offer);
    std::map<std::string, std::string> keys;
    if (*one.ours != '\0') keys[one.key] = one.ours;
    Negotiator target = operational_target(keys);
    CHECK(answer_of(target, one.key, one.offer) == one.answer);
  }
}

TEST_CASE("Every negotiated key of the table is in the table test", "[iscsi][negotiation]") {
  for (const KeyRow& row : key_table()) {
    if (row.stage != KeyStage::kOperational) continue;
    CAPTURE(row.name);
    CHECK(std::ranges::any_of(kCases, [&](const Case& one) { return row.name == one.key; }));
  }
}

TEST_CASE("In a discovery session what section 13 lists is Irrelevant", "[iscsi][negotiation]") {
  for (const char* key : {"MaxConnections", "InitialR2T", "ImmediateData", "MaxBurstLength",
                          "FirstBurstLength", "MaxOutstandingR2T", "DataPDUInOrder",
                          "DataSequenceInOrder", "TaskReporting", "iSCSIProtocolLevel"}) {
    CAPTURE(key);
    Negotiator target = operational_target();
    target.set_discovery(true);
    CHECK(answer_of(target, key, find_key(key)->default_value.data()) == "Irrelevant");
    // Even with a value that it cannot have.
    Negotiator other = operational_target();
    other.set_discovery(true);
    CHECK(answer_of(other, key, "7up") == "Irrelevant");
  }
  Negotiator target = operational_target({{"ErrorRecoveryLevel", "2"}});
  target.set_discovery(true);
  CHECK(answer_of(target, "ErrorRecoveryLevel", "2") == "0");
  CHECK(answer_of(target, "DefaultTime2Wait", "5") == "5");
  CHECK(answer_of(target, "HeaderDigest", "CRC32C") == "CRC32C");
}

TEST_CASE("FirstBurstLength is Irrelevant without unsolicited data, bad value or not",
          "[iscsi][negotiation]") {
  for (const char* value : {"4192", "0", "nonsense", "99999999"}) {
    CAPTURE(value);
    Negotiator target = operational_target();
    // Section 6.2's example, and the order of the keys does not matter.
    const Pairs offer{{"FirstBurstLength", value}, {"InitialR2T", "Yes"}, {"ImmediateData", "No"}};
    const auto reply = target.receive(offer);
    REQUIRE(reply.has_value());
    CHECK(reply->answers == Pairs{{"FirstBurstLength", "Irrelevant"},
                                  {"InitialR2T", "Yes"},
                                  {"ImmediateData", "No"}});
    CHECK(target.conclude().has_value());
  }
}

TEST_CASE("FirstBurstLength stays within MaxBurstLength, in whatever order they come",
          "[iscsi][negotiation]") {
  Negotiator target = operational_target();
  const Pairs offer{{"FirstBurstLength", "262144"}, {"MaxBurstLength", "16384"}};
  const auto reply = target.receive(offer);
  REQUIRE(reply.has_value());
  CHECK(reply->answers == Pairs{{"FirstBurstLength", "16384"}, {"MaxBurstLength", "16384"}});
  REQUIRE(target.conclude().has_value());
  CHECK(target.result().session.first_burst_length == 16384);

  SECTION("the default gives way") {
    Negotiator other = operational_target();
    CHECK(answer_of(other, "MaxBurstLength", "8192") == "8192");
    REQUIRE(other.conclude().has_value());
    CHECK(other.result().session.first_burst_length == 8192);
  }
  SECTION("a burst that shrinks afterwards contradicts it") {
    Negotiator other = operational_target();
    CHECK(answer_of(other, "FirstBurstLength", "65536") == "65536");
    CHECK(answer_of(other, "MaxBurstLength", "8192") == "8192");
    CHECK(other.conclude().error().error == NegotiationError::kIntegrity);
  }
}

TEST_CASE("With recovery and ordered sequences there is one R2T (13.19)", "[iscsi][negotiation]") {
  Negotiator target = operational_target({{"ErrorRecoveryLevel", "2"}});
  const Pairs offer{{"MaxOutstandingR2T", "8"}, {"ErrorRecoveryLevel", "1"}};
  CHECK(target.receive(offer)->answers[0].value == "1");
  Negotiator other = operational_target({{"ErrorRecoveryLevel", "2"}});
  const Pairs unordered{
      {"MaxOutstandingR2T", "8"}, {"ErrorRecoveryLevel", "1"}, {"DataSequenceInOrder", "No"}};
  CHECK(other.receive(unordered)->answers[0].value == "8");
}

TEST_CASE("Nothing is negotiated twice", "[iscsi][negotiation]") {
  Negotiator target = operational_target();
  CHECK(answer_of(target, "MaxBurstLength", "65536") == "65536");
  CHECK(error_of(target, {{"MaxBurstLength", "65536"}}) == NegotiationError::kRepeated);
  Negotiator in_one = operational_target();
  CHECK(error_of(in_one, {{"FirstBurstLength", "512"}, {"FirstBurstLength", "512"}}) ==
        NegotiationError::kRepeated);
  Negotiator unknown = operational_target();
  CHECK(error_of(unknown, {{"X-a.b", "1"}, {"X-a.b", "1"}}) == NegotiationError::kRepeated);
}

TEST_CASE("Names may be repeated but not changed; segment lengths may change",
          "[iscsi][negotiation]") {
  Negotiator target = target_in(NegotiationPhase::kSecurity);
  REQUIRE(target.receive(Pairs{{"InitiatorName", "iqn.2001-04.com.example:a"}}).has_value());
  target.enter(NegotiationPhase::kOperational);
  REQUIRE(target.receive(Pairs{{"InitiatorName", "iqn.2001-04.com.example:a"}}).has_value());
  CHECK(answer_of(target, "MaxRecvDataSegmentLength", "4096") == "(none)");
  CHECK(answer_of(target, "MaxRecvDataSegmentLength", "65536") == "(none)");
  CHECK(target.result().connection.initiator_max_recv_data_segment_length == 65536);
  CHECK(error_of(target, {{"InitiatorName", "iqn.2001-04.com.example:b"}}) ==
        NegotiationError::kRepeated);
}

TEST_CASE("Keys are taken only in their stage", "[iscsi][negotiation]") {
  Negotiator security = target_in(NegotiationPhase::kSecurity);
  CHECK(error_of(security, {{"HeaderDigest", "None"}}) == NegotiationError::kWrongPhase);
  Negotiator operational = operational_target();
  CHECK(error_of(operational, {{"AuthMethod", "None"}}) == NegotiationError::kWrongPhase);
  CHECK(error_of(operational, {{"CHAP_A", "5"}}) == NegotiationError::kWrongPhase);
  CHECK(error_of(operational, {{"SendTargets", "All"}}) == NegotiationError::kWrongPhase);

  for (const char* key : {"MaxBurstLength", "HeaderDigest", "InitiatorName", "SessionType"}) {
    CAPTURE(key);
    Negotiator full = target_in(NegotiationPhase::kFullFeature);
    CHECK(error_of(full, {{key, "1"}}) == NegotiationError::kWrongPhase);
  }
  Negotiator full = target_in(NegotiationPhase::kFullFeature);
  const Pairs allowed{{"SendTargets", "All"},
                      {"MaxRecvDataSegmentLength", "1048576"},
                      {"InitiatorAlias", "host"},
                      {"X-com.example", "1"}};
  const auto reply = full.receive(allowed);
  REQUIRE(reply.has_value());
  CHECK(reply->handed_over == Pairs{{"SendTargets", "All"}});
  CHECK(reply->answers == Pairs{{"X-com.example", "NotUnderstood"}});
  CHECK(full.result().connection.initiator_max_recv_data_segment_length == 1048576);
}

TEST_CASE("Each side sends its own keys only", "[iscsi][negotiation]") {
  for (const char* key : {"TargetAlias", "TargetAddress", "TargetPortalGroupTag"}) {
    CAPTURE(key);
    Negotiator target = operational_target();
    CHECK(error_of(target, {{key, "1"}}) == NegotiationError::kWrongSender);
  }
  Negotiator initiator = operational_initiator();
  CHECK(error_of(initiator, {{"SessionType", "Normal"}}) == NegotiationError::kWrongSender);
}

TEST_CASE("Reserved values are not offers (section 6.2)", "[iscsi][negotiation]") {
  for (const char* value : {"Reject", "Irrelevant", "NotUnderstood"}) {
    CAPTURE(value);
    Negotiator known = operational_target();
    CHECK(error_of(known, {{"MaxBurstLength", value}}) == NegotiationError::kReservedValue);
    Negotiator unknown = operational_target();
    CHECK(error_of(unknown, {{"X-com.example", value}}) == NegotiationError::kReservedValue);
  }
}

TEST_CASE("A connection that joins a session cannot change the session", "[iscsi][negotiation]") {
  Negotiator target = operational_target();
  target.set_current({.session = {.max_burst_length = 4096, .first_burst_length = 2048}});
  target.set_leading(false);
  CHECK(answer_of(target, "MaxBurstLength", "65536") == "Reject");
  CHECK(answer_of(target, "MaxConnections", "8") == "Reject");
  CHECK(answer_of(target, "HeaderDigest", "CRC32C") == "CRC32C");
  CHECK(answer_of(target, "SessionType", "Normal") == "(none)");
  REQUIRE(target.conclude().has_value());
  CHECK(target.result().session.max_burst_length == 4096);
  CHECK(target.result().connection.header_digest);
}

TEST_CASE("A target offers only what it cannot leave at the default", "[iscsi][negotiation]") {
  Pairs offers;
  Negotiator plain = operational_target();
  plain.offer_what_defaults_forbid(offers);
  CHECK(offers.empty());
  CHECK_FALSE(plain.defaults_are_forbidden());

  Negotiator strict = operational_target({{"MaxBurstLength", "65536"},
                                          {"ImmediateData", "No"},
                                          {"HeaderDigest", "CRC32C"},
                                          {"DefaultTime2Wait", "5"}});
  CHECK(strict.defaults_are_forbidden());
  CHECK(answer_of(strict, "DefaultTime2Wait", "1") == "5");
  strict.offer_what_defaults_forbid(offers);
  CHECK(offers ==
        Pairs{{"HeaderDigest", "CRC32C"}, {"ImmediateData", "No"}, {"MaxBurstLength", "65536"}});
  CHECK(strict.answers_outstanding());
  SECTION("agreed to") {
    REQUIRE(strict.receive(Pairs{{"HeaderDigest", "CRC32C"}, {"MaxBurstLength", "4096"}}));
    // ImmediateData=No needs no answer (section 6.2.2).
    REQUIRE(strict.conclude().has_value());
    CHECK_FALSE(strict.result().session.immediate_data);
    CHECK(strict.result().session.max_burst_length == 4096);
  }
  SECTION("rejected") {
    REQUIRE(strict.receive(Pairs{{"HeaderDigest", "Reject"}, {"MaxBurstLength", "4096"}}));
    CHECK(strict.conclude().error().error == NegotiationError::kRefused);
  }
  SECTION("ignored") { CHECK(strict.conclude().error().error == NegotiationError::kNoAnswer); }
}

TEST_CASE("An originator takes only answers that its offer permits", "[iscsi][negotiation]") {
  struct Answer {
    const char* key;
    const char* offer;
    const char* answer;
    bool good;
  };
  constexpr Answer kAnswers[] = {
      {"MaxBurstLength", "65536", "65536", true},
      {"MaxBurstLength", "65536", "512", true},
      {"MaxBurstLength", "65536", "65537", false},
      {"MaxBurstLength", "65536", "0", false},
      {"MaxBurstLength", "65536", "Reject", true},
      {"MaxBurstLength", "65536", "Irrelevant", true},
      {"MaxBurstLength", "65536", "NotUnderstood", false},
      {"DefaultTime2Wait", "2", "1", false},
      {"DefaultTime2Wait", "2", "30", true},
      {"InitialR2T", "Yes", "No", false},
      {"InitialR2T", "Yes", "Yes", true},
      {"InitialR2T", "No", "Yes", true},
      {"ImmediateData", "No", "Yes", false},
      {"ImmediateData", "Yes", "No", true},
      {"ImmediateData", "Yes", "yes", false},
      {"HeaderDigest", "None,CRC32C", "CRC32C", true},
      {"HeaderDigest", "None", "CRC32C", false},
      {"TaskReporting", "RFC3720,ResponseFence", "NotUnderstood", true},
      {"iSCSIProtocolLevel", "2", "NotUnderstood", true},
      {"X-com.example", "1", "NotUnderstood", true},
  };
  for (const Answer& one : kAnswers) {
    CAPTURE(one.key, one.offer, one.answer);
    Negotiator initiator = operational_initiator();
    Pairs sent;
    initiator.offer_text(one.key, one.offer, sent);
    const auto reply = initiator.receive(Pairs{{one.key, one.answer}});
    CHECK(reply.has_value() == one.good);
    if (!reply.has_value()) CHECK(reply.error().error == NegotiationError::kBadAnswer);
    if (reply.has_value()) CHECK(reply->answers.empty());
  }
}

TEST_CASE("An offer without an answer ends an initiator's negotiation", "[iscsi][negotiation]") {
  Negotiator initiator = operational_initiator();
  Pairs sent;
  initiator.offer_operational(sent);
  CHECK(initiator.answers_outstanding());
  CHECK(initiator.conclude().error().error == NegotiationError::kNoAnswer);
}

TEST_CASE("An initiator offers what fits the kind of login", "[iscsi][negotiation]") {
  const auto keys_of = [](const Pairs& pairs) {
    std::vector<std::string> keys;
    for (const KeyValue& pair : pairs) keys.push_back(pair.key);
    return keys;
  };
  Pairs joining;
  Negotiator second = operational_initiator();
  second.set_leading(false);
  second.offer_operational(joining);
  CHECK(keys_of(joining) ==
        std::vector<std::string>{"HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"});
  Pairs discovery;
  Negotiator finder = operational_initiator({{"X-com.example", "1"}});
  finder.set_discovery(true);
  finder.offer_operational(discovery);
  CHECK(keys_of(discovery) ==
        std::vector<std::string>{"HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength",
                                 "DefaultTime2Wait", "DefaultTime2Retain", "ErrorRecoveryLevel"});
  Pairs custom;
  Negotiator odd = operational_initiator({{"X-com.example", "1"}, {"HeaderDigest", ""}});
  odd.offer_operational(custom);
  CHECK(custom.back() == KeyValue{"X-com.example", "1"});
  CHECK(custom.front().key == "DataDigest");
}

}  // namespace sandbay::iscsi
