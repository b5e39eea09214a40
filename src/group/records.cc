// JSON is parsed and taken apart inside plain functions, so that its exceptions stay there.
#include "group/records.h"

#include <fmt/core.h>

#include <bit>

#include "group/record_json.h"

namespace sandbay::group {

namespace {

using nlohmann::json;

// The format of marks that nobody has confirmed. A daemon that does not know of `unconfirmed` would
// bring the writes to the drives, and one that does not know of `exported` would forget that NVRAM.
constexpr int kUnconfirmedFormat = 2;

json to_json(const iscsi::AccessRecord& record) {
  json value{{"initiator", record.initiator}, {"address", record.address}};
  if (record.chap) {
    value["chap_user"] = record.chap->user;
    value["chap_secret"] = record.chap->secret;
  }
  return value;
}

iscsi::AccessRecord access_from(const json& value) {
  iscsi::AccessRecord record{.initiator = value.at("initiator").get<std::string>(),
                             .address = value.at("address").get<std::string>(),
                             .chap = std::nullopt};
  if (value.contains("chap_user")) {
    record.chap = iscsi::ChapCredential{.user = value.at("chap_user").get<std::string>(),
                                        .secret = value.at("chap_secret").get<std::string>()};
  }
  return record;
}

Backing backing_from(const std::string& word) {
  for (const Backing backing : {Backing::kState, Backing::kFile, Backing::kDevice, Backing::kMemory,
                                Backing::kRaid, Backing::kPool}) {
    if (describe(backing) == word) return backing;
  }
  throw std::out_of_range(fmt::format("a volume on \"{}\" is unknown to this version", word));
}

std::string text_of(const ImageUuid& image) { return format_uuid(std::bit_cast<Uuid>(image)); }

ImageUuid image_from(const json& value) { return std::bit_cast<ImageUuid>(uuid_from(value)); }

// Records of older versions have the first three alone.
Geometry geometry_from(const json& value) {
  const Geometry usual;
  return {.block_bytes = block_bytes_from(value.at("block_size")),
          .physical_block_bytes = block_bytes_from(value.at("physical_block_size")),
          .block_count = number_from<std::uint64_t>(value.at("blocks")),
          .optimal_io_blocks = value.value("optimal_io_blocks", usual.optimal_io_blocks),
          .maximum_io_blocks = value.value("maximum_io_blocks", usual.maximum_io_blocks),
          .unmap = value.value("unmap", usual.unmap),
          .unmap_zeroes = value.value("unmap_zeroes", usual.unmap_zeroes),
          .unmap_granularity_blocks =
              value.value("unmap_granularity_blocks", usual.unmap_granularity_blocks),
          .read_only = value.value("read_only", usual.read_only),
          .volatile_cache = value.value("volatile_cache", usual.volatile_cache),
          .non_volatile_cache = value.value("non_volatile_cache", usual.non_volatile_cache),
          .rotational = value.value("rotational", usual.rotational)};
}

}  // namespace

std::string volume_key(const Uuid& uuid) { return std::string(kVolumePrefix) + format_uuid(uuid); }

std::string target_key(std::string_view name) {
  return std::string(kTargetPrefix) + std::string(name);
}

std::string intent_key(const Uuid& uuid) { return std::string(kIntentPrefix) + format_uuid(uuid); }

std::string set_key(const Uuid& uuid) { return std::string(kSetPrefix) + format_uuid(uuid); }

std::string used_key(const Uuid& uuid) { return std::string(kUsedPrefix) + format_uuid(uuid); }

std::string dirty_key(const Uuid& uuid) { return std::string(kDirtyPrefix) + format_uuid(uuid); }

std::string lost_key(const Uuid& uuid) { return std::string(kLostPrefix) + format_uuid(uuid); }

std::string nvram_key(const ImageUuid& image) { return std::string(kNvramPrefix) + text_of(image); }

std::string making_key(std::string_view name) {
  return std::string(kMakingPrefix) + std::string(name);
}

std::string clearing_key(const Uuid& volume) {
  return std::string(kClearingPrefix) + format_uuid(volume);
}
std::string event_key(std::uint64_t number) {
  return fmt::format("{}{:016x}", kEventPrefix, number);
}

std::string volume_file_name(const Uuid& uuid) { return format_uuid(uuid) + ".img"; }

std::string encode(const GroupRecord& record) {
  return to_text({{"format", kRecordFormat}, {"uuid", record.uuid}, {"name", record.name}});
}

namespace {

// Only values other than the defaults, so that records of older versions stay as they are.
void add_presentation(const VolumeSpecification& s, json& value) {
  if (s.eui64) value["eui64"] = format_eui64(*s.eui64);
  if (s.removable) value["removable"] = true;
  if (s.rotation != 0) value["rotation"] = s.rotation;
  if (s.unmap_limit_bytes != 0) value["unmap_limit"] = s.unmap_limit_bytes;
  if (s.write_same_limit_bytes != 0) value["write_same_limit"] = s.write_same_limit_bytes;
}

}  // namespace

std::string encode(const VolumeRecord& record) {
  const VolumeSpecification& s = record.specification;
  json value{{"format", kRecordFormat},
             {"uuid", format_uuid(record.uuid)},
             {"name", s.name},
             {"backing", describe(s.backing)},
             {"path", s.path},
             {"size", s.size_bytes},
             {"block_size", s.block_bytes},
             {"physical_block_size", s.physical_block_bytes},
             {"preallocate", s.preallocate},
             {"thin", s.thin},
             {"read_only", s.read_only},
             {"write_cache", s.write_cache},
             {"cache", describe(s.cache)},
             {"serial", s.serial},
             {"vendor", s.vendor},
             {"product", s.product},
             {"revision", s.revision},
             {"target", s.target},
             {"lun", s.lun.value_or(0)}};
  if (s.naa) value["naa"] = format_naa(*s.naa);
  add_presentation(s, value);
  if (record.placement) {
    value["raid"] = s.raid;
    value["set"] = format_uuid(record.placement->set);
    value["first_block"] = record.placement->extent.first;
  }
  if (!record.online) value["online"] = false;
  if (record.full_copy) value["full_copy"] = true;
  if (record.shrink_to != 0) value["shrink_to"] = record.shrink_to;
  if (!record.origin.empty()) value["origin"] = record.origin;
  if (record.pool) {
    value["pool"] = s.pool;
    value["pool_uuid"] = format_uuid(*record.pool);
    value["on"] = s.on;
    value["raid_level"] = s.raid_level;
    value["thin_warning"] = s.thin_warning;
    value["thin_limit"] = s.thin_limit;
    value["snapshot_reserve"] = format_reserve(s.snapshot_reserve);
    value["reserve_policy"] = describe(s.reserve_policy);
    value["operations_limit"] = s.operations_limit;
    value["bytes_limit"] = s.bytes_limit;
  }
  return to_text(value);
}

std::string encode(const SetRecord& record) {
  return to_text({{"format", kRecordFormat},
                  {"uuid", format_uuid(record.uuid)},
                  {"name", record.name},
                  {"event", record.event},
                  {"imported", record.imported},
                  {"block_size", record.geometry.block_bytes},
                  {"physical_block_size", record.geometry.physical_block_bytes},
                  {"blocks", record.geometry.block_count},
                  {"optimal_io_blocks", record.geometry.optimal_io_blocks},
                  {"maximum_io_blocks", record.geometry.maximum_io_blocks},
                  {"unmap", record.geometry.unmap},
                  {"unmap_zeroes", record.geometry.unmap_zeroes},
                  {"unmap_granularity_blocks", record.geometry.unmap_granularity_blocks},
                  {"read_only", record.geometry.read_only},
                  {"volatile_cache", record.geometry.volatile_cache},
                  {"non_volatile_cache", record.geometry.non_volatile_cache},
                  {"rotational", record.geometry.rotational}});
}

std::string encode(const EventInfo& event) {
  return to_text({{"format", kRecordFormat},
                  {"number", event.number},
                  {"time", event.time.time_since_epoch().count()},
                  {"severity", describe(event.severity)},
                  {"kind", event.kind},
                  {"set", event.set},
                  {"drive", event.drive},
                  {"text", event.text}});
}

std::string encode_used(std::uint64_t end_block) {
  return to_text({{"format", kRecordFormat}, {"end_block", end_block}});
}

std::string encode_nvram(std::uint64_t open_count) {
  return to_text({{"format", kRecordFormat}, {"open_count", open_count}});
}

std::string encode_unchecked(const std::vector<ImageUuid>& made_since) {
  json made = json::array();
  for (const ImageUuid& image : made_since) made.push_back(text_of(image));
  return to_text({{"format", kRecordFormat}, {"made", std::move(made)}});
}

std::string encode(const MakingRecord& record) {
  json drive_uuids = json::array();
  for (const Uuid& drive : record.drive_uuids) drive_uuids.push_back(format_uuid(drive));
  return to_text({{"format", kRecordFormat},
                  {"set", format_uuid(record.set)},
                  {"drives", record.drives},
                  {"drive_uuids", std::move(drive_uuids)}});
}

std::string encode(const TargetRecord& record) {
  json access = json::array();
  for (const AddedAccess& added : record.access) {
    json value = to_json(added.record);
    value["id"] = added.id;
    access.push_back(std::move(value));
  }
  return to_text({{"format", kRecordFormat},
                  {"name", record.name},
                  {"next_id", record.next_id},
                  {"access", std::move(access)}});
}

std::string encode(const MirrorRecord& record) {
  return to_text({{"format", kRecordFormat},
                  {"image", text_of(record.image)},
                  {"nvram", text_of(record.nvram)},
                  {"stale", record.stale}});
}

std::string encode(const DirtyRecord& record) {
  const bool newer = record.unconfirmed || record.exported != ImageUuid{};
  json value{{"format", newer ? kUnconfirmedFormat : kRecordFormat},
             {"nvram", text_of(record.nvram)}};
  if (record.unconfirmed) value["unconfirmed"] = true;
  if (record.exported != ImageUuid{}) value["exported"] = text_of(record.exported);
  return to_text(value);
}

std::string encode(const std::vector<LostRange>& ranges) {
  json list = json::array();
  for (const LostRange& range : ranges) {
    list.push_back({{"volume", range.volume},
                    {"first_block", range.extent.first},
                    {"blocks", range.extent.block_count},
                    {"why", range.why}});
  }
  return to_text({{"format", kRecordFormat}, {"ranges", std::move(list)}});
}

std::expected<GroupRecord, std::string> decode_group(std::string_view text) {
  return decode<GroupRecord>(text, [](const json& value) {
    return GroupRecord{.uuid = value.at("uuid").get<std::string>(),
                       .name = value.at("name").get<std::string>()};
  });
}

namespace {

void read_presentation(const json& value, VolumeSpecification& s) {
  const json absent = 0U;
  s.removable = value.value("removable", false);
  s.rotation = number_from<std::uint32_t>(value.value("rotation", absent));
  s.unmap_limit_bytes = number_from<std::uint64_t>(value.value("unmap_limit", absent));
  s.write_same_limit_bytes = number_from<std::uint64_t>(value.value("write_same_limit", absent));
  if (!value.contains("eui64")) return;
  s.eui64 = parse_eui64(value.at("eui64").get<std::string>());
  if (!s.eui64) throw std::out_of_range("its EUI-64 identifier is invalid");
}

void read_pool_part(const json& value, VolumeRecord& record) {
  VolumeSpecification& s = record.specification;
  s.pool = value.at("pool").get<std::string>();
  record.pool = uuid_from(value.at("pool_uuid"));
  s.on = value.at("on").get<std::string>();
  s.raid_level = value.at("raid_level").get<std::string>();
  s.thin_warning = number_from<std::uint32_t>(value.at("thin_warning"));
  s.thin_limit = number_from<std::uint32_t>(value.at("thin_limit"));
  // One of an older version has no reserve.
  const auto reserve = parse_reserve(value.value("snapshot_reserve", "none"));
  const auto policy = parse_reserve_policy(value.value("reserve_policy", "delete-oldest"));
  if (!reserve || !policy) throw std::out_of_range("its snapshots' reserve is none");
  s.snapshot_reserve = *reserve;
  s.reserve_policy = *policy;
  s.operations_limit = number_from<std::uint64_t>(value.at("operations_limit"));
  s.bytes_limit = number_from<std::uint64_t>(value.at("bytes_limit"));
}

}  // namespace

std::expected<VolumeRecord, std::string> decode_volume(std::string_view text) {
  return decode<VolumeRecord>(text, [](const json& value) {
    VolumeRecord record;
    record.uuid = uuid_from(value.at("uuid"));
    VolumeSpecification& s = record.specification;
    s.name = value.at("name").get<std::string>();
    s.backing = backing_from(value.at("backing").get<std::string>());
    s.path = value.at("path").get<std::string>();
    s.size_bytes = number_from<std::uint64_t>(value.at("size"));
    s.block_bytes = block_bytes_from(value.at("block_size"));
    s.physical_block_bytes = block_bytes_from(value.at("physical_block_size"));
    s.preallocate = value.at("preallocate").get<bool>();
    s.thin = value.at("thin").get<bool>();
    s.read_only = value.at("read_only").get<bool>();
    s.write_cache = value.at("write_cache").get<bool>();
    // One of an older version names no mode.
    const auto cache = parse_cache_mode(value.value("cache", "write-back"));
    if (!cache) throw std::out_of_range("its cache mode is none");
    s.cache = *cache;
    s.serial = value.at("serial").get<std::string>();
    s.vendor = value.at("vendor").get<std::string>();
    s.product = value.at("product").get<std::string>();
    s.revision = value.at("revision").get<std::string>();
    s.target = value.at("target").get<std::string>();
    s.lun = number_from<std::uint32_t>(value.at("lun"));
    if (value.contains("naa")) {
      s.naa = parse_naa(value.at("naa").get<std::string>());
      if (!s.naa) throw std::out_of_range("its NAA identifier is none");
    }
    read_presentation(value, s);
    record.online = value.value("online", true);
    record.full_copy = value.value("full_copy", false);
    record.shrink_to = value.value("shrink_to", std::uint64_t{0});
    if (record.shrink_to % s.block_bytes != 0 || record.shrink_to > s.size_bytes) {
      throw std::out_of_range("its pending new size is invalid");
    }
    record.origin = value.value("origin", "");
    if (s.backing == Backing::kPool) read_pool_part(value, record);
    const auto error = check_specification(s);
    if (error) throw std::out_of_range(*error);
    if (s.backing == Backing::kRaid) {
      s.raid = value.at("raid").get<std::string>();
      record.placement =
          Placement{.set = uuid_from(value.at("set")),
                    .extent = {.first = number_from<std::uint64_t>(value.at("first_block")),
                               .block_count = s.size_bytes / s.block_bytes}};
    }
    return record;
  });
}

std::expected<TargetRecord, std::string> decode_target(std::string_view text) {
  return decode<TargetRecord>(text, [](const json& value) {
    TargetRecord record{.name = value.at("name").get<std::string>(),
                        .access = {},
                        .next_id = number_from<std::uint64_t>(value.at("next_id"))};
    for (const json& entry : value.at("access")) {
      record.access.push_back(
          {.id = number_from<std::uint64_t>(entry.at("id")), .record = access_from(entry)});
    }
    return record;
  });
}

std::expected<SetRecord, std::string> decode_set(std::string_view text) {
  return decode<SetRecord>(text, [](const json& value) {
    return SetRecord{.uuid = uuid_from(value.at("uuid")),
                     .name = value.at("name").get<std::string>(),
                     .event = value.at("event").get<raid::Event>(),
                     .imported = value.value("imported", false),
                     .geometry = geometry_from(value)};
  });
}

std::expected<EventInfo, std::string> decode_event(std::string_view text) {
  return decode<EventInfo>(text, [](const json& value) {
    EventInfo event{.number = number_from<std::uint64_t>(value.at("number")),
                    .time = time_from(value.at("time")),
                    .kind = value.at("kind").get<std::string>(),
                    .set = value.at("set").get<std::string>(),
                    .drive = value.at("drive").get<std::string>(),
                    .text = value.at("text").get<std::string>()};
    const std::string severity = value.at("severity").get<std::string>();
    for (const Severity one : {Severity::kInformation, Severity::kWarning, Severity::kError}) {
      if (severity != describe(one)) continue;
      event.severity = one;
      return event;
    }
    throw std::out_of_range("its severity is none");
  });
}

std::expected<std::uint64_t, std::string> decode_used(std::string_view text) {
  return decode<std::uint64_t>(
      text, [](const json& value) { return number_from<std::uint64_t>(value.at("end_block")); });
}

std::expected<std::uint64_t, std::string> decode_nvram(std::string_view text) {
  return decode<std::uint64_t>(
      text, [](const json& value) { return number_from<std::uint64_t>(value.at("open_count")); });
}

std::expected<std::vector<ImageUuid>, std::string> decode_unchecked(std::string_view text) {
  using Images = std::vector<ImageUuid>;
  if (text == "{}") return Images{};  // As an import writes it.
  return decode<Images>(text, [](const json& value) {
    Images made;
    for (const json& image : value.at("made")) made.push_back(image_from(image));
    return made;
  });
}

// One of an older version names no UUIDs: nothing is what it says, so nothing is erased for it.
std::expected<MakingRecord, std::string> decode_making(std::string_view text) {
  return decode<MakingRecord>(text, [](const json& value) {
    MakingRecord record{.drives = value.at("drives").get<std::vector<std::string>>()};
    if (!value.contains("set")) return record;
    record.set = uuid_from(value.at("set"));
    for (const json& drive : value.at("drive_uuids")) {
      record.drive_uuids.push_back(uuid_from(drive));
    }
    return record;
  });
}

std::expected<MirrorRecord, std::string> decode_mirror(std::string_view text) {
  return decode<MirrorRecord>(text, [](const json& value) {
    return MirrorRecord{.image = image_from(value.at("image")),
                        .nvram = image_from(value.at("nvram")),
                        .stale = value.at("stale").get<bool>()};
  });
}

std::expected<DirtyRecord, std::string> decode_dirty(std::string_view text) {
  const auto take = [](const json& value) {
    DirtyRecord record{.nvram = image_from(value.at("nvram")),
                       .unconfirmed = value.value("unconfirmed", false)};
    if (value.contains("exported")) record.exported = image_from(value.at("exported"));
    return record;
  };
  return decode<DirtyRecord>(text, take, kUnconfirmedFormat);
}

std::expected<std::vector<LostRange>, std::string> decode_lost(std::string_view text) {
  return decode<std::vector<LostRange>>(text, [](const json& value) {
    std::vector<LostRange> ranges;
    for (const json& entry : value.at("ranges")) {
      ranges.push_back({.volume = number_from<std::uint64_t>(entry.at("volume")),
                        .extent = {.first = number_from<std::uint64_t>(entry.at("first_block")),
                                   .block_count = number_from<std::uint64_t>(entry.at("blocks"))},
                        .why = entry.at("why").get<std::string>()});
    }
    return ranges;
  });
}

}  // namespace sandbay::group
