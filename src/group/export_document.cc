// Written by hand around the records, so that a group with a large map needs one text and no tree
// of values beside it.
#include "group/export_document.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <memory>

#include "group/audit_log.h"
#include "group/pool_records.h"
#include "group/record_json.h"
#include "group/records.h"
#include "group/version.h"

namespace sandbay::group {

using nlohmann::json;

namespace {

constexpr int kFormat = 1;
constexpr std::string_view kMapPrefix = "map/";
constexpr std::size_t kUuidLength = 36;

class Digest {
 public:
  Digest() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr);
  }
  void add(std::string_view bytes) {
    ::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  // With its length before it, so that the end of one and the beginning of the next are told apart.
  void add_counted(std::string_view bytes) {
    add(fmt::format("{}:", bytes.size()));
    add(bytes);
  }
  std::string text() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
    unsigned size = 0;
    ::EVP_DigestFinal_ex(context_.get(), value.data(), &size);
    std::string hex;
    for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", value[i]);
    return hex;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_;
};

void append_hex(std::string_view bytes, std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 0xFU];
  }
}

// Throws, for read_export().
std::string from_hex(const std::string& hex) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    throw std::out_of_range("a value in hexadecimal holds something else");
  };
  if (hex.size() % 2 != 0) throw std::out_of_range("a value in hexadecimal is cut");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  }
  return bytes;
}

bool is_of_map(std::string_view key) {
  return key.starts_with(kMapPrefix) && key.size() > kMapPrefix.size() + kUuidLength;
}

void append_record(const metadata::Entry& entry, std::string& text) {
  const auto& [key, value] = entry;
  if (is_of_map(key)) {
    const std::string_view view(key);
    text += fmt::format("{{\"pool\": \"{}\", \"key_hex\": \"",
                        view.substr(kMapPrefix.size(), kUuidLength));
    append_hex(view.substr(kMapPrefix.size() + kUuidLength), text);
    text += "\", \"value_hex\": \"";
    append_hex(value, text);
    text += "\"}";
    return;
  }
  // As JSON only where that gives the very same bytes back.
  const json parsed = json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded() && to_text(parsed) == value) {
    text += fmt::format("{{\"key\": {}, \"value\": {}}}", to_text(key), value);
  } else {
    text += fmt::format("{{\"key\": {}, \"value_hex\": \"", to_text(key));
    append_hex(value, text);
    text += "\"}";
  }
}

metadata::Entry record_from(const json& record) {
  std::string key =
      record.contains("pool")
          ? fmt::format("{}{}", kMapPrefix, format_uuid(uuid_from(record.at("pool")))) +
                from_hex(record.at("key_hex").get<std::string>())
          : record.at("key").get<std::string>();
  std::string value = record.contains("value")
                          ? to_text(record.at("value"))
                          : from_hex(record.at("value_hex").get<std::string>());
  if (key.empty() || key.size() > metadata::kLongestKey || value.size() > metadata::kLongestValue) {
    throw std::out_of_range("a record is empty or too long");
  }
  return {std::move(key), std::move(value)};
}

// What every start would refuse is refused here; empty: nothing.
std::string damage_of(const metadata::Entry& entry) {
  const auto& [key, value] = entry;
  const auto judge = [&](auto decoded) {
    return decoded ? std::string() : fmt::format("its record {} {}", key, decoded.error());
  };
  if (key.starts_with(kVolumePrefix)) return judge(decode_volume(value));
  if (key.starts_with(kTargetPrefix)) return judge(decode_target(value));
  if (key.starts_with(kPoolPrefix)) return judge(decode_pool(value));
  if (key.starts_with(kSnapshotPrefix)) return judge(decode_snapshot(value));
  if (key.starts_with(kSchedulePrefix)) return judge(decode_schedule(value));
  if (key.starts_with(kSetPrefix)) return judge(decode_set(value));
  if (key == kGroupKey) return judge(decode_group(value));
  return {};
}

ImportedGroup take(const json& document) {
  if (document.at("sandbay_export").get<int>() != kFormat) {
    throw std::out_of_range(fmt::format("it has another format than {}", kFormat));
  }
  ImportedGroup group{.uuid = document.at("group").get<std::string>(),
                      .name = document.at("name").get<std::string>(),
                      .time = document.at("time").get<std::string>(),
                      .entries = {}};
  Digest digest;
  std::string identity;
  for (const json& record : document.at("records")) {
    metadata::Entry entry = record_from(record);
    digest.add_counted(entry.first);
    digest.add_counted(entry.second);
    if (const std::string damage = damage_of(entry); !damage.empty()) {
      throw std::out_of_range(damage);
    }
    if (entry.first == kGroupKey) identity = decode_group(entry.second)->uuid;
    group.entries.push_back(std::move(entry));
  }
  if (group.entries.size() != document.at("count").get<std::size_t>() ||
      digest.text() != document.at("sha256").get<std::string>()) {
    throw std::out_of_range("its checksum is wrong: it was cut or changed");
  }
  if (identity != group.uuid) throw std::out_of_range("its group has another record");
  return group;
}

}  // namespace

bool is_history(std::string_view key) {
  return key.starts_with(kEventPrefix) || key.starts_with(kAuditPrefix) ||
         key.starts_with(kBegunPrefix);
}

std::string sha256_of(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.text();
}

std::string export_text(const ExportedGroup& group) {
  GroupRecord identity;
  Digest digest;
  std::size_t count = 0;
  std::string records;
  for (const metadata::Entry& entry : group.entries) {
    if (is_history(entry.first)) continue;
    if (entry.first == kGroupKey) identity = decode_group(entry.second).value_or(GroupRecord{});
    digest.add_counted(entry.first);
    digest.add_counted(entry.second);
    records += count++ == 0 ? "\n  " : ",\n  ";
    append_record(entry, records);
  }
  const auto seconds = std::chrono::floor<std::chrono::seconds>(group.time);
  return fmt::format(
      "{{\"sandbay_export\": {}, \"version\": {}, \"time\": \"{:%Y-%m-%dT%H:%M:%SZ}\",\n"
      "\"group\": {}, \"name\": {},\n\"records\": [{}\n],\n\"count\": {}, \"sha256\": \"{}\"}}\n",
      kFormat, to_text(std::string(version())),
      fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), to_text(identity.uuid),
      to_text(identity.name), records, count, digest.text());
}

std::expected<ImportedGroup, std::string> read_export(std::string_view text) {
  std::string why;
  try {
    return take(json::parse(text));
  } catch (const json::parse_error&) {
    return std::unexpected("is not JSON; name a file that sandbay group export has written");
  } catch (const json::exception& error) {
    // "[json.exception.out_of_range.403] key 'group' not found"
    why = error.what();
    if (const auto end = why.find("] "); end != std::string::npos) why.erase(0, end + 2);
  } catch (const std::exception& error) {
    why = error.what();
  }
  return std::unexpected(fmt::format(
      "is not a usable export: {}; name a file that sandbay group export has written", why));
}

}  // namespace sandbay::group
