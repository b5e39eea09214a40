// Mapped with a piece more, of which what is not needed goes back.
#include "runtime/huge_pages.h"

#include <sys/mman.h>

#include <cassert>
#include <cstdint>

namespace sandbay {
namespace {

std::size_t whole_pages(std::size_t byte_count) {
  constexpr std::size_t kPage = std::size_t{64} << 10;  // As large as ordinary ones may be.
  return (byte_count + kPage - 1) / kPage * kPage;
}

}  // namespace

std::byte* map_huge_pages(std::size_t byte_count, Access access) noexcept {
  assert(byte_count > 0);
  const int protection = access == Access::kNone ? PROT_NONE : PROT_READ | PROT_WRITE;
  const std::size_t needed = whole_pages(byte_count);
  const std::size_t more = needed + kHugePageBytes;
  void* const mapped = ::mmap(nullptr, more, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t before =
      (kHugePageBytes - reinterpret_cast<std::uintptr_t>(start) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(start, before);
  ::munmap(start + before + needed, kHugePageBytes - before);
  if (access == Access::kReadWrite && needed >= kHugePageBytes) {
    ::madvise(start + before, needed, MADV_HUGEPAGE);
  }
  return start + before;
}

void unmap_huge_pages(std::byte* memory, std::size_t byte_count) noexcept {
  ::munmap(memory, whole_pages(byte_count));
}

}  // namespace sandbay
