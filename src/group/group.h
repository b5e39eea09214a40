// Group: a running group, built from its configuration and its metadata.
//
// It owns the whole stack: devices, logical units, SCSI targets and the iSCSI target server.
// Volumes that the configuration declares are created if they are absent; afterwards the metadata
// says what they are. Volumes made at run time live in the metadata alone, and their files under
// STATE/volumes/UUID.img.
//
// What is on disk changes in an order that any crash leaves whole: an intent record, the file,
// then one batch that adds the volume and takes the intent away; for deletion one batch that takes
// the volume away and adds the intent, then the file. start() removes the files that intents name,
// and no others.
//
// Home: executor 0.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "group/configuration.h"
#include "group/service.h"
#include "runtime/start_refusal.h"
#include "runtime/task.h"

namespace sandbay::metadata {
class Store;
}

namespace sandbay::group {

class Group : public Service {
 public:
  // `store` outlives the group. The state directory and its folder `volumes` are there already
  // (see state_directory.h). The refusal names the object that is wrong.
  static Task<std::expected<std::unique_ptr<Group>, StartRefusal>> start(
      Configuration configuration, metadata::Store& store);

  // Where it listens, in the order of the configuration and with the ports in use.
  virtual std::vector<PortalInfo> portals() const = 0;

  // Deletes the records from before an import, unless they may be the only map that fits the sets:
  // they stay until all pools are open and use all their sets.
  virtual Task<void> end_import() = 0;
  // Refuses new operations, ends every session in a bounded time, flushes every volume: for as long
  // as what caches hold goes to the drives. Afterwards the group may be destroyed, unless it is
  // left_behind().
  virtual Task<void> shutdown() = 0;
  // After shutdown(): an operation of management did not end in time, and has the group and its
  // store in its hands: both stay until the process ends. What initiators had written is safe.
  virtual bool left_behind() const noexcept = 0;
  // After shutdown(): what initiators had written, and no NVRAM keeps, could not be flushed.
  virtual bool lost_writes() const noexcept = 0;
};

}  // namespace sandbay::group
