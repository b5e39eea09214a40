// The group's values as JSON objects, as the OpenAPI document describes them. Sizes are numbers of
// bytes, times are seconds. No secret has a way into them: the values hold none.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "group/service.h"

namespace sandbay::mgmt {

nlohmann::json to_json(const group::GroupInfo& info);
nlohmann::json to_json(const group::PortalInfo& info);
nlohmann::json to_json(const group::VolumeInfo& info);
nlohmann::json to_json(const group::TargetInfo& info);
nlohmann::json to_json(const group::AccessInfo& info);
nlohmann::json to_json(const iscsi::SessionInfo& info);
// hardware_json.cc
nlohmann::json to_json(const group::DriveInfo& info);
nlohmann::json to_json(const group::SetInfo& info);
nlohmann::json to_json(const fault::RuleView& rule);
nlohmann::json to_json(const group::FaultsInfo& info);
nlohmann::json to_json(const group::FiringInfo& info);
nlohmann::json to_json(const fault::Replay& replay);
nlohmann::json to_json(const group::EventInfo& info);
nlohmann::json to_json(const group::AuditEntry& entry);

// pool_json.cc
nlohmann::json to_json(const group::PoolInfo& info);
nlohmann::json to_json(const group::MemberInfo& info);
nlohmann::json to_json(const group::SnapshotInfo& info);
nlohmann::json to_json(const group::ScheduleInfo& info);
nlohmann::json to_json(const group::TaskInfo& info);
nlohmann::json to_json(const group::PoolCheckInfo& info);
nlohmann::json to_json(const group::DiscardedMap& given);

// cache_json.cc
nlohmann::json to_json(const group::CacheInfo& info);
nlohmann::json to_json(const group::DiscardedWrites& given);

// {"error": {"code": …, "message": …}}
nlohmann::json error_json(std::string_view code, std::string_view message);

}  // namespace sandbay::mgmt
