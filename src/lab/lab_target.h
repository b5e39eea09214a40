// LabTarget: devices of the lab as the logical units of an iSCSI target. All of it lives on
// executor 0 of its group but what the target places elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block/block_device.h"
#include "iscsi/target_server.h"
#include "model/exchange.h"
#include "runtime/io.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::lab {

inline constexpr const char* kLabTarget = "iqn.2026-11.org.sandbay:lab";

// The login keys that make a session one of a system's. `segment` is the greatest data segment that
// who sends them receives: the target's for what it answers, the initiator's for what it offers.
std::map<std::string, std::string> session_keys(const model::ExchangeParameters& parameters,
                                                std::uint64_t segment);

class LabTarget {
 public:
  LabTarget();   // On executor 0.
  ~LabTarget();  // After stop().

  // Units have the numbers 0, 1, … The device is borrowed. Here and below the error is one line.
  Task<std::string> add_unit(BlockDevice* device);
  // With what it says beside name and device, which are ours, and who may come: everybody.
  Task<std::string> listen(Endpoint at, iscsi::TargetOptions options, iscsi::ServerLimits limits);
  Task<void> stop();

  const Endpoint& endpoint() const noexcept { return endpoint_; }  // With the port in use.

 private:
  std::vector<std::unique_ptr<scsi::LogicalUnit>> units_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::unique_ptr<iscsi::TargetServer> server_;
  Endpoint endpoint_;
};

}  // namespace sandbay::lab
