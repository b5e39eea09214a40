// Conversion, exact where the scale is 1.
#include "model/model_clock.h"

#include <cassert>
#include <cmath>

namespace sandbay::model {

ModelClock::ModelClock(double time_scale, TimePoint origin)
    : time_scale_(time_scale), origin_(origin) {
  assert(time_scale > 0);
}

TimePoint ModelClock::modelled(TimePoint real) const noexcept {
  if (time_scale_ == 1) return real;
  const auto since = static_cast<double>((real - origin_).count());
  return origin_ + Duration(static_cast<Duration::rep>(std::floor(since / time_scale_)));
}

TimePoint ModelClock::real(TimePoint modelled) const noexcept {
  if (time_scale_ == 1 || modelled == kNever) return modelled;
  const auto since = static_cast<double>((modelled - origin_).count());
  // Nobody waits longer than that, and numbers end.
  constexpr double kFar = 4e18;
  if (since * time_scale_ >= kFar) return kNever;
  TimePoint found = origin_ + Duration(static_cast<Duration::rep>(std::ceil(since * time_scale_)));
  // Rounding must not let a timer fire before what it waits for.
  while (this->modelled(found) < modelled) found += Duration(1);
  return found;
}

Duration ModelClock::real(Duration modelled) const noexcept {
  return std::chrono::ceil<Duration>(modelled * time_scale_);
}

}  // namespace sandbay::model
