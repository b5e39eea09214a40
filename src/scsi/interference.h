// Interference: somebody who answers commands in a logical unit's place, so that initiators meet
// what units seldom say. Its answers take the way of the unit's own.
//
// It is asked on the unit's home, must not suspend, and does not change the unit.
#pragma once

#include <cstdint>
#include <optional>

#include "scsi/sense.h"
#include "scsi/unit_attention.h"

namespace sandbay::scsi {

class Command;

class Interference {
 public:
  struct Answer {
    Sense sense;                             // With CHECK CONDITION; or, in its place,
    std::optional<UnitAttention> attention;  // what is established for the command's nexus.
  };

  // The command has come and is not in the task set yet, which has `in_set` others. A status: it
  // gets that and nothing else.
  virtual std::optional<Status> on_arrival(const Command& command, std::uint32_t in_set) = 0;
  // Its turn has come, and no unit attention is to be reported first.
  virtual std::optional<Answer> on_start(const Command& command) = 0;

 protected:
  ~Interference() = default;
};

}  // namespace sandbay::scsi
