// Free lists by multiples of 64 bytes, for large frames of 1024. The lists are plain data in
// thread-local storage, so the common path is a load and a store; a guard object made on the first
// miss empties them when the thread ends. Under sanitizers every block comes from the heap, so that
// they see its whole life.

#include "runtime/frame_pool.h"

#include <cassert>
#include <cstdint>
#include <new>

namespace sandbay {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANDBAY_PLAIN_FRAMES 1
#endif
#endif

#ifndef SANDBAY_PLAIN_FRAMES

constexpr std::size_t kStepBytes = 64;
constexpr std::size_t kLargeBytes = 4096;  // Above it there are fewer frames and wider steps.
constexpr std::size_t kLargeStepBytes = 1024;
constexpr std::size_t kSmallClassCount = kLargeBytes / kStepBytes + 1;
constexpr std::size_t kClassCount =
    kSmallClassCount + (kLargestPooledFrame - kLargeBytes) / kLargeStepBytes;
// One list keeps at most this, so that all lists of a thread together hold 120 MiB at the very
// most.
constexpr std::size_t kListBytes = std::size_t{1} << 20;
constexpr std::size_t kLargeListBytes = std::size_t{2} << 20;

struct FreeBlock {
  FreeBlock* next;
};

struct FreeList {
  FreeBlock* first;
  std::size_t room;  // Bytes that may still be kept.
};

enum class Life : std::uint8_t { kNew, kRunning, kEnded };

// Nothing is kept before the first miss, and after the thread's end.
constinit thread_local FreeList free_lists[kClassCount] = {};
constinit thread_local Life life = Life::kNew;

struct Guard {
  Guard() {
    for (std::size_t size_class = 0; size_class < kClassCount; ++size_class) {
      free_lists[size_class].room = size_class < kSmallClassCount ? kListBytes : kLargeListBytes;
    }
  }
  ~Guard() {
    life = Life::kEnded;
    for (FreeList& list : free_lists) {
      list.room = 0;
      while (list.first != nullptr) {
        FreeBlock* block = list.first;
        list.first = block->next;
        ::operator delete(block);
      }
    }
  }
};

[[gnu::noinline]] void* allocate_from_heap(std::size_t byte_count) {
  if (life == Life::kNew) {
    static thread_local Guard guard;
    life = Life::kRunning;
  }
  return ::operator new(byte_count);
}

constexpr std::size_t class_of(std::size_t byte_count) {
  if (byte_count <= kLargeBytes) return (byte_count + kStepBytes - 1) / kStepBytes;
  return kSmallClassCount + (byte_count - kLargeBytes - 1) / kLargeStepBytes;
}

// The size of the blocks of a class.
constexpr std::size_t bytes_of(std::size_t size_class) {
  if (size_class < kSmallClassCount) return size_class * kStepBytes;
  return kLargeBytes + (size_class - kSmallClassCount + 1) * kLargeStepBytes;
}

static_assert(class_of(kLargestPooledFrame) == kClassCount - 1);
static_assert(bytes_of(class_of(kLargestPooledFrame)) == kLargestPooledFrame);

#endif

}  // namespace

#ifdef SANDBAY_PLAIN_FRAMES

void* allocate_frame(std::size_t byte_count) { return ::operator new(byte_count); }
void free_frame(void* memory, std::size_t /*byte_count*/) noexcept { ::operator delete(memory); }

#else

void* allocate_frame(std::size_t byte_count) {
  if (byte_count > kLargestPooledFrame) return ::operator new(byte_count);
  const std::size_t size_class = class_of(byte_count);
  FreeList& list = free_lists[size_class];
  FreeBlock* block = list.first;
  if (block == nullptr) return allocate_from_heap(bytes_of(size_class));
  list.first = block->next;
  list.room += bytes_of(size_class);
  return block;
}

void free_frame(void* memory, std::size_t byte_count) noexcept {
  assert(memory != nullptr);
  if (byte_count > kLargestPooledFrame) {
    ::operator delete(memory);
    return;
  }
  const std::size_t size_class = class_of(byte_count);
  FreeList& list = free_lists[size_class];
  if (list.room < bytes_of(size_class)) {
    ::operator delete(memory);
    return;
  }
  list.first = new (memory) FreeBlock{list.first};
  list.room -= bytes_of(size_class);
}

#endif

}  // namespace sandbay
