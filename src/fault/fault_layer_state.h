// What a FaultLayer keeps for single rules and operations; for its own files only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fault/active_rule.h"
#include "fault/fault_layer.h"

namespace sandbay::fault {

// An operation that waits here, until it is let go, its time comes or nobody waits for it.
struct FaultLayer::Parked : Cancellation::Hook {
  Parked(Cancellation* cancellation, RulePointer held_by)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<Parked&>(hook);
               self.cancelled = true;
               self.let_go.set();
             }),
        rule(std::move(held_by)) {}

  RulePointer rule;
  Event let_go;
  bool cancelled = false;
};

// The schedule of a slow drive.
struct FaultLayer::Pace {
  RulePointer rule;
  std::vector<TimePoint> lanes;  // When each is free again.
  TimePoint pipe{};              // When the last byte has passed.
};

// Defects that become more.
struct FaultLayer::Growth {
  RulePointer rule;
  TimePoint started{};
  std::uint64_t produced = 0;
  std::optional<Lba> neighbour;
};

// What the blocks of a region were before they changed.
struct FaultLayer::Watch {
  RulePointer rule;
  Extent region;
  std::map<Lba, Bytes> saved;
  bool overflown = false;  // More has changed than can be kept: it does not go back any more.
};

struct FaultLayer::Outcome {
  struct Landing {
    RulePointer rule;
    FaultLayer* drive = nullptr;
    Extent extent;
  };
  bool altered = false;
  bool through = false;  // Not to the overlay, but to the device.
  Bytes intended;
  Bytes stored;
  std::vector<Landing> landings;
};

}  // namespace sandbay::fault
