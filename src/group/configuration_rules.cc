// The rules for single values: names, addresses, credentials, and what fits together in a volume.
// Pure functions of their arguments; REST and the configuration file share them.
#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>

#include "group/configuration.h"
#include "group/document.h"
#include "group/units.h"
#include "iscsi/chap.h"
#include "iscsi/keys.h"
#include "iscsi/text.h"
#include "raid/layout.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kLongestIscsiName = 223;  // RFC 7143 section 4.2.7.1
constexpr std::size_t kShortestSecret = 12;     // RFC 7143 section 9.2.1: 96 bits.
constexpr std::size_t kLongestChapText = 255;
constexpr std::uint32_t kLargestPhysicalBlock = 1 << 20;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }
bool is_printable(char c) { return c >= 0x20 && c < 0x7f; }

std::string in_quotes(std::string_view text) {
  std::string safe = "\"";
  for (const char c : text.substr(0, 64)) safe += is_printable(c) ? c : '?';
  return safe + (text.size() > 64 ? "…\"" : "\"");
}

// "iqn.2026-11.org.example" and perhaps ":anything" (RFC 7143 section 4.2.7.3).
bool is_iqn(std::string_view name) {
  if (name.size() < 13 || !name.starts_with("iqn.")) return false;
  const std::string_view date = name.substr(4, 8);
  if (date[4] != '-' || date[7] != '.') return false;
  for (const std::size_t i : {0UZ, 1UZ, 2UZ, 3UZ, 5UZ, 6UZ}) {
    if (!is_digit(date[i])) return false;
  }
  const int month = (date[5] - '0') * 10 + (date[6] - '0');
  const std::string_view authority = name.substr(12, name.find(':') - 12);
  return month >= 1 && month <= 12 && !authority.empty() && authority.front() != '.' &&
         authority.back() != '.';
}

bool is_hex_name(std::string_view name, std::string_view prefix, std::size_t digits) {
  if (!name.starts_with(prefix) || name.size() != prefix.size() + digits) return false;
  return std::ranges::all_of(name.substr(prefix.size()), is_hex);
}

std::optional<std::string> check_ascii(std::string_view what, std::string_view text,
                                       std::size_t longest) {
  if (text.size() <= longest && std::ranges::all_of(text, is_printable)) return std::nullopt;
  return fmt::format("{} {} does not fit; write at most {} printable ASCII characters", what,
                     in_quotes(text), longest);
}

// What can be negotiated, and a session of the target would not do: it has what section 13 of RFC
// 7143 has by default, or less.
std::optional<std::string> check_key_extent(std::string_view key,
                                            const iscsi::KeyPreferences& preferences) {
  using enum iscsi::KeyId;
  for (const iscsi::KeyId id : {kErrorRecoveryLevel, kTaskReporting, kProtocolLevel}) {
    const iscsi::KeyRow& row = iscsi::row_of(id);
    if (row.name != key || preferences.fixed_answer(id)) continue;
    const std::string& text = preferences.text(id);
    const bool within =
        row.type == iscsi::KeyType::kList
            ? text == row.default_value
            : preferences.number(id) <= iscsi::parse_number(row.default_value).value_or(0);
    if (within) continue;
    return fmt::format("{}: {} is more than this target does; write {}, or leave it out", key,
                       in_quotes(text), row.default_value);
  }
  return std::nullopt;
}

}  // namespace

std::string_view describe(Backing backing) {
  switch (backing) {
    case Backing::kState:
      return "state";
    case Backing::kFile:
      return "file";
    case Backing::kDevice:
      return "device";
    case Backing::kMemory:
      return "memory";
    case Backing::kRaid:
      return "raid";
    case Backing::kPool:
      return "pool";
  }
  return "unknown";
}

std::string name_for_iscsi(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (is_upper(c)) c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return result;
}

std::string default_target_name(std::string_view volume) {
  return std::string(kTargetNamePrefix) + name_for_iscsi(volume);
}

