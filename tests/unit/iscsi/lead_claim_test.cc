// Goal: the text of a claim is read as it was written, and nothing else is; a member takes its own
// lead, its successor and nobody else.
#include <catch2/catch.hpp>

#include <rapidcheck.h>

#include "iscsi/lead_claim.h"

namespace sandbay::iscsi {
namespace {

Uuid filled(std::uint8_t value) {
  Uuid uuid{};
  uuid.fill(value);
  return uuid;
}

LeadStep step(std::uint64_t epoch, std::uint8_t token) { return {epoch, filled(token)}; }

LeadClaim claim(LeadStep proven, LeadStep proposed) {
  return {.group = filled(1), .lead = filled(2), .proven = proven, .proposed = proposed};
}

}  // namespace

TEST_CASE("A claim is read as it was written", "[lead]") {
  REQUIRE(rc::check([] {
    LeadClaim wrote{.group = *rc::gen::container<Uuid>(rc::gen::arbitrary<std::uint8_t>()),
                    .lead = *rc::gen::container<Uuid>(rc::gen::arbitrary<std::uint8_t>()),
                    .proven = {.epoch = *rc::gen::inRange<std::uint64_t>(0, 1000)}};
    wrote.proposed.epoch = wrote.proven.epoch + *rc::gen::inRange<std::uint64_t>(1, 3);
    const std::string text = format_lead_claim(wrote);
    RC_ASSERT(text.size() < 255);
    RC_ASSERT(parse_lead_claim(text) == wrote);
  }));
}

TEST_CASE("What is no claim is not taken for one", "[lead]") {
  const std::string good = format_lead_claim(claim(step(3, 7), step(4, 8)));
  CHECK(parse_lead_claim(good).has_value());
  for (std::size_t length = 0; length < good.size(); ++length) {
    CHECK_FALSE(parse_lead_claim(good.substr(0, length)).has_value());
  }
  CHECK_FALSE(parse_lead_claim(good + ",").has_value());
  CHECK_FALSE(parse_lead_claim(good + "0").has_value());
  CHECK_FALSE(parse_lead_claim("Reject").has_value());
  // Backwards, or nowhere.
  CHECK_FALSE(parse_lead_claim(format_lead_claim(claim(step(4, 7), step(3, 8)))).has_value());
  CHECK_FALSE(parse_lead_claim(format_lead_claim(claim(step(0, 0), step(0, 8)))).has_value());
}

TEST_CASE("A member follows one lead", "[lead]") {
  using enum LeadVerdict;
  const LeadRecord kept{.group = filled(1), .step = step(5, 50)};
  // The lead itself, again and with a new token; its successor; one that crashed in between.
  CHECK(judge_lead(kept, claim(step(5, 50), step(5, 50))) == kAccepted);
  CHECK(judge_lead(kept, claim(step(5, 50), step(5, 51))) == kAccepted);
  CHECK(judge_lead(kept, claim(step(5, 50), step(6, 60))) == kAccepted);
  CHECK(judge_lead(kept, claim(step(4, 40), step(5, 50))) == kAccepted);
  // Restored from before the last token; overtaken; a copy that another run has left behind.
  CHECK(judge_lead(kept, claim(step(5, 49), step(6, 60))) == kUnproven);
  CHECK(judge_lead(kept, claim(step(5, 49), step(5, 51))) == kUnproven);
  CHECK(judge_lead(kept, claim(step(3, 30), step(4, 40))) == kOlder);
  // Somebody else's, and who thinks that he has never been here.
  LeadClaim other = claim(step(5, 50), step(6, 60));
  other.group = filled(9);
  CHECK(judge_lead(kept, other) == kOtherGroup);
  CHECK(judge_lead(kept, claim(step(0, 0), step(1, 10))) == kOlder);
  CHECK(judge_lead(std::nullopt, claim(step(0, 0), step(1, 10))) == kAccepted);
  CHECK(judge_lead(std::nullopt, claim(step(5, 50), step(6, 60))) == kStranger);
  // The administrator has said so.
  CHECK(judge_lead(LeadRecord{.open = true}, other) == kAccepted);
}

}  // namespace sandbay::iscsi
