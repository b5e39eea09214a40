// Seeds of simulation tests.
#include "seeds.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace sandbay::simtest {

SeedRange seeds(std::uint64_t usual) {
  SeedRange range{.first = 1, .count = usual};
  const char* given = std::getenv("SANDBAY_SEEDS");
  if (given == nullptr) return range;
  const std::string_view text = given;
  const auto colon = text.find(':');
  const std::string_view first = text.substr(0, colon);
  std::from_chars(first.data(), first.data() + first.size(), range.first);
  range.count = 1;
  if (colon != std::string_view::npos) {
    const std::string_view count = text.substr(colon + 1);
    std::from_chars(count.data(), count.data() + count.size(), range.count);
  }
  return range;
}

std::uint64_t run_seeds(const char* name, std::uint64_t usual,
                        const std::function<std::string(std::uint64_t seed)>& once) {
  const SeedRange range = seeds(usual);
  fmt::print("{}: seeds {} to {}\n", name, range.first, range.first + range.count - 1);
  std::uint64_t failures = 0;
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const std::string wrong = once(seed);
    if (wrong.empty()) continue;
    ++failures;
    fmt::print("{}: seed {}: {}; again with SANDBAY_SEEDS={}:1\n", name, seed, wrong, seed);
  }
  std::fflush(stdout);
  return failures;
}

}  // namespace sandbay::simtest
