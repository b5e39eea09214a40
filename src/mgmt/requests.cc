// JSON becomes the same tree of values that a configuration file becomes, and the same reader
// takes it apart.
#include "mgmt/requests.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "group/document.h"
#include "group/import_file.h"
#include "group/json_text.h"

namespace sandbay::mgmt {

namespace {

using group::Mistakes;
using group::TableReader;
using group::Value;
using nlohmann::json;

constexpr int kDeepest = 8;
// Of limits a second.
constexpr std::uint64_t kMostRate = std::uint64_t{1} << 50;

bool is_too_large(const json& value) {
  if (value.is_number_unsigned()) {
    return value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  }
  return value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
}

// Whether brackets outside strings stand deeper in each other than anything that is asked for.
bool is_nested_too_deeply(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char here = body[i];
    if (in_string) {
      if (here == '\\') ++i;
      in_string = here != '"';
    } else if (here == '"') {
      in_string = true;
    } else if (here == '{' || here == '[') {
      if (++depth > kDeepest + 1) return true;
    } else if (here == '}' || here == ']') {
      --depth;
    }
  }
  return false;
}

// Too deep a document is refused before it is parsed: what a parser keeps of each level would be
// many times its size, and its destruction would recurse as deep.
Read<Value> parse(std::string_view body) {
  if (body.empty()) return std::unexpected("the body is empty; write one JSON object");
  if (is_nested_too_deeply(body)) {
    return std::unexpected("the body is nested too deeply; write one JSON object");
  }
  std::string wrong;
  std::string key;
  std::vector<std::set<std::string>> keys;  // Of the objects that are open.
  const auto watch = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key) {
      key = parsed.get<std::string>();
      if (!keys.empty() && !keys.back().insert(key).second && wrong.empty()) {
        wrong = fmt::format("{}: occurs twice; write it once", key);
      }
    }
    if (event == json::parse_event_t::value && is_too_large(parsed) && wrong.empty()) {
      wrong = fmt::format("{}: {} is out of range; write a whole number below 9223372036854775808",
                          key, group::to_text(parsed));
    }
    return true;
  };
  const json document = json::parse(body, watch, /*allow_exceptions=*/false);
  if (!document.is_discarded() && !wrong.empty()) return std::unexpected(wrong);
  if (document.is_discarded()) return std::unexpected("the body is not JSON; write one object");
  if (!document.is_object()) return std::unexpected("the body is not a JSON object; write one");
  return group::to_value(document);
}

// A size may be a number of bytes, as answers have it, or text such as "100GiB".
std::optional<std::uint64_t> read_size(TableReader& reader, std::string_view key) {
  const Value* value = reader.any(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind == Value::Kind::kInteger && value->integer >= 0) {
    return static_cast<std::uint64_t>(value->integer);
  }
  if (value->kind == Value::Kind::kInteger) {
    reader.mistake(key,
                   fmt::format("{} is out of range; write a number of bytes, or a size such as "
                               "\"100GiB\"",
                               value->integer));
    return std::nullopt;
  }
  if (value->kind == Value::Kind::kString) {
    const auto bytes = group::parse_size(value->text);
    if (bytes) return *bytes;
    reader.mistake(key, bytes.error());
    return std::nullopt;
  }
  reader.mistake(key, fmt::format("is {}; write a number of bytes, or a size such as \"100GiB\"",
                                  describe(value->kind)));
  return std::nullopt;
}

iscsi::AccessRecord read_record(TableReader& reader) {
  iscsi::AccessRecord record;
  reader.require("initiator", "an initiator's name, or \"*\" for every one");
  record.initiator = reader.string("initiator").value_or("");
  record.address = reader.string("address").value_or("");
  const auto user = reader.string("chap_user");
  const auto secret = reader.string("chap_secret");
  if (reader.has("chap_user") != reader.has("chap_secret")) {
    reader.mistake(reader.has("chap_user") ? "chap_secret" : "chap_user",
                   "is missing; CHAP needs both chap_user and chap_secret");
  } else if (user && secret) {
    record.chap = iscsi::ChapCredential{.user = *user, .secret = *secret};
  }
  reader.finish();
  return record;
}

