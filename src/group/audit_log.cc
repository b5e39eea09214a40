// How an audited change stands in the metadata.
#include "group/audit_log.h"

#include <fmt/format.h>

#include "group/kept_log_functions.h"
#include "group/record_json.h"

namespace sandbay::group {

using nlohmann::json;

AuditLog::AuditLog(std::size_t most_entries)
    : log_({.prefix = kAuditPrefix,
            .name = "audited changes",
            .key = audit_key,
            .encode = encode,
            .decode = decode_audit},
           most_entries) {}

void AuditLog::add(AuditEntry entry) {
  entry.time = wall_time();
  log_.add(std::move(entry));
}

std::string audit_key(std::uint64_t number) {
  return fmt::format("{}{:016x}", kAuditPrefix, number);
}

std::string encode(const AuditEntry& entry) {
  return to_text({{"format", kRecordFormat},
                  {"number", entry.number},
                  {"time", entry.time.time_since_epoch().count()},
                  {"caller", entry.caller},
                  {"address", entry.address},
                  {"operation", entry.operation},
                  {"target", entry.target},
                  {"request", entry.request},
                  {"status", entry.status},
                  {"refusal", entry.refusal}});
}

std::expected<AuditEntry, std::string> decode_audit(std::string_view text) {
  return decode<AuditEntry>(text, [](const json& value) {
    return AuditEntry{
        .number = value.at("number").get<std::uint64_t>(),
        .time = WallTime(std::chrono::milliseconds(value.at("time").get<std::int64_t>())),
        .caller = value.at("caller").get<std::string>(),
        .address = value.at("address").get<std::string>(),
        .operation = value.at("operation").get<std::string>(),
        .target = value.at("target").get<std::string>(),
        .request = value.at("request").get<std::string>(),
        .status = value.at("status").get<std::uint32_t>(),
        .refusal = value.at("refusal").get<std::string>()};
  });
}

template class KeptLog<AuditEntry>;

}  // namespace sandbay::group
