// The rules at paths by the places that they name.
#include "fault/path_rules.h"

#include <bit>

#include "fault/traits.h"

namespace sandbay::fault {

namespace {

constexpr std::size_t kOperationKeys = 256;  // Behind the codes.
constexpr std::size_t kOperations = 6;
constexpr std::size_t kOtherKey = kOperationKeys + kOperations;  // No operation on blocks.
constexpr std::size_t kKeys = kOtherKey + 1;
constexpr std::size_t kPduKinds = 64;

bool is_pattern(const std::string& name) {
  return name.empty() || name.find_first_of("*?") != std::string::npos;
}

Stage stage_of(Fault fault) {
  switch (fault) {
    case Fault::kUnitAttention:
      return Stage::kAttention;
    case Fault::kCheck:
    case Fault::kUnitNotReady:
    case Fault::kAborted:
      return Stage::kStart;
    default:
      return Stage::kArrival;
  }
}

std::vector<std::size_t> keys_of(const Rule& rule) {
  std::vector<std::size_t> keys;
  if (of_pdus(rule.at)) {
    const std::uint64_t pdus = pdus_of(rule);
    if (~pdus == 0) return {kOtherKey};
    for (std::size_t i = 0; i < kPduKinds; ++i) {
      if ((pdus >> i & 1U) != 0) keys.push_back(i);
    }
    return keys;
  }
  if (!rule.opcodes.empty()) return {rule.opcodes.begin(), rule.opcodes.end()};
  for (std::size_t i = 0; i < kOperations; ++i) {
    const bool named = (rule.operations >> i & 1U) != 0;
    if (named || rule.operations == 0) keys.push_back(kOperationKeys + i);
  }
  if (rule.operations == 0) keys.push_back(kOtherKey);
  return keys;
}

std::size_t index_of(Stage stage, std::size_t key) {
  return static_cast<std::size_t>(stage) * kKeys + key;
}

}  // namespace

PathRule::PathRule(Rule taken, std::uint64_t order, std::uint64_t stream, TimePoint epoch)
    : rule(std::move(taken)),
      number(order),
      seed(stream),
      from(epoch + rule.from),
      until(rule.until.has_value() ? epoch + *rule.until : kNever),
      limit(firing_limit(rule)) {}

void RuleList::add(Pointer rule) {
  for (const std::size_t key : keys_of(rule->rule)) {
    lists_[index_of(stage_of(rule->rule.fault), key)].push_back(
        static_cast<std::uint32_t>(rules_.size()));
  }
  rules_.push_back(std::move(rule));
}

std::span<const std::uint32_t> RuleList::looking_at(Stage stage, std::size_t key) const {
  const auto found = lists_.find(index_of(stage, key));
  if (found == lists_.end()) return {};
  return found->second;
}

void PathRules::add(RuleList::Pointer rule) {
  const Place& at = rule->rule.at;
  RuleList& list =
      is_pattern(at.name) ? patterns_[static_cast<std::size_t>(at.kind)] : exact_[place_text(at)];
  list.add(std::move(rule));
}

const RuleList* PathRules::exact(const Place& place) const {
  const auto found = exact_.find(place_text(place));
  return found == exact_.end() ? nullptr : &found->second;
}

std::size_t key_of_opcode(std::uint8_t opcode) { return opcode; }

std::size_t key_of_operation(std::uint8_t operation) {
  if (operation == 0) return kOtherKey;
  return kOperationKeys + static_cast<std::size_t>(std::countr_zero(operation));
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : text) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3U;
  }
  return hash;
}

bool fits(std::string_view pattern, std::string_view name) {
  std::size_t at = 0;
  std::size_t here = 0;
  std::size_t star = std::string_view::npos;  // The last one, and the part of the name behind it.
  std::size_t behind = 0;
  while (here < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      behind = here;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[here])) {
      ++at;
      ++here;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      here = ++behind;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

}  // namespace sandbay::fault
