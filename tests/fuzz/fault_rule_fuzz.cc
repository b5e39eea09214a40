// Fuzzes the text of fault rules: whatever it is, there is a rule or one line, and a rule is the
// same after it was printed and parsed again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "fault/rule.h"
#include "fault/traits.h"

namespace sandbay::fault {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void run(std::string_view text) {
  const auto rule = parse_rule(text);
  if (!rule.has_value()) {
    require(!rule.error().empty());
    require(std::ranges::none_of(rule.error(), [](char letter) { return letter < ' '; }));
    return;
  }
  const std::string printed = print_rule(*rule);
  // Printing can make a rule longer: numbers are written in full.
  if (printed.size() > kLongestRule) return;
  const auto again = parse_rule(printed);
  require(again.has_value());
  require(*again == *rule);
  require(struck_operations(*rule) != 0 || rule->at.kind == Place::Kind::kNvram);
}

}  // namespace
}  // namespace sandbay::fault

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::fault::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
