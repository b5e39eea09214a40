// Contents that nobody mixes up: eight bytes a draw, since tests write many of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/random.h"

namespace sandbay::testing {

inline void fill_random(std::span<std::byte> bytes, Random& random) {
  while (!bytes.empty()) {
    const std::uint64_t drawn = random.next();
    const std::size_t count = bytes.size() < sizeof drawn ? bytes.size() : sizeof drawn;
    std::memcpy(bytes.data(), &drawn, count);
    bytes = bytes.subspan(count);
  }
}

}  // namespace sandbay::testing
