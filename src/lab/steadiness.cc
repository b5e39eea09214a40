// Welford's sums, and the interval.
#include "lab/steadiness.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sandbay::lab {
namespace {

// Of Student's distribution with kLeastSlices - 1 degrees of freedom: 95 per cent lie within. With
// more of them it is less, 1.96 at last.
constexpr double kStudent = 2.262;

}  // namespace

void Steadiness::add(std::span<const double> slice) {
  assert(slice.size() == values_.size());
  ++slices_;
  for (std::size_t i = 0; i < slice.size(); ++i) {
    Moments& value = values_[i];
    const double away = slice[i] - value.mean;
    value.mean += away / static_cast<double>(slices_);
    value.squares += away * (slice[i] - value.mean);
  }
}

bool Steadiness::reached() const {
  if (slices_ < kLeastSlices) return false;
  const auto count = static_cast<double>(slices_);
  return std::ranges::all_of(values_, [&](const Moments& value) {
    const double error = std::sqrt(value.squares / (count - 1) / count);
    return kStudent * error <= std::abs(value.mean) * percent_ / 100;
  });
}

}  // namespace sandbay::lab
