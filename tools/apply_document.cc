// TOML and JSON become the same tree of values, which the reader of configuration files takes.
#include "tools/apply_document.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "group/configuration.h"
#include "group/document.h"
#include "group/json_text.h"
#include "group/management_configuration.h"
#include "group/snapshot_reserve.h"
#include "group/units.h"
#include "tools/client.h"

namespace sandbay::cli {

namespace {

using group::Mistakes;
using group::TableReader;
using group::Value;
using nlohmann::json;

constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 50;
constexpr int kDeepest = 8;

// JSON begins with a brace, which no TOML does.
Value parse(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream stream;
  if (file) stream << file.rdbuf();
  // It opens, and reads as if it were empty.
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    throw Failure(fmt::format("{} is a directory; name a file in TOML or JSON", path));
  }
  if (!file) throw Failure(fmt::format("{} cannot be read; name a file in TOML or JSON", path));
  const std::string text = std::move(stream).str();
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    const json document = group::parse_json(text, kDeepest);
    if (document.is_object()) return group::to_value(document, group::Nulls::kKept);
    throw Failure(fmt::format("{} is not JSON", path));
  }
  auto document = group::read_toml(text, path);
  if (!document) throw Failure(document.error());
  return std::move(*document);
}

struct Reading {
  Mistakes& mistakes;
  std::filesystem::path folder;  // Where relative paths start.
};

// A size, or a rate, as text with a unit or as a plain number.
void read_amount(TableReader& reader, std::string_view key, bool rate, json& to) {
  const Value* const value = reader.any(key);
  if (value == nullptr) return;
  if (value->kind == Value::Kind::kInteger && value->integer >= 0) {
    to[std::string(key)] = value->integer;
    return;
  }
  if (value->kind != Value::Kind::kString) {
    reader.mistake(key, fmt::format("is {}; write one such as \"{}\"", describe(value->kind),
                                    rate ? "40MB/s" : "100GiB"));
    return;
  }
  const auto amount = rate ? group::parse_rate(value->text) : group::parse_size(value->text);
  if (amount) {
    to[std::string(key)] = *amount;
  } else {
    reader.mistake(key, amount.error());
  }
}

std::string absolute_path(TableReader& reader, std::string_view key,
                          const std::filesystem::path& folder, const std::string& text) {
  if (text.empty() || text.find('\0') != std::string::npos) {
    reader.mistake(key, "is empty or holds a zero byte; write a path");
    return {};
  }
  std::error_code error;
  const auto path = std::filesystem::absolute(folder / text, error);
  if (error) reader.mistake(key, fmt::format("cannot be resolved: {}", error.message()));
  return path.lexically_normal().string();
}

void read_key(TableReader& reader, const VolumeKey& key, const Reading& reading, json& to) {
  const std::string name(key.name);
  switch (key.type) {
    case VolumeKey::Type::kSize:
    case VolumeKey::Type::kRate:
      return read_amount(reader, key.name, key.type == VolumeKey::Type::kRate, to);
    case VolumeKey::Type::kText:
      if (const auto text = reader.string(key.name)) to[name] = *text;
      return;
    case VolumeKey::Type::kReserve:
      // As it is shown, so that it can be compared.
      if (const auto text = reader.string(key.name)) {
        const auto reserve = group::parse_reserve(*text);
        if (!reserve) reader.mistake(key.name, reserve.error());
        if (reserve) to[name] = group::format_reserve(*reserve);
      }
      return;
    case VolumeKey::Type::kPath:
      if (const auto text = reader.string(key.name)) {
        to[name] = absolute_path(reader, key.name, reading.folder, *text);
      }
      return;
    case VolumeKey::Type::kNumber:
      if (const auto number = reader.integer(key.name, 0, kMostNumber)) to[name] = *number;
      return;
    case VolumeKey::Type::kFlag:
      if (const auto flag = reader.boolean(key.name)) to[name] = *flag;
      return;
  }
}

json read_access(const Value& section, const std::string& path, const Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  reader.require("initiator", "an initiator's name, or \"*\" for every one");
  json access{{"initiator", reader.string("initiator").value_or("")}};
  if (const auto address = reader.string("address")) access["address"] = *address;
  const auto user = reader.string("chap_user");
  const auto file = reader.string("chap_secret_file");
  if (user.has_value() != file.has_value()) {
    reader.mistake(user ? "chap_secret_file" : "chap_user",
                   "is missing; CHAP needs both chap_user and chap_secret_file");
  } else if (user) {
    const auto secret = group::read_secret_file(reading.folder / *file);
    if (secret) {
      access["chap_user"] = *user;
      access["chap_secret"] = *secret;
    } else {
      reader.mistake("chap_secret_file", secret.error());
    }
  }
  reader.finish();
  return access;
}

