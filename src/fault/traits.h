// What is known of each fault before any rule: its name, where it may be placed, what it strikes
// and how it lasts. One table, which parser, engine and layer read.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fault/rule.h"

namespace sandbay::fault {

enum class Manner : std::uint8_t {
  kStrike,   // Changes the operation that matched, and with for= all that match until then.
  kLasting,  // Changes the drive from then on: until for=, until= or the rule ends.
  kInstant,  // Happens and is over; what it damaged stays.
};

inline constexpr std::uint8_t bit(Operation operation) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(operation));
}
inline constexpr std::uint8_t bit(Origin origin) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(origin));
}
inline constexpr std::uint16_t bit(Place::Kind kind) {
  return static_cast<std::uint16_t>(1U << static_cast<unsigned>(kind));
}
inline constexpr std::uint8_t kEveryOperation = 0x3f;
inline constexpr std::uint8_t kEveryOrigin = 0x7f;

std::string_view describe(Manner manner);  // "strike", "lasting", "instant"

struct Traits {
  Fault fault;
  std::string_view name;
  Manner manner;
  std::uint16_t places;     // Bits of Place::Kind.
  std::uint8_t operations;  // Bits of the operations that it can strike.
  std::string_view about;   // Sentences for a manual; WORD= and WORD=VALUE are words of a rule.
};

std::span<const Traits> all_traits();
const Traits& traits(Fault fault);

// The values of how=, by fault; a fault's first one holds where a rule has none.
struct WayRow {
  std::string_view name;
  Way way;
  Fault fault;
};
std::span<const WayRow> all_ways();
Way way_of(const Rule& rule);
std::uint64_t bytes_of(const Rule& rule);

// The rule's fault may depend on its parameters: flip on the way is a strike, at rest is not.
Manner manner(const Rule& rule);
// The operations that the rule looks at and its fault can strike.
std::uint8_t struck_operations(const Rule& rule);
// At connections: bits of the opcodes of PDUs that the rule looks at.
std::uint64_t pdus_of(const Rule& rule);
// lba= says where the damage goes, not only which operations match.
bool has_area(const Rule& rule);
// How often the rule fires at most; 0: without limit.
std::uint64_t firing_limit(const Rule& rule);

}  // namespace sandbay::fault
