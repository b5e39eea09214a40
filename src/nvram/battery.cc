// Battery: tells its observers, in the order in which they came.
#include "nvram/battery.h"

#include <cassert>
#include <utility>

namespace sandbay::nvram {

std::string_view describe(BatteryState state) {
  switch (state) {
    case BatteryState::kGood:
      return "good";
    case BatteryState::kLow:
      return "low";
    case BatteryState::kDead:
      return "dead";
  }
  return "unknown";
}

Battery::Observer::Observer(Battery& battery, Listener listener)
    : battery_(battery),
      listener_(battery.listeners_.insert(battery.listeners_.end(), std::move(listener))) {}

Battery::Observer::~Observer() { battery_.listeners_.erase(listener_); }

Battery::~Battery() { assert(listeners_.empty()); }

void Battery::set_state(BatteryState state) {
  if (state == state_) return;
  state_ = state;
  for (const Listener& listener : listeners_) listener(state);
}

}  // namespace sandbay::nvram
