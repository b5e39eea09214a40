// Command: one SCSI command on its way between a transport (iSCSI) and a device server.
//
// The transport derives from it, fills in the request part and hands it to TargetDevice::
// execute(). From then on the command is the device server's; it calls, on the logical unit's home
// executor:
//   receive_data_out() and send_data_in(), any number of times (SAM-5 clause 5.4.3, "Receive
//     Data-Out" and "Send Data-In"; offsets run on from call to call);
//   complete() exactly once ("Send Command Complete"), perhaps while a device below still holds
//     on to a request, as after an abort; both data calls then give kCancelled;
//   release() exactly once, as the very last thing; the transport then takes the object back.
// The transport crosses to its own executors inside these calls where it lives elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "block/block_device.h"
#include "runtime/buffer.h"
#include "runtime/cancellation.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/message.h"
#include "runtime/task.h"
#include "scsi/sense.h"

namespace sandbay::scsi {

class LogicalUnit;
class Nexus;
struct AbortWait;
struct CommandRow;

// SAM-5 clause 8.
enum class TaskAttribute : std::uint8_t { kSimple, kOrdered, kHeadOfQueue, kAca };

// What a command came to.
struct Outcome {
  Status status = Status::kGood;
  // Aborted by a task management function of this nexus, by its loss or by a reset: nothing is
  // sent to the initiator.
  bool silent = false;
  // What the CDB called for, in bytes, by direction: the transport derives residuals from these
  // and its expected lengths. For an allocation length it is what was available to return,
  // truncated to the allocation length (SPC-4 4.3.5.6: truncation is no error).
  std::uint64_t data_in_bytes = 0;
  std::uint64_t data_out_bytes = 0;
  SenseData sense;  // Not empty only with kCheckCondition (or with kGood: none).
};

class Command {
 public:
  Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Called before a piece of data-in is allocated: ends when the transport has room for so many
  // more bytes among what it keeps for this nexus, so that a peer that does not read ties up no
  // more than its share. While memory is scarce that is next to nothing: then it ends only when
  // what went before has been sent. What was granted is used up by send_data_in(). kCancelled as
  // below.
  virtual Task<Error> prepare_data_in(std::size_t /*byte_count*/, bool /*scarce*/) {
    co_return Error::kNone;
  }
  // The next bytes for the initiator, in order. Ends when the transport has taken them over
  // (which may wait for the peer to read); kCancelled after complete().
  virtual Task<Error> send_data_in(BufferList data) = 0;
  // The next byte_count bytes from the initiator, in order. Never more in sum than
  // data_out_length. kCancelled if the transport gave up or the command was aborted.
  virtual Task<Result<BufferList>> receive_data_out(std::size_t byte_count) = 0;
  virtual void complete(Outcome outcome) = 0;
  virtual void release() = 0;

  // The request; filled in by the transport and constant afterwards.
  Nexus* nexus = nullptr;
  std::uint64_t lun = 0;    // As it stands in the PDU, 8 bytes big-endian read as a number.
  std::uint64_t tag = 0;    // Unique among the nexus's commands in flight (iSCSI: the ITT).
  std::uint32_t order = 0;  // Among the nexus's commands; a serial number (RFC 1982; iSCSI: CmdSN).
  TaskAttribute attribute = TaskAttribute::kSimple;
  std::uint8_t priority = 0;
  std::array<std::byte, 16> cdb{};
  std::span<const std::byte> extended_cdb;  // The bytes after the 16th, if any (AHS).
  // What the initiator is ready to send and take.
  std::uint32_t data_out_length = 0;
  std::uint32_t data_in_length = 0;

  // The device server's.
  struct Crossing : Message {
    Command* command = nullptr;
    LogicalUnit* unit = nullptr;
  };
  Cancellation cancellation;
  Crossing crossing;               // From the session's home to the logical unit's.
  Command* next_in_set = nullptr;  // The task set's links.
  Command* previous_in_set = nullptr;
  const CommandRow* row = nullptr;
  std::uint64_t nexus_id = 0;
  TimePoint started{};
  Duration delay{};                  // By a rule, before it is handled.
  AbortWait* abort_waits = nullptr;  // Aborts that wait for its end.
  Extent writing;                    // What a device below may still change; empty for none.
  std::uint64_t lent = 0;            // Bytes of memory that a device below works on.
  std::uint64_t lent_held = 0;       // The same when the command was given up.
  std::uint64_t moved = 0;           // Bytes, for the counters.
  bool waiting = false;              // In the task set, for its turn.
  bool completed = false;
  bool aborted = false;
  bool tell_aborted = false;      // Completes with TASK ABORTED instead of silently.
  bool cleared = false;           // By the device server itself: completes with ABORTED COMMAND.
  bool lost = false;              // By a rule: acknowledged and not done.
  bool unit_vanished = false;     // INQUIRY and REQUEST SENSE say that no unit can be here.
  bool descriptor_sense = false;  // D_SENSE of its unit, for sense that the transport makes.

 protected:
  ~Command() = default;
};

}  // namespace sandbay::scsi
