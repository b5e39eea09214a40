// TransferPace: when a target asks for the data of writes, where that is not at once: the model of
// an array whose ports take so many writes at a time, and need a while for each.
//
// Called on the home of the session that asks, for each R2T (RFC 7143 section 11.8): first it may
// have to wait, and then it lasts until its last Data-Out has come. Outlives the server.
#pragma once

#include <cstdint>

#include "runtime/task.h"

namespace sandbay::iscsi {

class TransferPace {
 public:
  virtual ~TransferPace() = default;

  // Ends when the R2T may go out on this connection of this session.
  virtual Task<void> begin(std::uint16_t tsih, std::uint16_t cid) = 0;
  // Its data have come, or nobody waits for them any more. Once after each begin().
  virtual void end(std::uint16_t tsih, std::uint16_t cid) = 0;
};

}  // namespace sandbay::iscsi
