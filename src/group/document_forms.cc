// Goes through the tree of a file once for each form.
#include "group/document_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace sandbay::group {
namespace {

constexpr std::uint64_t kMostCounted = 4096;          // Sections that a file's counts make, in all.
constexpr std::uint64_t kMostNumber = 1'000'000'000;  // Of a place's start and step.

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
    Provenance provenance{.name = name, .value = {}, .origin = {}, .source = {}};
    provenance.origin = reader.string("from").value_or("");
    provenance.source = reader.string("source").value_or("");
    const Value* const found = reader.any("value");
    reader.require("value", "what it is");
    reader.require("from", fmt::format("where it comes from: {}", fmt::join(kOrigins, ", ")));
    reader.require("source", "the source, in words");
    reader.finish();
    if (reader.has("from") && std::ranges::find(kOrigins, provenance.origin) == kOrigins.end()) {
      reader.mistake("from", fmt::format("is \"{}\"; accepted are {}", provenance.origin,
                                         fmt::join(kOrigins, ", ")));
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
      value.kind = Value::Kind::kInteger;
      value.integer = static_cast<std::int64_t>(place->number(index));
      return;
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
    if (section.kind == Value::Kind::kTable && section.find("count") != nullptr) {
      TableReader reader(section, path, mistakes_);
      const std::uint64_t most = kMostCounted - made_;
      const auto count = reader.integer("count", 1, most);
      made_ += count.value_or(0);
      for (std::uint64_t i = 0; i < count.value_or(0); ++i) {
        all.push_back(numbered(section, i));
        walk(all.back(), path);
      }
      return;
    }
    if (section.kind == Value::Kind::kTable) walk(section, path);
    all.push_back(std::move(section));
  }

  Mistakes& mistakes_;
  std::uint64_t made_ = 0;
};

}  // namespace

void unwrap_values(Value& root, Mistakes& mistakes,
                   const std::function<void(const Provenance&, Value&)>& taken,
                   const std::string& path) {
  Unwrapping(mistakes, taken).walk(root, path);
}

void expand_counts(Value& root, Mistakes& mistakes) { Counting(mistakes).walk(root, ""); }

}  // namespace sandbay::group
