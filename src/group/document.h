// Document: a configuration file as a plain tree in which every value knows its line.
//
// TOML is read into it in one place (document.cc), so that nothing else sees the parser.
// TableReader takes a table apart key by key: it checks types, collects every mistake as one line
// `FILE:LINE: KEY: what is wrong; what would be accepted`, and finish() refuses keys nobody asked
// for, naming the nearest one that is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "group/units.h"
#include "runtime/nearest.h"

namespace sandbay::group {

// What a file may have.
inline constexpr std::size_t kMostTextBytes = std::size_t{4} << 20;

struct Value {
  enum class Kind : std::uint8_t { kString, kInteger, kFloat, kBoolean, kArray, kTable, kOther };

  Kind kind = Kind::kTable;
  std::uint32_t line = 0;
  std::string text;  // kString; see also TableReader::string().
  std::int64_t integer = 0;
  double number = 0;  // kFloat
  bool boolean = false;
  std::vector<Value> elements;  // kArray
  struct Member;
  std::vector<Member> members;  // kTable, in the order of the file.

  const Value* find(std::string_view key) const;
};

struct Value::Member {
  std::string key;
  Value value;
};

// The words for a kind in messages: "a string", "a table".
std::string_view describe(Value::Kind kind);

// Reads TOML text. `name` stands for FILE in messages; the error is the whole line.
std::expected<Value, std::string> read_toml(std::string_view text, std::string_view name);

// "drive[1].change.outer_rate" as "drive.change.outer_rate".
std::string without_numbers(std::string_view path);

// Where mistakes go. Without a name of a file (a request has none) a line begins with the key.
class Mistakes {
 public:
  explicit Mistakes(std::string file) : file_(std::move(file)) {}
  // Of the keys that follow, all are inside of that: "member[2]." Empty: they are not.
  void inside(std::string prefix) { prefix_ = std::move(prefix); }
  const std::string& prefix() const noexcept { return prefix_; }
  void add(std::uint32_t line, std::string_view key, std::string_view what);
  // Something that is missing, in the section that begins in this line.
  void add_absence(std::uint32_t line, std::string_view key, std::string_view what);
  // Of a body in JSON, which has no sections.
  bool of_request() const noexcept { return file_.empty(); }
  bool empty() const noexcept { return by_line_.empty() && absences_.empty(); }
  // Whole lines of text. What is missing comes last: often it is there, but misspelt.
  std::vector<std::string> sorted() const;

 private:
  std::string file_;
  std::string prefix_;
  std::string text_of(std::uint32_t line, std::string_view key, std::string_view what) const;
  bool is_new(std::uint32_t line, std::string_view key, std::string_view what);

  // Sections that a count makes have their mistakes in one line: each is given once.
  std::set<std::string> told_;
  std::multimap<std::uint32_t, std::string> by_line_;
  std::multimap<std::uint32_t, std::string> absences_;
};

class TableReader {
 public:
  // `path` is how the table is called in messages, e.g. "volume[2]"; empty for the root. The
  // table and the mistakes outlive the reader.
  TableReader(const Value& table, std::string path, Mistakes& mistakes)
      : table_(table), path_(std::move(path)), mistakes_(mistakes) {}

  // Each returns the value if it is there and right; a wrong one has been noted as a mistake.
  std::optional<std::string> string(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::uint64_t> integer(std::string_view key, std::uint64_t least,
                                       std::uint64_t most);
  // With or without a point.
  std::optional<double> number(std::string_view key, double least, double most);
  std::optional<std::uint64_t> size(std::string_view key, std::uint64_t least, std::uint64_t most);
  // More than 0, in bytes a second.
  std::optional<std::uint64_t> rate(std::string_view key);
  std::optional<Duration> duration(std::string_view key, Duration least, Duration most);
  std::optional<std::vector<std::string>> strings(std::string_view key);
  std::optional<std::vector<std::uint64_t>> integers(std::string_view key, std::uint64_t least,
                                                     std::uint64_t most);
  const Value* table(std::string_view key);
  std::vector<const Value*> tables(std::string_view key);  // [[key]]
  const Value* any(std::string_view key);

  // Notes a mistake at the key's line; an absence if the key is not there.
  void mistake(std::string_view key, std::string_view what);
  void require(std::string_view key, std::string_view what_is_accepted);
  bool has(std::string_view key) const { return table_.find(key) != nullptr; }
  std::uint32_t line_of(std::string_view key) const;
  std::string path_of(std::string_view key) const;
  // Refuses every key that was not asked for.
  void finish();

 private:
  const Value* take(std::string_view key, Value::Kind kind, std::string_view accepted);
  std::string_view words_for(Value::Kind kind) const;

  const Value& table_;
  std::string path_;
  Mistakes& mistakes_;
  std::vector<std::string> known_;
};

}  // namespace sandbay::group
