// Goes through the tree of a file once for each form.
#include "group/document_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace sandbay::group {
namespace {

// What a file's counts make, in all.
constexpr std::uint64_t kMostCounted = 4096;
constexpr std::uint64_t kMostValues = 1'000'000;
constexpr std::uint64_t kTextOfValue = 64;            // A text counts as several if it is longer.
constexpr std::uint64_t kMostNumber = 1'000'000'000;  // A place's start or step.

std::string text_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kInteger:
      return fmt::format("{}", value.integer);
    case Value::Kind::kFloat:
      return fmt::format("{}", value.number);
    case Value::Kind::kBoolean:
      return value.boolean ? "true" : "false";
    default:
      return value.text;
  }
}

std::string inside(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

// Where values come from ------------------------------------------------------------------------

bool says_where_from(const Value& value) {
  const auto is_part = [](const Value::Member& member) {
    return member.key == "from" || member.key == "source";
  };
  return value.kind == Value::Kind::kTable && !value.members.empty() &&
         (value.find("value") != nullptr || std::ranges::all_of(value.members, is_part));
}

class Unwrapping {
 public:
  Unwrapping(Mistakes& mistakes, const std::function<void(const Provenance&, Value&)>& taken)
      : mistakes_(mistakes), taken_(taken) {}

  void walk(Value& value, const std::string& path) {
    for (Value::Member& member : value.members) {
      const std::string name = inside(path, member.key);
      if (says_where_from(member.value)) {
        unwrap(member.value, name);
      } else {
        walk(member.value, name);
      }
    }
    for (std::size_t i = 0; i < value.elements.size(); ++i) {
      walk(value.elements[i], fmt::format("{}[{}]", path, i + 1));
    }
  }

 private:
  void unwrap(Value& table, const std::string& name) {
    TableReader reader(table, name, mistakes_);
    const auto origin = reader.string("from");
    const auto source = reader.string("source");
    Provenance provenance{
        .name = name, .value = {}, .origin = origin.value_or(""), .source = source.value_or("")};
    const Value* const found = reader.any("value");
    const std::array keys = {"value", "from", "source"};
    const auto missing = std::ranges::find_if(keys, [&](std::string_view key) {
      return !reader.has(key) || (key == "source" && source == "");
    });
    if (missing != keys.end()) {
      mistakes_.add(table.line, name,
                    fmt::format("has no {}; write {{ value = …, from = \"{}\", source = \"…\" }}",
                                *missing, kOrigins.front()));
    }
    reader.finish();
    if (origin && std::ranges::find(kOrigins, *origin) == kOrigins.end()) {
      reader.mistake("from",
                     fmt::format("is \"{}\"; accepted are {}", *origin, fmt::join(kOrigins, ", ")));
    }
    Value value = found == nullptr ? Value{.kind = Value::Kind::kOther} : *found;
    value.line = found == nullptr ? table.line : found->line;
    provenance.value = text_of(value);
    provenance.line = value.line;
    if (found != nullptr && taken_) taken_(provenance, value);
    table = std::move(value);
  }

  Mistakes& mistakes_;
  const std::function<void(const Provenance&, Value&)>& taken_;
};

// Counts ----------------------------------------------------------------------------------------

// "{START+STEP}" or "{START+STEP:0WIDTHx}" at the beginning of a text.
struct Place {
  std::size_t length = 0;
  std::uint64_t start = 0;
  std::uint64_t step = 0;
  int width = 0;
  bool hexadecimal = false;

  std::uint64_t number(std::uint64_t index) const { return start + index * step; }
  std::string text(std::uint64_t index) const {
    return hexadecimal ? fmt::format("{:0{}x}", number(index), width)
                       : fmt::format("{:0{}}", number(index), width);
  }
};

std::optional<Place> place_at(std::string_view text) {
  Place place;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto take = [&](char wanted) {
    if (at == end || *at != wanted) return false;
    ++at;
    return true;
  };
  const auto number = [&](auto& out) {
    const auto [stop, error] = std::from_chars(at, end, out);
    const bool good = error == std::errc{} && stop != at;
    at = stop;
    return good;
  };
  if (!take('{') || !number(place.start) || !take('+') || !number(place.step)) return std::nullopt;
  if (std::max(place.start, place.step) > kMostNumber) return std::nullopt;
  if (take(':')) {
    if (!take('0') || !number(place.width) || place.width < 1 || place.width > 32) {
      return std::nullopt;
    }
    place.hexadecimal = take('x');
  }
  if (!take('}')) return std::nullopt;
  place.length = static_cast<std::size_t>(at - text.data());
  return place;
}

void number_text(Value& value, std::uint64_t index) {
  const std::string_view given = value.text;
  std::string text;
  for (std::size_t at = 0; at < given.size();) {
    const auto place = given[at] == '{' ? place_at(given.substr(at)) : std::nullopt;
    if (!place) {
      text += given[at++];
      continue;
    }
    if (place->length == given.size() && place->width == 0) {
      value.kind = Value::Kind::kInteger;  // And a text, where one is wanted.
      value.integer = static_cast<std::int64_t>(place->number(index));
    }
    text += place->text(index);
    at += place->length;
  }
  value.text = std::move(text);
}

void number_all(Value& value, std::uint64_t index) {
  if (value.kind == Value::Kind::kString) number_text(value, index);
  for (Value::Member& member : value.members) number_all(member.value, index);
  for (Value& element : value.elements) number_all(element, index);
}

// One of the sections that this one stands for.
Value numbered(const Value& section, std::uint64_t index) {
  Value one = section;
  std::erase_if(one.members, [](const Value::Member& member) { return member.key == "count"; });
  const Value* const given = section.find("name");
  number_all(one, index);
  for (Value::Member& member : one.members) {
    const bool same = member.key == "name" && member.value.kind == Value::Kind::kString &&
                      member.value.text == given->text;
    if (same && !given->text.empty()) member.value.text += fmt::format("{}", index);
  }
  return one;
}

std::uint64_t size_of(const Value& value) {
  std::uint64_t size = 1 + value.text.size() / kTextOfValue;
  for (const Value::Member& member : value.members) size += size_of(member.value);
  for (const Value& element : value.elements) size += size_of(element);
  return size;
}

class Counting {
 public:
  explicit Counting(Mistakes& mistakes) : mistakes_(mistakes) {}

  void walk(Value& table, const std::string& path) {
    for (Value::Member& member : table.members) {
      const std::string name = inside(path, member.key);
      if (member.value.kind == Value::Kind::kTable) walk(member.value, name);
      if (member.value.kind != Value::Kind::kArray || member.key == "drive") continue;
      std::vector<Value> all;
      for (std::size_t i = 0; i < member.value.elements.size(); ++i) {
        take(member.value.elements[i], fmt::format("{}[{}]", name, i + 1), all);
      }
      member.value.elements = std::move(all);
    }
  }

 private:
  void take(Value& section, const std::string& path, std::vector<Value>& all) {
    if (section.kind != Value::Kind::kTable || section.find("count") == nullptr) {
      if (section.kind == Value::Kind::kTable) walk(section, path);
      all.push_back(std::move(section));
      return;
    }
    TableReader reader(section, path, mistakes_);
    const auto count = reader.integer("count", 1, kMostCounted);
    if (!count || full_) return;
    made_ += *count;
    values_ += *count * size_of(section);
    full_ = made_ > kMostCounted || values_ > kMostValues;
    if (full_) {
      return reader.mistake("count",
                            fmt::format("makes more than {} sections, or {} values, of this "
                                        "file; write smaller counts",
                                        kMostCounted, kMostValues));
    }
    for (std::uint64_t i = 0; i < *count; ++i) {
      all.push_back(numbered(section, i));
      walk(all.back(), path);
    }
  }

  Mistakes& mistakes_;
  std::uint64_t made_ = 0;
  std::uint64_t values_ = 0;
  bool full_ = false;
};

}  // namespace

void unwrap_values(Value& root, Mistakes& mistakes,
                   const std::function<void(const Provenance&, Value&)>& taken,
                   const std::string& path) {
  Unwrapping(mistakes, taken).walk(root, path);
}

void expand_counts(Value& root, Mistakes& mistakes) { Counting(mistakes).walk(root, ""); }

}  // namespace sandbay::group
