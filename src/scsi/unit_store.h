// UnitStore: where what a unit must not forget outlives the daemon.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "block/block_device.h"
#include "runtime/error.h"
#include "runtime/task.h"
#include "scsi/reservations.h"
#include "scsi/sanitize.h"

namespace sandbay::scsi {

// Blocks as they were before an atomic write, which the device may have done in part.
struct BlocksBefore {
  Lba first = 0;
  std::vector<std::byte> data;  // Whole blocks.
  friend bool operator==(const BlocksBefore&, const BlocksBefore&) = default;
};

// As it was kept when the unit was made.
struct KeptOfUnit {
  PersistentReservations reservations;
  std::optional<SanitizeOperation> sanitize;
  std::vector<BlocksBefore> blocks;
};

// Each call is durable when it has ended with kNone. After kTimedOut it may become so at a crash;
// after other errors all is as before. Called on the unit's home; calls that concern the same thing
// come one at a time.
class UnitStore {
 public:
  virtual ~UnitStore() = default;
  // Without keys nothing is kept (APTPL).
  virtual Task<Error> keep_reservations(PersistentReservations reservations) = 0;
  // Null: an operation has ended well.
  virtual Task<Error> keep_sanitize(std::optional<SanitizeOperation> operation) = 0;
  // Until they are dropped, which needs the first block's address alone.
  virtual Task<Error> keep_blocks(BlocksBefore before) = 0;
  virtual Task<Error> drop_blocks(Lba first) = 0;
  // These blocks are neither as before nor new, and the device takes neither.
  virtual void note_torn(Extent extent, Error error) = 0;
};

}  // namespace sandbay::scsi
