// Steadiness: whether the means of some values are known well enough for a run to end. Pure.
//
// A run is cut into slices, each of which has one sample of every value. Of a value's samples the
// 95 per cent interval of their mean (Student's distribution) is looked at; slices have to be so
// long that one says little about the next.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace sandbay::lab {

class Steadiness {
 public:
  static constexpr std::size_t kLeastSlices = 10;

  // `percent`: what half of an interval may be of its mean.
  Steadiness(std::size_t values, double percent) : percent_(percent), values_(values) {}

  void add(std::span<const double> slice);  // A sample of each value.
  bool reached() const;                     // Never before kLeastSlices.

 private:
  struct Moments {
    double mean = 0;
    double squares = 0;  // Of the samples' distances from it.
  };

  double percent_;
  std::size_t slices_ = 0;
  std::vector<Moments> values_;
};

}  // namespace sandbay::lab
