// The only file that sees the TOML parser.
#include "group/document.h"

#include <fmt/core.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <tuple>

namespace sandbay::group {

namespace {

Value convert(const toml::node& node) {
  Value value;
  value.line = node.source().begin.line;
  if (const auto* table = node.as_table()) {
    value.kind = Value::Kind::kTable;
    for (const auto& [key, child] : *table) {
      value.members.push_back({.key = std::string(key.str()), .value = convert(child)});
      // An inline value may span lines; people look for the key.
      value.members.back().value.line = key.source().begin.line;
    }
    // toml++ sorts by key; the file's order is the one people know.
    std::ranges::sort(value.members, [](const Value::Member& a, const Value::Member& b) {
      return std::tie(a.value.line, a.key) < std::tie(b.value.line, b.key);
    });
  } else if (const auto* array = node.as_array()) {
    value.kind = Value::Kind::kArray;
    for (const auto& child : *array) value.elements.push_back(convert(child));
  } else if (const auto* text = node.as_string()) {
    value.kind = Value::Kind::kString;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Value::Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.kind = Value::Kind::kFloat;
    value.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = Value::Kind::kBoolean;
    value.boolean = boolean->get();
  } else {
    value.kind = Value::Kind::kOther;
  }
  return value;
}

// One line: parsers' messages may hold newlines that come from the file.
std::string flatten(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, [](unsigned char c) { return c < 0x20; }, ' ');
  return line;
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::string_view describe(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kString:
      return "a string";
    case Value::Kind::kInteger:
      return "a whole number";
    case Value::Kind::kFloat:
      return "a fraction";
    case Value::Kind::kBoolean:
      return "true or false";
    case Value::Kind::kArray:
      return "a list";
    case Value::Kind::kTable:
      return "a section";
    case Value::Kind::kOther:
      return "a date or time";
  }
  return "something else";
}

std::expected<Value, std::string> read_toml(std::string_view text, std::string_view name) {
  try {
    return convert(toml::parse(text, name));
  } catch (const toml::parse_error& error) {
    return std::unexpected(fmt::format("{}:{}: not TOML: {}", name, error.source().begin.line,
                                       flatten(error.description())));
  }
}

std::string Mistakes::text_of(std::uint32_t line, std::string_view key,
                              std::string_view what) const {
  std::string text;
  if (!file_.empty()) text = fmt::format("{}:{}: ", file_, line);
  if (!key.empty()) text += fmt::format("{}{}: ", prefix_, key);
  return text.append(what);
}

std::string without_numbers(std::string_view path) {
  std::string name;
  bool inside = false;
  for (const char each : path) {
    inside = each == '[' || (inside && each != ']');
    if (!inside && each != ']') name += each;
  }
  return name;
}

bool Mistakes::is_new(std::uint32_t line, std::string_view key, std::string_view what) {
  if (file_.empty()) return true;  // A request has no lines.
  return told_.insert(fmt::format("{} {} {}", line, without_numbers(key), what)).second;
}

void Mistakes::add(std::uint32_t line, std::string_view key, std::string_view what) {
  if (is_new(line, key, what)) by_line_.emplace(line, text_of(line, key, what));
}

void Mistakes::add_absence(std::uint32_t line, std::string_view key, std::string_view what) {
  if (is_new(line, key, what)) absences_.emplace(line, text_of(line, key, what));
}

std::vector<std::string> Mistakes::sorted() const {
  std::vector<std::string> lines;
  for (const auto& [line, text] : by_line_) lines.push_back(text);
  for (const auto& [line, text] : absences_) lines.push_back(text);
  return lines;
}

std::string_view TableReader::words_for(Value::Kind kind) const {
  return kind == Value::Kind::kTable && mistakes_.of_request() ? "an object" : describe(kind);
}

const Value* TableReader::take(std::string_view key, Value::Kind kind, std::string_view accepted) {
  known_.emplace_back(key);
  const Value* value = table_.find(key);
  if (value == nullptr) return nullptr;
  if (value->kind == kind) return value;
  mistake(key, fmt::format("is {}; write {}", words_for(value->kind), accepted));
  return nullptr;
}

std::optional<std::string> TableReader::string(std::string_view key) {
  // A number that a counted section has made of a text (document_forms.h) is a text as well.
  const Value* value = table_.find(key);
  const bool is_both =
      value != nullptr && value->kind == Value::Kind::kInteger && !value->text.empty();
  value = take(key, is_both ? Value::Kind::kInteger : Value::Kind::kString, "a string in quotes");
  if (value == nullptr) return std::nullopt;
  return value->text;
}

std::optional<bool> TableReader::boolean(std::string_view key) {
  const Value* value = take(key, Value::Kind::kBoolean, "true or false");
  if (value == nullptr) return std::nullopt;
  return value->boolean;
}

std::optional<std::uint64_t> TableReader::integer(std::string_view key, std::uint64_t least,
                                                  std::uint64_t most) {
  const auto accepted = fmt::format("a whole number from {} to {}", least, most);
  const Value* value = take(key, Value::Kind::kInteger, accepted);
  if (value == nullptr) return std::nullopt;
  if (value->integer < 0 || static_cast<std::uint64_t>(value->integer) < least ||
      static_cast<std::uint64_t>(value->integer) > most) {
    mistake(key, fmt::format("{} is out of range; write {}", value->integer, accepted));
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(value->integer);
}

std::optional<double> TableReader::number(std::string_view key, double least, double most) {
  const auto accepted = fmt::format("a number from {} to {}", least, most);
  const Value* const given = table_.find(key);
  const bool whole = given != nullptr && given->kind == Value::Kind::kInteger;
  const Value* value = take(key, whole ? Value::Kind::kInteger : Value::Kind::kFloat, accepted);
  if (value == nullptr) return std::nullopt;
  const double number = whole ? static_cast<double>(value->integer) : value->number;
  if (number >= least && number <= most) return number;
  mistake(key, fmt::format("{} is out of range; write {}", number, accepted));
  return std::nullopt;
}

std::optional<std::uint64_t> TableReader::size(std::string_view key, std::uint64_t least,
                                               std::uint64_t most) {
  const Value* value =
      take(key, Value::Kind::kString, "a size in quotes, such as \"512MiB\" or \"100GiB\"");
  if (value == nullptr) return std::nullopt;
  const auto bytes = parse_size(value->text);
  if (!bytes) {
    mistake(key, bytes.error());
    return std::nullopt;
  }
  if (*bytes < least || *bytes > most) {
    mistake(key, fmt::format("{} is out of range; write a size from {} to {}", value->text,
                             format_size(least), format_size(most)));
    return std::nullopt;
  }
  return *bytes;
}

std::optional<std::uint64_t> TableReader::rate(std::string_view key) {
  const auto text = string(key);
  if (!text) return std::nullopt;
  const auto rate = parse_rate(*text);
  if (rate && *rate > 0) return *rate;
  mistake(key, rate ? "is 0, and nothing would ever pass; write a rate such as \"30MB/s\""
                    : rate.error());
  return std::nullopt;
}

std::optional<Duration> TableReader::duration(std::string_view key, Duration least, Duration most) {
  const Value* value =
      take(key, Value::Kind::kString, "a time in quotes, such as \"5ms\" or \"2s\"");
  if (value == nullptr) return std::nullopt;
  const auto parsed = parse_duration(value->text);
  if (!parsed) {
    mistake(key, parsed.error());
    return std::nullopt;
  }
  if (*parsed < least || *parsed > most) {
    mistake(key, fmt::format("{} is out of range; write a time from {} to {}", value->text,
                             format_duration(least), format_duration(most)));
    return std::nullopt;
  }
  return *parsed;
}

std::optional<std::vector<std::string>> TableReader::strings(std::string_view key) {
  const Value* value = take(key, Value::Kind::kArray, "a list of strings, such as [\"a\", \"b\"]");
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> list;
  for (const Value& element : value->elements) {
    if (element.kind != Value::Kind::kString) {
      mistake(key, fmt::format("holds {}; write a list of strings, such as [\"a\", \"b\"]",
                               words_for(element.kind)));
      return std::nullopt;
    }
    list.push_back(element.text);
  }
  return list;
}

std::optional<std::vector<std::uint64_t>> TableReader::integers(std::string_view key,
                                                                std::uint64_t least,
                                                                std::uint64_t most) {
  const auto accepted = fmt::format("a list of whole numbers from {} to {}", least, most);
  const Value* value = take(key, Value::Kind::kArray, accepted);
  if (value == nullptr) return std::nullopt;
  std::vector<std::uint64_t> list;
  for (const Value& element : value->elements) {
    if (element.kind != Value::Kind::kInteger) {
      mistake(key, fmt::format("holds {}; write {}", words_for(element.kind), accepted));
      return std::nullopt;
    }
    if (element.integer < 0 || static_cast<std::uint64_t>(element.integer) < least ||
        static_cast<std::uint64_t>(element.integer) > most) {
      mistake(key, fmt::format("holds {}; write {}", element.integer, accepted));
      return std::nullopt;
    }
    list.push_back(static_cast<std::uint64_t>(element.integer));
  }
  return list;
}

const Value* TableReader::table(std::string_view key) {
  const bool object = mistakes_.of_request();
  return take(key, Value::Kind::kTable,
              object ? "an object" : fmt::format("a section [{}]", path_of(key)));
}

std::vector<const Value*> TableReader::tables(std::string_view key) {
  const std::string accepted =
      mistakes_.of_request() ? "a list of objects" : fmt::format("sections [[{}]]", key);
  const Value* value = take(key, Value::Kind::kArray, accepted);
  std::vector<const Value*> list;
  if (value == nullptr) return list;
  for (const Value& element : value->elements) {
    if (element.kind != Value::Kind::kTable) {
      mistake(key, fmt::format("holds {}; write {}", words_for(element.kind), accepted));
      continue;
    }
    list.push_back(&element);
  }
  return list;
}

const Value* TableReader::any(std::string_view key) {
  known_.emplace_back(key);
  return table_.find(key);
}

void TableReader::mistake(std::string_view key, std::string_view what) {
  if (has(key)) {
    mistakes_.add(line_of(key), path_of(key), what);
  } else {
    mistakes_.add_absence(line_of(key), path_of(key), what);
  }
}

void TableReader::require(std::string_view key, std::string_view what_is_accepted) {
  if (!has(key)) mistake(key, fmt::format("is missing; write {}", what_is_accepted));
}

std::uint32_t TableReader::line_of(std::string_view key) const {
  const Value* value = table_.find(key);
  const std::uint32_t line = value != nullptr ? value->line : table_.line;
  return line == 0 ? 1 : line;
}

std::string TableReader::path_of(std::string_view key) const {
  if (path_.empty()) return std::string(key);
  if (key.empty()) return path_;
  return fmt::format("{}.{}", path_, key);
}

void TableReader::finish() {
  for (const auto& [key, value] : table_.members) {
    if (std::ranges::find(known_, key) != known_.end()) continue;
    const std::string_view near = nearest(key, known_);
    if (!near.empty()) {
      mistake(key, fmt::format("is not a key here; did you mean {}?", near));
      continue;
    }
    std::string list;
    for (const std::string& word : known_) {
      if (!list.empty()) list += ", ";
      list += word;
    }
    mistake(key, fmt::format("is not a key here; keys here are {}", list));
  }
}

}  // namespace sandbay::group
