// ModelClock: what the models take for the time. It follows the executors' clocks, slowed down by
// time_scale: so many real seconds pass in one of the models'. With 1, the two are the same.
//
// A request carries the modelled time on its way. Whoever carries it exactly takes no part in how
// late timers fire; but a time that has fallen far behind is nobody's exact account any more:
// somebody on the way has not carried it, or the host took longer than the model. moment() decides:
// up to `lag` behind the clock a request is believed, and what is older is now. In virtual time no
// lag is needed, and none is right.
#pragma once

#include "block/block_device.h"
#include "runtime/clock.h"
#include "runtime/executor.h"

namespace sandbay::model {

struct ClockOptions {
  double time_scale = 1;  // Real seconds in a modelled one; positive.
  Duration lag{};         // Real time.
};

class ModelClock {
 public:
  // For reactors: nearly all of their timers are less late. What is not carried exactly is so much
  // off at most.
  static constexpr Duration kUsualLag = std::chrono::milliseconds(1);

  // `origin`: where the two clocks agree.
  explicit ModelClock(ClockOptions options = {}, TimePoint origin = {});

  double time_scale() const noexcept { return options_.time_scale; }
  TimePoint modelled(TimePoint real) const noexcept;
  TimePoint real(TimePoint modelled) const noexcept;  // Not before it; kNever stays.

  // When, by the models' clock, something with this modelled time happens on `executor`: its own
  // time if that is believable. TimePoint{} is no time at all: now.
  TimePoint moment(TimePoint carried, const Executor& executor) const noexcept;
  // The outermost waits here: until the modelled time is there.
  Executor::Sleep wait_until(TimePoint modelled, Executor& executor) const {
    return executor.sleep_until(real(modelled));
  }

 private:
  ClockOptions options_;
  TimePoint origin_;
};

}  // namespace sandbay::model
