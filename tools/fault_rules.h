// Files of fault rules: one a line; what follows # is a comment.
#pragma once

#include <expected>
#include <string>
#include <vector>

namespace sandbay::cli {

struct FaultRule {
  std::string text;
  std::string where;  // FILE:LINE
};

// The error names the file and what to do.
std::expected<std::vector<FaultRule>, std::string> rules_in(const std::string& file);
// What the daemon says of a set of rules, with the line where it says "rule 3: …".
std::string in_file(const std::vector<FaultRule>& rules, const std::string& message);

}  // namespace sandbay::cli
