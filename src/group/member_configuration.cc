// A section [[member]] is read as the top of the file is, with the same code; what is left to do
// here is that no two members have the same drive, set or file.
#include "group/member_configuration.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/claims.h"
#include "group/configuration.h"
#include "group/document.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

using Hardwares = std::vector<const HardwareConfiguration*>;

Hardwares all_hardware(const Configuration& configuration) {
  Hardwares all{&configuration.hardware};
  for (const MemberConfiguration& member : configuration.members) all.push_back(&member.hardware);
  return all;
}

// Names are the group's: whoever writes a drive or a set does not write its member.
void check_names(const Hardwares& others, const MemberConfiguration& member, Mistakes& mistakes) {
  for (const HardwareConfiguration* const other : others) {
    std::size_t index = 0;
    for (const DriveConfiguration& drive : member.hardware.drives) {
      const std::string key = fmt::format("drive[{}].name", ++index);
      if (drive.name.empty() || other->drive(drive.name) == nullptr) continue;
      mistakes.add(drive.line, key,
                   fmt::format("{} is a drive of another member; choose a new one", drive.name));
    }
    index = 0;
    for (const SetConfiguration& set : member.hardware.sets) {
      const std::string key = fmt::format("raid[{}].name", ++index);
      if (set.name.empty() || other->set(set.name) == nullptr) continue;
      mistakes.add(set.line, key,
                   fmt::format("{} is a set of another member; choose a new one", set.name));
    }
  }
}

void read_member(const Value& section, Mistakes& mistakes, Configuration& configuration) {
  TableReader reader(section, "", mistakes);
  MemberConfiguration member{.line = section.line};
  reader.require("name", "the member's name in quotes");
  if (const auto name = reader.string("name")) {
    if (const auto error = check_volume_name(*name)) reader.mistake("name", *error);
    const std::vector<std::string> taken = member_names(configuration);
    if (std::ranges::find(taken, *name) != taken.end()) {
      reader.mistake("name", fmt::format("{} is another member's; choose a new one", *name));
    }
    member.name = *name;
  }
  if (reader.has("remote")) {
    RemoteMemberConfiguration remote =
        read_remote_member(reader, member.name, section.line, configuration.file);
    for (const RemoteMemberConfiguration& other : configuration.remotes) {
      if (other.endpoint != remote.endpoint || other.target != remote.target) continue;
      reader.mistake("remote", fmt::format("{} with target {} is member \"{}\" already; write "
                                           "another address or target",
                                           remote.endpoint.to_string(), remote.target, other.name));
    }
    configuration.remotes.push_back(std::move(remote));
    if (reader.any("portal") != nullptr) {
      reader.mistake("portal",
                     "is of members of this daemon: initiators reach the volumes on one elsewhere "
                     "here; leave it out");
    }
    reader.finish();
    return;
  }
  read_portals(reader, member.name, mistakes, configuration);
  read_hardware(reader, std::filesystem::path(configuration.file).parent_path(), mistakes,
                member.hardware);
  reader.finish();
  check_names(all_hardware(configuration), member, mistakes);
  configuration.members.push_back(std::move(member));
}

class Owners {
 public:
  Owners(const Configuration& group, Mistakes& mistakes) : group_(group), mistakes_(mistakes) {}

  void add(const HardwareConfiguration& hardware, const std::filesystem::path& state,
           const std::string& of) {
    std::size_t index = 0;
    for (const DriveConfiguration& drive : hardware.drives) {
      const std::string key = fmt::format("drive[{}].{}", ++index, describe(drive.medium));
      if (drive.path.empty()) continue;
      take(state, drive.path, {.line = drive.line, .key = key},
           fmt::format("drive \"{}\"", drive.name), "a file or device is one drive");
    }
    if (!hardware.nvram) return;
    const NvramConfiguration& nvram = *hardware.nvram;
    take(state, nvram.path, {.line = nvram.line, .key = "nvram.file"}, "the NVRAM" + of,
         "choose another file");
    if (nvram.mirror_path.empty()) return;
    take(state, nvram.mirror_path, {.line = nvram.line, .key = "nvram.mirror"},
         of.empty() ? "the NVRAM's mirror" : "the mirror of the NVRAM" + of, "choose another file");
  }
  std::map<std::string, std::string> all() && { return std::move(owners_); }

