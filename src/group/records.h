// Records: how the group's provisioning stands in the metadata store. Values are JSON objects.
//
//   group              {"format":1,"uuid":…,"name":…}
//   volume/UUID        what a volume is: name, backing, size, target, LUN …
//   target/NAME        what was added to a target at run time: access records, with their secrets
//   intent/UUID        a file of a volume that is about to be made or removed: its file name in
//                      STATE/volumes. Whoever finds one at start removes the file.
//
// A record that does not decode is damage and stops the start; it is never passed over.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "group/configuration.h"
#include "group/naa.h"

namespace sandbay::group {

inline constexpr std::string_view kGroupKey = "group";
inline constexpr std::string_view kVolumePrefix = "volume/";
inline constexpr std::string_view kTargetPrefix = "target/";
inline constexpr std::string_view kIntentPrefix = "intent/";

struct GroupRecord {
  std::string uuid;
  std::string name;
};

struct VolumeRecord {
  Uuid uuid{};
  VolumeSpecification specification;  // Size, target and LUN are always set.
};

struct AddedAccess {
  std::uint64_t id = 0;
  iscsi::AccessRecord record;
};

struct TargetRecord {
  std::string name;
  std::vector<AddedAccess> access;
  std::uint64_t next_id = 1;  // Numbers are never used again.
};

std::string volume_key(const Uuid& uuid);
std::string target_key(std::string_view name);
std::string intent_key(const Uuid& uuid);
std::string volume_file_name(const Uuid& uuid);  // "UUID.img"

std::string encode(const GroupRecord& record);
std::string encode(const VolumeRecord& record);
std::string encode(const TargetRecord& record);

// The error is half a sentence.
std::expected<GroupRecord, std::string> decode_group(std::string_view text);
std::expected<VolumeRecord, std::string> decode_volume(std::string_view text);
std::expected<TargetRecord, std::string> decode_target(std::string_view text);

}  // namespace sandbay::group
