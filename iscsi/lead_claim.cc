// The text of a claim: group,lead,epoch:token,epoch:token, all in hexadecimal; epochs are decimal.
#include "iscsi/lead_claim.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <vector>

namespace sandbay::iscsi {
namespace {

std::optional<LeadStep> parse_step(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  LeadStep step;
  const char* const end = text.data() + colon;
  const auto [last, error] = std::from_chars(text.data(), end, step.epoch);
  const auto token = parse_hex16(text.substr(colon + 1));
  if (error != std::errc() || last != end || !token) return std::nullopt;
  step.token = *token;
  return step;
}

}  // namespace

std::string format_lead_claim(const LeadClaim& claim) {
  return fmt::format("{},{},{}:{},{}:{}", format_hex(claim.group), format_hex(claim.lead),
                     claim.proven.epoch, format_hex(claim.proven.token), claim.proposed.epoch,
                     format_hex(claim.proposed.token));
}

std::optional<LeadClaim> parse_lead_claim(std::string_view text) {
  std::array<std::string_view, 4> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t comma = text.find(',');
    const bool last = i + 1 == parts.size();
    if (last != (comma == std::string_view::npos)) return std::nullopt;
    parts[i] = text.substr(0, comma);
    if (!last) text.remove_prefix(comma + 1);
  }
  const auto group = parse_hex16(parts[0]);
  const auto lead = parse_hex16(parts[1]);
  const auto proven = parse_step(parts[2]);
  const auto proposed = parse_step(parts[3]);
  if (!group || !lead || !proven || !proposed) return std::nullopt;
  if (proposed->epoch == 0 || proposed->epoch < proven->epoch) return std::nullopt;
  return LeadClaim{.group = *group, .lead = *lead, .proven = *proven, .proposed = *proposed};
}

std::string_view describe(LeadVerdict verdict) {
  switch (verdict) {
    case LeadVerdict::kAccepted:
      return "accepted";
    case LeadVerdict::kOtherGroup:
      return "it is the lead of another group";
    case LeadVerdict::kStranger:
      return "it says that it knows this member, which has never had a lead";
    case LeadVerdict::kOlder:
      return "its epoch is older than the one that is kept here";
    case LeadVerdict::kUnproven:
      return "it does not know what the last lead has left here: its state is a copy, or older";
  }
  return "";
}

LeadVerdict judge_lead(const std::optional<LeadRecord>& kept, const LeadClaim& claim) {
  if (!kept) return claim.proven.epoch == 0 ? LeadVerdict::kAccepted : LeadVerdict::kStranger;
  if (kept->open) return LeadVerdict::kAccepted;
  if (kept->group != claim.group) return LeadVerdict::kOtherGroup;
  if (kept->step == claim.proven || kept->step == claim.proposed) return LeadVerdict::kAccepted;
  return claim.proposed.epoch < kept->step.epoch ? LeadVerdict::kOlder : LeadVerdict::kUnproven;
}

}  // namespace sandbay::iscsi
