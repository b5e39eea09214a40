// Reading of files of fault rules.
#include "tools/fault_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sandbay::cli {

namespace {

// As much as a daemon takes at once.
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

}  // namespace

std::expected<std::vector<FaultRule>, std::string> rules_in(const std::string& file) {
  std::vector<FaultRule> rules;
  std::ifstream stream(file);
  std::error_code error;
  if (!stream || std::filesystem::is_directory(file, error)) {
    return std::unexpected(
        fmt::format("{}: cannot be read; name a file of rules, one a line", file));
  }
  std::string text(kMostBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMostBytes) {
    return std::unexpected(fmt::format("{}: is larger than 1MiB; split it", file));
  }
  std::istringstream lines(std::move(text));
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.size(), line.find('#')));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    rules.push_back({.text = line, .where = fmt::format("{}:{}", file, number)});
  }
  return rules;
}

std::string in_file(const std::vector<FaultRule>& rules, const std::string& message) {
  constexpr std::string_view kRule = "rule ";
  std::size_t number = 0;
  const char* const end = message.data() + message.size();
  if (!message.starts_with(kRule)) return message;
  const auto [stopped, error] = std::from_chars(message.data() + kRule.size(), end, number);
  if (error != std::errc{} || number == 0 || number > rules.size()) return message;
  return rules[number - 1].where + std::string(stopped, end);
}

}  // namespace sandbay::cli
