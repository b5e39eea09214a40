// FrameVector: a std::vector whose memory comes from the frame pool, for lists that live as long as
// an operation. In the steady state it costs no allocation from the heap, as long as it is within
// kLargestPooledFrame; a larger one is an ordinary allocation.
//
// It is freed on the thread that frees it, like a frame: any thread will do, its own is best.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <vector>

#include "runtime/frame_pool.h"

namespace sandbay {

template <class T>
struct FrameAllocator {
  using value_type = T;
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  FrameAllocator() = default;
  template <class Other>
  FrameAllocator(const FrameAllocator<Other>& /*other*/) noexcept {}  // NOLINT: as allocators do.

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_frame(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { free_frame(memory, count * sizeof(T)); }
  bool operator==(const FrameAllocator&) const = default;
};

template <class T>
using FrameVector = std::vector<T, FrameAllocator<T>>;
template <class T>
using FrameSet = std::set<T, std::less<T>, FrameAllocator<T>>;

}  // namespace sandbay
