// Conversion, exact where the scale is 1.
#include "model/model_clock.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sandbay::model {

ModelClock::ModelClock(ClockOptions options, TimePoint origin)
    : options_(options), origin_(origin) {
  assert(options.time_scale > 0 && options.lag >= Duration(0));
}

TimePoint ModelClock::modelled(TimePoint real) const noexcept {
  if (options_.time_scale == 1) return real;
  const auto since = static_cast<double>((real - origin_).count());
  return origin_ + Duration(static_cast<Duration::rep>(std::floor(since / options_.time_scale)));
}

TimePoint ModelClock::real(TimePoint modelled) const noexcept {
  if (options_.time_scale == 1 || modelled == kNever) return modelled;
  const auto since = static_cast<double>((modelled - origin_).count());
  TimePoint found =
      origin_ + Duration(static_cast<Duration::rep>(std::ceil(since * options_.time_scale)));
  // Rounding must not let a timer fire before what it waits for.
  while (this->modelled(found) < modelled) found += Duration(1);
  return found;
}

TimePoint ModelClock::moment(TimePoint carried, const Executor& executor) const noexcept {
  const TimePoint real_now = executor.now();
  if (carried == TimePoint{}) return modelled(real_now);
  return std::max(carried, modelled(real_now - options_.lag));
}

}  // namespace sandbay::model