// Whether the body leaves it open.
bool read_backing(TableReader& reader, group::VolumeSpecification& s) {
  const auto file = reader.string("file");
  const auto device = reader.string("device");
  const auto raid = reader.string("raid");
  const auto pool = reader.string("pool");
  const bool memory = reader.boolean("memory").value_or(false);
  const int given = int{file.has_value()} + int{device.has_value()} + int{raid.has_value()} +
                    int{pool.has_value()} + int{memory};
  if (given > 1) {
    reader.mistake(file ? "file" : (device ? "device" : (raid ? "raid" : "pool")),
                   "a volume has one place; write one of pool, raid, file, device and memory");
  }
  if (file) {
    s.backing = group::Backing::kFile;
    s.path = *file;
    // Where the daemon was started is nothing a client knows.
    if (!file->starts_with('/')) reader.mistake("file", "is not an absolute path; write one");
  } else if (device) {
    s.backing = group::Backing::kDevice;
    s.path = *device;
    if (!device->starts_with('/')) reader.mistake("device", "is not an absolute path; write one");
  } else if (memory) {
    s.backing = group::Backing::kMemory;
  } else if (raid) {
    s.backing = group::Backing::kRaid;
    s.raid = *raid;
  } else if (pool) {
    s.backing = group::Backing::kPool;
    s.pool = *pool;
  }
  return given == 0;
}

std::optional<std::uint32_t> read_percent(TableReader& reader, std::string_view key,
                                          std::uint64_t least) {
  const auto value = reader.integer(key, least, 100);
  if (!value) return std::nullopt;
  return static_cast<std::uint32_t>(*value);
}

std::optional<cache::Mode> read_cache_mode(TableReader& reader) {
  const auto word = reader.string("cache");
  if (!word) return std::nullopt;
  const auto mode = group::parse_cache_mode(*word);
  if (!mode) {
    reader.mistake("cache", fmt::format("unknown mode \"{}\"; use {}", *word, group::kCacheModes));
  }
  return mode;
}

std::optional<group::SnapshotReserve> read_reserve(TableReader& reader) {
  const auto text = reader.string("snapshot_reserve");
  if (!text) return std::nullopt;
  const auto reserve = group::parse_reserve(*text);
  if (reserve) return *reserve;
  reader.mistake("snapshot_reserve", reserve.error());
  return std::nullopt;
}

std::optional<group::ReservePolicy> read_reserve_policy(TableReader& reader) {
  const auto word = reader.string("reserve_policy");
  if (!word) return std::nullopt;
  const auto policy = group::parse_reserve_policy(*word);
  if (!policy) {
    reader.mistake("reserve_policy",
                   fmt::format("\"{}\" is none; write {}", *word, group::kReservePolicies));
  }
  return policy;
}

void read_presentation(TableReader& reader, group::VolumeSpecification& s) {
  s.removable = reader.boolean("removable").value_or(false);
  if (const auto rotation = reader.integer("rotation", 0, group::kMostRotation)) {
    s.rotation = static_cast<std::uint32_t>(*rotation);
  }
  s.unmap_limit_bytes = read_size(reader, "unmap_limit").value_or(0);
  s.write_same_limit_bytes = read_size(reader, "write_same_limit").value_or(0);
  if (const auto eui64 = reader.string("eui64")) {
    s.eui64 = group::parse_eui64(*eui64);
    if (!s.eui64) {
      reader.mistake("eui64",
                     "is not an EUI-64 identifier; write 16 hexadecimal digits, not all of them 0");
    }
  }
}

