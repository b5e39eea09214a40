// MemberConfiguration: the sections [[member]] of a configuration file, checked, as plain values:
// arrays beside the one that is described at the top of the file, with sections of the very same
// keys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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

// Reads all sections [[member]], and [faults], which is all members'; every mistake is noted. They
// are added to `configuration`, of which [group] and the first member have been read.
void read_members(TableReader& root, Mistakes& mistakes, Configuration& configuration);

// The names of all members, the one at the top of the file first.
std::vector<std::string> member_names(const Configuration& configuration);

// STATE/members/NAME, where relative paths of its sections start.
std::filesystem::path state_of(const Configuration& group, const MemberConfiguration& member);
// What a member's hardware is built from: its own sections, and what is the group's.
Configuration configuration_of(const Configuration& group, const MemberConfiguration& member);

// The set of that name, and the hardware that it is of; nulls if there is none.
std::pair<const HardwareConfiguration*, const SetConfiguration*> find_set(
    const Configuration& configuration, std::string_view name);
std::vector<std::string> set_names(const Configuration& configuration);
bool has_cache(const Configuration& configuration);

// The memory of all members' caches together is no more than group.memory_limit.
void check_caches(const Configuration& configuration, Mistakes& mistakes);

// Drives and NVRAM of all members against one another: no two are one file or device, and none is
// the group's own. Whose each of them is, by identity_of().
std::map<std::string, std::string> check_drives(const Configuration& configuration,
                                                Mistakes& mistakes);

}  // namespace sandbay::group
