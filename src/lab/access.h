// Access specifications: what a worker asks for, after IOMeter's model, and the pattern of requests
// that comes of one. Pure.
//
// A specification has lines. Each request takes one of them, drawn by their shares; the line says
// how large it is, whether it is a read and whether it goes to a random place, each drawn as well.
// A request that is not random begins where the one before it ended and goes round at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/random.h"

namespace sandbay::lab {

inline constexpr std::uint32_t kAccessSectorBytes = 512;
inline constexpr std::uint64_t kMostAccessBytes = std::uint64_t{16} << 20;

struct AccessLine {
  std::uint64_t bytes = 4096;  // A multiple of a sector.
  std::uint32_t share_percent = 100;
  std::uint32_t read_percent = 100;
  std::uint32_t random_percent = 0;
  Duration delay{};               // Before a burst.
  std::uint32_t burst = 1;        // Requests that are made without a delay.
  std::uint64_t align_bytes = 0;  // Of random places; 0: any sector.
  bool operator==(const AccessLine&) const = default;
};

struct AccessSpecification {
  std::string name;
  std::vector<AccessLine> lines;

  std::uint64_t largest() const;  // Of the requests, in bytes. There are lines.
  bool writes() const;            // At least sometimes.
  bool operator==(const AccessSpecification&) const = default;
};

// Why there can be no such line, in half a sentence, or an empty text.
std::string access_error(const AccessLine& line);
// The shares of the lines are 100 together.
std::string access_error(const AccessSpecification& specification);

struct Access {
  std::uint64_t offset = 0;  // Bytes.
  std::uint64_t bytes = 0;
  bool read = true;
  Duration delay{};  // Before it is made.
};

class AccessPattern {
 public:
  // Borrows the specification, which is valid. The part [first, first + span) of a target is used;
  // it is at least as long as the largest request.
  AccessPattern(const AccessSpecification& specification, std::uint64_t first_byte,
                std::uint64_t span_bytes, std::uint64_t seed);

  Access next();

 private:
  const AccessLine& draw_line();
  std::uint64_t random_offset(const AccessLine& line);

  const AccessSpecification& specification_;
  std::uint64_t first_;
  std::uint64_t span_;
  std::uint64_t position_ = 0;  // Where the next sequential request begins, within the part.
  std::uint32_t in_burst_ = 0;
  Random random_;
};

// Steps as IOMeter cycles through them.
struct Cycle {
  enum class Step : std::uint8_t { kLinear, kExponential };
  std::uint32_t start = 1;
  std::uint32_t end = 1;
  std::uint32_t step = 1;
  Step type = Step::kLinear;
  bool operator==(const Cycle&) const = default;
};
std::string cycle_error(const Cycle& cycle);
// From the start to the end, which is the last one even if no step falls on it.
std::vector<std::uint32_t> steps_of(const Cycle& cycle);

}  // namespace sandbay::lab
