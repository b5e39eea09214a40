// Cutting the text into records, and turning these into keys and values.
#include "group/export_reader.h"

#include <fmt/core.h>

#include <stdexcept>
#include <utility>

#include "group/export_document.h"
#include "group/pool_records.h"
#include "group/record_json.h"
#include "group/records.h"
#include "group/unit_book.h"

namespace sandbay::group {

using nlohmann::json;

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The daemon's own records are some five levels deep. Turning a value into text recurses as deep as
// the value, so depth has a limit before there is a value.
constexpr std::int64_t kDeepest = 32;

// Follows strings and brackets through a text. Throws at the bracket that is too deep.
class Nesting {
 public:
  void pass(char c) {
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_) {
      escaped_ = c == '\\';
      in_string_ = c != '"';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '[' || c == '{') {
      if (++depth_ > kDeepest) throw std::out_of_range("it is nested too deeply");
      ++parts_;
    } else if (c == ']' || c == '}') {
      --depth_;
    } else if (c == ',') {
      ++parts_;
    }
  }
  bool in_string() const noexcept { return in_string_; }
  std::int64_t depth() const noexcept { return depth_; }
  std::size_t parts() const noexcept { return parts_; }

 private:
  bool in_string_ = false;
  bool escaped_ = false;
  std::int64_t depth_ = 0;
  std::size_t parts_ = 0;
};

// Whether the text ends with the key of the records and its colon.
bool ends_with_records_key(std::string_view text) {
  const auto trim = [&text] {
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  };
  trim();
  if (!text.ends_with(':')) return false;
  text.remove_suffix(1);
  trim();
  return text.ends_with("\"records\"");
}

// Throws.
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

metadata::Entry record_from(const json& record) {
  std::string key = record.contains("pool") ? map_key(format_uuid(uuid_from(record.at("pool")))) +
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

// The reason why every start would refuse it; empty: it would not.
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
  if (key.starts_with(kReservationPrefix)) return judge(decode_reservations(key, value));
  if (key == kGroupKey) return judge(decode_group(value));
  return {};
}

void check_format(const json& head) {
  if (head.at("sandbay_export").get<int>() != kExportFormat) {
    throw std::out_of_range(fmt::format("it has another format than {}", kExportFormat));
  }
}

}  // namespace

ExportReader::ExportReader(Source source) : source_(std::move(source)) {}

std::optional<char> ExportReader::take() {
  if (at_ == buffer_.size()) {
    buffer_.resize(kBytesAtOnce);
    buffer_.resize(source_(buffer_));
    at_ = 0;
    if (buffer_.empty()) return std::nullopt;
  }
  return buffer_[at_++];
}

// Up to the bracket that opens the records; all of a text that has none.
void ExportReader::begin_records() {
  Nesting nesting;
  for (auto c = take(); c; c = take()) {
    const bool outside = !nesting.in_string();
    nesting.pass(*c);
    frame_ += *c;
    if (frame_.size() > kLongestFrame) throw std::out_of_range("its head is too long");
    if (outside && *c == '[' && nesting.depth() == 2 &&
        ends_with_records_key(std::string_view(frame_).substr(0, frame_.size() - 1))) {
      check_format(parse_json(frame_ + "]}"));
      return;
    }
  }
  ended_ = true;
}

// The text of one record; nothing: the bracket that closes them has come.
std::optional<std::string> ExportReader::next_text() {
  std::string text;
  Nesting nesting;
  for (auto c = take(); c; c = take()) {
    if (text.empty() && is_space(*c)) continue;
    const bool outside = !nesting.in_string() && nesting.depth() == 0;
    if (outside && *c == ']') {
      // A comma promises another one.
      if (text.empty() && !first_) throw std::out_of_range("a record is empty or too long");
      frame_ += ']';
      ended_ = true;
      return text.empty() ? std::nullopt : std::optional(std::move(text));
    }
    if (outside && *c == ',') return text;
    nesting.pass(*c);
    text += *c;
    if (text.size() > kLongestRecord || nesting.parts() > kMostParts) {
      throw std::out_of_range("a record is empty or too long");
    }
  }
  throw std::out_of_range("it ends within a record");
}

void ExportReader::finish() {
  Nesting nesting;
  for (const char c : frame_) nesting.pass(c);
  for (auto c = take(); c; c = take()) {
    nesting.pass(*c);
    frame_ += *c;
    if (frame_.size() > kLongestFrame) throw std::out_of_range("its end is too long");
  }
  const json document = parse_json(frame_);
  check_format(document);
  head_.uuid = document.at("group").get<std::string>();
  head_.name = document.at("name").get<std::string>();
  head_.time = document.at("time").get<std::string>();
  // Another array of that name would be taken for this one.
  if (!document.at("records").is_array() || !document.at("records").empty() || !begun_) {
    throw std::out_of_range("its records are no list");
  }
  if (head_.count != document.at("count").get<std::size_t>() ||
      digest_.text() != document.at("sha256").get<std::string>()) {
    throw std::out_of_range("its checksum is wrong: it was cut or changed");
  }
  if (identity_ != head_.uuid) throw std::out_of_range("its group has another record");
}

std::optional<metadata::Entry> ExportReader::next_or_throw() {
  if (!begun_ && !ended_) {
    begin_records();
    begun_ = !ended_;
  }
  std::optional<std::string> text;
  if (!ended_) text = next_text();
  first_ = false;
  if (!text) {
    finish();
    return std::nullopt;
  }
  metadata::Entry entry = record_from(parse_json(*text));
  digest_.add_counted(entry.first);
  digest_.add_counted(entry.second);
  ++head_.count;
  if (const std::string damage = damage_of(entry); !damage.empty()) {
    throw std::out_of_range(damage);
  }
  if (entry.first == kGroupKey) identity_ = decode_group(entry.second)->uuid;
  return entry;
}

std::expected<std::optional<metadata::Entry>, std::string> ExportReader::next() {
  std::string why;
  try {
    return next_or_throw();
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
