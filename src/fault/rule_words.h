// The words of a rule: one row each, with how it is read, how it is written, and which faults know
// it. parse_rule() and print_rule() read this table and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fault/rule.h"

namespace sandbay::fault {

class FaultSet {
 public:
  constexpr FaultSet() = default;
  constexpr FaultSet(std::initializer_list<Fault> faults) {
    for (const Fault fault : faults) word_of(fault) |= bit_of(fault);
  }
  static constexpr FaultSet all() {
    FaultSet set;
    set.words_.fill(~std::uint64_t{0});
    return set;
  }
  constexpr bool has(Fault fault) const noexcept {
    return (words_[static_cast<std::size_t>(fault) / 64] & bit_of(fault)) != 0;
  }
  constexpr FaultSet operator|(const FaultSet& other) const {
    FaultSet both;
    for (std::size_t i = 0; i < words_.size(); ++i) both.words_[i] = words_[i] | other.words_[i];
    return both;
  }
  constexpr bool operator==(const FaultSet&) const = default;

 private:
  static constexpr std::uint64_t bit_of(Fault fault) {
    return std::uint64_t{1} << (static_cast<unsigned>(fault) % 64);
  }
  constexpr std::uint64_t& word_of(Fault fault) {
    return words_[static_cast<std::size_t>(fault) / 64];
  }
  std::array<std::uint64_t, (kFaultCount + 63) / 64> words_{};
};

inline constexpr FaultSet kEveryFault = FaultSet::all();

struct Word {
  std::string_view name;
  FaultSet faults;
  // Empty, or what would be accepted.
  std::string (*read)(Rule& rule, std::string_view value);
  // Empty where the rule has the default.
  std::string (*write)(const Rule& rule);

  bool knows(Fault fault) const noexcept { return faults.has(fault); }
};

std::span<const Word> rule_words();
// As pdu= writes it; others: "login", of which rules do not strike PDUs.
std::string_view pdu_name(std::uint8_t opcode);
// The mask has one bit an Operation.
std::vector<std::string_view> operation_names(std::uint8_t operations);

}  // namespace sandbay::fault
