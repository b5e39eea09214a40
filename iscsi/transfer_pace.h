// TransferPace: when a target asks for the data of writes, where that is not at once: the model of
// an array whose ports take so many writes at a time, and need a while for each.
//
// Called on the home of the session that asks, for each R2T (RFC 7143 section 11.8) and not for
// each write: first it may have to wait for its turn, then until the array is ready for the data,
// and it lasts until its last Data-Out has come. Data that come without an R2T are none of its
// business. Outlives the server.
#pragma once

#include <cstdint>

#include "runtime/task.h"

namespace sandbay::iscsi {

class TransferPace {
 public:
  virtual ~TransferPace() = default;

  // Ends when it is the turn of an R2T on this connection of this session.
  virtual Task<void> begin(std::uint16_t tsih, std::uint16_t cid) = 0;
  // After that, if its data are still wanted: ends when it may go out.
  virtual Task<void> prepare(std::uint16_t tsih) = 0;
  // Its data have come, or nobody waits for them any more. Once after each begin().
  virtual void end(std::uint16_t tsih, std::uint16_t cid) = 0;
};

}  // namespace sandbay::iscsi
