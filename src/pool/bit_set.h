// BitSet: a row of bits of a size known at run time, by words. Bits behind the end are zero.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sandbay::pool {

class BitSet {
 public:
  BitSet() = default;
  explicit BitSet(std::uint32_t size) : words_((size + 63U) / 64U), size_(size) {}

  std::uint32_t size() const noexcept { return size_; }
  void grow(std::uint32_t size) {
    assert(size >= size_);
    words_.resize((size + 63U) / 64U);
    size_ = size;
  }
  bool test(std::uint32_t index) const noexcept {
    assert(index < size_);
    return (words_[index / 64] >> (index % 64) & 1U) != 0;
  }
  void set(std::uint32_t index) noexcept {
    assert(index < size_);
    words_[index / 64] |= std::uint64_t{1} << (index % 64);
  }
  void reset(std::uint32_t index) noexcept {
    assert(index < size_);
    words_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }
  void assign(std::uint32_t first, std::uint32_t count, bool value) noexcept {
    assert(first <= size_ && count <= size_ - first);
    for (std::uint32_t at = first; at < first + count;) {
      const std::uint32_t bits = std::min(first + count - at, 64 - at % 64);
      const std::uint64_t mask = (~std::uint64_t{0} >> (64 - bits)) << (at % 64);
      if (value) {
        words_[at / 64] |= mask;
      } else {
        words_[at / 64] &= ~mask;
      }
      at += bits;
    }
  }
  // The first bit at or behind `from` that is `value`, or size().
  std::uint32_t find(std::uint32_t from, bool value) const noexcept {
    return find(from, value, size_);
  }
  // The same before `end`, or `end`; the search stops there.
  std::uint32_t find(std::uint32_t from, bool value, std::uint32_t end) const noexcept {
    assert(end <= size_);
    if (from >= end) return end;
    const std::size_t words = (end + std::size_t{63}) / 64;
    const std::uint64_t flip = value ? 0 : ~std::uint64_t{0};
    std::size_t word = from / 64;
    std::uint64_t bits = (words_[word] ^ flip) & (~std::uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (++word == words) return end;
      bits = words_[word] ^ flip;
    }
    const auto at =
        static_cast<std::uint32_t>(word * 64) + static_cast<std::uint32_t>(std::countr_zero(bits));
    return std::min(at, end);
  }
  std::uint32_t count() const noexcept {
    std::uint32_t ones = 0;
    for (const std::uint64_t word : words_) ones += static_cast<std::uint32_t>(std::popcount(word));
    return ones;
  }
  bool operator==(const BitSet&) const = default;

  std::vector<std::uint64_t>& words() noexcept { return words_; }
  const std::vector<std::uint64_t>& words() const noexcept { return words_; }
  // Whether no bit behind the end is set: of words that came from outside.
  bool proper() const noexcept {
    return size_ % 64 == 0 || words_.empty() || words_.back() >> (size_ % 64) == 0;
  }

 private:
  std::vector<std::uint64_t> words_;
  std::uint32_t size_ = 0;
};

}  // namespace sandbay::pool
