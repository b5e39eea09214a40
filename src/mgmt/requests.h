// Bodies of write requests, read as strictly as the configuration file: unknown keys, wrong types
// and values out of range are refused, and the message names the key. The rules that volumes and
// access records have among their parts are the service's.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "group/service.h"

namespace sandbay::mgmt {

template <class T>
using Read = std::expected<T, std::string>;

Read<group::CreateVolumeRequest> read_create_volume(std::string_view body);
Read<group::ChangeVolumeRequest> read_change_volume(std::string_view body);
Read<iscsi::AccessRecord> read_access(std::string_view body);
// The drive that takes over; empty: the best spare.
Read<std::string> read_replace_drive(std::string_view body);
Read<std::string> read_flush_cache(std::string_view body);  // The set; empty: all.
Read<std::string> read_discard_writes(std::string_view body);
Read<std::string> read_add_fault(std::string_view body);

}  // namespace sandbay::mgmt
