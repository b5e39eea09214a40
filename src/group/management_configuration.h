// ManagementConfiguration: where the management interface listens, and who may do what there, as
// the sections [management] and [[management.token]] say it.
//
// A token's secret stands in a file of its own that its owner alone can read; what is kept of it
// is its SHA-256. An address that other machines reach demands tokens and TLS, unless the file says
// that none are wanted (allow_remote).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/io.h"

namespace sandbay::group {

struct Value;
class Mistakes;

inline constexpr std::uint16_t kDefaultManagementPort = 8260;
inline constexpr std::size_t kShortestToken = 16;
inline constexpr std::size_t kLargestSecretFile = 4096;

// Each may do what those before it may.
enum class Role : std::uint8_t {
  kRead,     // Look at everything.
  kOperate,  // Change what is provisioned, and export it with its secrets.
  kInject,   // Break things.
};
inline constexpr std::string_view kRoles = "\"read\", \"operate\" or \"inject\"";
std::string_view describe(Role role);
std::optional<Role> parse_role(std::string_view word);

using TokenDigest = std::array<std::uint8_t, 32>;
TokenDigest digest_of(std::string_view token);

struct ManagementToken {
  std::string name;
  Role role = Role::kRead;
  TokenDigest digest{};
};

struct ManagementConfiguration {
  Endpoint listen;
  bool allow_remote = false;          // Without tokens or TLS.
  std::filesystem::path certificate;  // Both or none.
  std::filesystem::path key;
  std::vector<ManagementToken> tokens;
  // Where management may make files and open devices for volumes; empty: in the state directory.
  std::vector<std::filesystem::path> volume_paths;
};

// `folder` is where relative files start.
ManagementConfiguration read_management(const Value& section, const std::filesystem::path& folder,
                                        Mistakes& mistakes);

// Why management cannot listen at that address as it is configured; half a sentence.
std::optional<std::string> check_protection(const ManagementConfiguration& management,
                                            const Endpoint& listen);

// The first line of a regular file. The error is half a sentence.
std::expected<std::string, std::string> read_secret_file(const std::filesystem::path& path);
// The same, from a file to which only its owner has access.
std::expected<std::string, std::string> read_private_file(const std::filesystem::path& path);
// The same, with a token in it.
std::expected<std::string, std::string> read_token_file(const std::filesystem::path& path);

}  // namespace sandbay::group
