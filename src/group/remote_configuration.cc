// Reading what a file says of members elsewhere, and of being one.
#include "group/remote_configuration.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/chap_configuration.h"
#include "group/configuration.h"
#include "group/document.h"

namespace sandbay::group {

namespace {

constexpr Duration kLeastPatience = std::chrono::seconds(1);
constexpr Duration kMostPatience = std::chrono::minutes(5);
// A lead that has gone without a word makes room for the next one soon.
constexpr Duration kPingInterval = std::chrono::seconds(1);
constexpr Duration kPingTimeout = std::chrono::seconds(2);

}  // namespace

RemoteMemberConfiguration read_remote_member(TableReader& reader, std::string name,
                                             std::uint32_t line,
                                             const std::filesystem::path& file) {
  RemoteMemberConfiguration member{.name = std::move(name), .line = line};
  if (const auto text = reader.string("remote")) {
    const auto endpoint = Endpoint::parse(*text, kDefaultRemotePort);
    if (!endpoint || endpoint->is_any()) {
      reader.mistake("remote", fmt::format("\"{}\" is not the address of a member; write one such "
                                           "as 10.0.0.2:{} or [fd00::2]:{}",
                                           *text, kDefaultRemotePort, kDefaultRemotePort));
    } else {
      member.endpoint = *endpoint;
    }
  }
  member.target = default_target_name(member.name);
  if (const auto target = reader.string("target")) {
    if (const auto error = check_target_name(*target)) reader.mistake("target", *error);
    member.target = *target;
  }
  if (const auto count = reader.integer("connections", 1, kMostRemoteConnections)) {
    member.connections = static_cast<std::uint32_t>(*count);
  }
  if (const auto patience = reader.duration("patience", kLeastPatience, kMostPatience)) {
    member.patience = *patience;
  }
  const std::filesystem::path folder = file.parent_path();
  member.chap = read_chap(reader, "chap_", folder);
  member.mutual_chap = read_chap(reader, "mutual_chap_", folder);
  if (member.mutual_chap && !member.chap) {
    reader.mistake("mutual_chap_user", "means nothing without CHAP; write chap_user, too");
  }
  return member;
}

void read_role(TableReader& group, Configuration& configuration) {
  const auto role = group.string("role");
  if (!role || *role == "lead") return;
  if (*role != "member") {
    group.mistake("role", fmt::format("unknown role \"{}\"; use \"lead\" or \"member\"", *role));
    return;
  }
  configuration.lead = LeadConfiguration{.line = group.line_of("role")};
}

void read_lead(TableReader& root, const std::filesystem::path& folder, Mistakes& mistakes,
               Configuration& configuration) {
  const Value* const section = root.table("lead");
  if (!configuration.lead) {
    if (section != nullptr) {
      root.mistake("lead",
                   "is of a member's file; write role = \"member\" in [group], too, or "
                   "leave it out");
    }
    return;
  }
  LeadConfiguration& lead = *configuration.lead;
  lead.target = default_target_name(configuration.group_name);
  iscsi::AccessRecord record;
  if (section != nullptr) {
    TableReader reader(*section, "lead", mistakes);
    if (const auto target = reader.string("target")) {
      if (const auto error = check_target_name(*target)) reader.mistake("target", *error);
      lead.target = *target;
    }
    if (const auto initiator = reader.string("initiator")) {
      if (const auto error = check_initiator_pattern(*initiator)) {
        reader.mistake("initiator", *error);
      }
      record.initiator = *initiator;
    }
    if (const auto address = reader.string("address")) {
      if (const auto error = check_address_pattern(*address)) reader.mistake("address", *error);
      record.address = *address;
    }
    record.chap = read_chap(reader, "chap_", folder);
    lead.mutual_chap = read_chap(reader, "mutual_chap_", folder);
    lead.allow_first = reader.boolean("allow_first").value_or(false);
    if (lead.mutual_chap && !record.chap) {
      reader.mistake("mutual_chap_user", "means nothing without CHAP; write chap_user, too");
    }
    reader.finish();
  }
  lead.access = {std::move(record)};
  if (const auto error = check_first_lead(configuration)) root.mistake("lead", *error);
  for (const std::string_view key : {"identity", "member", "pool", "target", "volume"}) {
    if (root.has(key)) {
      root.mistake(key,
                   "is the lead's affair; a member has drives, sets, NVRAM and a cache, and "
                   "its lead uses them");
    }
  }
  if (!root.has("limits")) {
    configuration.limits.nop_in_interval = kPingInterval;
    configuration.limits.nop_in_timeout = kPingTimeout;
  }
}

// A name or an address proves nothing: every initiator may use any.
std::optional<std::string> check_first_lead(const Configuration& configuration) {
  if (!configuration.lead || configuration.lead->allow_first) return std::nullopt;
  const bool proved = std::ranges::all_of(
      configuration.lead->access,
      [](const iscsi::AccessRecord& record) { return record.chap.has_value(); });
  if (proved) return std::nullopt;
  const auto exposed = std::ranges::find_if(
      configuration.portals,
      [](const PortalConfiguration& portal) { return !is_loopback(portal.listen); });
  if (exposed == configuration.portals.end()) return std::nullopt;
  return fmt::format(
      "the first initiator that logs in at {} would own this member's sets for good, and nothing "
      "proves that it is your group's lead; write chap_user and chap_secret_file in [lead], or "
      "allow_first = true if the network is yours alone",
      exposed->listen.to_string());
}

}  // namespace sandbay::group
