// Patterns are checked when they are read, so that filling them in later cannot fail.
#include "group/identity_configuration.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <charconv>

#include "group/configuration.h"
#include "group/document.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kNaaDigits = 32;
// With fewer, two volumes of one group might come to the same identifier.
constexpr std::ptrdiff_t kFewestDrawnDigits = 8;
constexpr std::size_t kLongestSerialText = 32;
constexpr std::string_view kPlaceholders =
    "{volume}, {naa}, {swapped} or digits of one such as "
    "{naa:8+4}";

std::string digits_of(const NaaIdentifier& naa, bool swapped) {
  NaaIdentifier bytes = naa;
  if (swapped) {
    std::ranges::reverse(bytes.begin(), bytes.begin() + 8);
    std::ranges::reverse(bytes.begin() + 8, bytes.end());
  }
  return format_hex(bytes);
}

// "8+4"
std::optional<std::string> part_of(const std::string& digits, std::string_view range) {
  std::size_t first = 0;
  std::size_t count = 0;
  const char* const end = range.data() + range.size();
  const auto [plus, wrong] = std::from_chars(range.data(), end, first);
  if (wrong != std::errc{} || plus == end || *plus != '+') return std::nullopt;
  const auto [last, error] = std::from_chars(plus + 1, end, count);
  if (error != std::errc{} || last != end) return std::nullopt;
  if (count == 0 || first > digits.size() || count > digits.size() - first) return std::nullopt;
  return digits.substr(first, count);
}

std::optional<std::string> value_of(std::string_view word, std::string_view volume,
                                    const NaaIdentifier& naa) {
  if (word == "volume") return std::string(volume);
  const auto colon = word.find(':');
  const std::string_view name = word.substr(0, colon);
  if (name != "naa" && name != "swapped") return std::nullopt;
  std::string digits = digits_of(naa, name == "swapped");
  if (colon == std::string_view::npos) return digits;
  return part_of(digits, word.substr(colon + 1));
}

// Of a text that was checked when it was read.
std::string filled_in(std::string_view text, std::string_view volume, const NaaIdentifier& naa) {
  auto filled = fill_in(text, volume, naa);
  assert(filled.has_value());
  return *std::move(filled);
}

NaaIdentifier some_naa() { return {0x60}; }

std::optional<std::string> check_naa_pattern(std::string_view pattern) {
  const auto fits = [](char c) {
    return c == '*' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  };
  if (pattern.size() != kNaaDigits || pattern.front() != '6' ||
      !std::ranges::all_of(pattern, fits)) {
    return fmt::format(
        "\"{}\" is not a pattern of NAA identifiers; write 32 hexadecimal digits in lower case, "
        "the "
        "first of them 6, and * for those that are drawn for each volume",
        pattern);
  }
  const auto drawn = std::ranges::count(pattern, '*');
  if (drawn >= kFewestDrawnDigits) return std::nullopt;
  return fmt::format(
      "\"{}\" has {} digits that are drawn, and two volumes might be taken for one; write at least "
      "{} times *",
      pattern, drawn, kFewestDrawnDigits);
}

// So many characters of the text differ between volumes because their designators do.
std::ptrdiff_t drawn_digits(const IdentityConfiguration& identity, std::string_view text) {
  Uuid ones;
  ones.fill(0xff);
  const std::string one = filled_in(text, "", identity.naa_for(Uuid{}));
  const std::string other = filled_in(text, "", identity.naa_for(ones));
  std::ptrdiff_t count = 0;
  for (std::size_t i = 0; i < one.size(); ++i) count += one[i] != other[i] ? 1 : 0;
  return count;
}

std::optional<std::string> check_serial(const IdentityConfiguration& identity,
                                        const std::string& serial) {
  const auto filled = fill_in(serial, "", some_naa());
  if (!filled) return filled.error();
  if (filled->size() > kLongestSerialText) {
    return fmt::format("has {} characters; write 1 to {}", filled->size(), kLongestSerialText);
  }
  const auto drawn = drawn_digits(identity, serial);
  if (drawn == 0) {
    return "would be the same for every volume; write digits of the NAA identifier into it, such "
           "as {naa}";
  }
  if (drawn >= kFewestDrawnDigits) return std::nullopt;
  return fmt::format(
      "has {} digits that are drawn, and two volumes might be taken for one; write at least {} of "
      "those that are * in naa, or {{naa}}",
      drawn, kFewestDrawnDigits);
}

void read_texts(TableReader& reader, IdentityConfiguration& identity) {
  if (const auto serial = reader.string("serial")) {
    if (const auto error = check_serial(identity, *serial)) {
      reader.mistake("serial", *error);
    } else {
      identity.serial = *serial;  // Volumes of the same file are looked at with it.
    }
  }
  if (const auto target = reader.string("target")) {
    const auto filled = fill_in(*target, "a", some_naa());
    const auto error = filled ? check_target_name(*filled) : filled.error();
    if (error) {
      reader.mistake("target", *error);
    } else {
      identity.target = *target;  // Volumes of the same file are named by it.
    }
  }
}