group::VolumeSpecification read_specification(TableReader& reader, group::OpenChoices& open) {
  group::VolumeSpecification s;
  reader.require("name", "the volume's name");
  s.name = reader.string("name").value_or("");
  open.backing = read_backing(reader, s);
  open.thin = !reader.has("thin");
  open.block_bytes = !reader.has("block_size");
  s.on = reader.string("on").value_or("");
  s.raid_level = reader.string("raid_level").value_or("");
  s.thin_warning = read_percent(reader, "thin_warning", 0).value_or(s.thin_warning);
  s.thin_limit = read_percent(reader, "thin_limit", 1).value_or(s.thin_limit);
  s.snapshot_reserve = read_reserve(reader).value_or(s.snapshot_reserve);
  s.reserve_policy = read_reserve_policy(reader).value_or(s.reserve_policy);
  s.operations_limit = reader.integer("operations_limit", 0, kMostRate).value_or(0);
  s.bytes_limit = reader.integer("bytes_limit", 0, kMostRate).value_or(0);
  s.size_bytes = read_size(reader, "size").value_or(0);
  const auto number = [&](std::string_view key, std::uint64_t most, std::uint32_t& target) {
    const auto value = reader.integer(key, 1, most);
    if (value) target = static_cast<std::uint32_t>(*value);
  };
  number("block_size", 4096, s.block_bytes);
  number("physical_block_size", std::uint64_t{1} << 20, s.physical_block_bytes);
  s.preallocate = reader.boolean("preallocate").value_or(false);
  s.thin = reader.boolean("thin").value_or(!s.preallocate);
  s.read_only = reader.boolean("read_only").value_or(false);
  s.write_cache = reader.boolean("write_cache").value_or(true);
  s.cache = read_cache_mode(reader).value_or(s.cache);
  s.serial = reader.string("serial").value_or(s.serial);
  s.vendor = reader.string("vendor").value_or(s.vendor);
  s.product = reader.string("product").value_or(s.product);
  s.revision = reader.string("revision").value_or(s.revision);
  if (const auto naa = reader.string("naa")) {
    s.naa = group::parse_naa(*naa);
    if (!s.naa) {
      reader.mistake("naa",
                     "is not an NAA identifier; write 32 hexadecimal digits, the first of them 6");
    }
  }
  read_presentation(reader, s);
  s.target = reader.string("target").value_or("");
  if (const auto lun = reader.integer("lun", 0, group::kLargestLun)) {
    s.lun = static_cast<std::uint32_t>(*lun);
  }
  return s;
}

// Parses the body, lets `take` read it, and gives the first mistake if there is any.
template <class T, class Take>
Read<T> read(std::string_view body, Take take) {
  const auto document = parse(body);
  if (!document) return std::unexpected(document.error());
  Mistakes mistakes("");
  T result = take(*document, mistakes);
  if (!mistakes.empty()) return std::unexpected(mistakes.sorted().front());
  return result;
}

}  // namespace

Read<group::CreateVolumeRequest> read_create_volume(std::string_view body) {
  return read<group::CreateVolumeRequest>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    group::CreateVolumeRequest request;
    request.specification = read_specification(reader, request.open);
    for (const Value* element : reader.tables("access")) {
      TableReader access(*element, fmt::format("access[{}]", request.access.size() + 1), mistakes);
      request.access.push_back(read_record(access));
    }
    reader.finish();
    return request;
  });
}

Read<group::ChangeVolumeRequest> read_change_volume(std::string_view body) {
  return read<group::ChangeVolumeRequest>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    group::ChangeVolumeRequest request;
    request.size_bytes = read_size(reader, "size");
    request.name = reader.string("name");
    request.cache = read_cache_mode(reader);
    request.force = reader.boolean("force").value_or(false);
    request.online = reader.boolean("online");
    request.read_only = reader.boolean("read_only");
    request.thin_warning = read_percent(reader, "thin_warning", 0);
    request.thin_limit = read_percent(reader, "thin_limit", 1);
    request.snapshot_reserve = read_reserve(reader);
    request.reserve_policy = read_reserve_policy(reader);
    request.operations_limit = reader.integer("operations_limit", 0, kMostRate);
    request.bytes_limit = reader.integer("bytes_limit", 0, kMostRate);
    reader.finish();
    return request;
  });
}

