// One request to a system of the lab, from the host that makes it to the host that has the answer:
// the host and the connection carry it, the controller takes it, cache and sets do it, and the
// answer goes back. All of that but the storage is computed by models, and only what comes of it is
// waited for. In virtual time and live it is the same.
#pragma once

#include "lab/access.h"
#include "lab/virtual_array.h"
#include "runtime/error.h"
#include "runtime/task.h"

namespace sandbay::lab {

// When it was where, by the models' clock, in this order.
struct ServedRequest {
  TimePoint start{};     // Somebody on the host asks.
  TimePoint issued{};    // By the host.
  TimePoint carried{};   // The array has it, and of a write the data.
  TimePoint accepted{};  // By the controller: now it is the cache's and the drives'.
  TimePoint done{};      // They have done it.
  TimePoint answered{};  // By the controller.
  TimePoint arrived{};   // At the host.
  TimePoint end{};       // Who asked has it.
  Error error = Error::kNone;
};

// Of many requests, together.
struct LayerTimes {
  Duration host{};
  Duration link{};
  Duration controller{};
  Duration storage{};  // Cache, RAID and drives.

  void add(const ServedRequest& request);
  void add(const LayerTimes& others);
};

// On the array's executor. Ends when the models' clock has come to the end, or later where the real
// work took longer. `start` may lie in the past; `access` is within the volume.
Task<ServedRequest> serve_request(VirtualArray* array, VirtualVolume* volume, Access access,
                                  TimePoint start);

}  // namespace sandbay::lab
