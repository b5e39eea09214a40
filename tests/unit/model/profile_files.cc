// Reads a profile with the table of its fields: whatever stands in a file must be in the table, and
// the other way round.
#include "tests/unit/model/profile_files.h"

#include <toml++/toml.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "group/units.h"
#include "model/profile_fields.h"

namespace sandbay::testing {

namespace {

using model::FieldKind;

const std::filesystem::path kFolder = "conf/drives";

template <class Profile>
bool set_field(const model::ProfileField<Profile>& field, Profile& profile,
               const toml::node& value) {
  const auto text = value.value_exact<std::string>().value_or("");
  if (field.kind == FieldKind::kTime) {
    const auto time = group::parse_duration(text);
    if (time) field.set_time(profile, *time);
    return time.has_value();
  }
  if (field.kind == FieldKind::kSwitch) {
    const auto on = value.value_exact<bool>();
    if (on) field.set_switch(profile, *on);
    return on.has_value();
  }
  if (field.kind == FieldKind::kOrder) return field.set_order(profile, text);
  if (field.kind == FieldKind::kCount) {
    const auto count = value.value_exact<std::int64_t>();
    if (count) field.set_number(profile, static_cast<std::uint64_t>(*count));
    return count.has_value();
  }
  const auto number =
      field.kind == FieldKind::kRate ? group::parse_rate(text) : group::parse_size(text);
  if (number) field.set_number(profile, *number);
  return number.has_value();
}

template <class Profile>
Profile read_values(const toml::table& values, std::span<const model::ProfileField<Profile>> fields,
                    std::vector<std::string>& mistakes) {
  Profile profile;
  std::set<std::string> known;
  for (const auto& field : fields) {
    const std::string name(field.name);
    known.insert(name);
    const toml::table* entry = values[name].as_table();
    const toml::node* value = entry != nullptr ? entry->get("value") : nullptr;
    if (value == nullptr || !set_field(field, profile, *value)) {
      mistakes.push_back(name + " is missing or wrong");
      continue;
    }
    const auto sure = (*entry)["sure"].value_or(std::string());
    if (std::ranges::find(model::kSureWords, sure) == model::kSureWords.end()) {
      mistakes.push_back(name + " does not say how sure it is");
    }
    if ((*entry)["source"].value_or(std::string()).empty()) {
      mistakes.push_back(name + " has no source");
    }
  }
  for (const auto& [key, value] : values) {
    const std::string name(key.str());
    if (!known.contains(name)) mistakes.push_back(name + " is not a field");
  }
  return profile;
}

}  // namespace

ProfileFile read_profile_file(const std::string& name) {
  const toml::table file = toml::parse_file((kFolder / (name + ".toml")).string());
  ProfileFile result;
  result.profile.name = file["name"].value_or(std::string());
  const auto kind = file["kind"].value_or(std::string());
  const toml::table* values = file["values"].as_table();
  if (values == nullptr) {
    result.mistakes.emplace_back("there is no [values]");
  } else if (kind == "disk") {
    result.profile.timing = read_values(*values, model::disk_fields(), result.mistakes);
  } else if (kind == "flash") {
    result.profile.timing = read_values(*values, model::flash_fields(), result.mistakes);
  } else {
    result.mistakes.emplace_back("kind is neither disk nor flash");
  }
  return result;
}

std::vector<std::string> profile_file_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

namespace {

template <class Profile>
Profile in_order(const std::string& name) {
  ProfileFile file = read_profile_file(name);
  INFO(name);
  REQUIRE(file.mistakes.empty());
  REQUIRE(model::profile_error(file.profile).empty());
  return std::get<Profile>(file.profile.timing);
}

}  // namespace

model::DiskProfile disk_profile(const std::string& name) {
  return in_order<model::DiskProfile>(name);
}

model::FlashProfile flash_profile(const std::string& name) {
  return in_order<model::FlashProfile>(name);
}

}  // namespace sandbay::testing
