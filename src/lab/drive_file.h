// Reads a drive's profile, conf/drives/*.toml: its name, its kind and a table of values, each with
// its source and how sure it is (model/profile_fields.h has the names).
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "group/document.h"
#include "model/drive_profile.h"

namespace sandbay::lab {

// The error is one line. `name` stands for FILE in it.
std::expected<model::DriveProfile, std::string> read_drive_file(std::string_view text,
                                                                std::string_view name);
// Sets one value of the profile as its file would say it. The error is half a sentence.
std::expected<void, std::string> set_drive_value(model::DriveProfile& profile,
                                                 std::string_view field, const group::Value& value);

// The whole file as text, or one line that says why not.
std::expected<std::string, std::string> read_text_file(const std::string& path);

}  // namespace sandbay::lab
