// What management is told of portals.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sandbay::group {

struct PortalInfo {
  std::string listen;      // With the port in use.
  std::string advertised;  // "auto": as reached; empty: where it listens.
  std::uint16_t group_tag = 1;
  std::string access_state;           // As an operator set it, such as "active/optimized".
  std::string member;                 // Whose it is; empty: the group's.
  std::optional<std::uint64_t> rate;  // The port's, bytes a second; none: no limit.
  std::uint32_t connections = 0;      // Discovery does not count.
  std::uint64_t recent_bytes = 0;     // In the last five seconds; 0 where no portal balances.
  // Logins are served there; otherwise they go on: from the group's to the member's that has least
  // to do, from a member's that is to leave to another.
  bool takes_logins = true;
};

}  // namespace sandbay::group
