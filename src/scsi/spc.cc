// Primary commands (SPC-4 clause 6): readiness, sense, and what a unit says of its own abilities.
// INQUIRY, the mode commands and reservations have files of their own.
#include <array>
#include <vector>

#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::scsi {

// SPC-4 6.47. Not ready with the same sense as the reads and writes that meet it; see not_ready().
Job LogicalUnit::test_unit_ready(Command& /*command*/) {
  if (device_.serves()) co_return Outcome{};
  co_return device_failure(Error::kNotReady, Operation::kRead, std::nullopt);
}

// SPC-4 6.39: what there is to report comes as parameter data, with GOOD status.
Job LogicalUnit::request_sense(Command& command) {
  const bool descriptors = (std::to_integer<unsigned>(command.cdb[1]) & 0x01U) != 0;
  const auto allocation_length = std::to_integer<std::uint64_t>(command.cdb[4]);
  Sense sense;
  NexusState& nexus = state_of(command);
  if (command.unit_vanished) {
    sense.key = SenseKey::kIllegalRequest;
    sense.additional = Additional::kLogicalUnitNotSupported;
  } else if (nexus.attentions.any()) {
    ++counters_.unit_attentions;
    sense.key = SenseKey::kUnitAttention;
    sense.additional = additional_of(nexus.attentions.take());
  } else if (const auto refusal = refusal_in(nexus.access)) {
    sense.key = SenseKey::kNotReady;
    sense.additional = *refusal;
  } else if (power_ != PowerState::kActive) {
    sense.key = SenseKey::kNotReady;
    sense.additional = power_ == PowerState::kStopped ? Additional::kInitializingCommandRequired
                                                      : Additional::kMediumNotPresent;
  } else if (!sanitizer_.idle()) {
    sense = sanitizer_.sense();
  } else if (!device_.serves() || atomic_writes_.starts()) {
    sense.key = SenseKey::kNotReady;
    sense.additional = not_ready();
  }
  const SenseData data = SenseData::encode(sense, descriptors);
  co_return co_await return_parameters(command, data.bytes(), allocation_length);
}

Job LogicalUnit::report_luns(Command& command) {
  const auto select = std::to_integer<std::uint8_t>(command.cdb[2]);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 6);
  if (select > 2) co_return invalid_cdb(2);
  if (allocation_length < 16) co_return invalid_cdb(6);
  TaskRouter& router = static_cast<const RoutedNexus*>(command.nexus)->router();
  const std::vector<std::byte> luns = router.reported_luns(select);
  state_of(command).attentions.clear(UnitAttention::kReportedLunsChanged);
  router.luns_were_reported(command.nexus_id);
  co_return co_await return_parameters(command, luns, allocation_length);
}

Job LogicalUnit::prevent_allow(Command& command) {
  const bool prevent = (std::to_integer<unsigned>(command.cdb[4]) & 0x01U) != 0;
  state_of(command).prevents_removal = prevent;
  co_return Outcome{};
}

