// Digests are made at once, so that no token stays in memory longer than it takes to read it.
#include "group/management_configuration.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>

#include "group/configuration.h"
#include "group/document.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kMostTokens = 1024;

// RFC 6750, section 2.1: what may stand behind "Bearer".
bool is_token_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._~+/=").find(c) != std::string_view::npos;
  });
}

ManagementToken read_token(const Value& section, const std::string& path,
                           const std::filesystem::path& folder, Mistakes& mistakes) {
  TableReader reader(section, path, mistakes);
  ManagementToken token;
  reader.require("name", "who bears it");
  reader.require("role", kRoles);
  reader.require("file", "a file whose first line is the token");
  if (const auto name = reader.string("name")) {
    if (const auto error = check_volume_name(*name)) reader.mistake("name", *error);
    token.name = *name;
  }
  if (const auto word = reader.string("role")) {
    const auto role = parse_role(*word);
    if (!role) {
      reader.mistake("role", fmt::format("unknown role \"{}\"; use {}", *word, kRoles));
    }
    token.role = role.value_or(Role::kRead);
  }
  if (const auto file = reader.string("file")) {
    auto text = read_token_file(folder / *file);
    if (text) {
      token.digest = digest_of(*text);
      ::OPENSSL_cleanse(text->data(), text->size());
    } else {
      reader.mistake("file", text.error());
    }
  }
  reader.finish();
  return token;
}

void read_tokens(TableReader& reader, const std::filesystem::path& folder, Mistakes& mistakes,
                 std::vector<ManagementToken>& tokens) {
  std::size_t index = 0;
  for (const Value* section : reader.tables("token")) {
    const std::string path = fmt::format("management.token[{}]", ++index);
    ManagementToken token = read_token(*section, path, folder, mistakes);
    const auto same = [&](const ManagementToken& other) {
      return (!token.name.empty() && other.name == token.name) || other.digest == token.digest;
    };
    const auto other = std::ranges::find_if(tokens, same);
    if (other != tokens.end() && token.digest != TokenDigest{}) {
      mistakes.add(section->line, path + (other->name == token.name ? ".name" : ".file"),
                   other->name == token.name
                       ? fmt::format("\"{}\" occurs twice; give each token its own", token.name)
                       : fmt::format("holds the token of \"{}\"; give each its own", other->name));
    }
    tokens.push_back(std::move(token));
  }
  if (tokens.size() > kMostTokens) {
    reader.mistake("token", fmt::format("there are more than {}", kMostTokens));
  }
}

void read_volume_paths(TableReader& reader, std::vector<std::filesystem::path>& paths) {
  const auto given = reader.strings("volume_paths");
  if (!given) return;
  for (const std::string& path : *given) {
    if (!path.starts_with('/')) {
      reader.mistake(
          "volume_paths",
          fmt::format("\"{}\" is not an absolute path; write one such as \"/srv/images\"", path));
    }
    paths.emplace_back(path);
  }
  if (given->empty()) {
    reader.mistake("volume_paths", "is empty; name a folder, or leave the key out");
  }
}

}  // namespace

std::string_view describe(Role role) {
  switch (role) {
    case Role::kRead:
      return "read";
    case Role::kOperate:
      return "operate";
    case Role::kInject:
      return "inject";
  }
  return "none";
}

std::optional<Role> parse_role(std::string_view word) {
  for (const Role role : {Role::kRead, Role::kOperate, Role::kInject}) {
    if (word == describe(role)) return role;
  }
  return std::nullopt;
}

TokenDigest digest_of(std::string_view token) {
  TokenDigest digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

std::expected<std::string, std::string> read_secret_file(const std::filesystem::path& path) {
  // Not even opened: a pipe would wait, and a device may have no end.
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    return std::unexpected(
        fmt::format("{} is {}", path.string(),
                    std::filesystem::is_directory(found) ? "a directory" : "no regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(fmt::format("{} cannot be read", path.string()));
  std::string secret(kLargestSecretFile + 2, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  secret.resize(static_cast<std::size_t>(file.gcount()));
  secret.resize(std::min(secret.size(), secret.find('\n')));
  if (!secret.empty() && secret.back() == '\r') secret.pop_back();
  if (secret.size() > kLargestSecretFile) {
    return std::unexpected(fmt::format("{} is not a file with a secret in it", path.string()));
  }
  return secret;
}

std::expected<std::string, std::string> read_private_file(const std::filesystem::path& path) {
  auto secret = read_secret_file(path);
  if (!secret) return std::unexpected(secret.error() + "; name a file that you can read");
  std::error_code error;
  using std::filesystem::perms;
  const perms others =
      std::filesystem::status(path, error).permissions() & (perms::group_all | perms::others_all);
  if (error || others != perms::none) {
    return std::unexpected(
        fmt::format("{} can be used by others than its owner; chmod 600 it", path.string()));
  }
  return secret;
}

std::expected<std::string, std::string> read_token_file(const std::filesystem::path& path) {
  auto token = read_private_file(path);
  if (!token) return token;
  if (token->size() < kShortestToken || !is_token_text(*token)) {
    return std::unexpected(fmt::format(
        "{} holds no token; its first line is to be at least {} letters, digits and -._~+/=, such "
        "as openssl rand -hex 32 makes",
        path.string(), kShortestToken));
  }
  return token;
}

std::optional<std::string> check_protection(const ManagementConfiguration& management,
                                            const Endpoint& listen) {
  const bool secure = !management.tokens.empty() && !management.certificate.empty();
  if (is_loopback(listen) || management.allow_remote || secure) return std::nullopt;
  return fmt::format(
      "{} can be reached from other machines, and {}; write a loopback address such as "
      "127.0.0.1:{}, or protect management with certificate, key and [[management.token]], or do "
      "without and say allow_remote = true",
      listen.to_string(),
      management.tokens.empty() ? "management asks for no password"
                                : "tokens would cross the network in plain text",
      kDefaultManagementPort);
}

ManagementConfiguration read_management(const Value& section, const std::filesystem::path& folder,
                                        Mistakes& mistakes) {
  TableReader reader(section, "management", mistakes);
  ManagementConfiguration management;
  management.listen = Endpoint::ipv4(0x7f000001, kDefaultManagementPort);
  management.allow_remote = reader.boolean("allow_remote").value_or(false);
  const auto file = [&](std::string_view key) {
    const auto name = reader.string(key);
    if (name && name->empty()) reader.mistake(key, "is empty; name a file in PEM format");
    return name ? folder / *name : std::filesystem::path();
  };
  management.certificate = file("certificate");
  management.key = file("key");
  if (reader.has("certificate") != reader.has("key")) {
    reader.mistake(reader.has("key") ? "certificate" : "key",
                   "is missing; TLS needs both certificate and key");
  }
  read_tokens(reader, folder, mistakes, management.tokens);
  read_volume_paths(reader, management.volume_paths);
  if (const auto text = reader.string("listen")) {
    const auto listen = Endpoint::parse(*text, kDefaultManagementPort);
    if (!listen) {
      reader.mistake("listen", fmt::format("\"{}\" is not an address; write one such as "
                                           "127.0.0.1:{} or [::1]:{}",
                                           *text, kDefaultManagementPort, kDefaultManagementPort));
    } else {
      management.listen = *listen;
      if (const auto error = check_protection(management, *listen)) {
        reader.mistake("listen", *error);
      }
    }
  }
  reader.finish();
  return management;
}

}  // namespace sandbay::group
