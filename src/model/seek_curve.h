// SeekCurve: how long the heads take over a distance in cylinders, as
//   a + b * sqrt(d) + c * d   for d >= 1
// (Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994, have
// the two parts, of acceleration and of coasting, one after the other; here they are summed, so
// that the curve is smooth and three figures of a data sheet determine it).
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "model/disk_layout.h"

namespace sandbay::model {

class SeekCurve {
 public:
  // Through the time of one cylinder, the mean over random pairs of sectors and the time from end
  // to end; nothing if the curve would not rise with the distance.
  static std::optional<SeekCurve> fit(const SeekTimes& times, const DiskLayout& layout);

  Nanoseconds time(std::uint32_t distance) const noexcept {
    if (distance <= 1) return distance == 0 ? 0 : one_cylinder_;
    const double d = distance;
    return static_cast<Nanoseconds>(constant_ + root_ * std::sqrt(d) + linear_ * d);
  }

 private:
  SeekCurve() = default;

  Nanoseconds one_cylinder_ = 0;
  double constant_ = 0;
  double root_ = 0;
  double linear_ = 0;
};

}  // namespace sandbay::model
