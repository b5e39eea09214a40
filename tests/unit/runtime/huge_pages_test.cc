// Memory of any length, on its boundary, zeroed, and given back.
#include "runtime/huge_pages.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <span>

namespace sandbay::testing {

TEST_CASE("Huge pages are zeros on a boundary, of any length", "[huge_pages]") {
  for (const std::size_t byte_count : {std::size_t{1}, std::size_t{4096}, kHugePageBytes - 1,
                                       kHugePageBytes, 3 * kHugePageBytes + 5}) {
    CAPTURE(byte_count);
    std::byte* const memory = map_huge_pages(byte_count);
    REQUIRE(memory != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % kHugePageBytes == 0);
    const std::span<std::byte> bytes(memory, byte_count);
    CHECK(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    std::ranges::fill(bytes, std::byte{0xA5});
    unmap_huge_pages(memory, byte_count);
  }
}

TEST_CASE("Memory that there is not is refused", "[huge_pages]") {
  CHECK(map_huge_pages(std::size_t{1} << 62) == nullptr);
}

}  // namespace sandbay::testing
