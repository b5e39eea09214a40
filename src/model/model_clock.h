// ModelClock: what the models take for the time. It follows the executors' clocks, slowed down by
// time_scale: so many real seconds pass in one of the models'. With 1, the two are the same.
// Unchanging, so any thread may use it.
#pragma once

#include "runtime/clock.h"
#include "runtime/executor.h"

namespace sandbay::model {

class ModelClock {
 public:
  // `time_scale`: real seconds in a modelled one; positive. `origin`: where the two clocks agree.
  explicit ModelClock(double time_scale = 1, TimePoint origin = {});

  double time_scale() const noexcept { return time_scale_; }
  TimePoint modelled(TimePoint real) const noexcept;
  TimePoint real(TimePoint modelled) const noexcept;  // Not before it; kNever stays.

  // How much real time a modelled duration takes.
  Duration real(Duration modelled) const noexcept;
  // Waits until the modelled time has come.
  Executor::Sleep wait_until(TimePoint modelled, Executor& executor) const {
    return executor.sleep_until(real(modelled));
  }

 private:
  double time_scale_;
  TimePoint origin_;
};

}  // namespace sandbay::model
