// LeadClaim: what the lead of a group says of itself when it logs in to a member's target, and how
// the member judges it.
//
// A group has one lead, which owns its metadata. A member keeps (group, epoch, token) durably. Who
// logs in proves that it knows what the member keeps, and proposes what is to be kept from then on:
// compare and swap. A lead whose state is older (a restored backup) or that another has overtaken
// (a copy of its state directory) proves something that is not kept any more, and is refused.
//
// A lead stores what it proposes before it does, with what was acknowledged last: after a crash in
// between, the member has one of the two, and either counts as proven. Proposing again what is kept
// changes nothing, so that a login may be repeated.
//
// The claim travels as a private extension key (RFC 7143 section 6.1, X-reversed.vendor.dns_name)
// in the login of a session's first connection, and in text negotiations in full feature phase.
// Pure: text and values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/uuid.h"

namespace sandbay::iscsi {

inline constexpr std::string_view kLeadKey = "X-org.sandbay.Group";

// One step of a group's leads: a new lead has a new epoch, and from time to time a new token.
struct LeadStep {
  std::uint64_t epoch = 0;  // 0: none yet.
  Uuid token{};
  bool operator==(const LeadStep&) const = default;
};

struct LeadClaim {
  Uuid group{};
  Uuid lead{};  // This run of the lead's daemon: drawn at its start, and nowhere stored.
  LeadStep proven;
  LeadStep proposed;  // Its epoch is at least the proven one, and not 0.
  bool operator==(const LeadClaim&) const = default;
};

std::string format_lead_claim(const LeadClaim& claim);
std::optional<LeadClaim> parse_lead_claim(std::string_view text);

// What a member keeps.
struct LeadRecord {
  Uuid group{};
  LeadStep step;
  bool open = false;  // Whoever comes next is believed, whatever it proves.
  bool operator==(const LeadRecord&) const = default;
};

enum class LeadVerdict : std::uint8_t {
  kAccepted,
  kOtherGroup,  // The member is another group's.
  kStranger,    // The member knows no group, and who claims says that it does.
  kOlder,       // The member has seen a lead with a newer epoch.
  kUnproven,    // The epoch may be right, the token is not.
};
// Half a sentence about who claimed it, for logs.
std::string_view describe(LeadVerdict verdict);

// `kept` is empty: the member has never had a lead, and takes one that says so, too.
LeadVerdict judge_lead(const std::optional<LeadRecord>& kept, const LeadClaim& claim);

}  // namespace sandbay::iscsi
