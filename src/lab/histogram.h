// Histogram: counts of durations in log-linear buckets: each power of two is cut into 64 equal
// parts, so a quantile is off by less than 1.6 per cent. Recording is one increment.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sandbay::lab {

class Histogram {
 public:
  static constexpr unsigned kSubBits = 6;
  static constexpr std::uint64_t kSub = std::uint64_t{1} << kSubBits;
  static constexpr unsigned kLargestPower = 40;  // 2^40 ns: 18 minutes; longer ones count as that.
  static constexpr std::size_t kBuckets = (kLargestPower - kSubBits + 1) * kSub;

  void record(std::uint64_t nanoseconds) noexcept {
    ++buckets_[bucket_of(nanoseconds)];
    ++count_;
    sum_ += nanoseconds;
    largest_ = std::max(largest_, nanoseconds);
    smallest_ = std::min(smallest_, nanoseconds);
  }
  void add(const Histogram& other) noexcept;
  void clear() noexcept { *this = Histogram{}; }

  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t largest() const noexcept { return largest_; }
  std::uint64_t smallest() const noexcept { return count_ == 0 ? 0 : smallest_; }
  double mean() const noexcept {
    return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
  }
  // The value that `share` (0 … 1) of all do not exceed: the upper end of its bucket, never more
  // than largest(). 0 if nothing was recorded.
  std::uint64_t quantile(double share) const noexcept;

  static constexpr std::size_t bucket_of(std::uint64_t value) noexcept {
    if (value < kSub) return static_cast<std::size_t>(value);
    const unsigned power = static_cast<unsigned>(std::bit_width(value)) - 1;
    if (power >= kLargestPower) return kBuckets - 1;
    const std::uint64_t part = (value >> (power - kSubBits)) - kSub;
    return static_cast<std::size_t>((power - kSubBits + 1) * kSub + part);
  }
  // The largest value that falls into the bucket.
  static constexpr std::uint64_t upper_end(std::size_t bucket) noexcept {
    if (bucket < kSub) return bucket;
    const std::uint64_t power = bucket / kSub + kSubBits - 1;
    const std::uint64_t part = bucket % kSub;
    return ((kSub + part + 1) << (power - kSubBits)) - 1;
  }

 private:
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t largest_ = 0;
  std::uint64_t smallest_ = ~std::uint64_t{0};
};

}  // namespace sandbay::lab