std::optional<std::string> check_volume_name(std::string_view name) {
  const auto fits = [](char c) {
    return is_lower(c) || is_upper(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
  };
  const bool begins_well = !name.empty() && name.front() != '.' && name.front() != '-';
  if (begins_well && name.size() <= kLongestName && std::ranges::all_of(name, fits)) {
    return std::nullopt;
  }
  return fmt::format(
      "{} is not a name; write 1 to {} letters, digits, dots, dashes and underscores, a letter or "
      "digit first",
      in_quotes(name), kLongestName);
}

std::optional<std::string> check_target_name(std::string_view name) {
  const auto fits = [](char c) {
    return is_lower(c) || is_digit(c) || c == '-' || c == '.' || c == ':';
  };
  if (name.size() > kLongestIscsiName) {
    return fmt::format("{} is longer than the {} bytes of an iSCSI name", in_quotes(name),
                       kLongestIscsiName);
  }
  if (std::ranges::any_of(name, is_upper)) {
    return fmt::format("{} has capital letters; write iSCSI names in lower case", in_quotes(name));
  }
  const bool formed = is_iqn(name) || is_hex_name(name, "eui.", 16) ||
                      is_hex_name(name, "naa.", 16) || is_hex_name(name, "naa.", 32);
  if (formed && std::ranges::all_of(name, fits)) return std::nullopt;
  return fmt::format(
      "{} is not an iSCSI name; write one such as {}disk1, or eui. or naa. and "
      "hexadecimal digits",
      in_quotes(name), kTargetNamePrefix);
}

std::optional<std::string> check_initiator_pattern(std::string_view pattern) {
  const auto fits = [](char c) { return is_printable(c) && c != ' '; };
  const bool begins_well = pattern.starts_with("iqn.") || pattern.starts_with("eui.") ||
                           pattern.starts_with("naa.") || pattern.find('*') < 4 ||
                           pattern.find('?') < 4;
  if (begins_well && pattern.size() <= kLongestIscsiName && std::ranges::all_of(pattern, fits)) {
    return std::nullopt;
  }
  return fmt::format(
      "{} is not an initiator; write an iSCSI name such as "
      "iqn.1993-08.org.debian:host, with * and ? as wildcards, or * for every one",
      in_quotes(pattern));
}

std::optional<std::string> check_address_pattern(std::string_view pattern) {
  const std::string address(pattern.substr(0, pattern.find('/')));
  unsigned char bytes[16];
  unsigned bits = 0;
  if (inet_pton(AF_INET, address.c_str(), bytes) == 1) bits = 32;
  if (inet_pton(AF_INET6, address.c_str(), bytes) == 1) bits = 128;
  const std::string accepted =
      "write an address such as 192.0.2.7 or 2001:db8::7, or a network such as 192.0.2.0/24";
  if (bits == 0) return fmt::format("{} is not an IP address; {}", in_quotes(pattern), accepted);
  if (address.size() == pattern.size()) return std::nullopt;
  const std::string_view length = pattern.substr(address.size() + 1);
  unsigned value = 0;
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), value);
  if (error == std::errc{} && end == length.data() + length.size() && value <= bits) {
    return std::nullopt;
  }
  return fmt::format("{} has no prefix length from 0 to {}; {}", in_quotes(pattern), bits,
                     accepted);
}

std::optional<std::string> check_chap(const iscsi::ChapCredential& credential) {
  if (credential.user.empty() || credential.user.size() > kLongestChapText ||
      !std::ranges::all_of(credential.user, is_printable)) {
    return fmt::format("the CHAP user {} does not fit; write 1 to {} printable ASCII characters",
                       in_quotes(credential.user), kLongestChapText);
  }
  if (credential.secret.size() < kShortestSecret || credential.secret.size() > kLongestChapText) {
    // The secret itself never appears in a message.
    return fmt::format("the CHAP secret has {} bytes; use {} to {} (Windows takes 12 to 16)",
                       credential.secret.size(), kShortestSecret, kLongestChapText);
  }
  return std::nullopt;
}