 private:
  struct At {
    std::uint32_t line;
    std::string key;
  };
  void take(const std::filesystem::path& state, const std::string& path, const At& at,
            std::string whose, std::string_view otherwise) {
    if (const auto claim = claim_of_group(state / path, group_.state)) {
      mistakes_.add(at.line, at.key, *claim);
    }
    const auto [other, added] = owners_.emplace(identity_of(state / path), std::move(whose));
    if (added) return;
    mistakes_.add(at.line, at.key,
                  fmt::format("{} belongs to {}; {}", path, other->second, otherwise));
  }

  const Configuration& group_;
  Mistakes& mistakes_;
  std::map<std::string, std::string> owners_;
};

}  // namespace

void read_members(TableReader& root, Mistakes& mistakes, Configuration& configuration) {
  std::size_t index = 0;
  std::uint32_t line = 0;
  for (const Value* section : root.tables("member")) {
    line = section->line;
    mistakes.inside(fmt::format("member[{}].", ++index));
    read_member(*section, mistakes, configuration);
    mistakes.inside("");
  }
  if (index > kMostMembers) {
    mistakes.add(line, "member",
                 fmt::format("{} members are too many; write at most {}", index, kMostMembers));
  }
  Hardwares others = all_hardware(configuration);
  others.erase(others.begin());
  read_faults(root, mistakes, configuration.hardware, others, member_names(configuration));
  for (MemberConfiguration& member : configuration.members) {
    member.hardware.faults.enabled = configuration.hardware.faults.enabled;
    member.hardware.time_scale = configuration.hardware.time_scale;
  }
}

std::vector<std::string> member_names(const Configuration& configuration) {
  std::vector<std::string> names{configuration.member};
  for (const MemberConfiguration& member : configuration.members) names.push_back(member.name);
  for (const auto& member : configuration.remotes) names.push_back(member.name);
  return names;
}

std::filesystem::path state_of(const Configuration& group, const MemberConfiguration& member) {
  return group.state / "members" / member.name;
}

Configuration configuration_of(const Configuration& group, const MemberConfiguration& member) {
  Configuration own;
  own.file = group.file;
  own.group_name = group.group_name;
  own.state = state_of(group, member);
  own.memory_limit_bytes = group.memory_limit_bytes / (group.members.size() + 1);
  own.hardware = member.hardware;
  own.member = member.name;
  own.open_image = group.open_image;
  return own;
}

std::pair<const HardwareConfiguration*, const SetConfiguration*> find_set(
    const Configuration& configuration, std::string_view name) {
  for (const HardwareConfiguration* const hardware : all_hardware(configuration)) {
    if (const SetConfiguration* const set = hardware->set(name)) return {hardware, set};
  }
  return {nullptr, nullptr};
}

std::vector<std::string> set_names(const Configuration& configuration) {
  std::vector<std::string> names;
  for (const HardwareConfiguration* const hardware : all_hardware(configuration)) {
    for (const SetConfiguration& set : hardware->sets) names.push_back(set.name);
  }
  return names;
}

bool has_cache(const Configuration& configuration) {
  return std::ranges::any_of(
      all_hardware(configuration),
      [](const HardwareConfiguration* hardware) { return hardware->cache.has_value(); });
}

void check_caches(const Configuration& configuration, Mistakes& mistakes) {
  std::uint64_t left = configuration.memory_limit_bytes;
  const auto take = [&](const HardwareConfiguration& hardware) {
    if (!hardware.cache) return;
    const std::uint64_t bytes = hardware.cache->options.memory_bytes;
    if (bytes > left) {
      mistakes.add(hardware.cache->memory_line, "cache.memory",
                   fmt::format("{} is more than the {} that other members' caches leave of "
                               "group.memory_limit, {}; write less, or a larger limit",
                               format_size(bytes), format_size(left),
                               format_size(configuration.memory_limit_bytes)));
    }
    left -= std::min(left, bytes);
  };
  take(configuration.hardware);
  std::size_t index = 0;
  for (const MemberConfiguration& member : configuration.members) {
    mistakes.inside(fmt::format("member[{}].", ++index));
    take(member.hardware);
    mistakes.inside("");
  }
}

std::map<std::string, std::string> check_drives(const Configuration& configuration,
                                                Mistakes& mistakes) {
  Owners owners(configuration, mistakes);
  owners.add(configuration.hardware, configuration.state, "");
  std::size_t index = 0;
  for (const MemberConfiguration& member : configuration.members) {
    mistakes.inside(fmt::format("member[{}].", ++index));
    owners.add(member.hardware, state_of(configuration, member), " of member " + member.name);
    mistakes.inside("");
  }
  return std::move(owners).all();
}

}  // namespace sandbay::group
