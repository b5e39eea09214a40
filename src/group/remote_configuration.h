// What a configuration file says of members elsewhere, and of being one: sections [[member]] with
// `remote`, `[group] role = "member"` and the section [lead] of a member's own file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/target_server.h"
#include "runtime/clock.h"
#include "runtime/io.h"

namespace sandbay::group {

struct Configuration;
class Mistakes;
class TableReader;

inline constexpr std::uint16_t kDefaultRemotePort = 3260;
inline constexpr std::uint32_t kMostRemoteConnections = 16;

// A member elsewhere, as its group's lead sees it.
struct RemoteMemberConfiguration {
  std::string name;
  Endpoint endpoint;
  std::string target;  // Of its sets.
  std::uint32_t connections = 2;
  std::optional<iscsi::ChapCredential> chap;         // What the lead proves itself with,
  std::optional<iscsi::ChapCredential> mutual_chap;  // and the member.
  Duration patience = std::chrono::seconds(5);
  std::uint32_t line = 0;
};

// What a member says of its lead.
struct LeadConfiguration {
  std::string target;                       // What the member's sets are exported as.
  std::vector<iscsi::AccessRecord> access;  // Who may be the lead; one record.
  std::optional<iscsi::ChapCredential> mutual_chap;
  bool allow_first = false;  // Without CHAP, on a portal that other machines reach.
  bool forget = false;       // Of the command line: the next that logs in is believed.
  std::uint32_t line = 0;
};

// The rest of a section [[member]] that has the key `remote`; `file` is the configuration file.
RemoteMemberConfiguration read_remote_member(TableReader& reader, std::string name,
                                             std::uint32_t line, const std::filesystem::path& file);

// Of [group]: the key `role`. A member's file has no members, pools, targets and volumes, and a
// section [lead], which may be empty.
void read_role(TableReader& group, Configuration& configuration);
void read_lead(TableReader& root, const std::filesystem::path& folder, Mistakes& mistakes,
               Configuration& configuration);

// Why nobody could tell the right lead from another on these portals; half a sentence.
std::optional<std::string> check_first_lead(const Configuration& configuration);

}  // namespace sandbay::group
