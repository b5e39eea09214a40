// JSON is parsed and taken apart inside plain functions, so that its exceptions stay there.
#include "group/records.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sandbay::group {

namespace {

using nlohmann::json;

constexpr int kFormat = 1;

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

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
  for (const Backing backing :
       {Backing::kState, Backing::kFile, Backing::kDevice, Backing::kMemory}) {
    if (describe(backing) == word) return backing;
  }
  throw std::out_of_range(fmt::format("a volume on \"{}\" is unknown to this version", word));
}

// Runs `take` on the parsed object and turns every complaint into half a sentence.
template <class Record, class Take>
std::expected<Record, std::string> decode(std::string_view text, Take take) {
  try {
    const json value = json::parse(text);
    if (value.at("format").get<int>() != kFormat) {
      return std::unexpected(fmt::format("has format {}; this version reads format {}",
                                         value.at("format").get<int>(), kFormat));
    }
    return take(value);
  } catch (const std::exception& error) {
    return std::unexpected(fmt::format("is damaged: {}", error.what()));
  }
}

}  // namespace

std::string volume_key(const Uuid& uuid) { return std::string(kVolumePrefix) + format_uuid(uuid); }

std::string target_key(std::string_view name) {
  return std::string(kTargetPrefix) + std::string(name);
}

std::string intent_key(const Uuid& uuid) { return std::string(kIntentPrefix) + format_uuid(uuid); }

std::string volume_file_name(const Uuid& uuid) { return format_uuid(uuid) + ".img"; }

std::string encode(const GroupRecord& record) {
  return to_text({{"format", kFormat}, {"uuid", record.uuid}, {"name", record.name}});
}

std::string encode(const VolumeRecord& record) {
  const VolumeSpecification& s = record.specification;
  json value{{"format", kFormat},
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
             {"serial", s.serial},
             {"vendor", s.vendor},
             {"product", s.product},
             {"revision", s.revision},
             {"target", s.target},
             {"lun", s.lun.value_or(0)}};
  if (s.naa) value["naa"] = format_naa(*s.naa);
  return to_text(value);
}

std::string encode(const TargetRecord& record) {
  json access = json::array();
  for (const AddedAccess& added : record.access) {
    json value = to_json(added.record);
    value["id"] = added.id;
    access.push_back(std::move(value));
  }
  return to_text({{"format", kFormat},
                  {"name", record.name},
                  {"next_id", record.next_id},
                  {"access", std::move(access)}});
}

std::expected<GroupRecord, std::string> decode_group(std::string_view text) {
  return decode<GroupRecord>(text, [](const json& value) {
    return GroupRecord{.uuid = value.at("uuid").get<std::string>(),
                       .name = value.at("name").get<std::string>()};
  });
}

std::expected<VolumeRecord, std::string> decode_volume(std::string_view text) {
  return decode<VolumeRecord>(text, [](const json& value) {
    VolumeRecord record;
    const auto uuid = parse_uuid(value.at("uuid").get<std::string>());
    if (!uuid) throw std::out_of_range("its UUID is none");
    record.uuid = *uuid;
    VolumeSpecification& s = record.specification;
    s.name = value.at("name").get<std::string>();
    s.backing = backing_from(value.at("backing").get<std::string>());
    s.path = value.at("path").get<std::string>();
    s.size_bytes = value.at("size").get<std::uint64_t>();
    s.block_bytes = value.at("block_size").get<std::uint32_t>();
    s.physical_block_bytes = value.at("physical_block_size").get<std::uint32_t>();
    s.preallocate = value.at("preallocate").get<bool>();
    s.thin = value.at("thin").get<bool>();
    s.read_only = value.at("read_only").get<bool>();
    s.write_cache = value.at("write_cache").get<bool>();
    s.serial = value.at("serial").get<std::string>();
    s.vendor = value.at("vendor").get<std::string>();
    s.product = value.at("product").get<std::string>();
    s.revision = value.at("revision").get<std::string>();
    s.target = value.at("target").get<std::string>();
    s.lun = value.at("lun").get<std::uint32_t>();
    if (value.contains("naa")) {
      s.naa = parse_naa(value.at("naa").get<std::string>());
      if (!s.naa) throw std::out_of_range("its NAA identifier is none");
    }
    const auto error = check_specification(s);
    if (error) throw std::out_of_range(*error);
    return record;
  });
}

std::expected<TargetRecord, std::string> decode_target(std::string_view text) {
  return decode<TargetRecord>(text, [](const json& value) {
    TargetRecord record{.name = value.at("name").get<std::string>(),
                        .access = {},
                        .next_id = value.at("next_id").get<std::uint64_t>()};
    for (const json& entry : value.at("access")) {
      record.access.push_back(
          {.id = entry.at("id").get<std::uint64_t>(), .record = access_from(entry)});
    }
    return record;
  });
}

}  // namespace sandbay::group
