// Goal: whatever the two sides wish for, both come out of a negotiation with the same parameters.
// Method: an originator and a responder with random preferences over random sets of keys talk
// until neither has anything to say; results are compared field by field.
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "iscsi/negotiation.h"

namespace sandbay::iscsi {
namespace {

using Pairs = std::vector<KeyValue>;
using Keys = std::map<std::string, std::string>;

std::string any_number(std::uint32_t minimum, std::uint32_t maximum) {
  const bool near_edge = *rc::gen::arbitrary<bool>();
  const std::uint32_t low = near_edge ? minimum : *rc::gen::inRange(minimum, maximum);
  const std::uint32_t span = std::min<std::uint32_t>(maximum - low, 64);
  return std::to_string(low + *rc::gen::inRange<std::uint32_t>(0, span + 1));
}

std::string any_value(const KeyRow& row) {
  switch (row.type) {
    case KeyType::kAnd:
    case KeyType::kOr:
      return *rc::gen::arbitrary<bool>() ? "Yes" : "No";
    case KeyType::kList: {
      if (row.id == KeyId::kTaskReporting) {
        return *rc::gen::element<std::string>("RFC3720,ResponseFence",
                                              "FastAbort,ResponseFence,RFC3720", "RFC3720");
      }
      return *rc::gen::element<std::string>("None", "CRC32C", "None,CRC32C", "CRC32C,None");
    }
    default:
      return any_number(row.minimum, row.maximum);
  }
}

// Wishes for a random set of the operational keys; an initiator leaves some out.
Keys any_keys(bool initiator) {
  Keys keys;
  for (const KeyRow& row : key_table()) {
    if (row.stage != KeyStage::kOperational || row.type == KeyType::kObsolete) continue;
    const int choice = *rc::gen::inRange(0, 4);
    if (choice == 0) keys[std::string(row.name)] = any_value(row);
    if (choice == 1 && initiator) keys[std::string(row.name)] = "";
    if (choice == 2 && !initiator && row.type != KeyType::kDeclaredNumber &&
        row.type != KeyType::kList) {
      const bool reject = *rc::gen::arbitrary<bool>();
      keys[std::string(row.name)] = reject ? "Reject" : "Irrelevant";
    }
  }
  return keys;
}

// One request and its response; false once either side has refused to go on.
bool exchange(Negotiator& initiator, Negotiator& target, Pairs& request) {
  auto answered = target.receive(request);
  if (!answered.has_value()) return false;
  target.offer(KeyId::kMaxRecvDataSegmentLength, answered->answers);
  target.offer_what_defaults_forbid(answered->answers);
  auto evaluated = initiator.receive(answered->answers);
  if (!evaluated.has_value()) return false;
  request = std::move(evaluated->answers);
  return true;
}

}  // namespace

TEST_CASE("Originator and responder always agree", "[iscsi][negotiation]") {
  const bool held = rc::check([] {
    const auto initiator_keys = KeyPreferences::for_initiator().with(any_keys(true));
    const auto target_keys = KeyPreferences::for_target().with(any_keys(false));
    RC_ASSERT(initiator_keys.has_value() && target_keys.has_value());
    Negotiator initiator(Role::kInitiator, *initiator_keys);
    Negotiator target(Role::kTarget, *target_keys);
    const bool leading = *rc::gen::inRange(0, 4) != 0;
    const bool discovery = leading && *rc::gen::inRange(0, 4) == 0;
    for (Negotiator* side : {&initiator, &target}) {
      side->enter(NegotiationPhase::kOperational);
      side->set_leading(leading);
      side->set_discovery(discovery);
    }
    Pairs request;
    initiator.offer_operational(request);
    bool going_on = exchange(initiator, target, request);
    // What the target offered is answered in a second request.
    if (going_on) going_on = exchange(initiator, target, request);
    RC_ASSERT(going_on);
    RC_ASSERT(request.empty());
    const auto at_target = target.conclude();
    const auto at_initiator = initiator.conclude();
    // Either may find that it cannot live with the outcome (a digest that the other lacks, lengths
    // that contradict each other); if neither does, they agree.
    RC_CLASSIFY(at_target.has_value() && at_initiator.has_value(), "agreed");
    if (!at_target.has_value()) {
      RC_ASSERT(at_target.error().error == NegotiationError::kRefused ||
                at_target.error().error == NegotiationError::kIntegrity);
      return;
    }
    if (!at_initiator.has_value()) {
      RC_ASSERT(at_initiator.error().error == NegotiationError::kRefused);
      return;
    }
    RC_ASSERT(initiator.result() == target.result());
  });
  REQUIRE(held);
}

TEST_CASE("With both sides' own wishes every login agrees", "[iscsi][negotiation]") {
  Negotiator initiator(Role::kInitiator, KeyPreferences::for_initiator());
  Negotiator target(Role::kTarget, KeyPreferences::for_target());
  initiator.enter(NegotiationPhase::kOperational);
  target.enter(NegotiationPhase::kOperational);
  Pairs request;
  initiator.offer_operational(request);
  REQUIRE(exchange(initiator, target, request));
  CHECK(request.empty());
  REQUIRE(target.conclude().has_value());
  REQUIRE(initiator.conclude().has_value());
  CHECK(initiator.result() == target.result());
  const SessionParameters& session = target.result().session;
  CHECK_FALSE(session.initial_r2t);
  CHECK(session.immediate_data);
  CHECK(session.first_burst_length == 262144);
  CHECK(session.max_burst_length == 16776192);
  CHECK(session.max_outstanding_r2t == 8);
  CHECK(target.result().connection.target_max_recv_data_segment_length == 262144);
}

TEST_CASE("Nothing that is received makes a negotiator misbehave", "[iscsi][negotiation]") {
  REQUIRE(rc::check([] {
    Negotiator target(Role::kTarget, KeyPreferences::for_target().with(any_keys(false)).value());
    target.enter(static_cast<NegotiationPhase>(*rc::gen::inRange(0, 3)));
    for (int round = 0; round < 4; ++round) {
      Pairs pairs;
      const int count = *rc::gen::inRange(0, 8);
      for (int index = 0; index < count; ++index) {
        const auto& row = key_table()[*rc::gen::inRange<std::size_t>(0, kKeyCount)];
        const bool odd = *rc::gen::arbitrary<bool>();
        pairs.push_back({.key = std::string(row.name),
                         .value = odd ? *rc::gen::arbitrary<std::string>() : any_value(row)});
      }
      if (!target.receive(pairs).has_value()) return;
    }
    const SessionParameters& session = target.result().session;
    RC_ASSERT(session.max_burst_length >= 512 && session.max_burst_length < 1U << 24U);
    RC_ASSERT(session.max_connections >= 1 && session.max_outstanding_r2t >= 1);
    if (target.phase() == NegotiationPhase::kOperational && target.conclude().has_value()) {
      RC_ASSERT(target.result().session.first_burst_length <= session.max_burst_length);
    }
  }));
}

}  // namespace sandbay::iscsi
