// The key table against RFC 7143 section 13 and RFC 7144, and what a configuration may say.
#include "iscsi/keys.h"

#include <catch2/catch.hpp>

#include "iscsi/negotiation.h"

namespace sandbay::iscsi {
namespace {

// Default, range and use as the RFC's sections state them.
struct Fact {
  const char* key;
  const char* default_value;
  std::uint32_t minimum;
  std::uint32_t maximum;
  KeyType type;
  KeyUse use;
  bool irrelevant_in_discovery;
};
constexpr Fact kFacts[] = {
    {"HeaderDigest", "None", 0, 0, KeyType::kList, KeyUse::kInitializeOnly, false},
    {"DataDigest", "None", 0, 0, KeyType::kList, KeyUse::kInitializeOnly, false},
    {"MaxConnections", "1", 1, 65535, KeyType::kMinimum, KeyUse::kLeadingOnly, true},
    {"InitialR2T", "Yes", 0, 1, KeyType::kOr, KeyUse::kLeadingOnly, true},
    {"ImmediateData", "Yes", 0, 1, KeyType::kAnd, KeyUse::kLeadingOnly, true},
    {"MaxRecvDataSegmentLength", "8192", 512, 16777215, KeyType::kDeclaredNumber, KeyUse::kAll,
     false},
    {"MaxBurstLength", "262144", 512, 16777215, KeyType::kMinimum, KeyUse::kLeadingOnly, true},
    {"FirstBurstLength", "65536", 512, 16777215, KeyType::kMinimum, KeyUse::kLeadingOnly, true},
    {"DefaultTime2Wait", "2", 0, 3600, KeyType::kMaximum, KeyUse::kLeadingOnly, false},
    {"DefaultTime2Retain", "20", 0, 3600, KeyType::kMinimum, KeyUse::kLeadingOnly, false},
    {"MaxOutstandingR2T", "1", 1, 65535, KeyType::kMinimum, KeyUse::kLeadingOnly, true},
    {"DataPDUInOrder", "Yes", 0, 1, KeyType::kOr, KeyUse::kLeadingOnly, true},
    {"DataSequenceInOrder", "Yes", 0, 1, KeyType::kOr, KeyUse::kLeadingOnly, true},
    {"ErrorRecoveryLevel", "0", 0, 2, KeyType::kMinimum, KeyUse::kLeadingOnly, false},
    {"TaskReporting", "RFC3720", 0, 0, KeyType::kList, KeyUse::kLeadingOnly, true},
    {"iSCSIProtocolLevel", "1", 0, 31, KeyType::kMinimum, KeyUse::kLeadingOnly, true},
};

std::string problem_with(const std::string& key, const std::string& value) {
  const auto preferences = KeyPreferences::for_target().with({{key, value}});
  return preferences.has_value() ? "" : preferences.error();
}

}  // namespace

TEST_CASE("The table says of every negotiated key what section 13 says", "[iscsi][keys]") {
  for (const Fact& fact : kFacts) {
    CAPTURE(fact.key);
    const KeyRow* const row = find_key(fact.key);
    REQUIRE(row != nullptr);
    CHECK(row->default_value == fact.default_value);
    CHECK(row->minimum == fact.minimum);
    CHECK(row->maximum == fact.maximum);
    CHECK(row->type == fact.type);
    CHECK(row->use == fact.use);
    CHECK(row->irrelevant_in_discovery == fact.irrelevant_in_discovery);
    CHECK(&row_of(row->id) == row);
  }
  CHECK(find_key("SendTargets")->use == KeyUse::kFullFeatureOnly);
  CHECK(find_key("TargetAddress")->repeat == KeyRepeat::kAllowed);
  CHECK(find_key("AuthMethod")->stage == KeyStage::kSecurity);
  for (const char* any_stage : {"TargetName", "InitiatorName", "TargetAlias", "InitiatorAlias",
                                "TargetAddress", "TargetPortalGroupTag", "SessionType"}) {
    CAPTURE(any_stage);
    CHECK(find_key(any_stage)->stage == KeyStage::kAny);
  }
  CHECK(find_key("initialr2t") == nullptr);  // Keys are case sensitive.
}

TEST_CASE("The parameters start with the RFC's defaults", "[iscsi][keys]") {
  const auto map = NegotiatedParameters{}.to_map();
  for (const Fact& fact : kFacts) {
    CAPTURE(fact.key);
    REQUIRE(map.contains(fact.key));
    CHECK(map.at(fact.key) == fact.default_value);
  }
}

TEST_CASE("The target's wishes are chosen for speed", "[iscsi][keys]") {
  const KeyPreferences target = KeyPreferences::for_target();
  CHECK_FALSE(target.boolean(KeyId::kInitialR2t));
  CHECK(target.boolean(KeyId::kImmediateData));
  CHECK(target.number(KeyId::kFirstBurstLength) >= 262144);
  CHECK(target.number(KeyId::kMaxRecvDataSegmentLength) >= 262144);
  CHECK(target.number(KeyId::kMaxBurstLength) >= 16776192);
  CHECK(target.number(KeyId::kMaxConnections) == 32);
  CHECK(target.allows(KeyId::kHeaderDigest, "None"));
  CHECK(target.allows(KeyId::kHeaderDigest, "CRC32C"));
  CHECK_FALSE(target.allows(KeyId::kHeaderDigest, "CRC"));
}

TEST_CASE("A configured key is checked with one clear message", "[iscsi][keys]") {
  CHECK(problem_with("MaxBurstLength", "65536").empty());
  CHECK(problem_with("MaxBurstLength", "511") ==
        "MaxBurstLength: \"511\" is not a number from 512 to 16777215");
  CHECK(problem_with("MaxBurstLength", "16777216") ==
        "MaxBurstLength: \"16777216\" is not a number from 512 to 16777215");
  CHECK(problem_with("MaxBurstLength", "many") ==
        "MaxBurstLength: \"many\" is not a number from 512 to 16777215");
  CHECK(problem_with("InitialR2T", "yes") == "InitialR2T: \"yes\" is not Yes or No");
  CHECK(problem_with("HeaderDigest", "CRC32C,MD5") ==
        "HeaderDigest: \"MD5\" is none of None,CRC32C");
  CHECK(problem_with("HeaderDigest", "CRC32C").empty());
  CHECK(problem_with("ErrorRecoveryLevel", "3") ==
        "ErrorRecoveryLevel: \"3\" is not a number from 0 to 2");
  CHECK(problem_with("TargetName", "iqn.x") ==
        "TargetName follows from the configuration of the target and cannot be given here");
  CHECK(
      problem_with("OFMarker", "Yes") ==
      "OFMarker is obsolete: only \"Reject\", \"Irrelevant\", \"NotUnderstood\" and \"No\" can be "
      "given");
  CHECK(problem_with("OFMarkInt", "No") ==
        "OFMarkInt is obsolete: only \"Reject\", \"Irrelevant\", \"NotUnderstood\" can be given");
  CHECK(problem_with("OFMarkInt", "Irrelevant").empty());
  CHECK(problem_with("OFMarker", "No").empty());
  CHECK(problem_with("MaxRecvDataSegmentLength", "Reject") ==
        "MaxRecvDataSegmentLength is declared, not negotiated: it has no answer");
  CHECK(problem_with("MaxConnections", "Reject").empty());
  CHECK(problem_with("X-com.example.key", "anything goes").empty());
  CHECK_FALSE(problem_with("not a key", "1").empty());
  CHECK_FALSE(problem_with("X-com.example.key", std::string(256, 'x')).empty());
}

TEST_CASE("An empty value takes the wish back", "[iscsi][keys]") {
  const auto target = KeyPreferences::for_target().with({{"MaxBurstLength", ""}});
  CHECK(target.value().number(KeyId::kMaxBurstLength) == 262144);
  const auto initiator = KeyPreferences::for_initiator().with({{"MaxBurstLength", ""}});
  CHECK(initiator.value().text(KeyId::kMaxBurstLength).empty());
}

}  // namespace sandbay::iscsi
