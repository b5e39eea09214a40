// iSCSI names (RFC 7143 section 4.2.7) and access records.
#include "iscsi/access.h"

#include <fmt/core.h>

#include <algorithm>

#include "iscsi/text.h"
#include "runtime/wildcards.h"
#include "scsi/reservation_lists.h"

namespace sandbay::iscsi {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hexadecimal(char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f'); }

// Section 4.2.7.4: yyyy-mm, a dot, a reversed domain name, optionally a colon and anything.
std::string iqn_problem(std::string_view rest) {
  const bool date = rest.size() > 8 && std::ranges::all_of(rest.substr(0, 4), is_digit) &&
                    rest[4] == '-' && is_digit(rest[5]) && is_digit(rest[6]) && rest[7] == '.';
  if (!date) return "\"iqn.\" must be followed by a date yyyy-mm, a dot and a domain name";
  const int month = (rest[5] - '0') * 10 + (rest[6] - '0');
  if (month < 1 || month > 12) return "the month after \"iqn.\" must be 01 to 12";
  const std::string_view domain = rest.substr(8, rest.find(':', 8) - 8);
  if (domain.empty() || domain.front() == '.' || domain.back() == '.') {
    return "the date after \"iqn.\" must be followed by a domain name";
  }
  return {};
}

bool matches(std::string_view pattern, std::string_view name) {
  return fits_wildcards(pattern, name, [](char a, char b) { return lower(a) == lower(b); });
}

}  // namespace

std::string name_problem(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > kMaximumNameBytes) {
    return fmt::format("it has {} bytes, {} are allowed", name.size(), kMaximumNameBytes);
  }
  if (!is_acceptable_name(name)) return "it holds white space, control characters or bad UTF-8";
  const std::string_view rest = name.substr(std::min<std::size_t>(4, name.size()));
  if (name.starts_with("iqn.")) {
    if (std::ranges::any_of(name, [](char c) { return c >= 'A' && c <= 'Z'; })) {
      return "capital letters are not allowed in iqn. names";
    }
    return iqn_problem(rest);
  }
  const bool hexadecimal = std::ranges::all_of(rest, is_hexadecimal);
  if (name.starts_with("eui.")) {
    return hexadecimal && rest.size() == 16 ? ""
                                            : "\"eui.\" must be followed by 16 hexadecimal digits";
  }
  if (name.starts_with("naa.")) {
    return hexadecimal && (rest.size() == 16 || rest.size() == 32)
               ? ""
               : "\"naa.\" must be followed by 16 or 32 hexadecimal digits";
  }
  return "it must start with \"iqn.\", \"eui.\" or \"naa.\"";
}

bool is_acceptable_name(std::string_view name) { return scsi::is_node_name(name); }

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  return matches(pattern, name);
}

std::string record_problem(const AccessRecord& record) {
  if (record.initiator.empty()) return "the initiator is empty (\"*\" stands for any)";
  if (record.initiator.size() > kMaximumNameBytes) return "the initiator's name is too long";
  if (!AddressPattern::parse(record.address).has_value()) {
    return fmt::format("\"{}\" is not an address or a network such as 192.0.2.0/24",
                       record.address);
  }
  if (!record.chap.has_value()) return {};
  if (record.chap->user.empty() || record.chap->user.size() > kMaximumSimpleValueBytes) {
    return "the CHAP user must have 1 to 255 bytes";
  }
  if (record.chap->user.find('\0') != std::string::npos) return "the CHAP user holds a null byte";
  if (record.chap->secret.empty() || record.chap->secret.size() > kMaximumSimpleValueBytes) {
    return "the CHAP secret must have 1 to 255 bytes";
  }
  return {};
}

AccessDecision decide_access(std::span<const AccessRecord> records, std::string_view initiator_name,
                             const Endpoint& address) {
  AccessDecision decision;
  bool without_chap = false;
  for (const AccessRecord& record : records) {
    if (!matches_pattern(record.initiator, initiator_name)) continue;
    const auto pattern = AddressPattern::parse(record.address);
    if (!pattern.has_value() || !pattern->matches(address)) continue;
    decision.allowed = true;
    if (record.chap.has_value()) {
      decision.credentials.push_back(*record.chap);
    } else {
      without_chap = true;
    }
  }
  decision.chap_required = decision.allowed && !without_chap;
  return decision;
}

}  // namespace sandbay::iscsi
