// Battery: what keeps a controller's memory alive when its power goes.
//
// Its state comes from configuration, management or a fault rule. With a good battery the content
// of the memory survives an emulated power cut; with a low or dead one it is lost, so that owners
// stop relying on it as soon as they are told: they write through and flush what they hold.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string_view>

namespace sandbay::nvram {

enum class BatteryState : std::uint8_t { kGood, kLow, kDead };

std::string_view describe(BatteryState state);  // "good", "low", "dead"

// Used on the memory's home executor only.
class Battery {
 public:
  using Listener = std::function<void(BatteryState)>;

  // Listens for as long as it exists, and no longer than the battery does.
  class Observer {
   public:
    // `listener` is called inline by set_state(), after the change; it may look at the battery but
    // neither change it nor make or end observers.
    Observer(Battery& battery, Listener listener);
    ~Observer();
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;

   private:
    Battery& battery_;
    std::list<Listener>::iterator listener_;
  };

  explicit Battery(BatteryState state = BatteryState::kGood) : state_(state) {}
  ~Battery();
  Battery(const Battery&) = delete;
  Battery& operator=(const Battery&) = delete;

  BatteryState state() const noexcept { return state_; }
  bool good() const noexcept { return state_ == BatteryState::kGood; }
  void set_state(BatteryState state);  // Tells the observers if it is another state.

 private:
  BatteryState state_;
  std::list<Listener> listeners_;
};

}  // namespace sandbay::nvram
