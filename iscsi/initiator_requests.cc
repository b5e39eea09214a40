// What an initiator's connection sends in the full feature phase: commands with immediate and
// unsolicited data, solicited data, and other requests. RFC 7143
// sections 4.2.5.2, 11.3, 11.7, 11.8.
#include <algorithm>
#include <cassert>

#include "iscsi/initiator_connection.h"

namespace sandbay::iscsi {
namespace {

// Section 11.3.1 and SAM-5 clause 8 number them differently.
AttributeCode attribute_code(scsi::TaskAttribute attribute) {
  switch (attribute) {
    case scsi::TaskAttribute::kSimple:
      return AttributeCode::kSimple;
    case scsi::TaskAttribute::kOrdered:
      return AttributeCode::kOrdered;
    case scsi::TaskAttribute::kHeadOfQueue:
      return AttributeCode::kHeadOfQueue;
    case scsi::TaskAttribute::kAca:
      return AttributeCode::kAca;
  }
  return AttributeCode::kSimple;
}

}  // namespace

void InitiatorConnection::send_command(InitiatorCommand& command) {
  const auto out_bytes = static_cast<std::uint32_t>(command.data_out.byte_count());
  const auto in_bytes = static_cast<std::uint32_t>(command.data_in.byte_count());
  assert(out_bytes == 0 || in_bytes == 0);
  // Unsolicited data: at most FirstBurstLength in all, immediate data at most one segment of it.
  const std::uint32_t first_burst = std::min(out_bytes, limits_.first_burst_bytes);
  const std::uint32_t immediate =
      limits_.immediate_data ? std::min(first_burst, limits_.send_segment_bytes) : 0;
  const std::uint32_t unsolicited = limits_.initial_r2t ? 0 : first_burst - immediate;

  const ScsiCommand pdu{
      .immediate = command.immediate,
      .final = unsolicited == 0,
      .read = in_bytes != 0,
      .write = out_bytes != 0,
      .attribute = attribute_code(command.attribute),
      .data_segment_length = immediate,
      .lun = command.lun,
      .initiator_task_tag = command.itt,
      .expected_data_transfer_length = std::max(in_bytes, out_bytes),
      .cmd_sn = command.cmd_sn,
      .exp_stat_sn = exp_stat_sn_,
      .cdb = command.cdb,
  };
  command.expected_data_sn = 0;
  command.in_order_end = 0;
  command.came_early.clear();
  command.expected_r2t_sn = 0;
  command.result.data_in_bytes = 0;
  Bhs bhs;
  write_scsi_command(pdu, bhs);
  outgoing_.add(bhs, command.data_out, 0, command);
  if (unsolicited != 0) send_data_out(command, kReservedTag, immediate, unsolicited);
}

// One sequence of Data-Outs, all of it at once; the outgoing queue only names the memory.
void InitiatorConnection::send_data_out(InitiatorCommand& command, std::uint32_t transfer_tag,
                                        std::uint32_t offset, std::uint32_t byte_count) {
  DataOut pdu{
      .lun = command.lun,
      .initiator_task_tag = command.itt,
      .target_transfer_tag = transfer_tag,
      .exp_stat_sn = exp_stat_sn_,
  };
  const std::uint32_t end = offset + byte_count;
  while (offset != end) {
    pdu.data_segment_length = std::min(end - offset, limits_.send_segment_bytes);
    pdu.buffer_offset = offset;
    pdu.final = offset + pdu.data_segment_length == end;
    Bhs bhs;
    write_data_out(pdu, bhs);
    outgoing_.add(bhs, command.data_out, offset, command);
    offset += pdu.data_segment_length;
    ++pdu.data_sn;
  }
}

// The fields that every request has stand at the same place in all of them (section 11.2).
void InitiatorConnection::send_control(InitiatorControlTask& task) {
  write_request_numbers(task.itt, task.cmd_sn, exp_stat_sn_, task.header);
  if (opcode_of(task.header) == Opcode::kLogoutRequest) logged_out_ = true;
  outgoing_.add(task.header, task.data);
}

void InitiatorConnection::plug(std::uint32_t cmd_sn) {
  const NopOut nop{
      .immediate = false,
      .initiator_task_tag = kPlugTag,
      .cmd_sn = cmd_sn,
      .exp_stat_sn = exp_stat_sn_,
  };
  Bhs bhs;
  write_nop_out(nop, bhs);
  outgoing_.add(bhs);
}

}  // namespace sandbay::iscsi
