// Memory for coroutine frames and other small objects of the data path: free lists by size
// class, one set a thread, so that a command in the steady state allocates nothing from the heap.
//
// A block may be freed on another thread than the one that allocated it; it then joins that
// thread's list. Lists are bounded; the surplus goes back to the heap.
#pragma once

#include <cstddef>

namespace sandbay {

// The compiler puts the frames of coroutines that it inlines into the frame of their caller: a
// read of a RAID set takes 11 KiB. Coroutines that are seldom needed are [[gnu::noinline]].
inline constexpr std::size_t kLargestPooledFrame = 32768;

void* allocate_frame(std::size_t byte_count);
void free_frame(void* memory, std::size_t byte_count) noexcept;

// Base of small objects that come and go with every command.
struct FramePooled {
  static void* operator new(std::size_t byte_count) { return allocate_frame(byte_count); }
  static void operator delete(void* memory, std::size_t byte_count) noexcept {
    free_frame(memory, byte_count);
  }
};

}  // namespace sandbay
