// Memory that the system backs with huge pages of 2 MiB where it can: for payloads, and for tables
// that are looked up all over, whose translations would miss otherwise.
#pragma once

#include <cstddef>

namespace sandbay {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

enum class Access : bool { kNone, kReadWrite };  // kNone: address space alone.

// Zeros, on a boundary of kHugePageBytes; null if there is no memory. Less than one huge page
// stands in ordinary ones.
std::byte* map_huge_pages(std::size_t byte_count, Access access = Access::kReadWrite) noexcept;
void unmap_huge_pages(std::byte* memory, std::size_t byte_count) noexcept;

}  // namespace sandbay
