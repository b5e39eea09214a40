// JSON is parsed and taken apart inside plain functions, so that its exceptions stay there.
#include "group/pool_records.h"

#include "group/pool_configuration.h"
#include "group/record_json.h"

namespace sandbay::group {

using nlohmann::json;

std::string pool_key(const Uuid& uuid) { return std::string(kPoolPrefix) + format_uuid(uuid); }

std::string snapshot_key(const Uuid& uuid) {
  return std::string(kSnapshotPrefix) + format_uuid(uuid);
}

std::string map_prefix(const Uuid& pool) { return "map/" + format_uuid(pool) + "/"; }

bool is_checkpoint(std::string_view key) {
  static const std::size_t kSize = map_prefix({}).size() + 1;
  return key.size() == kSize && key.starts_with("map/") && key.ends_with("/c");
}

std::string encode(const PoolRecord& record) {
  return to_text({{"format", kRecordFormat},
                  {"uuid", format_uuid(record.uuid)},
                  {"name", record.name},
                  {"members", record.members},
                  {"leaving", record.leaving},
                  {"page", record.page_bytes},
                  {"block_size", record.block_bytes},
                  {"disagrees", record.disagrees}});
}

std::string encode(const SnapshotRecord& record) {
  return to_text({{"format", kRecordFormat},
                  {"uuid", format_uuid(record.uuid)},
                  {"volume", format_uuid(record.volume)},
                  {"pool", format_uuid(record.pool)},
                  {"name", record.name},
                  {"time", record.time.time_since_epoch().count()},
                  {"schedule", record.schedule},
                  {"online", record.online},
                  {"target", record.target},
                  {"writable", record.writable}});
}

std::expected<PoolRecord, std::string> decode_pool(std::string_view text) {
  return decode<PoolRecord>(text, [](const json& value) {
    PoolRecord record{.uuid = uuid_from(value.at("uuid")),
                      .name = value.at("name").get<std::string>(),
                      .members = value.at("members").get<std::vector<std::string>>(),
                      .leaving = value.value("leaving", std::vector<std::string>{}),
                      .page_bytes = number_from<std::uint64_t>(value.at("page")),
                      .block_bytes = number_from<std::uint32_t>(value.at("block_size")),
                      .disagrees = value.value("disagrees", false)};
    if (const auto error = check_page_bytes(record.page_bytes)) throw std::out_of_range(*error);
    return record;
  });
}

std::expected<SnapshotRecord, std::string> decode_snapshot(std::string_view text) {
  return decode<SnapshotRecord>(text, [](const json& value) {
    return SnapshotRecord{.uuid = uuid_from(value.at("uuid")),
                          .volume = uuid_from(value.at("volume")),
                          .pool = uuid_from(value.at("pool")),
                          .name = value.at("name").get<std::string>(),
                          .time = time_from(value.at("time")),
                          .schedule = value.at("schedule").get<std::string>(),
                          .online = value.at("online").get<bool>(),
                          .target = value.at("target").get<std::string>(),
                          .writable = value.at("writable").get<bool>()};
  });
}

std::string schedule_key(const Uuid& uuid) {
  return std::string(kSchedulePrefix) + format_uuid(uuid);
}

std::string encode(const ScheduleRecord& record) {
  return to_text({{"format", kRecordFormat},
                  {"uuid", format_uuid(record.uuid)},
                  {"volume", format_uuid(record.volume)},
                  {"name", record.name},
                  {"every", record.every.count()},
                  {"keep", record.keep}});
}

std::expected<ScheduleRecord, std::string> decode_schedule(std::string_view text) {
  return decode<ScheduleRecord>(text, [](const json& value) {
    ScheduleRecord record{.uuid = uuid_from(value.at("uuid")),
                          .volume = uuid_from(value.at("volume")),
                          .name = value.at("name").get<std::string>(),
                          .every = Duration(value.at("every").get<Duration::rep>()),
                          .keep = number_from<std::uint32_t>(value.at("keep"))};
    if (record.every <= Duration::zero()) throw std::out_of_range("it has no interval");
    return record;
  });
}

}  // namespace sandbay::group