std::optional<std::string> check_chap_digest(std::string_view name) {
  const std::string names[] = {std::string(name)};
  const auto algorithms = iscsi::chap_algorithms_from(names);
  if (algorithms) return std::nullopt;
  return algorithms.error();
}

std::optional<std::string> check_key(std::string_view key, std::string_view value) {
  // Another's private key begins with X- (section 6.1); all else would be a misspelling.
  if (iscsi::find_key(key) == nullptr && !key.starts_with("X-")) {
    std::vector<std::string> known;
    for (const iscsi::KeyRow& row : iscsi::key_table()) known.emplace_back(row.name);
    const std::string_view near = nearest(key, known);
    return fmt::format("is not a key of RFC 7143; write {}, or a private one that begins with X-",
                       near.empty() ? "one such as MaxBurstLength" : near);
  }
  const auto preferences =
      iscsi::KeyPreferences::for_target().with({{std::string(key), std::string(value)}});
  if (!preferences) return preferences.error();
  return check_key_extent(key, *preferences);
}

std::optional<std::string> check_redirect(std::string_view address) {
  const auto comma = address.find(',');
  const auto endpoint = Endpoint::parse(address.substr(0, comma), kDefaultPortalPort);
  unsigned tag = 0;
  bool formed = endpoint.has_value() && !endpoint->is_any();
  if (comma != std::string_view::npos) {
    const std::string_view text = address.substr(comma + 1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tag);
    formed = formed && error == std::errc{} && end == text.data() + text.size() && tag <= 65535;
  }
  if (formed) return std::nullopt;
  return fmt::format(
      "{} is not an address to redirect to; write one such as 192.0.2.8:3260 or "
      "[2001:db8::8]:3260,1",
      in_quotes(address));
}

std::optional<std::string> check_access(const iscsi::AccessRecord& record) {
  if (auto error = check_initiator_pattern(record.initiator)) return error;
  if (!record.address.empty()) {
    if (auto error = check_address_pattern(record.address)) return error;
  }
  return record.chap ? check_chap(*record.chap) : std::nullopt;
}

