// PinnedLines: the lines of an extent, held so that they stay where they are while their owner
// waits. It stands in a coroutine's frame.
#pragma once

#include <array>

#include "cache/cached_device.h"

namespace sandbay::cache {

class PinnedLines {
 public:
  // An extent of at most kMostFetchBytes may begin and end within lines.
  static constexpr std::size_t kMost = kMostFetchBytes / kLineBytes + 1;

  PinnedLines(CachedDevice& device, const Extent& extent, Hint hint) noexcept
      : device_(device), extent_(extent), hint_(hint) {}
  ~PinnedLines() {
    for (std::size_t i = 0; i < count_; ++i) device_.cache().unpin(*lines_[i], hint_);
  }
  PinnedLines(const PinnedLines&) = delete;
  PinnedLines& operator=(const PinnedLines&) = delete;

  // Finds or makes them; false if not all of them can be had. `always`: beyond their limit.
  bool obtain(bool always = false) {
    assert(count_ == 0 && extent_.block_count > 0);
    for (std::uint64_t number = device_.line_of(extent_.first);
         number <= device_.line_of(extent_.end() - 1); ++number) {
      assert(count_ < kMost);
      Line* const line = device_.obtain_line(number, always);
      if (line == nullptr) return false;
      device_.cache().pin(*line);
      lines_[count_++] = line;
    }
    return true;
  }

  std::size_t size() const noexcept { return count_; }
  Line& operator[](std::size_t index) const noexcept {
    assert(index < count_);
    return *lines_[index];
  }
  Range range(std::size_t index) const noexcept {
    return device_.range_in((*this)[index].number, extent_);
  }

 private:
  CachedDevice& device_;
  Extent extent_;
  Hint hint_;
  std::array<Line*, kMost> lines_;
  std::size_t count_ = 0;
};

}  // namespace sandbay::cache
