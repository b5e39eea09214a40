// MemberConfiguration: the sections [[member]] of a configuration file, checked, as plain values:
// arrays beside the one that is described at the top of the file, with sections of the very same
// keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "group/hardware_configuration.h"

namespace sandbay::group {

struct Configuration;
class Mistakes;
class TableReader;

inline constexpr std::size_t kMostMembers = 32;

struct MemberConfiguration {
  std::string name;
  HardwareConfiguration hardware;
  std::uint32_t line = 0;
};

// Reads all sections [[member]]; every mistake is noted. What the group has already been read of
// `configuration`, to which they are added.
void read_members(TableReader& root, Mistakes& mistakes, Configuration& configuration);

// The names of all members, the one at the top of the file first.
std::vector<std::string> member_names(const Configuration& configuration);

// What a member's hardware is built from: its own, and its files under STATE/members/NAME.
Configuration configuration_of(const Configuration& group, const MemberConfiguration& member);

// The member whose set has the name, and the set; null if there is none.
const SetConfiguration* find_set(const Configuration& configuration, std::string_view name);

}  // namespace sandbay::group