void read_personality(TableReader& reader, IdentityConfiguration& identity) {
  if (const auto array = reader.string("array")) {
    const auto id = parse_naa(*array);
    if (!id) {
      reader.mistake("array", fmt::format("\"{}\" is not an NAA identifier; write 32 hexadecimal "
                                          "digits, the first of them 6",
                                          *array));
    }
    identity.array = id.value_or(identity.array);
  }
  const auto pages = reader.string("pages");
  if (!pages) {
    if (reader.has("array"))
      reader.mistake("array", "means nothing without pages; write both or none");
    return;
  }
  identity.personality = scsi::find_personality(*pages);
  if (identity.personality == nullptr) {
    reader.mistake("pages", fmt::format("\"{}\" is none; write {}, or leave it out", *pages,
                                        scsi::kPersonalities));
  }
  reader.require("array", "the array's own NAA identifier, 32 hexadecimal digits");
}

}  // namespace

std::expected<std::string, std::string> fill_in(std::string_view text, std::string_view volume,
                                                const NaaIdentifier& naa) {
  std::string result;
  while (!text.empty()) {
    const auto open = text.find_first_of("{}");
    result += text.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = text.find('}', open);
    const auto value = text[open] == '{' && close != std::string_view::npos
                           ? value_of(text.substr(open + 1, close - open - 1), volume, naa)
                           : std::nullopt;
    if (!value) {
      const std::string_view wrong =
          text.substr(open, close == std::string_view::npos ? close : close - open + 1);
      return std::unexpected(
          fmt::format("\"{}\" stands for nothing; write {}", wrong, kPlaceholders));
    }
    result += *value;
    text.remove_prefix(close + 1);
  }
  return result;
}

bool IdentityConfiguration::shares_target() const {
  return !target.empty() && target.find('{') == std::string::npos;
}

bool IdentityConfiguration::names_targets_by_naa() const {
  return target.find("{naa") != std::string::npos || target.find("{swapped") != std::string::npos;
}

NaaIdentifier IdentityConfiguration::naa_for(const Uuid& uuid) const {
  if (naa.empty()) return naa_of(uuid);
  // From its end: the first digits of a UUID are the least like drawn ones.
  const std::string drawn = format_hex(uuid);
  std::string text = naa;
  auto next = drawn.rbegin();
  for (char& digit : text) {
    if (digit == '*') digit = *next++;
  }
  return known(parse_naa(text));
}

std::string IdentityConfiguration::target_for(std::string_view name,
                                              const NaaIdentifier& of) const {
  if (target.empty()) return default_target_name(name);
  return filled_in(target, name_for_iscsi(name), of);
}

std::string IdentityConfiguration::own_target_for(std::string_view name,
                                                  const NaaIdentifier& of) const {
  if (!shares_target()) return target_for(name, of);
  return fmt::format("{}.{}", target, name_for_iscsi(name));
}

void IdentityConfiguration::settle(VolumeSpecification& s, const Uuid& uuid) const {
  if (!s.naa && !naa.empty()) s.naa = naa_for(uuid);
  if (s.serial.empty() && !serial.empty()) {
    s.serial = filled_in(serial, "", s.naa ? *s.naa : naa_of(uuid));
  }
  if (s.target.empty()) s.target = target_for(s.name, s.naa ? *s.naa : naa_of(uuid));
}

void IdentityConfiguration::keep_drawn(const VolumeSpecification& old,
                                       VolumeSpecification& s) const {
  if (!s.naa) s.naa = old.naa;
  if (s.serial.empty()) s.serial = old.serial;
}

IdentityConfiguration read_identity_section(TableReader& reader) {
  IdentityConfiguration identity;
  identity.vendor = reader.string("vendor").value_or(identity.vendor);
  identity.product = reader.string("product").value_or(identity.product);
  identity.revision = reader.string("revision").value_or(identity.revision);
  for (const auto& [key, text] :
       {std::pair("vendor", &identity.vendor), std::pair("product", &identity.product),
        std::pair("revision", &identity.revision)}) {
    if (text->empty()) reader.mistake(key, "is empty; write something, or leave it out");
  }
  const VolumeSpecification some{.size_bytes = kSmallestVolumeBytes,
                                 .vendor = identity.vendor,
                                 .product = identity.product,
                                 .revision = identity.revision};
  if (const auto error = check_specification(some)) {
    reader.mistake(error->substr(0, error->find(' ')), *error);
  }
  if (const auto pattern = reader.string("naa")) {
    if (const auto error = check_naa_pattern(*pattern)) {
      reader.mistake("naa", *error);
    } else {
      identity.naa = *pattern;  // The texts are looked at with it.
    }
  }
  read_texts(reader, identity);
  read_personality(reader, identity);
  return identity;
}

}  // namespace sandbay::group
