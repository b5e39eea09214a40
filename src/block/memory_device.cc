// MemoryDevice: blocks in sparse anonymous memory, and a bitmap of the pages that are mapped.
//
// What is not mapped is zero, because the system hands out zeroed pages and unmapping gives them
// back; so zeroing and unmapping never touch a page that is not mapped.
#include "block/memory_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/core.h>

namespace sandbay {

namespace {

constexpr std::size_t kPage = MemoryDevice::kPageBytes;
// How much one turn of the executor clears or gives back before others may run.
constexpr std::uint64_t kZeroStep = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnmapStep = std::uint64_t{64} << 20;
// Huge pages save address translation on random access (a tenth of a 4 KiB read, a third of a
// 64 KiB write, measured), but the first write to one takes 2 MiB: only for devices so small that
// having all of them resident harms nobody.
constexpr std::uint64_t kHugePagesUpTo = std::uint64_t{1} << 30;
constexpr std::uint64_t kLargest = std::uint64_t{1} << 46;  // Well inside an address space.

std::uint64_t page_count(std::uint64_t byte_count) { return (byte_count + kPage - 1) / kPage; }
std::size_t bitmap_bytes(std::uint64_t byte_count) {
  return (page_count(byte_count) + 63) / 64 * sizeof(std::uint64_t);
}

void* map_memory(std::size_t byte_count) {
  void* memory = mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void* remap_memory(void* memory, std::size_t old_bytes, std::size_t new_bytes) {
  void* moved = mremap(memory, old_bytes, new_bytes, MREMAP_MAYMOVE);
  return moved == MAP_FAILED ? nullptr : moved;
}

}  // namespace

std::expected<std::unique_ptr<MemoryDevice>, std::string> MemoryDevice::create(
    Executor& home, MemoryDeviceOptions options) {
  const std::string wrong = block_size_error(options.block_bytes, options.physical_block_bytes);
  if (!wrong.empty()) return std::unexpected("memory device: " + wrong);
  if (options.byte_count == 0 || options.byte_count % options.block_bytes != 0 ||
      options.byte_count > kLargest) {
    return std::unexpected(
        fmt::format("memory device: {} bytes; a multiple of the {}-byte block up to {} is possible",
                    options.byte_count, options.block_bytes, kLargest));
  }
  Geometry geometry{.block_bytes = options.block_bytes,
                    .physical_block_bytes = options.physical_block_bytes,
                    .block_count = options.byte_count / options.block_bytes,
                    .unmap = true,
                    .unmap_zeroes = true,
                    .unmap_granularity_blocks = std::uint32_t{kPage} / options.block_bytes,
                    .volatile_cache = false};
  std::unique_ptr<MemoryDevice> device(new MemoryDevice(home, geometry));
  device->memory_ = static_cast<std::byte*>(map_memory(options.byte_count));
  device->mapped_ = static_cast<std::uint64_t*>(map_memory(bitmap_bytes(options.byte_count)));
  if (device->memory_ == nullptr || device->mapped_ == nullptr) {
    return std::unexpected(
        fmt::format("memory device: the system refuses {} bytes of memory", options.byte_count));
  }
  // Where the system has no huge pages, small ones do.
  if (options.byte_count <= kHugePagesUpTo) {
    madvise(device->memory_, options.byte_count, MADV_HUGEPAGE);
  }
  return device;
}

MemoryDevice::~MemoryDevice() {
  if (memory_ != nullptr) munmap(memory_, byte_count());
  if (mapped_ != nullptr) munmap(mapped_, bitmap_bytes(byte_count()));
}

std::string MemoryDevice::description() const {
  const std::uint64_t bytes = byte_count();
  if (bytes % (1U << 20U) == 0) return fmt::format("memory {} MiB", bytes >> 20U);
  return fmt::format("memory {} bytes", bytes);
}

Error MemoryDevice::grow(std::uint64_t new_bytes) {
  const std::uint64_t old_bytes = byte_count();
  if (new_bytes < old_bytes || new_bytes > kLargest || new_bytes % geometry_.block_bytes != 0) {
    return Error::kInvalid;
  }
  if (new_bytes == old_bytes) return Error::kNone;
  // The bitmap first: if the memory is then refused, a bitmap that is too large harms nothing.
  void* bitmap = remap_memory(mapped_, bitmap_bytes(old_bytes), bitmap_bytes(new_bytes));
  if (bitmap == nullptr) return Error::kNoMemory;
  mapped_ = static_cast<std::uint64_t*>(bitmap);
  void* memory = remap_memory(memory_, old_bytes, new_bytes);
  if (memory == nullptr) {
    bitmap = remap_memory(mapped_, bitmap_bytes(new_bytes), bitmap_bytes(old_bytes));
    assert(bitmap == mapped_);  // Shrinking never moves.
    return Error::kNoMemory;
  }
  memory_ = static_cast<std::byte*>(memory);
  geometry_.block_count = new_bytes / geometry_.block_bytes;
  return Error::kNone;
}

Task<Completion> MemoryDevice::submit(Request request) {
  assert(fits(geometry_, request));
  const std::uint64_t first_byte = request.extent.first * geometry_.block_bytes;
  const std::uint64_t length = request.extent.byte_count(geometry_.block_bytes);
  switch (request.operation) {
    case Operation::kRead:
      request.data.copy_from({memory_ + first_byte, length});
      break;
    case Operation::kWrite:
      request.data.copy_to({memory_ + first_byte, length});
      mark_mapped(first_byte, length);
      break;
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      co_return co_await zero_or_unmap(std::move(request));
    case Operation::kFlush:
    case Operation::kAdvise:
      break;
  }
  co_return Completion{.data = std::move(request.data)};
}

Task<Completion> MemoryDevice::zero_or_unmap(Request request) {
  const bool unmap = request.operation == Operation::kUnmap;
  const std::uint64_t step = unmap ? kUnmapStep : kZeroStep;
  std::uint64_t first_byte = request.extent.first * geometry_.block_bytes;
  const std::uint64_t end_byte = request.extent.end() * geometry_.block_bytes;
  Error error = Error::kNone;
  while (first_byte < end_byte) {
    // Steps end at multiples of themselves, so that whole pages stay whole.
    const std::uint64_t step_end = std::min(end_byte, first_byte / step * step + step);
    if (unmap) {
      unmap_bytes(first_byte, step_end - first_byte);
    } else {
      zero_bytes(first_byte, step_end - first_byte);
    }
    first_byte = step_end;
    if (first_byte == end_byte) break;
    co_await home_.yield();
    if (request.cancellation != nullptr && request.cancellation->cancelled()) {
      error = Error::kCancelled;
      break;
    }
  }
  co_return Completion{.error = error, .data = std::move(request.data)};
}

Task<Result<ProvisioningRun>> MemoryDevice::provisioning(Lba first, Lba limit) {
  assert(first < limit && limit <= geometry_.block_count);
  const std::uint64_t first_byte = first * geometry_.block_bytes;
  const std::uint64_t limit_byte = limit * geometry_.block_bytes;
  const std::uint64_t page = first_byte / kPage;
  const std::uint64_t end = end_of_run(page, page_count(limit_byte));
  const std::uint64_t end_byte = std::min(end * kPage, limit_byte);
  co_return ProvisioningRun{.block_count = (end_byte - first_byte) / geometry_.block_bytes,
                            .mapped = page_mapped(page)};
}

bool MemoryDevice::page_mapped(std::uint64_t page) const noexcept {
  return (mapped_[page / 64] >> (page % 64) & 1U) != 0;
}

// The first page at or after `page` whose state differs from that of `page`, or `limit_page`.
std::uint64_t MemoryDevice::end_of_run(std::uint64_t page,
                                       std::uint64_t limit_page) const noexcept {
  const std::uint64_t same = page_mapped(page) ? ~std::uint64_t{0} : 0;
  while (page < limit_page) {
    const std::uint64_t different = (mapped_[page / 64] ^ same) >> (page % 64);
    if (different != 0) {
      return std::min(limit_page, page + static_cast<std::uint64_t>(std::countr_zero(different)));
    }
    page = (page / 64 + 1) * 64;
  }
  return limit_page;
}

void MemoryDevice::mark_mapped(std::uint64_t first_byte, std::uint64_t byte_count) noexcept {
  if (byte_count == 0) return;
  std::uint64_t page = first_byte / kPage;
  const std::uint64_t end_page = page_count(first_byte + byte_count);
  while (page < end_page) {
    const std::uint64_t first_bit = page % 64;
    const std::uint64_t bits = std::min<std::uint64_t>(64 - first_bit, end_page - page);
    const std::uint64_t mask = (~std::uint64_t{0} >> (64 - bits)) << first_bit;
    std::uint64_t& word = mapped_[page / 64];
    // Looked at first: in the steady state nothing changes and the line stays clean.
    if ((word & mask) != mask) word |= mask;
    page += bits;
  }
}

void MemoryDevice::release_pages(std::uint64_t first_page, std::uint64_t end_page) noexcept {
  const std::size_t length = std::min(end_page * kPage, byte_count()) - first_page * kPage;
  std::byte* memory = memory_ + first_page * kPage;
  // Memory that is locked cannot be given back; then only its content goes.
  if (madvise(memory, length, MADV_DONTNEED) != 0) std::memset(memory, 0, length);
  for (std::uint64_t page = first_page; page < end_page;) {
    if (page % 64 == 0 && end_page - page >= 64) {
      mapped_[page / 64] = 0;
      page += 64;
    } else {
      mapped_[page / 64] &= ~(std::uint64_t{1} << (page % 64));
      ++page;
    }
  }
}

void MemoryDevice::unmap_bytes(std::uint64_t first_byte, std::uint64_t length) noexcept {
  const std::uint64_t end_byte = first_byte + length;
  const std::uint64_t first_page = page_count(first_byte);
  // The last page of the device is whole even if the device ends within it.
  const std::uint64_t end_page = end_byte == byte_count() ? page_count(end_byte) : end_byte / kPage;
  if (first_page > end_page || first_page * kPage > end_byte) {  // All within one page.
    if (page_mapped(first_byte / kPage)) std::memset(memory_ + first_byte, 0, length);
    return;
  }
  const std::uint64_t head = first_page * kPage - first_byte;
  if (head > 0 && page_mapped(first_byte / kPage)) std::memset(memory_ + first_byte, 0, head);
  if (end_page * kPage < end_byte && page_mapped(end_page)) {
    std::memset(memory_ + end_page * kPage, 0, end_byte - end_page * kPage);
  }
  for (std::uint64_t page = first_page; page < end_page;) {
    const std::uint64_t run_end = end_of_run(page, end_page);
    if (page_mapped(page)) release_pages(page, run_end);
    page = run_end;
  }
}

void MemoryDevice::zero_bytes(std::uint64_t first_byte, std::uint64_t length) noexcept {
  const std::uint64_t end_byte = first_byte + length;
  // What is not mapped is zero already; touching it would only make it cost memory.
  for (std::uint64_t at = first_byte; at < end_byte;) {
    const std::uint64_t page = at / kPage;
    const std::uint64_t run_end =
        std::min(end_byte, end_of_run(page, page_count(end_byte)) * kPage);
    if (page_mapped(page)) std::memset(memory_ + at, 0, run_end - at);
    at = run_end;
  }
  mark_mapped(first_byte, length);
}

}  // namespace sandbay
