// Rules at places between hosts and volumes, as every executor reads them: LUNs so far.
//
// The engine makes a PathRules of the rules there are, on its home; it does not change any more, so
// that posts share it without a lock. Atomic numbers of a rule alone change: whether it acts now,
// which the home writes and every executor reads, and its counters.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fault/rule.h"
#include "runtime/clock.h"

namespace sandbay::fault {

inline constexpr std::size_t kOpcodes = 256;

struct PathRule {
  PathRule(Rule taken, std::uint64_t order, std::uint64_t stream, TimePoint epoch);

  const Rule rule;
  const std::uint64_t number;  // In the order of adding.
  const std::uint64_t
      seed;  // Each place draws from a stream of its own, made of this and its name.
  const TimePoint from;
  const TimePoint until;
  const std::uint64_t limit;            // Firings at each place; 0: without limit.
  const std::bitset<kOpcodes> opcodes;  // Commands that it looks at.

  // Written at home.
  std::atomic<bool> acts{false};        // It is enabled, its event has come, and its states hold.
  std::atomic<std::uint32_t> ended{0};  // How often what lasts of it was ended before its time.
  // Counted everywhere; see Counters.
  std::atomic<std::uint64_t> matched{0};
  std::atomic<std::uint64_t> fired{0};
  std::atomic<std::uint64_t> struck{0};
};

class PathRules {
 public:
  using Pointer = std::shared_ptr<PathRule>;

  void add(Pointer rule);  // In the order of their numbers.
  bool empty() const noexcept { return exact_.empty() && patterns_.empty(); }
  // Those that concern a place, in that order.
  std::vector<Pointer> at(const Place& place) const;
  // How many rules at() compares with each name.
  std::size_t pattern_count() const noexcept { return patterns_.size(); }

 private:
  std::map<std::string, std::vector<Pointer>, std::less<>> exact_;  // By place_text().
  std::vector<Pointer> patterns_;
};

// The part of a stream that a name decides: FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t hash_of(std::string_view text);
// Whether a name fits a pattern with * and ?.
bool fits(const std::string& pattern, std::string_view name);

}  // namespace sandbay::fault
