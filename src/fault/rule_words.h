// The words of a rule: one row each, with how it is read, how it is written, and which faults know
// it. parse_rule() and print_rule() read this table and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fault/rule.h"

namespace sandbay::fault {

// One bit a fault.
using FaultSet = std::uint64_t;
inline constexpr FaultSet kEveryFault = ~FaultSet{0};
static_assert(kFaultCount <= 64);

struct Word {
  std::string_view name;
  FaultSet faults;
  // Empty, or what would be accepted.
  std::string (*read)(Rule& rule, std::string_view value);
  // Empty where the rule has the default.
  std::string (*write)(const Rule& rule);

  bool knows(Fault fault) const noexcept {
    return (faults >> static_cast<unsigned>(fault) & 1U) != 0;
  }
};

std::span<const Word> rule_words();
// The mask has one bit an Operation.
std::vector<std::string_view> operation_names(std::uint8_t operations);

}  // namespace sandbay::fault
