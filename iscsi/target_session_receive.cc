// What arrives at a session: checked against its state, put into the order of CmdSN, and handed to
// whoever serves it. RFC 7143 sections 4.2.2.1, 7.8, 11.3 and 11.7.

#include <algorithm>
#include <array>
#include <cassert>

#include "iscsi/target_session.h"

namespace sandbay::iscsi {
namespace {

constexpr std::size_t kMostAhsBytes = std::size_t{255} * 4;

bool has_cmd_sn(Opcode opcode) {
  switch (opcode) {
    case Opcode::kNopOut:
    case Opcode::kScsiCommand:
    case Opcode::kTaskManagementRequest:
    case Opcode::kTextRequest:
    case Opcode::kLogoutRequest:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Session::receive(ConnectionLink& link, IncomingPdu& pdu) {
  if (!answers(link)) {
    forget(link, pdu);
    return;
  }
  const Opcode opcode = pdu.opcode();
  if (!check(link, pdu)) return;
  note_acknowledged(link, exp_stat_sn_of(pdu.bhs));
  if (opcode == Opcode::kDataOut) {
    receive_data_out(link, pdu);
  } else if (opcode == Opcode::kScsiCommand) {
    receive_command(link, pdu);
  } else {
    receive_request(link, pdu);
  }
}

void Session::forget(ConnectionLink& link, IncomingPdu& pdu) {
  unpromise(link, pdu.promised);
  give_write_share(link, pdu.share);
}

// What no state permits. False: it has been dealt with.
bool Session::check(ConnectionLink& link, IncomingPdu& pdu) {
  const Opcode opcode = pdu.opcode();
  if (opcode == Opcode::kLoginRequest) {
    // Section 11.12: only in the login phase.
    reject(link, RejectReason::kProtocolError, pdu);
    drop_behind_answer(link);
    return false;
  }
  const bool known = has_cmd_sn(opcode) || opcode == Opcode::kDataOut;
  if (opcode == Opcode::kSnackRequest) {
    reject(link, RejectReason::kSnackReject, pdu);  // ErrorRecoveryLevel 0.
    return false;
  }
  if (!known) {
    reject(link, RejectReason::kCommandNotSupported, pdu);
    return false;
  }
  // Section 4.3: a discovery session takes text and a logout. A ping does no harm, and is merely
  // not answered (section 7.4.3).
  if (is_discovery() && opcode == Opcode::kNopOut) {
    if (initiator_task_tag(pdu.bhs) != kReservedTag) {
      reject(link, RejectReason::kCommandNotSupported, pdu);
    }
    return false;
  }
  const bool allowed_in_discovery =
      opcode == Opcode::kTextRequest || opcode == Opcode::kLogoutRequest;
  if (is_discovery() && !allowed_in_discovery) {
    reject(link, RejectReason::kProtocolError, pdu);
    drop_behind_answer(link);
    return false;
  }
  if (!pdu.data_digest_error) return true;
  // Section 7.8. A Data-Out is lost for its task alone, and its F bit counts. Anything else takes
  // its CmdSN with it, which many initiators do not repair at ErrorRecoveryLevel 0.
  reject(link, RejectReason::kDataDigestError, pdu);
  if (opcode != Opcode::kDataOut) {
    drop_behind_answer(link);
    return false;
  }
  ScsiTask* const task = find_task(initiator_task_tag(pdu.bhs));
  if (task != nullptr && task->is_of(link)) task->fail(scsi::Additional::kDataPhaseCrcError);
  return true;
}

void Session::reject(ConnectionLink& link, RejectReason reason, const IncomingPdu& pdu) {
  // Section 11.17: the whole header of the bad PDU.
  std::array<std::byte, kBhsBytes + kMostAhsBytes> header;
  assert(pdu.ahs.size() <= kMostAhsBytes);
  const auto end = std::ranges::copy(pdu.ahs, std::ranges::copy(pdu.bhs, header.begin()).out).out;
  const auto header_bytes = static_cast<std::size_t>(end - header.begin());
  Bhs bhs;
  write_reject({.reason = reason,
                .data_segment_length = static_cast<std::uint32_t>(header_bytes),
                .numbers = numbers(link)},
               bhs);
  send_bytes(link, bhs, std::span<const std::byte>(header).first(header_bytes),
             StatSnUse::kConsume);
  ++reject_count_;
}

// SCSI commands -------------------------------------------------------------------------------

void Session::receive_command(ConnectionLink& link, IncomingPdu& pdu) {
  const std::uint32_t cmd_sn = cmd_sn_of(pdu.bhs);
  const bool immediate = is_immediate(pdu.bhs);
  if (!immediate) {
    const bool in_window =
        !serial_less(cmd_sn, exp_cmd_sn_) && serial_less_equal(cmd_sn, max_cmd_sn_);
    if (!in_window || slot_of(cmd_sn).kind != Slot::Kind::kEmpty) {
      forget(link, pdu);  // Silently otherwise: 4.2.2.1.
      return;
    }
  } else if (immediate_count_ >= kMostImmediate) {
    forget(link, pdu);
    reject(link, RejectReason::kTooManyImmediateCommands, pdu);
    return;
  }
  ScsiTask* const task = make_task(link, pdu);
  if (task == nullptr) {
    forget(link, pdu);  // Its CmdSN has not been received (section 7.3).
    return;
  }
  if (immediate) {
    deliver_task(*task);
    return;
  }
  if (cmd_sn == exp_cmd_sn_) {
    ++exp_cmd_sn_;
    deliver_task(*task);
    if (waiting_count_ > 0 || !fences_.empty()) advance();
    tell_window();
    return;
  }
  // A gap may stay for long: what waits behind it must not hold all memory.
  if (early_bytes_ + task->data_bytes() > early_limit_) task->refuse_data();
  Slot& slot = slot_of(cmd_sn);
  slot.kind = Slot::Kind::kTask;
  slot.link = &link;
  slot.task = task;
  slot.bytes = task->data_bytes();
  early_bytes_ += slot.bytes;
  ++waiting_count_;
}

// Null: the PDU was rejected.
ScsiTask* Session::make_task(ConnectionLink& link, IncomingPdu& pdu) {
  const Result<ScsiCommand, RejectReason> command = parse_scsi_command(pdu.bhs, pdu.ahs);
  if (!command) {
    reject(link, command.error(), pdu);
    return nullptr;
  }
  if (find_task(command->initiator_task_tag) != nullptr) {
    reject(link, RejectReason::kTaskInProgress, pdu);
    return nullptr;
  }
  auto* const task = new ScsiTask(*this, link, *command);
  insert_task(*task);
  task->nexus = nexus_.get();
  ++command_count_;
  const SessionParameters& parameters = options_.parameters;
  const bool data = command->data_segment_length > 0;
  // Sections 13.10, 13.11 and 13.14.
  const bool unexpected = (data && (!command->write || !parameters.immediate_data)) ||
                          (!command->final && parameters.initial_r2t) ||
                          command->data_segment_length > command->expected_data_transfer_length ||
                          command->data_segment_length > parameters.first_burst_length;
  task->take_immediate(pdu);
  if (unexpected) task->fail(scsi::Additional::kUnexpectedUnsolicitedData);
  return task;
}

void Session::deliver_task(ScsiTask& task) {
  if (is_fenced(task)) {
    task.discard();
    return;
  }
  task.deliver(*options_.device);
}

// Some initiators set no LUN in a Data-Out: the task knows it.
BufferList Session::device_buffers_for(const ConnectionLink& link, const IncomingPdu& pdu,
                                       std::size_t byte_count) const {
  if (is_discovery() || !answers(link)) return {};
  if (pdu.opcode() == Opcode::kScsiCommand) {
    const auto lun = big_endian<std::uint64_t>(pdu.bhs, 8);
    return options_.device->write_buffers(lun, byte_count);
  }
  const ScsiTask* const task = find_task(initiator_task_tag(pdu.bhs));
  if (task == nullptr || !task->is_of(link) || !task->takes_data()) return {};
  return options_.device->write_buffers(task->lun, byte_count);
}

bool Session::is_fenced(const ScsiTask& task) const {
  return std::ranges::any_of(fences_, [&task](const Fence& fence) {
    return serial_less(task.cmd_sn(), fence.cmd_sn) &&
           (fence.every_lun || is_same_unit(fence.lun, task.lun));
  });
}

void Session::receive_data_out(ConnectionLink& link, IncomingPdu& pdu) {
  const Result<DataOut, RejectReason> data_out = parse_data_out(pdu.bhs);
  const std::size_t redeemed = pdu.data.byte_count();  // Of what the connection has promised.
  if (!data_out) {
    reject(link, data_out.error(), pdu);
    pdu.data.clear();
    promise_again(link, redeemed);
    return;
  }
  // By task tag, never by LUN: some initiators do not set it here. Data of a task that has ended,
  // for instance by an abort, is still on its way and nothing to complain about.
  ScsiTask* const task = find_task(data_out->initiator_task_tag);
  std::size_t own = 0;
  if (task != nullptr && task->is_of(link)) {
    own = task->take_data_out(*data_out, std::move(pdu.data), pdu.data_dropped);
  }
  if (own >= redeemed) return;
  // It took room that had been promised to the data of others.
  pdu.data.clear();
  promise_again(link, redeemed - own);
}

// Everything else -----------------------------------------------------------------------------

void Session::receive_request(ConnectionLink& link, IncomingPdu& pdu) {
  const bool ping_answer =
      pdu.opcode() == Opcode::kNopOut && initiator_task_tag(pdu.bhs) == kReservedTag;
  if (ping_answer) return;  // That it came was all that was asked.
  const std::uint32_t cmd_sn = cmd_sn_of(pdu.bhs);
  const bool immediate = is_immediate(pdu.bhs);
  const bool in_window =
      !serial_less(cmd_sn, exp_cmd_sn_) && serial_less_equal(cmd_sn, max_cmd_sn_);
  if (!immediate && !in_window) return;
  if (immediate || cmd_sn == exp_cmd_sn_) {
    const std::optional<RejectReason> objection = objection_to(link, pdu);
    if (objection) {
      reject(link, *objection, pdu);  // Its CmdSN has not been received (section 7.3).
      return;
    }
  }
  if (immediate) {
    process(link, pdu);
    return;
  }
  if (cmd_sn == exp_cmd_sn_) {
    ++exp_cmd_sn_;
    refresh_window();
    process(link, pdu);
    advance();
    return;
  }
  Slot& slot = slot_of(cmd_sn);
  if (slot.kind != Slot::Kind::kEmpty) return;
  slot.kind = Slot::Kind::kPdu;
  slot.link = &link;
  if (early_bytes_ + pdu.data.byte_count() > early_limit_) {
    pdu.data.clear();
    pdu.data_dropped = true;
  }
  slot.bytes = pdu.data.byte_count();
  early_bytes_ += slot.bytes;
  slot.pdu = std::make_unique<IncomingPdu>(std::move(pdu));
  ++waiting_count_;
}

// Why a request whose turn has come is not taken. Section 7.3: its CmdSN then counts as not
// received, and the initiator fills the gap.
std::optional<RejectReason> Session::objection_to(const ConnectionLink& link,
                                                  const IncomingPdu& pdu) const {
  const Opcode opcode = pdu.opcode();
  const bool immediate = is_immediate(pdu.bhs);
  if (opcode == Opcode::kNopOut) {
    const Result<NopOut, RejectReason> nop = parse_nop_out(pdu.bhs);
    if (!nop) return nop.error();
    // No memory for what is to be echoed; both reasons say that it may be sent again.
    if (!pdu.data_dropped) return std::nullopt;
    return immediate ? RejectReason::kTooManyImmediateCommands : RejectReason::kLongOperationReject;
  }
  if (opcode == Opcode::kTextRequest) {
    const std::optional<RejectReason> objection = objection_to_text(link, pdu);
    if (objection) return objection;
  } else if (opcode == Opcode::kLogoutRequest) {
    const Result<LogoutRequest, RejectReason> request = parse_logout_request(pdu.bhs);
    if (!request) return request.error();
    // Section 4.3: in discovery, only of the whole session.
    const bool whole = request->reason == LogoutReason::kCloseSession;
    if (is_discovery() && !whole) return RejectReason::kProtocolError;
  } else {
    const Result<TaskManagementRequest, RejectReason> request =
        parse_task_management_request(pdu.bhs);
    if (!request) return request.error();
  }
  if (background_.count() < kMostBackground) return std::nullopt;
  return immediate ? RejectReason::kTooManyImmediateCommands : RejectReason::kLongOperationReject;
}

// Section 11.10: one exchange a connection. A new request forgets one that waits for the initiator,
// and has to wait for one that is being answered.
std::optional<RejectReason> Session::objection_to_text(const ConnectionLink& link,
                                                       const IncomingPdu& pdu) const {
  const Result<TextRequest, RejectReason> request = parse_text_request(pdu.bhs);
  if (!request) return request.error();
  if (pdu.data_dropped) return RejectReason::kLongOperationReject;
  if (link.text_busy) return RejectReason::kProtocolError;
  const bool fits = request->target_transfer_tag == kReservedTag ||
                    (request->initiator_task_tag == link.text_task_tag &&
                     request->target_transfer_tag == link.text_transfer_tag);
  if (!fits) return RejectReason::kProtocolError;
  return std::nullopt;
}

// Marks a CmdSN as received without anything to execute for it.
void Session::consume(std::uint32_t cmd_sn) {
  if (serial_less(cmd_sn, exp_cmd_sn_)) return;
  Slot& slot = slot_of(cmd_sn);
  if (slot.kind == Slot::Kind::kEmpty) ++waiting_count_;
  empty(slot);
  slot.kind = Slot::Kind::kConsumed;
  advance();
}

// Executes what has become next in order.
void Session::advance() {
  while (waiting_count_ > 0 && slot_of(exp_cmd_sn_).kind != Slot::Kind::kEmpty) {
    Slot slot = empty(slot_of(exp_cmd_sn_));
    --waiting_count_;
    if (slot.kind == Slot::Kind::kPdu && !slot.link->ended) {
      const std::optional<RejectReason> objection = objection_to(*slot.link, *slot.pdu);
      if (objection) {
        reject(*slot.link, *objection, *slot.pdu);
        break;
      }
    }
    ++exp_cmd_sn_;
    if (slot.kind == Slot::Kind::kTask) deliver_task(*slot.task);
    if (slot.kind == Slot::Kind::kPdu && !slot.link->ended) process(*slot.link, *slot.pdu);
  }
  refresh_window();
  std::erase_if(
      fences_, [this](const Fence& fence) { return serial_less_equal(fence.cmd_sn, exp_cmd_sn_); });
  tell_window();
}

void Session::process(ConnectionLink& link, IncomingPdu& pdu) {
  switch (pdu.opcode()) {
    case Opcode::kNopOut:
      return process_nop_out(link, pdu);
    case Opcode::kLogoutRequest:
      return process_logout(link, pdu);
    case Opcode::kTextRequest:
      return process_text(link, pdu);
    case Opcode::kTaskManagementRequest:
      return process_task_management(link, pdu);
    default:
      return;
  }
}

}  // namespace sandbay::iscsi