json read_schedule(const Value& section, const std::string& path, const Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  reader.require("name", "the schedule's name");
  reader.require("every", "a time such as \"1h\"");
  reader.require("keep", "how many are kept");
  json schedule{{"name", reader.string("name").value_or("")}};
  // As text, which REST takes, beside the seconds that it shows.
  if (reader.duration("every", std::chrono::seconds(1), std::chrono::hours(24 * 366))) {
    schedule["every"] = reader.string("every").value_or("");
  }
  schedule["keep"] = reader.integer("keep", 1, 1024).value_or(1);
  reader.finish();
  return schedule;
}

WantedVolume read_volume(const Value& section, const std::string& path, const Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  WantedVolume volume;
  reader.require("name", "the volume's name in quotes");
  volume.name = reader.string("name").value_or("");
  if (const auto error = group::check_volume_name(volume.name); error && reader.has("name")) {
    reader.mistake("name", *error);
  }
  for (const VolumeKey& key : volume_keys()) read_key(reader, key, reading, volume.keys);
  std::size_t index = 0;
  for (const Value* element : reader.tables("access")) {
    volume.access.push_back(
        read_access(*element, fmt::format("{}.access[{}]", path, ++index), reading));
  }
  index = 0;
  for (const Value* element : reader.tables("schedule")) {
    volume.schedules.push_back(
        read_schedule(*element, fmt::format("{}.schedule[{}]", path, ++index), reading));
  }
  reader.finish();
  return volume;
}

json read_pool(const Value& section, const std::string& path, const Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  reader.require("name", "the pool's name in quotes");
  json pool{{"name", reader.string("name").value_or("")}};
  if (const auto members = reader.strings("members")) pool["members"] = *members;
  read_amount(reader, "page", /*rate=*/false, pool);
  reader.finish();
  return pool;
}

void refuse_twice(const Value& section, const std::string& path, const std::string& name,
                  std::set<std::string>& names, Mistakes& mistakes) {
  if (name.empty() || names.insert(name).second) return;
  mistakes.add(section.line, path + ".name", fmt::format("\"{}\" occurs twice", name));
}

}  // namespace

const std::vector<VolumeKey>& volume_keys() {
  using enum VolumeKey::Type;
  static const std::vector<VolumeKey> kKeys = {
      {"size", kSize, true},
      {"pool", kText},
      {"raid", kText},
      {"file", kPath},
      {"device", kPath},
      {"memory", kFlag},
      {"on", kText},
      {"raid_level", kText},
      {"block_size", kNumber},
      {"physical_block_size", kNumber},
      {"thin", kFlag},
      {"preallocate", kFlag},
      {"write_cache", kFlag},
      {"serial", kText},
      {"naa", kText},
      {"eui64", kText},
      {"removable", kFlag},
      {"rotation", kNumber},
      {"unmap_limit", kSize},
      {"write_same_limit", kSize},
      {"vendor", kText},
      {"product", kText},
      {"revision", kText},
      {"target", kText},
      {"lun", kNumber},
      {"cache", kText, true},
      {"read_only", kFlag, true},
      {"thin_warning", kNumber, true},
      {"thin_limit", kNumber, true},
      {"snapshot_reserve", kReserve, true},
      {"reserve_policy", kText, true},
      {"online", kFlag, true, false},
      {"operations_limit", kNumber, true},
      {"bytes_limit", kRate, true},
  };
  return kKeys;
}

ApplyDocument read_apply_document(const std::string& path) {
  const Value document = parse(path);
  Mistakes mistakes(path);
  const Reading reading{.mistakes = mistakes, .folder = std::filesystem::path(path).parent_path()};
  TableReader reader(document, "", mistakes);
  ApplyDocument result;
  std::set<std::string> pools;
  std::set<std::string> volumes;
  std::size_t index = 0;
  for (const Value* section : reader.tables("pool")) {
    const std::string at = fmt::format("pool[{}]", ++index);
    result.pools.push_back(read_pool(*section, at, reading));
    refuse_twice(*section, at, result.pools.back().at("name"), pools, mistakes);
  }
  index = 0;
  for (const Value* section : reader.tables("volume")) {
    const std::string at = fmt::format("volume[{}]", ++index);
    result.volumes.push_back(read_volume(*section, at, reading));
    refuse_twice(*section, at, result.volumes.back().name, volumes, mistakes);
  }
  reader.finish();
  if (!mistakes.empty()) throw Failure(mistakes.sorted().front());
  return result;
}

}  // namespace sandbay::cli
