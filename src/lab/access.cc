// Access specifications and the requests that come of them.
#include "lab/access.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

namespace sandbay::lab {

std::string access_error(const AccessLine& line) {
  if (line.bytes == 0 || line.bytes % kAccessSectorBytes != 0 || line.bytes > kMostAccessBytes) {
    return fmt::format("a size of {} bytes; a multiple of {} up to {} is accepted", line.bytes,
                       kAccessSectorBytes, kMostAccessBytes);
  }
  const struct {
    const char* name;
    std::uint32_t value;
  } shares[] = {
      {"size", line.share_percent}, {"reads", line.read_percent}, {"random", line.random_percent}};
  for (const auto& [name, value] : shares) {
    if (value > 100) return fmt::format("{} % of {}; 0 to 100 is accepted", value, name);
  }
  if (line.burst == 0) return "a burst of 0; at least 1 is accepted";
  if (line.align_bytes % kAccessSectorBytes != 0) {
    return fmt::format("an alignment of {} bytes; a multiple of {} is accepted", line.align_bytes,
                       kAccessSectorBytes);
  }
  if (line.align_bytes > kMostAccessBytes) {
    return fmt::format("an alignment of {} bytes; at most {} is accepted", line.align_bytes,
                       kMostAccessBytes);
  }
  return {};
}

std::string access_error(const AccessSpecification& specification) {
  std::uint64_t sum = 0;
  for (const AccessLine& line : specification.lines) {
    std::string wrong = access_error(line);
    if (!wrong.empty()) return wrong;
    sum += line.share_percent;
  }
  if (specification.lines.empty()) return "no line; at least one is needed";
  if (sum != 100) return fmt::format("shares of {} % together; they must be 100", sum);
  return {};
}

std::uint64_t AccessSpecification::largest() const {
  return std::ranges::max(lines, {}, &AccessLine::bytes).bytes;
}

bool AccessSpecification::writes() const {
  return std::ranges::any_of(lines, [](const AccessLine& line) { return line.read_percent < 100; });
}

AccessPattern::AccessPattern(const AccessSpecification& specification, std::uint64_t first_byte,
                             std::uint64_t span_bytes, std::uint64_t seed)
    : specification_(specification), first_(first_byte), span_(span_bytes), random_(seed) {
  assert(!specification.lines.empty());
  for ([[maybe_unused]] const AccessLine& line : specification.lines) assert(line.bytes <= span_);
}

Access AccessPattern::next() {
  const AccessLine& line = draw_line();
  Access access{.bytes = line.bytes, .read = random_.below(100) < line.read_percent};
  if (in_burst_ >= line.burst) in_burst_ = 0;
  if (in_burst_++ == 0) access.delay = line.delay;
  std::uint64_t at = position_;
  if (random_.below(100) < line.random_percent) {
    at = random_offset(line);
  } else if (at + line.bytes > span_) {
    at = 0;
  }
  position_ = at + line.bytes;
  access.offset = first_ + at;
  return access;
}

const AccessLine& AccessPattern::draw_line() {
  if (specification_.lines.size() == 1) return specification_.lines.front();
  std::uint64_t drawn = random_.below(100);
  for (const AccessLine& line : specification_.lines) {
    if (drawn < line.share_percent) return line;
    drawn -= line.share_percent;
  }
  return specification_.lines.back();
}

std::uint64_t AccessPattern::random_offset(const AccessLine& line) {
  const std::uint64_t align = std::max<std::uint64_t>(line.align_bytes, kAccessSectorBytes);
  return random_.below((span_ - line.bytes) / align + 1) * align;
}

std::string cycle_error(const Cycle& cycle) {
  if (cycle.start == 0) return "a start of 0; at least 1 is accepted";
  if (cycle.end < cycle.start) {
    return fmt::format("an end of {} before the start of {}", cycle.end, cycle.start);
  }
  const std::uint32_t least = cycle.type == Cycle::Step::kExponential ? 2 : 1;
  if (cycle.step < least) {
    return fmt::format("a step of {}; at least {} is accepted", cycle.step, least);
  }
  return {};
}

std::vector<std::uint32_t> steps_of(const Cycle& cycle) {
  assert(cycle_error(cycle).empty());
  std::vector<std::uint32_t> steps;
  for (std::uint64_t at = cycle.start; at < cycle.end;
       at = cycle.type == Cycle::Step::kLinear ? at + cycle.step : at * cycle.step) {
    steps.push_back(static_cast<std::uint32_t>(at));
  }
  steps.push_back(cycle.end);
  return steps;
}

}  // namespace sandbay::lab