namespace {

// What only volumes on pools have.
std::optional<std::string> check_pool_choices(const VolumeSpecification& s) {
  const bool on_pool = s.backing == Backing::kPool;
  if (!on_pool && !s.on.empty()) return "on means nothing without a pool; leave it out";
  if (!on_pool && !s.raid_level.empty()) return "raid_level means nothing without a pool";
  if (!s.raid_level.empty() && !raid::parse_level(s.raid_level)) {
    return fmt::format("raid_level {} is none; write one such as \"raid10\"",
                       in_quotes(s.raid_level));
  }
  if (!on_pool && !s.snapshot_reserve.none()) {
    return "snapshot_reserve means nothing without a pool; leave it out";
  }
  if (!on_pool && (s.operations_limit != 0 || s.bytes_limit != 0)) {
    return fmt::format("{} means nothing without a pool; leave it out",
                       s.operations_limit != 0 ? "operations_limit" : "bytes_limit");
  }
  if (s.thin_warning > 100) return "thin_warning is a percentage; write 0 (never) to 100";
  if (s.thin_limit == 0 || s.thin_limit > 100) {
    return "thin_limit is a percentage of the size; write 1 to 100";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_presentation(const VolumeSpecification& s) {
  if (s.rotation > 1 && (s.rotation < kLeastRotation || s.rotation > kMostRotation)) {
    return fmt::format("rotation {} is not a rate; write {} to {} revolutions a minute, 1 or 0",
                       s.rotation, kLeastRotation, kMostRotation);
  }
  constexpr std::uint64_t kMostBlocks = std::numeric_limits<std::uint32_t>::max();
  for (const auto& [key, limit] : {std::pair("unmap_limit", s.unmap_limit_bytes),
                                   std::pair("write_same_limit", s.write_same_limit_bytes)}) {
    if (limit % s.block_bytes == 0 && limit / s.block_bytes <= kMostBlocks) continue;
    return fmt::format("{} {} does not fit; write a multiple of {} bytes, at most {} blocks", key,
                       format_size(limit), s.block_bytes, kMostBlocks);
  }
  return std::nullopt;
}

std::optional<std::string> check_specification(const VolumeSpecification& s) {
  const bool own_size = s.backing != Backing::kFile && s.backing != Backing::kDevice;
  if (s.size_bytes == 0 && own_size) return "size is missing; write a size such as \"100GiB\"";
  if (s.block_bytes != 512 && s.block_bytes != 4096) {
    return fmt::format("block_size {} is not offered; write 512 or 4096", s.block_bytes);
  }
  if (!std::has_single_bit(s.physical_block_bytes) || s.physical_block_bytes < s.block_bytes ||
      s.physical_block_bytes > kLargestPhysicalBlock) {
    return fmt::format("physical_block_size {} does not fit; write a power of two from {} to {}",
                       s.physical_block_bytes, s.block_bytes, kLargestPhysicalBlock);
  }
  if (s.size_bytes != 0 &&
      (s.size_bytes < kSmallestVolumeBytes || s.size_bytes > kLargestVolumeBytes)) {
    return fmt::format("size {} is out of range; write a size from {} to {}",
                       format_size(s.size_bytes), format_size(kSmallestVolumeBytes),
                       format_size(kLargestVolumeBytes));
  }
  if (s.size_bytes % s.block_bytes != 0) {
    return fmt::format("size {} is not a whole number of {}-byte blocks", format_size(s.size_bytes),
                       s.block_bytes);
  }
  if (s.preallocate && s.thin) {
    return "thin and preallocate exclude one another; leave one of them out";
  }
  if (s.preallocate && s.backing != Backing::kState && s.backing != Backing::kFile) {
    return fmt::format("preallocate means nothing for a volume on {}; leave it out",
                       s.backing == Backing::kDevice   ? "a device"
                       : s.backing == Backing::kMemory ? "memory"
                       : s.backing == Backing::kPool   ? "a pool, where thin = false does that"
                                                       : "a RAID set");
  }
  if (auto error = check_pool_choices(s)) return error;
  if (auto error = check_presentation(s)) return error;
  for (const auto& error :
       {check_ascii("serial", s.serial, 32), check_ascii("vendor", s.vendor, 8),
        check_ascii("product", s.product, 16), check_ascii("revision", s.revision, 4)}) {
    if (error) return error;
  }
  return std::nullopt;
}

std::optional<std::string> check_thin_choices(const VolumeSpecification& s) {
  if (s.backing == Backing::kPool && s.thin) return std::nullopt;
  const VolumeSpecification standard;
  const bool warned = s.thin_warning != standard.thin_warning;
  if (!warned && s.thin_limit == standard.thin_limit) return std::nullopt;
  return fmt::format("{} is of thin volumes on pools; write thin = true, or leave it out",
                     warned ? "thin_warning" : "thin_limit");
}

std::optional<std::string> check_apart(const Endpoint& management, const Endpoint& portal) {
  if (management.port() == 0 || management.port() != portal.port()) return std::nullopt;
  const bool same_family = management.is_ipv6() == portal.is_ipv6();
  if (!same_family || (management != portal && !management.is_any() && !portal.is_any())) {
    return std::nullopt;
  }
  return fmt::format("{} is taken by the management interface at {}; give each its own port",
                     portal.to_string(), management.to_string());
}

bool is_loopback(const Endpoint& endpoint) {
  const auto bytes = endpoint.bytes();
  if (!endpoint.is_ipv6()) return bytes[0] == 127;
  return std::ranges::all_of(bytes.first<15>(), [](std::uint8_t b) { return b == 0; }) &&
         bytes[15] == 1;
}

std::vector<std::filesystem::path> allowed_volume_paths(const Configuration& configuration) {
  const auto& given = configuration.management.volume_paths;
  if (!given.empty()) return given;
  std::error_code error;
  auto state = std::filesystem::absolute(configuration.state, error);
  return {error ? configuration.state : std::move(state)};
}

}  // namespace sandbay::group
