// The checks that stand before every handler, in their order of precedence: unit attention,
// reservation, operation code, fields of the CDB, readiness, write protection (SAM-5 5.3.3
// and 5.14, SPC-4 4.2).
#include <algorithm>

#include "scsi/command_table.h"
#include "scsi/interference.h"
#include "scsi/logical_unit.h"
#include "scsi/reservation_lists.h"

namespace sandbay::scsi {

NexusState& LogicalUnit::state_of(const Command& command) {
  const std::uint64_t nexus_id = command.nexus_id;
  if (last_nexus_state_ != nullptr && last_nexus_ == nexus_id) return *last_nexus_state_;
  const auto [found, added] = nexuses_.try_emplace(nexus_id);
  if (added) {
    const auto& nexus = *static_cast<const RoutedNexus*>(command.nexus);
    found->second.router = &nexus.router();
    // The case of a name means nothing, and TransportIDs have it normalized.
    std::string port = nexus.identity().initiator_port;
    std::ranges::transform(port, port.begin(), lower_case);
    found->second.ports = {.initiator_port = std::move(port),
                           .target_port = nexus.identity().relative_target_port};
    found->second.rights = rights_of(persistent_.now, found->second.ports);
    found->second.access = port_groups_.state_of(found->second.ports.target_port);
    found->second.writer = writers_.host_of(nexus.identity().initiator_port);
    found->second.attentions.establish(UnitAttention::kPowerOn);
  }
  last_nexus_ = nexus_id;
  last_nexus_state_ = &found->second;
  return found->second;
}

std::optional<Outcome> LogicalUnit::report_attention(NexusState& nexus) {
  ++counters_.unit_attentions;
  return refuse(SenseKey::kUnitAttention, additional_of(nexus.attentions.take()));
}

bool LogicalUnit::offers(const CommandRow& row) const noexcept {
  if (row.is(CommandFlags::kThinOnly)) return thin();
  return !row.is(CommandFlags::kAtomicOnly) || atomic_writes_.offered();
}

std::optional<Outcome> LogicalUnit::check_ready(const CommandRow& row) const {
  if (row.is(CommandFlags::kServesDespiteNotReady)) return std::nullopt;
  switch (power_) {
    case PowerState::kActive:
      return std::nullopt;
    case PowerState::kStopped:
      return refuse(SenseKey::kNotReady, Additional::kInitializingCommandRequired);
    case PowerState::kEjected:
      return refuse(SenseKey::kNotReady, Additional::kMediumNotPresent);
  }
  return std::nullopt;
}

// What the unit does for itself keeps others from all of it, or from some blocks.
std::optional<Outcome> LogicalUnit::check_work(const Command& command) const {
  if (!sanitizer_.idle()) {
    if (command.row->is(CommandFlags::kSanitizes)) return std::nullopt;
    return check_condition(sanitizer_.sense());
  }
  if (atomic_writes_.starts()) return refuse(SenseKey::kNotReady, not_ready());
  const Extent extent = blocks_named_by(command);
  const bool flushes = command.row->kind == CommandKind::kFlush;
  if (flushes || !atomic_writes_.is_torn(extent)) return std::nullopt;
  const bool reads = !command.row->is(CommandFlags::kWrites);
  return device_failure(Error::kMediumError, reads ? Operation::kRead : Operation::kWrite,
                        extent.first);
}

std::optional<Outcome> LogicalUnit::answer_of_others(Command& command) {
  const Interference::Answer answer = interference_->answer_for(command, in_set());
  command.delay = answer.delay;
  command.lost = answer.done;
  if (answer.sense) return check_condition(*answer.sense);
  return std::nullopt;
}

bool LogicalUnit::is_reserved_against(const Command& command,
                                      const NexusState& nexus) const noexcept {
  const CommandRow* row = command.row;
  if (reservation_ && *reservation_ != command.nexus_id) {
    return row == nullptr || !row->is(CommandFlags::kServesDespiteReservation);
  }
  return !nexus.rights.changes && row != nullptr && conflicts(*row, command.cdb, nexus.rights);
}

// By a rule it is acknowledged and not done, unless it is out of range or too long.
Outcome LogicalUnit::lose(const Command& command) const {
  if (command.row->kind == CommandKind::kWrite) {
    const auto transfer = decode_transfer(command, !command.row->is(CommandFlags::kUnmapBits));
    if (!transfer) return transfer.error();
  }
  return Outcome{.data_out_bytes = command.data_out_length};
}

std::optional<Outcome> LogicalUnit::check(Command& command) {
  const CommandRow* row = command.row;
  NexusState& nexus = state_of(command);
  const bool asked = interference_ != nullptr && !interference_->quiet();
  if (asked) [[unlikely]] {
    const auto attention = interference_->attention_for(command, in_set());
    if (attention) nexus.attentions.establish(*attention);
  }
  const bool conflicting = is_reserved_against(command, nexus);
  if (nexus.attentions.any() &&
      (row == nullptr || !row->is(CommandFlags::kServesDespiteAttention))) {
    // Those of a reset or a nexus are reported before a conflict, others behind it.
    const bool is_first = nexus.attentions.first() <= UnitAttention::kNexusLoss;
    if (is_first || !conflicting) return report_attention(nexus);
  }
  if (conflicting) [[unlikely]]
    return conflict();
  if (persistent_.now.lost && !serves_despite_loss(row, command.cdb)) [[unlikely]] {
    return refuse(SenseKey::kDataProtect, Additional::kPersistentReservationInformationLost);
  }
  if (row == nullptr || !offers(*row)) {
    if (asked) {
      if (const auto answer = answer_of_others(command)) return answer;
    }
    // A service action that is not there is a field of its CDB.
    const bool has_actions = row == nullptr ? is_operation_code(command.cdb[0])
                                            : row->is(CommandFlags::kHasServiceAction);
    if (has_actions) return invalid_cdb(1, std::uint8_t{4});
    return illegal(Additional::kInvalidOperationCode);
  }
  // Where nothing may be written, that comes before whether it can be unmapped.
  const bool knows_unmap = thin() || write_protected();
  if (const auto fault = find_cdb_fault(*row, command.cdb, knows_unmap)) {
    return invalid_cdb(fault->byte, fault->bit);
  }
  if (asked) [[unlikely]] {
    if (const auto answer = answer_of_others(command)) return answer;
  }
  if (row->is(CommandFlags::kServesDespiteAttention)) return std::nullopt;
  if (nexus.deferred_error != Error::kNone) {
    const Error error = std::exchange(nexus.deferred_error, Error::kNone);
    Sense sense{.key = SenseKey::kMediumError, .additional = Additional::kWriteError};
    sense.deferred = true;
    if (error == Error::kNoSpace) {
      sense.key = SenseKey::kDataProtect;
      sense.additional = Additional::kSpaceAllocationFailed;
    }
    return check_condition(sense);
  }
  if (nexus.access != AccessState::kActiveOptimized) [[unlikely]] {
    if (const auto refused = check_access(*row, nexus.access)) return refused;
  }
  if (!sanitizer_.idle() || !atomic_writes_.settled()) [[unlikely]] {
    if (const auto refused = check_work(command)) return refused;
  }
  if (const auto refused = check_ready(*row)) return refused;
  if (row->is(CommandFlags::kWrites)) {
    if (write_protected()) return refuse(SenseKey::kDataProtect, Additional::kWriteProtected);
    if (modes_.software_write_protect) {
      return refuse(SenseKey::kDataProtect, Additional::kSoftwareWriteProtected);
    }
  }
  if (command.lost) [[unlikely]]
    return lose(command);
  return std::nullopt;
}

}  // namespace sandbay::scsi
