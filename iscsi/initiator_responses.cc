// What an initiator's connection does with each PDU of the target in the full feature phase: RFC
// 7143 sections 11.4 to 11.9, 11.11, 11.15, 11.17 and 11.19.
//
// At ErrorRecoveryLevel 0 there is one cure for a target that breaks the protocol: the connection
// ends.
#include <algorithm>
#include <cassert>
#include <iterator>

#include "iscsi/initiator_connection.h"
#include "iscsi/initiator_crossing.h"
#include "iscsi/initiator_session.h"

namespace sandbay::iscsi {

void InitiatorConnection::violate(const char* what) {
  ++counters_.protocol_errors;
  fail(what);
}

// A status number out of order means that a status was lost, which ERL 0 cannot repair
// (section 7.9).
bool InitiatorConnection::take_status(const StatusNumbers& numbers) {
  if (numbers.stat_sn != exp_stat_sn_) {
    violate("StatSN out of order");
    return false;
  }
  ++exp_stat_sn_;
  return true;
}

void InitiatorConnection::handle_pdu() {
  switch (opcode_of(bhs_)) {
    case Opcode::kDataIn:
      return handle_data_in();
    case Opcode::kScsiResponse:
      return handle_scsi_response();
    case Opcode::kReadyToTransfer:
      return handle_ready_to_transfer();
    case Opcode::kNopIn:
      return handle_nop_in();
    case Opcode::kTaskManagementResponse:
      return handle_control_response(Opcode::kTaskManagementRequest);
    case Opcode::kTextResponse:
      return handle_control_response(Opcode::kTextRequest);
    case Opcode::kLogoutResponse:
      return handle_control_response(Opcode::kLogoutRequest);
    case Opcode::kAsyncMessage:
      return handle_async_message();
    case Opcode::kReject:
      return handle_reject();
    default:
      return violate("unexpected opcode");
  }
}

// False: some of it has come before.
bool InitiatorConnection::note_place(InitiatorCommand& command, std::uint32_t offset,
                                     std::uint32_t byte_count) {
  if (byte_count == 0) return true;
  auto& early = command.came_early;
  const std::uint32_t end = offset + byte_count;
  const auto after = early.lower_bound(offset);
  const bool overlaps = offset < command.in_order_end ||
                        (after != early.end() && after->first < end) ||
                        (after != early.begin() && std::prev(after)->second > offset);
  if (overlaps) return false;
  early.emplace_hint(after, offset, end);
  while (!early.empty() && early.begin()->first == command.in_order_end) {
    command.in_order_end = early.begin()->second;
    early.erase(early.begin());
  }
  return true;
}

void InitiatorConnection::handle_data_in() {
  InitiatorCommand* sink = std::exchange(sink_, nullptr);
  const Result<DataIn, RejectReason> parsed = parse_data_in(bhs_);
  if (!parsed.has_value()) return violate("malformed Data-In");
  if (parsed->has_status && !take_status(parsed->numbers)) return;
  InitiatorTask* task = find(parsed->initiator_task_tag);
  if (task == nullptr || task->kind != InitiatorTask::Kind::kScsi) {
    // Of a task that was dropped while its data came: now nothing names its memory any more.
    if (sink != nullptr && sink->answered) end_task(*sink);
    return note_window(parsed->numbers);
  }
  auto& command = static_cast<InitiatorCommand&>(*task);
  if (parsed->data_sn != command.expected_data_sn) return violate("DataSN out of order");
  ++command.expected_data_sn;
  const bool in_order = limits_.data_pdu_in_order && limits_.data_sequence_in_order;
  if (in_order && parsed->buffer_offset != command.result.data_in_bytes) {
    return violate("Data-In out of order");
  }
  // What came twice would be counted for what did not come at all.
  if (!in_order && !note_place(command, parsed->buffer_offset, parsed->data_segment_length)) {
    return violate("Data-In for a place that has its data");
  }
  command.result.data_in_bytes += parsed->data_segment_length;
  if (!parsed->has_status) return note_window(parsed->numbers);

  ScsiResult& result = command.result;
  result.status = static_cast<scsi::Status>(parsed->status);
  result.overflow = parsed->residual == Residual::kOverflow;
  result.underflow = parsed->residual == Residual::kUnderflow;
  result.residual = parsed->residual_count;
  command.seen_exp_cmd_sn = parsed->numbers.exp_cmd_sn;
  command.seen_max_cmd_sn = parsed->numbers.max_cmd_sn;
  end_task(command);
}

void InitiatorConnection::handle_scsi_response() {
  const Result<ScsiResponse, RejectReason> parsed = parse_scsi_response(bhs_);
  if (!parsed.has_value()) return violate("malformed SCSI Response");
  if (!take_status(parsed->numbers)) return;
  InitiatorTask* task = find(parsed->initiator_task_tag);
  if (task == nullptr || task->kind != InitiatorTask::Kind::kScsi) {
    return note_window(parsed->numbers);
  }
  auto& command = static_cast<InitiatorCommand&>(*task);
  ScsiResult& result = command.result;
  // Section 11.4.8: how many Data-Ins there were; fewer arrived means that some were lost.
  const bool reading = !command.data_in.empty();
  if (reading && parsed->exp_data_sn > command.expected_data_sn) {
    return violate("Data-Ins are missing");
  }
  if (parsed->response != ServiceResponse::kCompletedAtTarget) result.error = Error::kHardware;
  result.status = static_cast<scsi::Status>(parsed->status);
  result.overflow = parsed->residual == Residual::kOverflow;
  result.underflow = parsed->residual == Residual::kUnderflow;
  result.residual = parsed->residual_count;
  if (data_.size() >= 2) {
    const std::size_t told = big_endian<std::uint16_t>(data_, 0);
    const std::size_t count = std::min({told, data_.size() - 2, result.sense.size()});
    std::copy_n(data_.begin() + 2, count, result.sense.begin());
    result.sense_bytes = static_cast<std::uint8_t>(count);
  }
  command.seen_exp_cmd_sn = parsed->numbers.exp_cmd_sn;
  command.seen_max_cmd_sn = parsed->numbers.max_cmd_sn;
  end_task(command);
}

void InitiatorConnection::handle_ready_to_transfer() {
  const Result<ReadyToTransfer, RejectReason> parsed = parse_ready_to_transfer(bhs_);
  if (!parsed.has_value()) return violate("malformed R2T");
  note_window(parsed->numbers);
  InitiatorTask* task = find(parsed->initiator_task_tag);
  if (task == nullptr || task->kind != InitiatorTask::Kind::kScsi) return;  // Dropped.
  auto& command = static_cast<InitiatorCommand&>(*task);
  const std::size_t whole = command.data_out.byte_count();
  const std::uint32_t wanted = parsed->desired_data_transfer_length;
  if (parsed->r2t_sn != command.expected_r2t_sn) return violate("R2TSN out of order");
  ++command.expected_r2t_sn;
  if (parsed->buffer_offset > whole || wanted > whole - parsed->buffer_offset) {
    return violate("R2T beyond the command's data");
  }
  if (wanted > limits_.burst_bytes) return violate("R2T longer than MaxBurstLength");
  send_data_out(command, parsed->target_transfer_tag, parsed->buffer_offset, wanted);
}

// Text, task management and logout: the answer goes to whoever asked.
void InitiatorConnection::handle_control_response(Opcode expected_request) {
  const StatusNumbers numbers = parse_status_numbers(bhs_);
  if (!take_status(numbers)) return;
  note_window(numbers);
  InitiatorTask* task = find(initiator_task_tag(bhs_));
  if (task == nullptr) return;
  if (task->kind != InitiatorTask::Kind::kControl) return violate("answer to another request");
  auto& control = static_cast<InitiatorControlTask&>(*task);
  if (opcode_of(control.header) != expected_request) return violate("answer to another request");
  control.answer = bhs_;
  control.answer_data = data_;
  control.seen_exp_cmd_sn = numbers.exp_cmd_sn;
  control.seen_max_cmd_sn = numbers.max_cmd_sn;
  end_task(control);
}

void InitiatorConnection::handle_nop_in() {
  const Result<NopIn, RejectReason> parsed = parse_nop_in(bhs_);
  if (!parsed.has_value()) return violate("malformed NOP-In");
  ++counters_.nop_ins;
  if (parsed->initiator_task_tag == kReservedTag) {
    // The target's own: its StatSN is the next one and does not advance (section 11.19.2).
    note_window(parsed->numbers);
    if (parsed->target_transfer_tag == kReservedTag) return;
    const NopOut answer{
        .data_segment_length = static_cast<std::uint32_t>(
            std::min<std::size_t>(data_.size(), limits_.send_segment_bytes)),
        .lun = parsed->lun,
        .target_transfer_tag = parsed->target_transfer_tag,
        .cmd_sn = place_.next_cmd_sn.load(std::memory_order_relaxed),
        .exp_stat_sn = exp_stat_sn_,
    };
    Bhs bhs;
    write_nop_out(answer, bhs);
    return outgoing_.add(bhs, std::span(data_).first(answer.data_segment_length));
  }
  handle_control_response(Opcode::kNopOut);
}

void InitiatorConnection::handle_async_message() {
  const Result<AsyncMessage, RejectReason> parsed = parse_async_message(bhs_);
  if (!parsed.has_value()) return violate("malformed Async Message");
  if (!take_status(parsed->numbers)) return;
  note_window(parsed->numbers);
  AsyncNotice notice{
      .event = parsed->event,
      .cid = place_.cid,
      .lun = parsed->lun,
      .parameters = {parsed->parameter1, parsed->parameter2, parsed->parameter3},
      .data = data_,
  };
  if (&place_.executor == &place_.session_home) {
    return place_.events.async_message(*this, std::move(notice));
  }
  call_on(place_.session_home, [this, told = std::move(notice)]() mutable {
    place_.events.async_message(*this, std::move(told));
  });
}

void InitiatorConnection::handle_reject() {
  const Result<Reject, RejectReason> parsed = parse_reject(bhs_);
  if (!parsed.has_value()) return violate("malformed Reject");
  if (!take_status(parsed->numbers)) return;
  note_window(parsed->numbers);
  ++counters_.rejects;
  if (data_.size() < kBhsBytes) return;
  Bhs refused;
  std::copy_n(data_.begin(), kBhsBytes, refused.begin());
  const RejectReason reason = parsed->reason;
  // The refused command was never a task of the target's (section 7.3); a refused Data-Out's task
  // is answered all the same.
  InitiatorTask* task = find(initiator_task_tag(refused));
  // Its data were damaged on their way: at ErrorRecoveryLevel 0 it is sent again on a connection
  // anew, where it may be (section 7.8).
  const bool damaged = task != nullptr && task->kind == InitiatorTask::Kind::kScsi &&
                       opcode_of(refused) == Opcode::kScsiCommand &&
                       reason == RejectReason::kDataDigestError;
  if (damaged && wants_repetition(static_cast<const InitiatorCommand&>(*task))) {
    return fail("data of a command were damaged on their way");
  }
  if (task != nullptr && opcode_of(refused) != Opcode::kDataOut) {
    if (task->kind == InitiatorTask::Kind::kScsi) {
      static_cast<InitiatorCommand&>(*task).result.error = Error::kInvalid;
    }
    task->rejected = true;
    task->seen_exp_cmd_sn = parsed->numbers.exp_cmd_sn;
    task->seen_max_cmd_sn = parsed->numbers.max_cmd_sn;
    end_task(*task);
  }
  if (&place_.executor == &place_.session_home) {
    return place_.events.rejected(*this, reason, refused);
  }
  call_on(place_.session_home,
          [this, reason, refused] { place_.events.rejected(*this, reason, refused); });
}

}  // namespace sandbay::iscsi
