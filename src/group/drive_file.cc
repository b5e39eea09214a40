// Drive profiles out of their files, by the table of their fields.
#include "group/drive_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "model/profile_fields.h"

namespace sandbay::group {
namespace {

using model::FieldKind;
using Outcome = std::expected<void, std::string>;

constexpr std::string_view kProfileSuffix = ".toml";
// Some files, such as devices, have no end.

Outcome refuse(std::string_view accepted) {
  return std::unexpected(fmt::format("{} is accepted", accepted));
}

template <class Profile>
Outcome set_text(Profile& profile, const model::ProfileField<Profile>& field,
                 const std::string& text) {
  if (field.kind == FieldKind::kTime) {
    const auto time = parse_duration(text);
    if (!time) return std::unexpected(time.error());
    field.set_time(profile, *time);
    return {};
  }
  if (field.kind == FieldKind::kOrder) {
    if (field.set_order(profile, text)) return {};
    return refuse("\"arrival\" or \"shortest-positioning\"");
  }
  const auto number = field.kind == FieldKind::kRate ? parse_rate(text) : parse_size(text);
  if (!number) return std::unexpected(number.error());
  field.set_number(profile, *number);
  return {};
}

template <class Profile>
Outcome set_value(Profile& profile, const model::ProfileField<Profile>& field, const Value& value) {
  if (field.kind == FieldKind::kSwitch) {
    if (value.kind != Value::Kind::kBoolean) return refuse("true or false");
    field.set_switch(profile, value.boolean);
    return {};
  }
  if (field.kind == FieldKind::kCount) {
    if (value.kind != Value::Kind::kInteger || value.integer < 0) return refuse("a whole number");
    field.set_number(profile, static_cast<std::uint64_t>(value.integer));
    return {};
  }
  if (value.kind != Value::Kind::kString) return refuse("a string with its unit");
  return set_text(profile, field, value.text);
}

template <class Profile>
const model::ProfileField<Profile>* find_field(std::span<const model::ProfileField<Profile>> fields,
                                               std::string_view name) {
  const auto found = std::ranges::find(fields, name, &model::ProfileField<Profile>::name);
  return found == fields.end() ? nullptr : &*found;
}

template <class Profile>
Outcome set_by_name(Profile& profile, std::span<const model::ProfileField<Profile>> fields,
                    std::string_view name, const Value& value) {
  const auto* field = find_field(fields, name);
  if (field == nullptr) return std::unexpected("no field of this kind of drive has that name");
  return set_value(profile, *field, value);
}

// Every field stands in the file.
template <class Profile>
void read_values(model::DriveProfile& drive, const Value& values,
                 std::span<const model::ProfileField<Profile>> fields, Mistakes& mistakes) {
  drive.timing = Profile{};
  for (const Value::Member& member : values.members) {
    TableReader reader(member.value, "values." + member.key, mistakes);
    if (member.value.kind != Value::Kind::kTable) {
      reader.mistake("", "has no value; { value = …, sure = …, source = … } is accepted");
      continue;
    }
    const Value* value = reader.any("value");
    const std::string sure = reader.string("sure").value_or("");
    reader.string("source");
    reader.require("value", "what it is");
    reader.require("sure", fmt::format("how sure it is: {}", fmt::join(model::kSureWords, ", ")));
    reader.require("source", "where it comes from, in words");
    reader.finish();
    if (reader.has("sure") &&
        std::ranges::find(model::kSureWords, sure) == model::kSureWords.end()) {
      reader.mistake("sure", fmt::format("is \"{}\"; accepted are {}", sure,
                                         fmt::join(model::kSureWords, ", ")));
    }
    if (value == nullptr) continue;
    const Outcome set = set_drive_value(drive, member.key, *value);
    if (!set) mistakes.add(member.value.line, "values." + member.key, set.error());
  }
  for (const auto& field : fields) {
    if (values.find(field.name) != nullptr) continue;
    mistakes.add_absence(values.line, fmt::format("values.{}", field.name), "is missing");
  }
}

}  // namespace

std::expected<void, std::string> set_drive_value(model::DriveProfile& profile,
                                                 std::string_view field, const Value& value) {
  if (auto* const disk = std::get_if<model::DiskProfile>(&profile.timing)) {
    return set_by_name(*disk, model::disk_fields(), field, value);
  }
  return set_by_name(std::get<model::FlashProfile>(profile.timing), model::flash_fields(), field,
                     value);
}

std::expected<model::DriveProfile, std::string> read_drive_file(std::string_view text,
                                                                std::string_view name) {
  const auto root = read_toml(text, name);
  if (!root) return std::unexpected(root.error());
  Mistakes mistakes{std::string(name)};
  TableReader reader(*root, "", mistakes);
  model::DriveProfile profile;
  profile.name = reader.string("name").value_or("");
  const std::string kind = reader.string("kind").value_or("");
  const Value* values = reader.table("values");
  reader.require("name", "the drive's name");
  reader.require("kind", "\"disk\" or \"flash\"");
  reader.require("values", "a section [values]");
  reader.finish();
  if (kind != "disk" && kind != "flash") {
    if (reader.has("kind")) {
      reader.mistake("kind", fmt::format("is \"{}\"; \"disk\" or \"flash\" is accepted", kind));
    }
  } else if (values != nullptr && kind == "disk") {
    read_values(profile, *values, model::disk_fields(), mistakes);
  } else if (values != nullptr) {
    read_values(profile, *values, model::flash_fields(), mistakes);
  }
  if (!mistakes.empty()) return std::unexpected(mistakes.sorted().front());
  const std::string wrong = model::profile_error(profile);
  if (wrong.empty()) return profile;
  // It begins with the key that it is about.
  const std::string key = wrong.substr(0, wrong.find_first_of(" ,"));
  const Value* const about = values->find(key);
  return std::unexpected(
      fmt::format("{}:{}: values.{}", name, about == nullptr ? values->line : about->line, wrong));
}

std::expected<std::string, std::string> read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::unexpected(path + " is a folder; name a file");
  }
  // It may be that nobody ever writes into it.
  if (std::filesystem::is_fifo(path, error)) {
    return std::unexpected(path + " is a pipe; name a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(path + " cannot be opened; name a file that can be read");
  std::string text(kMostTextBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::unexpected(path + " cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostTextBytes) {
    return std::unexpected(fmt::format("{} has more than {}, more than such a file may have", path,
                                       format_size(kMostTextBytes)));
  }
  return text;
}

std::filesystem::path own_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

std::vector<std::filesystem::path> installed_folders(const std::string& kind) {
  std::vector<std::filesystem::path> found;
  for (const char* place :
       {"../conf", "../etc/sandbay", "../../etc/sandbay", "../../../etc/sandbay"}) {
    std::error_code error;
    std::filesystem::path folder = own_folder() / place / kind;
    if (std::filesystem::is_directory(folder, error)) found.push_back(std::move(folder));
  }
  return found;
}

std::expected<std::shared_ptr<const model::DriveType>, std::string> find_drive_type(
    const std::string& name, const std::filesystem::path& folder) {
  const auto read = [](const std::filesystem::path& file)
      -> std::expected<std::shared_ptr<const model::DriveType>, std::string> {
    const auto text = read_text_file(file.string());
    if (!text) return std::unexpected(text.error());
    auto profile = read_drive_file(*text, file.string());
    if (!profile) return std::unexpected(profile.error());
    return std::make_shared<const model::DriveType>(std::move(*profile));
  };
  if (name.ends_with(kProfileSuffix)) return read(folder / name);
  std::vector<std::filesystem::path> folders = {folder / "drives"};
  std::ranges::move(installed_folders("drives"), std::back_inserter(folders));
  folders.push_back(folder / "../drives");
  std::vector<std::string> known;
  for (const std::filesystem::path& place : folders) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(place, error)) {
      if (entry.path().extension() != kProfileSuffix) continue;
      if (entry.path().stem() == name) return read(entry.path());
      known.push_back(entry.path().stem().string());
    }
  }
  const std::string_view near = nearest(name, known);
  if (!near.empty()) {
    return std::unexpected(fmt::format("\"{}\" is not known; did you mean \"{}\"?", name, near));
  }
  std::ranges::sort(known);
  known.erase(std::ranges::unique(known).begin(), known.end());
  return std::unexpected(
      known.empty() ? fmt::format("\"{}\" is not known, and no drives are installed; write the "
                                  "path of a profile, NAME.toml",
                                  name)
                    : fmt::format("\"{}\" is not known; write {}, or the path of a profile, "
                                  "NAME.toml",
                                  name, fmt::join(known, ", ")));
}

}  // namespace sandbay::group