namespace {

constexpr std::size_t kTimeoutBytes = 12;

// The command timeouts descriptor, SPC-4 6.35.4.
void append_timeouts(std::vector<std::byte>& data, const CommandRow& row) {
  const std::size_t at = data.size();
  data.resize(at + kTimeoutBytes);
  const std::span<std::byte> descriptor = std::span(data).subspan(at);
  put_big_endian<std::uint16_t>(descriptor, 0, kTimeoutBytes - 2);
  put_big_endian<std::uint32_t>(descriptor, 8, row.recommended_timeout_s);
}

// SPC-4 6.35.2: every command.
std::vector<std::byte> all_commands(std::span<const CommandRow* const> rows, bool timeouts) {
  std::vector<std::byte> data(4);
  for (const CommandRow* const each : rows) {
    const CommandRow& row = *each;
    const std::size_t at = data.size();
    data.resize(at + 8);
    const std::span<std::byte> descriptor = std::span(data).subspan(at);
    descriptor[0] = std::byte{row.opcode};
    put_big_endian<std::uint16_t>(descriptor, 2, row.service_action);
    unsigned flags = timeouts ? 0x02U : 0U;                       // CTDP
    if (row.is(CommandFlags::kHasServiceAction)) flags |= 0x01U;  // SERVACTV
    descriptor[5] = static_cast<std::byte>(flags);
    put_big_endian<std::uint16_t>(descriptor, 6, row.cdb_bytes);
    if (timeouts) append_timeouts(data, row);
  }
  put_big_endian(std::span(data), 0, static_cast<std::uint32_t>(data.size() - 4));
  return data;
}

// SPC-4 6.35.3: one command; null for one that is not supported.
std::vector<std::byte> one_command(const CommandRow* row, bool timeouts, bool thin) {
  std::vector<std::byte> data(4);
  if (row == nullptr) {
    data[1] = std::byte{0x01};
    return data;
  }
  data[1] = timeouts ? std::byte{0x83} : std::byte{0x03};  // CTDP; supported as a standard has it.
  put_big_endian<std::uint16_t>(std::span(data), 2, row->cdb_bytes);
  data.push_back(std::byte{row->opcode});
  for (std::size_t i = 1; i < row->cdb_bytes; ++i) data.push_back(std::byte{row->usage[i - 1]});
  if (row->is(CommandFlags::kHasServiceAction)) {
    data[5] = (data[5] & std::byte{0xE0}) | std::byte{row->service_action};
  }
  if (row->is(CommandFlags::kUnmapBits) && !thin) data[5] &= ~std::byte{0x18};
  if (timeouts) append_timeouts(data, *row);
  return data;
}

}  // namespace

Job LogicalUnit::report_supported_opcodes(Command& command) {
  const auto options = std::to_integer<unsigned>(command.cdb[2]);
  const bool timeouts = (options & 0x80U) != 0;  // RCTD
  const unsigned reporting = options & 0x07U;
  const auto action = big_endian<std::uint16_t>(command.cdb, 4);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 6);
  std::vector<std::byte> data;
  if (reporting == 0) {
    std::vector<const CommandRow*> rows;
    for (const CommandRow& row : command_table()) {
      if (offers(row)) rows.push_back(&row);
    }
    data = all_commands(rows, timeouts);
  } else if (reporting <= 3) {
    std::array<std::byte, 16> wanted{command.cdb[3], static_cast<std::byte>(action & 0x1FU)};
    bool known = false;
    bool has_actions = false;
    for (const CommandRow& each : command_table()) {
      if (std::byte{each.opcode} != wanted[0]) continue;
      known = true;
      has_actions = each.is(CommandFlags::kHasServiceAction);
    }
    // 001b is for commands without service actions, 010b for those with; 011b takes both.
    if (known && reporting == 1 && has_actions) co_return invalid_cdb(2, std::uint8_t{2});
    if (known && reporting == 2 && !has_actions) co_return invalid_cdb(2, std::uint8_t{2});
    const CommandRow* row = find_command(wanted);
    if (row != nullptr && has_actions && action != row->service_action) row = nullptr;
    if (row != nullptr && !has_actions && action != 0 && reporting == 3) row = nullptr;
    if (row != nullptr && !offers(*row)) row = nullptr;
    data = one_command(row, timeouts, thin());
  } else {
    co_return invalid_cdb(2, std::uint8_t{2});
  }
  co_return co_await return_parameters(command, data, allocation_length);
}

// SPC-4 6.36: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET.
Job LogicalUnit::report_supported_tmfs(Command& command) {
  const bool extended = (std::to_integer<unsigned>(command.cdb[2]) & 0x80U) != 0;  // REPD
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 6);
  if (allocation_length < 4) co_return invalid_cdb(6);
  std::array<std::byte, 16> data{};
  data[0] = std::byte{0xD8};
  if (extended) data[3] = std::byte{12};
  const std::size_t byte_count = extended ? 16 : 4;
  co_return co_await return_parameters(command, std::span(data).first(byte_count),
                                       allocation_length);
}

}  // namespace sandbay::scsi
