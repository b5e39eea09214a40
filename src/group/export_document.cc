// Written by hand around the records, so that a group with a large map needs one text and no tree
// of values beside it.
#include "group/export_document.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "group/audit_log.h"
#include "group/event_log.h"
#include "group/export_reader.h"
#include "group/pool_records.h"
#include "group/record_json.h"
#include "group/unit_book.h"
#include "group/version.h"

namespace sandbay::group {

using nlohmann::json;

namespace {

constexpr std::string_view kMapPrefix = "map/";
constexpr std::size_t kUuidLength = 36;
constexpr int kDeepestValue = 16;  // ExportReader takes this as JSON.

void append_hex(std::string_view bytes, std::string& text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kHexDigits[byte >> 4U];
    text += kHexDigits[byte & 0xFU];
  }
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
  // As JSON only where that gives the very same bytes back, which a value cut at a depth does not.
  const json parsed = parse_json(value, kDeepestValue);
  if (!parsed.is_discarded() && to_text(parsed) == value) {
    text += fmt::format("{{\"key\": {}, \"value\": {}}}", to_text(key), value);
  } else {
    text += fmt::format("{{\"key\": {}, \"value_hex\": \"", to_text(key));
    append_hex(value, text);
    text += "\"}";
  }
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

ExportWriter::ExportWriter(WallTime time, const GroupRecord& group) {
  constexpr std::size_t kToSeconds = 19;  // "2026-11-21T08:15:00"
  text_ = fmt::format(
      "{{\"sandbay_export\": {}, \"version\": {}, \"time\": \"{}Z\",\n"
      "\"group\": {}, \"name\": {},\n\"records\": [",
      kExportFormat, to_text(std::string(version())), utc_text(time).substr(0, kToSeconds),
      to_text(group.uuid), to_text(group.name));
}

void ExportWriter::add(const metadata::Entry& entry) {
  if (is_history(entry.first) || is_work_on_blocks(entry.first)) return;
  digest_.add_counted(entry.first);
  digest_.add_counted(entry.second);
  text_ += count_++ == 0 ? "\n  " : ",\n  ";
  append_record(entry, text_);
}

void ExportWriter::finish() {
  text_ += fmt::format("\n],\n\"count\": {}, \"sha256\": \"{}\"}}\n", count_, digest_.text());
}

std::string export_text(const ExportedGroup& group) {
  const auto identity = std::ranges::find(group.entries, kGroupKey, &metadata::Entry::first);
  ExportWriter writer(group.time, identity == group.entries.end()
                                      ? GroupRecord{}
                                      : decode_group(identity->second).value_or(GroupRecord{}));
  for (const metadata::Entry& entry : group.entries) writer.add(entry);
  writer.finish();
  return writer.take();
}

std::string map_key(std::string_view pool) { return fmt::format("{}{}", kMapPrefix, pool); }

std::expected<ImportedGroup, std::string> read_export(std::string_view text) {
  ExportReader reader([&text](std::span<char> room) {
    const std::size_t count = text.copy(room.data(), room.size());
    text.remove_prefix(count);
    return count;
  });
  ImportedGroup group;
  for (;;) {
    auto entry = reader.next();
    if (!entry) return std::unexpected(std::move(entry.error()));
    std::optional<metadata::Entry>& next = *entry;
    if (!next) break;
    group.entries.push_back(std::move(*next));
  }
  group.uuid = reader.head().uuid;
  group.name = reader.head().name;
  group.time = reader.head().time;
  return group;
}

}  // namespace sandbay::group
