// Interference: somebody who answers commands in a logical unit's place, so that initiators meet
// what units seldom say. Its answers take the way of the unit's own.
//
// It is asked on the unit's home, must not suspend, and does not change the unit.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/clock.h"
#include "scsi/sense.h"
#include "scsi/unit_attention.h"

namespace sandbay::scsi {

class Command;

class Interference {
 public:
  // `quiet` is watched, and outlives this.
  explicit Interference(const bool& quiet) : quiet_(quiet) {}
  Interference(const Interference&) = delete;
  Interference& operator=(const Interference&) = delete;

  // Whether it would change nothing now: then it need not be asked.
  bool quiet() const noexcept { return quiet_; }
  enum class Arrival : std::uint8_t {
    kPass,
    kBusy,  // It gets that status and nothing else;
    kTaskSetFull,
    kReservationConflict,
    kVanished,  // or what LUNs answer that lead nowhere.
  };
  // The command has come and is not in the task set yet, which has `in_set` others.
  virtual Arrival on_arrival(const Command& command, std::uint32_t in_set) = 0;
  // Its turn has come: an attention to be established for its nexus. The task set has `in_set`
  // commands, this one included.
  virtual std::optional<UnitAttention> attention_for(const Command& command,
                                                     std::uint32_t in_set) = 0;
  struct Answer {
    std::optional<Sense> sense;  // It ends with CHECK CONDITION and this,
    bool done = false;           // or with GOOD, as if it had been done, unless it is refused,
    Duration delay{};            // or is handled later, by this time.
  };
  // It would be handled now.
  virtual Answer answer_for(const Command& command, std::uint32_t in_set) = 0;

 protected:
  ~Interference() = default;

 private:
  const bool& quiet_;
};

}  // namespace sandbay::scsi
