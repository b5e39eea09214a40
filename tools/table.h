// Table: rows of text in aligned columns, for people. Numbers stand to the right, and nothing is
// cut off.
#pragma once

#include <string>
#include <vector>

namespace sandbay::cli {

class Table {
 public:
  enum class Align : unsigned char { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row);
  bool empty() const noexcept { return rows_.empty(); }
  std::string text() const;  // With a line of titles; every line ends in a newline.

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "name   value" lines with the names padded to one width; empty values become a dash.
std::string facts(const std::vector<std::pair<std::string, std::string>>& list);

}  // namespace sandbay::cli
