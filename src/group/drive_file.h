// Reads a drive's profile, conf/drives/*.toml: its name, its kind and a table of values, each with
// its source and how sure it is (model/profile_fields.h has the names). Everything blocks.
#pragma once

#include <expected>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "group/document.h"
#include "model/drive_type.h"

namespace sandbay::group {

// The error is one line. `name` stands for FILE in it.
std::expected<model::DriveProfile, std::string> read_drive_file(std::string_view text,
                                                                std::string_view name);
// Sets one value of the profile as its file would say it. The error is half a sentence.
std::expected<void, std::string> set_drive_value(model::DriveProfile& profile,
                                                 std::string_view field, const Value& value);

// The drive that a configuration in `folder` calls so: NAME is NAME.toml in "drives" there,
// among those that come with Sandbay, or in "drives" in the folder above; NAME.toml is a path from
// there. The error is half a sentence, or a whole line that names the file.
std::expected<std::shared_ptr<const model::DriveType>, std::string> find_drive_type(
    const std::string& name, const std::filesystem::path& folder);

// Where files of this kind ("drives", "arrays") are that come with Sandbay: beside this program as
// built or as installed. Those folders that are there.
std::vector<std::filesystem::path> installed_folders(const std::string& kind);
// That of this program.
std::filesystem::path own_folder();

// The whole file as text, or one line that says why not.
std::expected<std::string, std::string> read_text_file(const std::string& path);

}  // namespace sandbay::group
