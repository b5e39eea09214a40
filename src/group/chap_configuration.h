// CHAP credentials in a configuration file: PREFIXuser with PREFIXsecret, or with
// PREFIXsecret_file, whose first line is the secret.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "iscsi/target_server.h"

namespace sandbay::group {

class TableReader;

// Nothing: there are none, or they are wrong, which has been noted. Relative files start at
// `folder`.
std::optional<iscsi::ChapCredential> read_chap(TableReader& reader, const std::string& prefix,
                                               const std::filesystem::path& folder);

}  // namespace sandbay::group
