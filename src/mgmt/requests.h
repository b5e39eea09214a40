// Bodies of write requests, read as strictly as the configuration file: unknown keys, wrong types
// and values out of range are refused, and the message names the key. The rules that volumes and
// access records have among their parts are the service's.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "group/service.h"

namespace sandbay::mgmt {

template <class T>
using Read = std::expected<T, std::string>;

Read<group::CreateVolumeRequest> read_create_volume(std::string_view body);
Read<group::ChangeVolumeRequest> read_change_volume(std::string_view body);
Read<group::CreatePoolRequest> read_create_pool(std::string_view body);
// Without the volume that the path names.
Read<group::CreateSnapshotsRequest> read_create_snapshots(std::string_view body);
Read<group::ScheduleInfo> read_create_schedule(std::string_view body);
struct CloneRequest {
  std::string name;
  bool full_copy = false;
};
Read<CloneRequest> read_clone(std::string_view body);
// A body with at most that one key.
Read<bool> read_flag(std::string_view body, std::string_view key);
// The same with a text, empty without it; unless `demanded` says what must be there.
Read<std::string> read_word(std::string_view body, std::string_view key,
                            std::string_view demanded = {});
Read<std::vector<std::string>> read_rules(std::string_view body);
Read<iscsi::AccessRecord> read_access(std::string_view body);
Read<group::ImportPart> read_import_part(std::string_view body);

}  // namespace sandbay::mgmt
