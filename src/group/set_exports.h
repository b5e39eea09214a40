// SetExports: what a daemon in the role of a member shows: each of its RAID sets, through its
// cache, as a logical unit of one target, to its lead and nobody else; see lead_fence.h.
//
// A set has its LUN for good, from the first time that it serves: it stands in the metadata, so
// that what a lead sends again after the member was started anew reaches the set that it was meant
// for. The unit says which set it is: its serial number is the set's UUID, its product
// identification the set's name, its revision the level.
//
// Executor 0. The hardware has started, and stops later.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "group/event_log.h"
#include "group/hardware.h"
#include "group/lead_fence.h"
#include "group/remote_configuration.h"
#include "iscsi/target_server.h"
#include "metadata/store.h"
#include "runtime/sync.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::group {

class SetExports {
 public:
  using Outcome = std::expected<void, std::string>;

  // All outlive it.
  SetExports(Executor& home, Hardware& hardware, metadata::Store& store, EventLog& events);
  ~SetExports();  // After stop().
  SetExports(const SetExports&) = delete;
  SetExports& operator=(const SetExports&) = delete;

  // Shows what serves, and later what comes, through these ports. The error is one line.
  Task<Outcome> start(iscsi::TargetServer* server, LeadConfiguration lead,
                      std::vector<std::uint16_t> target_ports);
  // The server has shut down, or there is none. False: something in a set did not end by the
  // deadline.
  Task<bool> stop(TimePoint deadline);

  const LeadFence& fence() const noexcept { return fence_; }

 private:
  struct Unit {
    std::uint32_t lun = 0;
    std::unique_ptr<scsi::LogicalUnit> unit;
  };
  Task<std::string> load();
  Task<void> show_all();
  Task<void> show(SetInfo set);
  Task<bool> give_lun(Uuid set);
  Task<void> watch();

  Executor& home_;
  Hardware& hardware_;
  metadata::Store& store_;
  EventLog& events_;
  LeadFence fence_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::vector<std::uint16_t> target_ports_;
  std::map<Uuid, std::uint32_t> luns_;
  std::map<Uuid, Unit> units_;
  Condition wake_;
  bool stopping_ = false;
  Gate gate_;
};

// A level in the four characters of a PRODUCT REVISION LEVEL, and back.
std::string revision_of(raid::Level level);
raid::Level level_in(std::string_view revision);

}  // namespace sandbay::group
