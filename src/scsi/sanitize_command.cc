// SANITIZE (SBC-4 5.24): the command; Sanitizer does the work.
#include <vector>

#include "runtime/byte_order.h"
#include "runtime/known.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr unsigned kExitFailureMode = 0x1F;

}  // namespace

Job LogicalUnit::sanitize(Command& command) {
  const auto flags = std::to_integer<unsigned>(command.cdb[1]);
  const unsigned action = flags & 0x1FU;
  const std::size_t byte_count = big_endian<std::uint16_t>(command.cdb, 7);
  SanitizeOperation operation{.method = static_cast<SanitizeOperation::Method>(action),
                              .allows_exit = (flags & 0x20U) != 0};
  if (sanitizer_.works()) co_return check_condition(sanitizer_.sense());
  if (!device_.serves())
    co_return device_failure(Error::kNotReady, Operation::kWrite, std::nullopt);
  // A failure in the restricted completion mode ends with another operation in that mode alone.
  const bool restricted = !sanitizer_.idle() && !known(sanitizer_.now()).allows_exit;
  if (action == kExitFailureMode) {
    if (byte_count != 0) co_return invalid_cdb(7);
    if (restricted) co_return invalid_cdb(1, std::uint8_t{4});
    const Error error = co_await sanitizer_.exit_failure();
    if (error == Error::kNone) co_return Outcome{};
    co_return refuse(SenseKey::kHardwareError, Additional::kInternalTargetFailure);
  }
  if (restricted && operation.allows_exit) co_return invalid_cdb(1, std::uint8_t{5});
  if (operation.method == SanitizeOperation::Method::kOverwrite) {
    const std::size_t most = kOverwriteListHeader + geometry().block_bytes;
    if (byte_count <= kOverwriteListHeader || byte_count > most) co_return invalid_cdb(7);
    std::vector<std::byte> list(byte_count);
    const auto received = co_await receive_parameters(command, list, byte_count);
    if (!received) co_return received.error();
    auto decoded = decode_overwrite_list(list, geometry().block_bytes);
    if (!decoded) co_return refuse(decoded.error());
    decoded->allows_exit = operation.allows_exit;
    operation = std::move(*decoded);
  } else if (byte_count != 0) {
    co_return invalid_cdb(7);
  }
  Outcome outcome = co_await sanitize_all(command, std::move(operation));
  outcome.data_out_bytes = byte_count;
  co_return outcome;
}

// Commands that have begun would find, or leave, what the operation is to alter.
Task<Outcome> LogicalUnit::sanitize_all(Command& command, SanitizeOperation operation) {
  if (command.aborted) co_return Outcome{};
  if (sanitizer_.works()) co_return check_condition(sanitizer_.sense());
  if (!operations_.enter()) co_return Outcome{.status = Status::kBusy};
  GateHold hold(operations_);
  sanitizer_.claim(std::move(operation));
  co_await abort({.victims = Victims::kEverybody, .by_device_server = true, .except = &command});
  // Nor does what the device has not let go of write behind it, or what is to be put back.
  const bool settled = co_await atomic_writes_.settle(home_.now() + kAbortPatience);
  if (command.aborted || !settled || !held_.empty()) {
    sanitizer_.give_up();
    co_return Outcome{.status = Status::kBusy};
  }
  const Error error = co_await sanitizer_.begin();
  if (error != Error::kNone) {
    co_return refuse(SenseKey::kHardwareError, Additional::kInternalTargetFailure);
  }
  {
    const GateHold left = std::move(hold);
  }
  // Others are answered while it goes on.
  stop_ordering(command);
  run_waiting();
  if ((command.cdb[1] & std::byte{0x80}) != std::byte{0}) co_return Outcome{};  // IMMED
  co_await sanitizer_.wait(command.cancellation);
  if (sanitizer_.idle() || sanitizer_.works()) co_return Outcome{};
  co_return check_condition(sanitizer_.sense());
}

}  // namespace sandbay::scsi
