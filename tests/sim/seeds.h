// Which seeds a simulation test runs: SANDBAY_SEEDS=first:count, or `usual` ones from 1 on. A seed
// that fails is printed with the way to run it alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sandbay::simtest {

struct SeedRange {
  std::uint64_t first = 1;
  std::uint64_t count = 0;
};
SeedRange seeds(std::uint64_t usual);

// Runs `once` for every seed, which says what went wrong (empty: nothing), and prints failures. The
// number of seeds that failed.
std::uint64_t run_seeds(const char* name, std::uint64_t usual,
                        const std::function<std::string(std::uint64_t seed)>& once);

}  // namespace sandbay::simtest
