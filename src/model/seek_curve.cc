// Three equations for three coefficients.
#include "model/seek_curve.h"

#include <cassert>
#include <vector>

namespace sandbay::model {

namespace {

struct Moments {
  double root = 0;    // The mean of sqrt(d),
  double linear = 0;  // and of d, over pairs of random sectors.
  double moved = 0;   // The share of pairs with d > 0.
};

// Evenly spaced sectors stand for all: the error is far below a thousandth.
Moments moments_of(const DiskLayout& layout) {
  constexpr std::uint64_t kSamples = 512;
  std::vector<double> cylinders;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t sector = layout.sector_count() / kSamples * i +
                                 layout.sector_count() % kSamples * i / kSamples +
                                 layout.sector_count() / kSamples / 2;
    cylinders.push_back(layout.place(sector).cylinder);
  }
  Moments sum;
  for (std::size_t i = 0; i < cylinders.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double distance = cylinders[i] - cylinders[j];
      sum.root += std::sqrt(distance);
      sum.linear += distance;
      sum.moved += distance > 0 ? 1 : 0;
    }
  }
  // Pairs within the stretch of one sample hardly move at all.
  constexpr double kPairs = static_cast<double>(kSamples * kSamples) / 2;
  return {.root = sum.root / kPairs, .linear = sum.linear / kPairs, .moved = sum.moved / kPairs};
}

}  // namespace

std::optional<SeekCurve> SeekCurve::fit(const SeekTimes& times, const DiskLayout& layout) {
  if (layout.cylinder_count() < 16) return std::nullopt;
  const double stroke = layout.cylinder_count() - 1;
  const Moments mean = moments_of(layout);
  const auto one = static_cast<double>(times.track_to_track.count());
  const auto average = static_cast<double>(times.average.count());
  const auto full = static_cast<double>(times.full_stroke.count());

  // constant = one - root - linear leaves two equations:
  //   (mean.root - moved) root + (mean.linear - moved) linear = average - moved one
  //   (sqrt(stroke) - 1)  root + (stroke - 1)          linear = full - one
  const double a11 = mean.root - mean.moved;
  const double a12 = mean.linear - mean.moved;
  const double a21 = std::sqrt(stroke) - 1;
  const double a22 = stroke - 1;
  const double b1 = average - mean.moved * one;
  const double b2 = full - one;
  const double determinant = a11 * a22 - a12 * a21;
  if (!(std::abs(determinant) > 1e-9)) return std::nullopt;

  SeekCurve curve;
  curve.one_cylinder_ = times.track_to_track.count();
  curve.root_ = (b1 * a22 - a12 * b2) / determinant;
  curve.linear_ = (a11 * b2 - b1 * a21) / determinant;
  curve.constant_ = one - curve.root_ - curve.linear_;

  // The slope is root / (2 sqrt(d)) + linear: monotone in d, so that its ends tell.
  const double slope_at_one = curve.root_ / 2 + curve.linear_;
  const double slope_at_end = curve.root_ / (2 * std::sqrt(stroke)) + curve.linear_;
  if (!(slope_at_one >= 0 && slope_at_end >= 0)) return std::nullopt;
  return curve;
}

}  // namespace sandbay::model
