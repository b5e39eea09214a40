// Reading of files of fault rules.
#include "tools/fault_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace sandbay::cli {

std::expected<std::vector<FaultRule>, std::string> rules_in(const std::string& file) {
  std::vector<FaultRule> rules;
  std::ifstream stream(file);
  std::error_code error;
  if (!stream || std::filesystem::is_directory(file, error)) {
    return std::unexpected(
        fmt::format("{}: cannot be read; name a file of rules, one a line", file));
  }
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    line.resize(std::min(line.size(), line.find('#')));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    rules.push_back({.text = line, .where = fmt::format("{}:{}", file, number)});
  }
  return rules;
}

std::string in_file(const std::vector<FaultRule>& rules, const std::string& message) {
  constexpr std::string_view kRule = "rule ";
  if (rules.size() == 1) return rules.front().where + ": " + message;
  std::size_t number = 0;
  const char* const end = message.data() + message.size();
  if (!message.starts_with(kRule)) return message;
  const auto [stopped, error] = std::from_chars(message.data() + kRule.size(), end, number);
  if (error != std::errc{} || number == 0 || number > rules.size()) return message;
  return rules[number - 1].where + std::string(stopped, end);
}

}  // namespace sandbay::cli
