// Reading CHAP credentials.
#include "group/chap_configuration.h"

#include <fmt/core.h>

#include "group/configuration.h"
#include "group/document.h"

namespace sandbay::group {

// PREFIXuser with PREFIXsecret or PREFIXsecret_file.
std::optional<iscsi::ChapCredential> read_chap(TableReader& reader, const std::string& prefix,
                                               const std::filesystem::path& folder) {
  const std::string user_key = prefix + "user";
  const std::string secret_key = prefix + "secret";
  const std::string file_key = prefix + "secret_file";
  const auto user = reader.string(user_key);
  auto secret = reader.string(secret_key);
  const auto file = reader.string(file_key);
  if (!reader.has(user_key) && !reader.has(secret_key) && !reader.has(file_key)) {
    return std::nullopt;
  }
  if (!reader.has(user_key)) {
    reader.mistake(user_key, "is missing; a CHAP secret belongs to a user");
    return std::nullopt;
  }
  if (reader.has(secret_key) == reader.has(file_key)) {
    reader.mistake(user_key,
                   fmt::format("needs its secret; write either {} or {}", secret_key, file_key));
    return std::nullopt;
  }
  if (file) {
    const auto content = read_secret_file(folder / *file);
    if (!content) {
      reader.mistake(file_key, content.error() + "; write a file whose first line is the secret");
      return std::nullopt;
    }
    secret = *content;
  }
  if (!user || !secret) return std::nullopt;
  iscsi::ChapCredential credential{.user = *user, .secret = *secret};
  const auto error = check_chap(credential);
  if (error) reader.mistake(file ? file_key : secret_key, *error);
  if (error) return std::nullopt;
  return credential;
}

}  // namespace sandbay::group