Read<group::CreatePoolRequest> read_create_pool(std::string_view body) {
  return read<group::CreatePoolRequest>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    group::CreatePoolRequest request;
    reader.require("name", "the pool's name");
    request.name = reader.string("name").value_or("");
    request.members = reader.strings("members").value_or(std::vector<std::string>{});
    request.page_bytes = read_size(reader, "page").value_or(request.page_bytes);
    reader.finish();
    return request;
  });
}

Read<group::CreateSnapshotsRequest> read_create_snapshots(std::string_view body) {
  return read<group::CreateSnapshotsRequest>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    group::CreateSnapshotsRequest request;
    request.name = reader.string("name").value_or("");
    request.volumes = reader.strings("with").value_or(std::vector<std::string>{});
    reader.finish();
    return request;
  });
}

Read<group::ScheduleInfo> read_create_schedule(std::string_view body) {
  return read<group::ScheduleInfo>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    group::ScheduleInfo schedule;
    reader.require("name", "the schedule's name");
    reader.require("every", "a time such as \"1h\"");
    reader.require("keep", "how many are kept");
    schedule.name = reader.string("name").value_or("");
    schedule.every = reader.duration("every", std::chrono::seconds(1), std::chrono::hours(24 * 366))
                         .value_or(schedule.every);
    const auto keep = reader.integer("keep", 1, 1024);
    schedule.keep = static_cast<std::uint32_t>(keep.value_or(1));
    reader.finish();
    return schedule;
  });
}

Read<CloneRequest> read_clone(std::string_view body) {
  return read<CloneRequest>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    reader.require("name", "the new volume's name");
    CloneRequest request{.name = reader.string("name").value_or("")};
    request.full_copy = reader.boolean("full_copy").value_or(false);
    reader.finish();
    return request;
  });
}

Read<std::string> read_word(std::string_view body, std::string_view key,
                            std::string_view demanded) {
  return read<std::string>(body, [&](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    if (!demanded.empty()) reader.require(key, std::string(demanded));
    std::string word = reader.string(key).value_or("");
    reader.finish();
    return word;
  });
}

Read<std::vector<std::string>> read_rules(std::string_view body) {
  return read<std::vector<std::string>>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    reader.require("rules", "an array of rules such as \"at=drive:d0 do=fail\"");
    std::vector<std::string> rules = reader.strings("rules").value_or(std::vector<std::string>{});
    if (reader.has("rules") && mistakes.empty() && rules.empty()) {
      reader.mistake("rules", "is empty; write at least one rule");
    }
    reader.finish();
    return rules;
  });
}

Read<bool> read_flag(std::string_view body, std::string_view key) {
  return read<bool>(body, [key](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    const bool flag = reader.boolean(key).value_or(false);
    reader.finish();
    return flag;
  });
}

Read<iscsi::AccessRecord> read_access(std::string_view body) {
  return read<iscsi::AccessRecord>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    return read_record(reader);
  });
}

Read<group::ImportPart> read_import_part(std::string_view body) {
  return read<group::ImportPart>(body, [](const Value& value, Mistakes& mistakes) {
    TableReader reader(value, "", mistakes);
    reader.require("text", "a piece of what group export has written");
    group::ImportPart part;
    part.text = reader.string("text").value_or("");
    part.offset = reader.integer("offset", 0, group::kLargestImport).value_or(0);
    part.last = reader.boolean("last").value_or(false);
    part.force = reader.boolean("force").value_or(false);
    part.sha256 = reader.string("sha256").value_or("");
    if (part.last) reader.require("sha256", "that of the whole text, in hexadecimal");
    reader.finish();
    return part;
  });
}

}  // namespace sandbay::mgmt
