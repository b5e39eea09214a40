// The rules at paths by the places that they name.
#include "fault/path_rules.h"

#include <bit>
#include <functional>

#include "fault/traits.h"
#include "runtime/wildcards.h"

namespace sandbay::fault {

namespace {

constexpr std::size_t kCodes = 256;
constexpr std::size_t kOperations = 6;
constexpr std::size_t kKeysOfStage = kCodes + kOperations + 1;  // The last: no operation.
static_assert(kKeys == kStages * kKeysOfStage);
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
    case Fault::kAluaState:
    case Fault::kSlow:
    case Fault::kLost:
      return Stage::kStart;
    case Fault::kResidual:
    case Fault::kAsync:
    case Fault::kWindowClose:
    case Fault::kR2tWithhold:
    case Fault::kR2tSmall:
    case Fault::kR2tDisorder:
    case Fault::kResponseDelay:
    case Fault::kResponseDrop:
    case Fault::kTmfReject:
    case Fault::kTmfSlow:
    case Fault::kTmfLie:
    case Fault::kNopIgnore:
      return Stage::kAnswer;
    case Fault::kLoginReject:
    case Fault::kLoginSlow:
    case Fault::kLoginStall:
    case Fault::kRedirect:
    case Fault::kNegoOdd:
    case Fault::kCounterNearWrap:
      return Stage::kLogin;
    case Fault::kBlackhole:
      return Stage::kConnect;
    default:
      return Stage::kArrival;
  }
}

std::vector<std::size_t> keys_of(const Rule& rule) {
  const Stage stage = stage_of(rule.fault);
  std::vector<std::size_t> keys;
  // A link that is down has no connections and refuses new ones.
  if (rule.fault == Fault::kFlap) {
    return {key_of_operation(stage, 0), key_of_operation(Stage::kConnect, 0)};
  }
  const std::uint64_t pdus = of_pdus(rule.at) ? pdus_of(rule) : 0;
  constexpr int kMostLists = 8;  // Of one rule; has_fit() looks at others.
  if (of_pdus(rule.at) && std::popcount(pdus) <= kMostLists) {
    for (std::uint8_t i = 0; i < kPduKinds; ++i) {
      if ((pdus >> i & 1U) != 0) keys.push_back(key_of_code(stage, i));
    }
    return keys;
  }
  if (of_pdus(rule.at)) return {key_of_operation(stage, 0)};
  for (const std::uint8_t opcode : rule.opcodes) keys.push_back(key_of_code(stage, opcode));
  if (!rule.opcodes.empty()) return keys;
  for (std::size_t i = 0; i < kOperations; ++i) {
    const auto operation = static_cast<std::uint8_t>(1U << i);
    if (rule.operations == 0 || (rule.operations & operation) != 0) {
      keys.push_back(key_of_operation(stage, operation));
    }
  }
  if (rule.operations == 0) keys.push_back(key_of_operation(stage, 0));
  return keys;
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
    lists_[key].push_back(static_cast<std::uint32_t>(rules_.size()));
    keys_.set(key);
  }
  rules_.push_back(std::move(rule));
}

std::span<const std::uint32_t> RuleList::at(std::size_t key) const {
  if (!keys_.test(key)) return {};
  return lists_.at(key);
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

std::size_t key_of_code(Stage stage, std::uint8_t code) {
  return static_cast<std::size_t>(stage) * kKeysOfStage + code;
}

std::size_t key_of_operation(Stage stage, std::uint8_t operation) {
  const std::size_t which =
      operation == 0 ? kOperations : static_cast<std::size_t>(std::countr_zero(operation));
  return static_cast<std::size_t>(stage) * kKeysOfStage + kCodes + which;
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
  return fits_wildcards(pattern, name, std::equal_to<>());
}

}  // namespace sandbay::fault
