// What management is told of members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "group/portal_info.h"
#include "runtime/clock.h"

namespace sandbay::group {

struct MemberSetInfo {
  std::string set;
  std::string level;
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0;  // Of a set that a pool has; otherwise 0.
  // "active", "vacating", or "unused": no pool has it, and perhaps volumes of its own.
  std::string state;
  std::string reason;  // Why it does not serve; empty if it does.
};

struct MemberInfo {
  std::string name;
  std::string place;   // "local", or where it is.
  std::string pool;    // Empty: of none.
  std::string state;   // "present": in no pool; "member"; "leaving": it is emptied.
  std::string health;  // "good", "degraded": some set of it is not, "missing": none of it serves.
  std::string reason;  // Why all of it is away; empty: it is not.
  std::uint32_t drives = 0;
  // For how long the processors of its controller have been at work; none: it is as fast as
  // the host allows.
  std::optional<Duration> modelled_busy;
  std::uint64_t size_bytes = 0;  // Of its sets, or of what a pool has of them.
  std::uint64_t free_bytes = 0;
  // While it is leaving.
  std::uint64_t moved_bytes = 0;
  std::uint64_t left_bytes = 0;
  std::optional<Duration> time_left;
  std::vector<MemberSetInfo> sets;
  std::vector<PortalInfo> portals;
};

}  // namespace sandbay::group
