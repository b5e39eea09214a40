// Log-linear histogram: merging and quantiles.
#include "lab/histogram.h"

#include <cmath>

namespace sandbay::lab {

void Histogram::add(const Histogram& other) noexcept {
  for (std::size_t index = 0; index < kBuckets; ++index) buckets_[index] += other.buckets_[index];
  count_ += other.count_;
  sum_ += other.sum_;
  largest_ = std::max(largest_, other.largest_);
  smallest_ = std::min(smallest_, other.smallest_);
}

std::uint64_t Histogram::quantile(double share) const noexcept {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(count_));
  const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  std::uint64_t seen = 0;
  for (std::size_t index = 0; index < kBuckets; ++index) {
    seen += buckets_[index];
    if (seen >= rank) return std::min(upper_end(index), largest_);
  }
  return largest_;
}

}  // namespace sandbay::lab
