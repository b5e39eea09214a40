// ReservationStore: where a unit's persistent reservations outlive the daemon (APTPL).
#pragma once

#include "runtime/error.h"
#include "runtime/task.h"
#include "scsi/reservations.h"

namespace sandbay::scsi {

class ReservationStore {
 public:
  virtual ~ReservationStore() = default;
  // Durable when it has ended with kNone, and otherwise as before. Without keys nothing is kept.
  // Called on the unit's home, one call at a time.
  virtual Task<Error> keep(PersistentReservations reservations) = 0;
};

}  // namespace sandbay::scsi
