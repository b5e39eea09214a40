// PortalConfiguration: the sections [[portal]] and [[member.portal]] of a configuration file,
// checked, as plain values.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>

#include "model/port.h"
#include "runtime/io.h"

namespace sandbay::group {

struct Configuration;
class Mistakes;
class TableReader;

inline constexpr std::uint16_t kDefaultPortalPort = 3260;

struct PortalConfiguration {
  Endpoint listen;
  std::optional<Endpoint> advertised;
  bool as_reached = false;  // "auto"
  std::uint16_t group_tag = 1;
  std::string member;  // Whose it is; empty: the group's.
  // As what the port is timed; none: as fast as the host allows.
  std::optional<model::PortProfile> port;
  // Of the group's: logins go on to members' portals. As written; see balances().
  std::optional<bool> balance;
  std::string section;  // As messages call it: "portal[1]", "member[1].portal[1]".
  std::uint32_t line = 0;
};

struct Advertised {
  std::optional<Endpoint> address;  // Nothing: where the portal listens.
  bool as_reached = false;
};

// "auto", "none", or an address. The error is half a sentence.
std::expected<Advertised, std::string> parse_advertised(std::string_view text);
std::string describe(const Advertised& advertised);  // "" for "none".

// Reads all sections [[portal]] of a table; they are added to `configuration`. `member` has the
// table; empty: it is the root, where `first_member` may have portals of its own.
void read_portals(TableReader& owner, const std::string& member, Mistakes& mistakes,
                  Configuration& configuration);
// Portals against one another and against management, when all have been read.
void check_portals(const Configuration& configuration, Mistakes& mistakes);

// Whether logins there go on to the portals of members: where there are any with its tag, unless
// the file says otherwise.
bool balances(const PortalConfiguration& portal, const Configuration& configuration);

}  // namespace sandbay::group
