// The rules at paths by the places that they name.
#include "fault/path_rules.h"

#include <fnmatch.h>

#include <algorithm>

#include "fault/traits.h"

namespace sandbay::fault {

namespace {

bool is_pattern(const std::string& name) {
  return name.empty() || name.find_first_of("*?") != std::string::npos;
}

std::bitset<kOpcodes> opcodes_of(const Rule& rule) {
  std::bitset<kOpcodes> opcodes;
  if (rule.opcodes.empty()) return opcodes.set();
  for (const std::uint8_t opcode : rule.opcodes) opcodes.set(opcode);
  return opcodes;
}

}  // namespace

PathRule::PathRule(Rule taken, std::uint64_t order, std::uint64_t stream, TimePoint epoch)
    : rule(std::move(taken)),
      number(order),
      seed(stream),
      from(epoch + rule.from),
      until(rule.until.has_value() ? epoch + *rule.until : kNever),
      limit(firing_limit(rule)),
      opcodes(opcodes_of(rule)) {}

void PathRules::add(Pointer rule) {
  if (is_pattern(rule->rule.at.name)) {
    patterns_.push_back(std::move(rule));
  } else {
    exact_[place_text(rule->rule.at)].push_back(std::move(rule));
  }
}

std::vector<PathRules::Pointer> PathRules::at(const Place& place) const {
  std::vector<Pointer> rules;
  const auto exact = exact_.find(place_text(place));
  if (exact != exact_.end()) rules = exact->second;
  for (const Pointer& each : patterns_) {
    const Place& at = each->rule.at;
    if (at.kind == place.kind && (at.name.empty() || fits(at.name, place.name))) {
      rules.push_back(each);
    }
  }
  std::ranges::sort(rules, {}, [](const Pointer& each) { return each->number; });
  return rules;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : text) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3U;
  }
  return hash;
}

bool fits(const std::string& pattern, std::string_view name) {
  return ::fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

}  // namespace sandbay::fault
