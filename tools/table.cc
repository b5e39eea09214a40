// Widths count characters, not bytes: names may hold anything that is UTF-8.
#include "tools/table.h"

#include <algorithm>
#include <cassert>

#include "runtime/printable.h"

namespace sandbay::cli {

namespace {

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  assert(row.size() == columns_.size());
  for (std::string& cell : row) cell = cell.empty() ? "-" : printable(cell);
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = width_of(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[i]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](auto cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string padding(widths[i] - width_of(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::kRight ? padding + cell : cell + padding;
    }
    while (line.ends_with(' ')) line.pop_back();
    text += line + '\n';
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

std::string facts(const std::vector<std::pair<std::string, std::string>>& list) {
  std::size_t width = 0;
  for (const auto& [name, value] : list) width = std::max(width, width_of(name));
  std::string text;
  for (const auto& [name, value] : list) {
    text += name + std::string(width - width_of(name) + 2, ' ');
    text += (value.empty() ? "-" : printable(value)) + '\n';
  }
  return text;
}

}  // namespace sandbay::cli
