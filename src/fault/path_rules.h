// Rules at places between hosts and volumes, as every executor reads them.
//
// The engine makes a PathRules of the rules that exist, on its home; it does not change any more,
// so that posts share it without a lock. Atomic numbers of a rule alone change: whether it acts
// now, which the home writes and every executor reads, and its counters.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fault/rule.h"
#include "runtime/clock.h"

namespace sandbay::fault {

// When a site asks about a command: as it arrives, which is the only time for a PDU; before unit
// attentions are reported; and when none of the unit's own refusals comes before its handler.
// Beside these: a session is about to answer, a login has come, and a connection is to be accepted.
enum class Stage : std::uint8_t { kArrival, kAttention, kStart, kAnswer, kLogin, kConnect };

struct PathRule {
  PathRule(Rule taken, std::uint64_t order, std::uint64_t stream, TimePoint epoch);

  const Rule rule;
  const std::uint64_t number;  // In the order of adding.
  const std::uint64_t seed;  // Each site draws from a stream of its own, made of this and its name.
  const TimePoint from;
  const TimePoint until;
  const std::uint64_t limit;  // Firings, at all sites together; 0: without limit.

  // Written at home.
  std::atomic<bool> acts{false};        // It is enabled, its event has come, and its states hold.
  std::atomic<bool> gone{false};        // Cleared.
  std::atomic<std::uint32_t> ended{0};  // How often its effects were ended before their time.
  // Counted everywhere; see Counters.
  std::atomic<std::uint64_t> matched{0};
  std::atomic<std::uint64_t> fired{0};
  std::atomic<std::uint64_t> struck{0};
  std::atomic<std::uint64_t> spared{0};
};

// The keys of lists: a stage with an operation code of a command, or a PDU's; or, for rules
// that name no code, with an operation on blocks, by its bit, or none.
inline constexpr std::size_t kStages = 6;
inline constexpr std::size_t kKeys = kStages * (256 + 7);
std::size_t key_of_code(Stage stage, std::uint8_t code);
std::size_t key_of_operation(Stage stage, std::uint8_t operation);

// Rules with a place in common, by what they look at, each list in the order of adding.
class RuleList {
 public:
  using Pointer = std::shared_ptr<PathRule>;

  void add(Pointer rule);
  std::span<const Pointer> all() const noexcept { return rules_; }
  // Indices of all().
  std::span<const std::uint32_t> at(std::size_t key) const;
  const std::bitset<kKeys>& keys() const noexcept {
    return keys_;
  }  // Each has a list that is not empty.

 private:
  std::vector<Pointer> rules_;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> lists_;
  std::bitset<kKeys> keys_;
};

class PathRules {
 public:
  void add(RuleList::Pointer rule);  // In the order of their numbers.
  // Those that name this place and no pattern; null: none.
  const RuleList* exact(const Place& place) const;
  // Those that name all places of a kind, or some by a pattern.
  const RuleList& patterns(Place::Kind kind) const {
    return patterns_[static_cast<std::size_t>(kind)];
  }

 private:
  std::map<std::string, RuleList, std::less<>> exact_;  // By place_text().
  std::array<RuleList, kPlaceKinds> patterns_;
};

// The part of a stream that a name decides: FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t hash_of(std::string_view text);
// Whether a name fits a pattern with * and ?.
bool fits(std::string_view pattern, std::string_view name);

}  // namespace sandbay::fault
