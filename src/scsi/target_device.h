// TargetDevice: a SCSI target device (SAM-5 clause 4.6): logical units by number, the task router,
// and task management. What a transport talks to.
//
// A nexus belongs to one session and its home executor; execute() and manage() are called there.
// Each logical unit has its own home (its device's), and commands cross to it. The map of logical
// units changes only through add() and remove(), which reach every executor before they end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/task.h"
#include "scsi/command.h"

namespace sandbay::scsi {

class LogicalUnit;

// The initiator port and target port between which a nexus stands. Names as in SPC-4 clause 7.6.4
// (TransportID) and RFC 7143 section 4.4.1, e.g. "iqn.1994-05.org:host,i,0x00023d000001" and
// "iqn.2026-11.org.sandbay:quickstart,t,0x0001".
struct NexusIdentity {
  std::string initiator_port;
  std::string target_port;
  std::uint16_t relative_target_port = 1;
  std::uint16_t target_port_group = 1;
};

class Nexus {
 public:
  virtual ~Nexus() = default;
  virtual const NexusIdentity& identity() const noexcept = 0;
};

// SAM-5 clause 7 and RFC 7143 section 11.5.1.
enum class TaskManagementFunction : std::uint8_t {
  kAbortTask = 1,
  kAbortTaskSet = 2,
  kClearAca = 3,
  kClearTaskSet = 4,
  kLogicalUnitReset = 5,
  kTargetWarmReset = 6,
  kTargetColdReset = 7,
};

enum class TaskManagementResponse : std::uint8_t {
  kComplete,
  kTaskDoesNotExist,
  kLunDoesNotExist,
  kNotSupported,
  kRejected,
};

struct TaskManagementRequest {
  TaskManagementFunction function = TaskManagementFunction::kAbortTask;
  std::uint64_t lun = 0;
  std::uint64_t tag = 0;  // kAbortTask: the command's.
  // kAbortTaskSet and kClearTaskSet: of the nexus itself, only commands that stand before this one
  // in its order (RFC 7143 section 11.5.1).
  std::optional<std::uint32_t> before;
};

class TargetDevice {
 public:
  virtual ~TargetDevice() = default;

  // The new nexus owes a POWER ON unit attention on every logical unit.
  virtual std::unique_ptr<Nexus> attach(NexusIdentity identity) = 0;
  // I_T nexus loss (SAM-5 6.3.4): aborts what the nexus has in flight and forgets what is kept
  // for it (reservations of RESERVE, unit attentions). Ends when every command has completed, in
  // a bounded time; afterwards the Nexus is destroyed by its owner. Persistent state stays.
  virtual Task<void> detach(Nexus& nexus) = 0;

  // Takes the command over; see command.h. Completes with CHECK CONDITION for a wrong LUN.
  virtual void execute(Command& command) = 0;

  // Ends within kTaskManagementBound, also if a device below never completes: the aborted
  // commands have then completed, and a write that the device still holds is fenced: commands
  // that overlap it get BUSY until the device has let go of it, so that it can do no harm late.
  virtual Task<TaskManagementResponse> manage(Nexus& nexus, TaskManagementRequest request) = 0;

  // Where the Data-Out of a command for this LUN is best received, if the logical unit lives on
  // this executor and has such memory: exactly so many bytes. Empty: anywhere is as good.
  virtual BufferList write_buffers(std::uint64_t /*lun*/, std::size_t /*byte_count*/) { return {}; }

  // The executor that suits a session with this target best.
  virtual Executor& preferred_home() const noexcept = 0;
};

inline constexpr Duration kTaskManagementBound = std::chrono::seconds(3);

}  // namespace sandbay::scsi
