// Pooled frames: usable memory of every size, reuse on a thread, freeing on another.
#include "runtime/frame_pool.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace sandbay {
namespace {

TEST_CASE("Frames of all sizes are distinct, aligned and usable", "[frame_pool]") {
  std::vector<std::pair<unsigned char*, std::size_t>> frames;
  for (std::size_t size = 1; size <= kLargestPooledFrame + 200; size += 37) {
    for (int i = 0; i < 4; ++i) {
      auto* const memory = static_cast<unsigned char*>(allocate_frame(size));
      REQUIRE(memory != nullptr);
      REQUIRE(reinterpret_cast<std::uintptr_t>(memory) % alignof(std::max_align_t) == 0);
      std::memset(memory, static_cast<int>(frames.size() % 251), size);
      frames.emplace_back(memory, size);
    }
  }
  // Nobody's bytes were overwritten by a neighbour.
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const auto [memory, size] = frames[i];
    REQUIRE(memory[0] == i % 251);
    REQUIRE(memory[size - 1] == i % 251);
    free_frame(memory, size);
  }
}

#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
TEST_CASE("A freed frame serves the next of its size class", "[frame_pool]") {
  for (const std::size_t size : {std::size_t{64}, std::size_t{1000}, kLargestPooledFrame}) {
    void* const first = allocate_frame(size);
    free_frame(first, size);
    void* const second = allocate_frame(size - 1);
    REQUIRE(second == first);
    free_frame(second, size - 1);
  }
}

TEST_CASE("In the steady state no frame comes from the heap", "[frame_pool]") {
  std::set<void*> seen;
  for (int round = 0; round < 1000; ++round) {
    void* frames[8];
    for (void*& frame : frames) {
      frame = allocate_frame(320);
      seen.insert(frame);
    }
    for (void* frame : frames) free_frame(frame, 320);
  }
  REQUIRE(seen.size() == 8);
}
#endif

TEST_CASE("A frame may be freed on another thread", "[frame_pool]") {
  std::vector<void*> frames;
  for (int i = 0; i < 1000; ++i) frames.push_back(allocate_frame(256));
  std::thread other([&] {
    for (void* frame : frames) free_frame(frame, 256);
    // They now belong to this thread, until it ends.
    void* const again = allocate_frame(256);
    std::memset(again, 1, 256);
    free_frame(again, 256);
  });
  other.join();
}

struct Small : FramePooled {
  explicit Small(int number) : value(number) {}
  int value;
};

TEST_CASE("Small objects come from the pool", "[frame_pool]") {
  auto* const object = new Small(5);
  REQUIRE(object->value == 5);
  delete object;
}

}  // namespace
}  // namespace sandbay
